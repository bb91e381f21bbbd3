//! Which engine, and that no other one is used instead.

use std::process::Command;

use crate::machine::{Machine, finish};

/// What happens must not depend on the command.
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
fn a_url_that_cannot_be_used_is_78() {
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
fn a_configuration_file_that_cannot_be_used_is_78_and_is_named() {
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
fn an_engine_that_is_configured_and_not_there_is_an_error_and_never_a_local_lock() {
    let machine = Machine::new();
    // Port 1 is nobody's. 69 when the engine is part of this build, 78 when it is not.
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
fn a_flag_goes_before_the_environment_and_that_before_the_file() {
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
fn a_lock_that_reaches_less_far_than_asked_for_is_refused() {
    let machine = Machine::new();
    for words in [&["run", "--scope", "cluster", "job", "touch", "ran"][..], &["hold", "--scope", "cluster", "job"]] {
        let done = machine.run(words);
        assert!(done.code == 78 && done.stderr.contains("--scope"), "{}", done.stderr);
    }
    assert!(!machine.path("ran").exists() && machine.lock_files().is_empty());
    assert_eq!(machine.code(&["run", "--scope", "host", "job", "true"]), 0);
    assert_eq!(machine.code(&["run", "--scope", "host", "--url", "mem://", "job", "true"]), 78, "one process");
}
