//! Which engine is used, and that no other one is used instead.

use std::process::Command;

use crate::machine::{Machine, finish};

/// The result must not depend on the command.
const COMMANDS: [&[&str]; 4] = [&["run", "job", "touch", "ran"], &["hold", "job"], &["acquire", "job"], &["ls"]];

fn assert_refused(machine: &Machine, codes: &[i32], hint: &str, setup: impl Fn(&mut Command)) {
    for words in COMMANDS {
        let mut command = machine.distlock(words);
        setup(&mut command);
        let done = finish(&mut command);
        assert!(codes.contains(&done.code), "{words:?}: {} {}", done.code, done.stderr);
        assert!(done.stderr.contains(hint), "{words:?}: {}", done.stderr);
        assert!(done.stdout.is_empty() && !done.stderr.contains("hunter2"), "{words:?}: {}", done.stderr);
    }
    assert!(!machine.path("ran").exists(), "{hint}: the command did not run");
    assert!(machine.lock_files().is_empty(), "{hint}: no lock of this machine was taken instead");
}

#[test]
fn an_invalid_url_is_78() {
    let machine = Machine::new();
    for url in ["", " ", "nonsense", "redis:hunter2@host", "gopher://u:hunter2@host/", "redis://u:hunter2@:notaport/"] {
        assert_refused(&machine, &[78], "", |command| {
            command.env("DISTLOCK_URL", url);
        });
    }
    assert_refused(&machine, &[78], "DISTLOCK_URL", |command| {
        command.env("DISTLOCK_URL", "");
    });
}

#[test]
fn an_unknown_scheme_is_named_without_the_rest_of_the_url() {
    let machine = Machine::new();
    assert_refused(&machine, &[78], "an unknown scheme \"ftp\"", |command| {
        command.env("DISTLOCK_URL", "ftp://u:hunter2@host/hunter2?hunter2#hunter2");
    });
    // A text that looks like a password, or like the beginning of one, is not named as a scheme.
    for url in ["hunter2://host", "u:hunter2@h://x"] {
        assert_refused(&machine, &[78], "an unknown scheme; known are", |command| {
            command.env("DISTLOCK_URL", url);
        });
    }
}

#[test]
fn a_variable_that_is_no_setting_is_named_and_the_old_name_of_one_is_none() {
    let machine = Machine::new();
    let run = |name: &str| finish(machine.distlock(&["run", "job", "true"]).env(name, "7s"));
    let done = run("DISTLOCK_TLL");
    assert_eq!(done.code, 0);
    assert!(done.stderr.contains("DISTLOCK_TLL") && done.stderr.contains("is ignored"), "{}", done.stderr);
    for known in ["DISTLOCK_TTL", "DISTLOCK_DEFAULT_TTL", "DISTLOCK_TOKEN"] {
        assert_eq!((run(known).code, run(known).stderr.as_str()), (0, ""), "{known}");
    }
}

#[test]
fn common_options_may_precede_the_command() {
    let machine = Machine::new();
    let url = format!("file://{}", machine.text("elsewhere"));
    machine.write("other.toml", &format!("url = {url:?}"));
    assert_eq!(machine.code(&["--url", &url, "run", "by-url", "true"]), 0);
    assert_eq!(machine.code(&["--config=other.toml", "run", "by-config", "true"]), 0);
    assert!(machine.path("elsewhere/by-url.lock").exists() && machine.path("elsewhere/by-config.lock").exists());
    assert!(machine.lock_files().is_empty(), "nothing was locked in the usual place");

    let shown = machine.run(&["-v", "--json", "--url", &url, "run", "job", "true"]).stderr;
    assert!(shown.lines().count() > 2 && shown.lines().all(|line| line.starts_with('{')), "{shown}");
    let quiet = machine.run(&["-q", "run", "job", "no-such-command"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (127, ""));
    let conflict = machine.run(&["-q", "run", "-v", "job", "true"]);
    assert!(conflict.code == 64 && conflict.stderr.contains("cannot be used with"), "{}", conflict.stderr);

    // The background process gets the same arguments.
    let held = machine.run(&["--json", "--url", &url, "acquire", "kept"]).stdout;
    let held: serde_json::Value = serde_json::from_str(&held).expect("JSON");
    assert!(held["engine"].as_str().is_some_and(|engine| engine.ends_with("/elsewhere")), "{held}");
    let token = held["token"].as_str().unwrap().to_owned();
    let release = ["release", "kept", "--token", &token];
    let refused = machine.run(&[&["--url", &url][..], &release].concat());
    assert!(refused.code == 64 && refused.stderr.contains("--url"), "release takes no engine: {}", refused.stderr);
    assert_eq!(machine.code(&[&["-q"][..], &release].concat()), 0);
    let verdict = machine.run(&["--json", "--url", &url, "verify", "--time", "0.3", "--workers", "2"]);
    assert!(verdict.code == 0 && verdict.stdout.contains("\"safe\""), "{} {}", verdict.stdout, verdict.stderr);
}

#[test]
fn the_user_name_is_shown_without_a_variable() {
    let machine = Machine::new();
    let name = machine.run(&["run", "job", "id", "-un"]).stdout;
    let user = |value: Option<&str>| {
        let mut command = machine.distlock(&["run", "job", "-c", "$DISTLOCK show --json job"]);
        command.env_remove("USER").envs(value.map(|value| ("USER", value)));
        let shown: serde_json::Value = serde_json::from_str(&finish(&mut command).stdout).expect("JSON");
        shown["holder"]["user"].as_str().expect("a user").to_owned()
    };
    assert_eq!(user(None), name.trim());
    assert_eq!(user(Some("")), name.trim());
    assert_eq!(user(Some("somebody")), "somebody");
}

#[test]
fn an_invalid_configuration_file_is_78_and_is_named() {
    let machine = Machine::new();
    let rows = [
        ("bad.toml", "url = ", "bad.toml"),
        ("unknown.toml", "url = \"mem://\"\ncolour = \"blue\"", "colour"),
        ("type.toml", "default_ttl = \"soon\"", "default_ttl"),
        ("secret.toml", "passwort = \"hunter2\"", "secret.toml"),
        ("half.toml", "password = \"hunter2\"", "no engine is named"),
    ];
    for (file, text, hint) in rows {
        machine.write("home/.config/distlock/config.toml", text);
        let hint_here = if hint == file { "config.toml" } else { hint };
        assert_refused(&machine, &[78], hint_here, |_| {});
    }
    std::fs::remove_dir_all(machine.path("home")).unwrap();
    for (file, text, hint) in rows {
        machine.write(file, text);
        let done = machine.run(&["run", "--config", file, "job", "touch", "ran"]);
        assert!(done.code == 78 && done.stderr.contains(hint), "{file}: {}", done.stderr);
        assert!(!done.stderr.contains("hunter2"), "{file}: {}", done.stderr);
    }
    let done = machine.run(&["run", "--config", "missing.toml", "job", "touch", "ran"]);
    assert!(done.code == 78 && done.stderr.contains("missing.toml"), "{}", done.stderr);
    assert!(!machine.path("ran").exists());
}

#[test]
fn variables_about_a_server_without_one_are_78() {
    let machine = Machine::new();
    for (name, value) in [("DISTLOCK_PASSWORD", "hunter2"), ("DISTLOCK_PREFIX", "p:"), ("DISTLOCK_USERNAME", "u")] {
        assert_refused(&machine, &[78], "no engine is named", |command| {
            command.env(name, value);
        });
    }
    assert_refused(&machine, &[78], "absolute", |command| {
        command.env("DISTLOCK_LOCK_DIR", "relative");
    });
}

#[test]
fn an_unreachable_configured_engine_is_an_error_and_never_a_local_lock() {
    let machine = Machine::new();
    // No server listens on port 1. 69 when the engine is part of this build, 78 when it is not.
    let urls = [
        (69, "redis://u:hunter2@127.0.0.1:1/"),
        (69, "rediss://:hunter2@127.0.0.1:1/"),
        (69, "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"),
        (69, "etcd://127.0.0.1:1/"),
    ];
    for (code, url) in urls {
        assert_refused(&machine, &[code], "", |command| {
            command.env("DISTLOCK_URL", url);
        });
        let done = machine.run(&["run", "--connect-timeout", "1s", "--url", url, "job", "touch", "ran"]);
        assert!(done.code == code && !done.stderr.contains("hunter2"), "{}", done.stderr);
    }
    machine.write("home/.config/distlock/config.toml", "driver = \"etcd\"\nendpoints = [\"127.0.0.1:1\"]");
    assert_refused(&machine, &[69], "etcd", |_| {});
}

#[test]
fn flags_override_the_environment_which_overrides_the_file() {
    let machine = Machine::new();
    let url = |name: &str| format!("file://{}", machine.text(name));
    let taken = |name: &str| machine.path(name).join("job.lock").exists();
    machine.write("home/.config/distlock/config.toml", &format!("url = {:?}", url("by-file")));
    machine.write("other.toml", &format!("url = {:?}", url("by-other")));

    assert_eq!(machine.code(&["run", "job", "true"]), 0);
    assert!(taken("by-file") && !taken("locks"));
    assert_eq!(machine.code(&["run", "--config", "other.toml", "job", "true"]), 0);
    assert!(taken("by-other"));
    let environment = |words: &[&str]| finish(machine.distlock(words).env("DISTLOCK_URL", url("by-variable"))).code;
    assert_eq!(environment(&["run", "--config", "other.toml", "job", "true"]), 0);
    assert!(taken("by-variable") && !taken("by-flag"));
    assert_eq!(environment(&["run", "--url", &url("by-flag"), "job", "true"]), 0);
    assert!(taken("by-flag"));
}

#[test]
fn an_engine_with_a_smaller_scope_is_refused() {
    let machine = Machine::new();
    for words in [&["run", "--scope", "cluster", "job", "touch", "ran"][..], &["hold", "--scope", "cluster", "job"]] {
        let done = machine.run(words);
        assert!(done.code == 78 && done.stderr.contains("--scope"), "{}", done.stderr);
    }
    assert!(!machine.path("ran").exists() && machine.lock_files().is_empty());
    assert_eq!(machine.code(&["run", "--scope", "host", "job", "true"]), 0);
    assert_eq!(machine.code(&["run", "--scope", "host", "--url", "mem://", "job", "true"]), 78, "one process");
}
