//! The command line: what is refused and what is printed.
#![allow(missing_docs)]

use std::process::{Command, Output};

fn distlock(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_distlock")).args(words).output().unwrap()
}

#[test]
fn a_usage_error_is_64_with_a_reason() {
    let rows: [(&[&str], &str); 13] = [
        (&[], "Usage"),
        (&["rum"], "run"),
        (&["run"], "NAME"),
        (&["run", "job"], "command is missing"),
        (&["run", "job", "--"], "command is missing"),
        (&["run", "--nonsense", "job", "true"], "--nonsense"),
        (&["run", "-w", "5x", "job", "true"], "5x"),
        (&["run", "-n", "-w", "1", "job", "true"], "cannot be used"),
        (&["run", "-E", "300", "job", "true"], "300"),
        (&["run", "-k", "20", "--ttl", "30", "job", "true"], "--kill-after"),
        (&["run", "a\nb", "true"], "control character"),
        (&["break", "job", "--if-token", "7"], "--reason"),
        (&["release", "job"], "--token"),
    ];
    for (words, hint) in rows {
        let output = distlock(words);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{words:?}: {message}");
        assert!(message.contains(hint), "{words:?}: {message}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
}

#[test]
fn help_and_version_exit_with_0() {
    for words in [&["--help"][..], &["--version"], &["run", "--help"], &["run", "-h"], &["ls", "--help"]] {
        let output = distlock(words);
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{words:?}");
    }
}

#[test]
fn completions_and_manual_pages_name_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = String::from_utf8(distlock(&["completions", shell]).stdout).unwrap();
        assert!(script.contains("completions") && script.contains("on-lost"), "{shell}");
    }
    let page = String::from_utf8(distlock(&["man"]).stdout).unwrap();
    assert!(page.contains(".TH distlock 1") && page.contains("distlock\\-run"), "{page}");
    let page = String::from_utf8(distlock(&["man", "run"]).stdout).unwrap();
    assert!(page.contains(".TH distlock-run 1") && page.contains("kill\\-after"), "{page}");
    assert_eq!(distlock(&["man", "nonsense"]).status.code(), Some(64));
}
