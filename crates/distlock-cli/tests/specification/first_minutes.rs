//! The first minutes of a new user: what the program says before anything is known, and what to do next.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use crate::machine::{Machine, finish};

/// Returns the examples of a help text as words, as a shell would split them.
fn examples(text: &str) -> Vec<Vec<OsString>> {
    let example = |line: &str| {
        let line = line.strip_prefix("  ")?;
        line.strip_prefix("token=$(").unwrap_or(line).strip_prefix("distlock ").map(|rest| format!("distlock {rest}"))
    };
    let words = |line: &str| {
        // Redirections, and what the shell does around the command, are not for the program.
        let line = line.split("  ").next().unwrap().split([')', '<', '&']).next().unwrap().replace('$', "x");
        let mut words = Vec::new();
        for (number, part) in line.split('\'').enumerate() {
            match number % 2 {
                0 => words.extend(part.split_whitespace().map(OsString::from)),
                _ => words.push(part.into()),
            }
        }
        words
    };
    text.lines().filter_map(example).map(|line| words(&line)).collect()
}

#[test]
fn without_a_command_it_shows_the_three_most_useful_ones() {
    let done = Machine::new().run(&[]);
    assert_eq!((done.code, done.stdout.as_str()), (64, ""));
    let shown = examples(&done.stderr);
    let commands: Vec<_> = shown.iter().map(|words| words[1].to_str().unwrap()).collect();
    assert_eq!(commands, ["run", "ls", "doctor"], "{}", done.stderr);
    assert!(done.stderr.contains("distlock help"), "{}", done.stderr);
}

#[test]
fn help_has_examples_and_every_example_is_accepted() {
    let machine = Machine::new();
    let mut texts = vec![machine.run(&[]).stderr];
    for command in distlock_cli::flags::definition().get_subcommands() {
        let done = machine.run(&["help", command.get_name()]);
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{}", command.get_name());
        assert_eq!(done.stdout, machine.run(&[command.get_name(), "--help"]).stdout, "{}", command.get_name());
        texts.push(done.stdout);
    }
    let run =
        texts.iter().find(|text| text.contains("distlock run nightly -- ./backup.sh --all")).expect("help of run");
    assert!(examples(run).len() > 4, "{run}");
    let all: Vec<_> = texts.iter().flat_map(|text| examples(text)).collect();
    assert!(all.len() > 20, "{all:?}");
    for words in all {
        let parsed = distlock_cli::command_line::parse(words.clone());
        assert!(parsed.is_ok(), "{words:?}: {}", parsed.unwrap_err());
    }
    assert_eq!(machine.code(&["help", "nonsense"]), 64);
}

#[test]
fn help_says_what_the_program_is_and_lists_the_settings() {
    let machine = Machine::new();
    let text = machine.run(&["help"]).stdout;
    assert!(text.starts_with("Run a command while holding a lock"), "{text}");
    assert_eq!(text, machine.run(&["--help"]).stdout);
    let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
    let named: Vec<_> = text.split(|c| !is_name(c)).filter(|word| word.starts_with("DISTLOCK_")).collect();
    assert!(named.len() > 10, "{named:?}");
    for name in named {
        let done = finish(machine.distlock(&["man"]).env(name, ""));
        assert!(!done.stderr.contains("is no setting"), "{name}: {}", done.stderr);
    }
    assert!(finish(machine.distlock(&["man"]).env("DISTLOCK_URLL", "")).stderr.contains("`distlock help` lists"));
}

#[test]
fn doctor_without_an_engine_explains_the_locks_of_this_machine() {
    let machine = Machine::new();
    let done = machine.run(&["doctor"]);
    assert_eq!(done.code, 0);
    for part in ["no engine is configured", &machine.text("locks"), "this machine", "DISTLOCK_URL", "redis://"] {
        assert!(done.stderr.contains(part), "{part}: {}", done.stderr);
    }
    assert_eq!(machine.run(&["doctor", "mem://"]).stderr, "", "an engine was named");
    assert_eq!(machine.run(&["doctor", "-q"]).stderr, "");
    let json: serde_json::Value = serde_json::from_str(&machine.run(&["doctor", "--json"]).stderr).unwrap();
    assert_eq!(json["event"], "local");
}

#[test]
fn an_error_says_what_to_do_next() {
    let machine = Machine::new();
    machine.write("data", "not a program");
    let data = machine.text("data");
    let rows: [(&[&str], i32, &str); 14] = [
        (&["ls", "--url", "redis://127.0.0.1:1"], 69, "`distlock doctor` with the same URL"),
        (&["run", "--url", "etcd://127.0.0.1:1", "job", "true"], 69, "`distlock doctor`"),
        (&["ls", "--url", "nonsense"], 78, "redis://"),
        (&["run", "job", "no-such-command"], 127, "PATH"),
        (&["run", "job", &data], 126, "may execute"),
        (&["run", "job", "-w", "5", "true"], 127, "before the name of the lock"),
        (&["run", "no/such/directory", "true"], 73, "make its directory first"),
        (&["release", "job", "--token", "7.0123456789abcdef0123456789abcdef"], 79, "acquire it again"),
        (&["break", "job", "--if-token", "7", "--reason", "x"], 75, "`distlock show`"),
        (&["ls", "--scope", "cluster"], 78, "DISTLOCK_URL"),
        (&["man", "nonsense"], 64, "`distlock help`"),
        (&["ls", "--config", "no-such-file"], 78, "no-such-file"),
        (&["run", "", "true"], 64, "1 to 512 bytes of UTF-8"),
        (&["run", "--status-fd", "77", "job", "true"], 64, "77> FILE"),
    ];
    for (words, code, step) in rows {
        let done = machine.run(words);
        assert_eq!(done.code, code, "{words:?}: {}", done.stderr);
        assert!(done.stderr.contains(step), "{words:?}: {}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1, "{words:?}: {}", done.stderr);
    }
}

/// A pipe whose reader is gone.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    OwnedFd::from(writer).into()
}

#[test]
fn a_reader_that_stops_reading_is_no_failure() {
    let machine = Machine::new();
    let commands: [&[&str]; 10] = [
        &["help"],
        &["help", "run"],
        &["--version"],
        &["man"],
        &["completions", "bash"],
        &["ls"],
        &["ls", "--json"],
        &["show", "job"],
        &["doctor", "-v"],
        &["history", "job"],
    ];
    for words in commands {
        let mut command: Command = machine.distlock(words);
        let done = command.stdout(closed_pipe()).stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && !stderr.contains("panicked"), "{words:?}: {} {stderr}", done.status);
    }
    let done = machine.distlock(&[]).stderr(closed_pipe()).output().unwrap();
    assert_eq!(done.status.code(), Some(64));
}

#[test]
fn output_into_a_pipe_has_no_escape_sequences_and_no_long_lines() {
    let machine = Machine::new();
    let _holder = machine.hold("job");
    for words in [&["help"][..], &["help", "run"], &["help", "doctor"], &["ls"], &["show", "job"], &["doctor", "-v"]] {
        for variable in ["NO_COLOR", "CLICOLOR_FORCE"] {
            let done = finish(machine.distlock(words).env(variable, "1").env("TERM", "xterm-256color"));
            assert!(!done.stdout.contains('\u{1b}') && !done.stderr.contains('\u{1b}'), "{words:?}: {}", done.stdout);
            if words[0] == "help" {
                let widest = done.stdout.lines().map(|line| line.chars().count()).max();
                assert!(widest <= Some(100), "{words:?}: {}", done.stdout);
            }
        }
    }
}
