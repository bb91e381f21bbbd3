//! The workflows of continuous integration call the commands of this program and nothing else.

use std::fs;

use crate::{HELP, root, test};

/// Returns what a workflow runs, one command each.
fn commands(text: &str) -> Vec<&str> {
    let lines = text.lines().map(|line| line.trim().trim_start_matches("- "));
    lines.filter_map(|line| line.strip_prefix("run:")).map(str::trim).collect()
}

/// Says what is wrong with a command, if anything is.
fn fault(command: &str) -> Option<String> {
    let Some(rest) = command.strip_prefix("cargo xtask ") else {
        return Some(format!("`{command}` is no command of xtask"));
    };
    let words: Vec<&str> = rest.split(' ').collect();
    // The words up to the first option, as the help writes them.
    let names: Vec<&str> = words.iter().copied().take_while(|word| !word.starts_with('-')).collect();
    if let ["test", steps @ ..] = names.as_slice() {
        let unknown = steps.iter().find(|step| !test::step_names().any(|name| name == **step));
        return unknown.map(|step| format!("`{step}` is no step of the tests"));
    }
    let listed = |line: &str| format!("{} ", line.trim()).starts_with(&format!("cargo xtask {} ", names.join(" ")));
    let described = HELP.lines().find(|line| listed(line));
    let Some(described) = described else { return Some(format!("the help does not list `{command}`")) };
    let options = words.iter().filter(|word| word.starts_with("--") && **word != "--record");
    let unknown = options.clone().find(|option| !described.contains(**option));
    unknown.map(|option| format!("the help does not list {option} of `{command}`"))
}

#[test]
fn every_workflow_calls_commands_that_exist() {
    let mut all = 0;
    for file in fs::read_dir(root().join(".github/workflows")).expect("the workflows") {
        let path = file.expect("a file").path();
        let text = fs::read_to_string(&path).expect("text");
        let commands = commands(&text);
        all += commands.len();
        assert!(!commands.is_empty() && !text.contains("run: |"), "{}: one command each", path.display());
        let faults: Vec<_> = commands.into_iter().filter_map(fault).collect();
        assert_eq!(faults, [""; 0], "{}", path.display());
    }
    assert!(all >= 8, "{all}");
}

#[test]
fn other_commands_are_refused() {
    for bad in ["cargo test", "cargo xtask nonsense", "cargo xtask test nonsense", "cargo xtask package deb --fast"] {
        assert!(fault(bad).is_some(), "{bad}");
    }
    for good in
        ["cargo xtask test", "cargo xtask test fmt tidy", "cargo xtask package deb --into x", "cargo xtask deny"]
    {
        assert_eq!(fault(good), None, "{good}");
    }
    assert_eq!(commands("steps:\n  - run: a b\n  - uses: x\n    run: c\n"), ["a b", "c"]);
}
