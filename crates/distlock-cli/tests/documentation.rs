//! The commands in the documentation run, and it lists every command, flag and code.
#![allow(missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the blocks marked `sh`, each with its first line number.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut is_inside = false;
    for (number, line) in (1..).zip(text.lines()) {
        match line {
            "```sh" => {
                is_inside = true;
                blocks.push((number + 1, String::new()));
            }
            "```" => is_inside = false,
            _ if is_inside => {
                let (_, block) = blocks.last_mut().expect("begun above");
                block.push_str(line);
                block.push('\n');
            }
            _ => {}
        }
    }
    blocks
}

/// A directory for one page, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(page: &str) -> Scratch {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{page}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("home")).unwrap();
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn assert_runs(name: &str) {
    let scratch = Scratch::new(name);
    let dir = &scratch.0;
    let program = Path::new(env!("CARGO_BIN_EXE_distlock")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let blocks = blocks(&page(name));
    assert!(!blocks.is_empty(), "{name}");
    for (line, script) in blocks {
        // Paths in the pages are for readers; here every run has its own.
        let script = script.replace("/tmp/", &format!("{}/", dir.display()));
        let mut shell = Command::new("timeout");
        shell.args(["60", "sh", "-euc", &script]).current_dir(dir).stdin(Stdio::null());
        for (variable, _) in std::env::vars_os().filter(|(it, _)| it.to_string_lossy().starts_with("DISTLOCK_")) {
            shell.env_remove(variable);
        }
        shell.env("PATH", &path).env("HOME", dir.join("home")).env("XDG_CONFIG_HOME", dir.join("home"));
        let output = shell.env("DISTLOCK_LOCK_DIR", dir.join("locks")).output().unwrap();
        assert!(
            output.status.success(),
            "docs/{name}:{line}: {}\n{script}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn every_command_in_cli_md_runs() {
    assert_runs("cli.md");
}

#[test]
fn every_command_in_operations_md_runs() {
    assert_runs("operations.md");
}

#[test]
fn every_command_in_serve_md_runs() {
    assert_runs("serve.md");
}

#[test]
fn every_command_in_migrating_md_runs() {
    assert_runs("migrating.md");
}

#[test]
fn cli_md_lists_every_command_flag_and_code() {
    let text = page("cli.md");
    let mut program = distlock_cli::flags::definition();
    program.build();
    for command in program.get_subcommands().filter(|command| command.get_name() != "help") {
        assert!(text.contains(&format!("`{}", command.get_name())), "{}", command.get_name());
        let flags = command.get_arguments().filter_map(|argument| argument.get_long());
        for flag in flags.filter(|flag| *flag != "help") {
            assert!(text.contains(&format!("--{flag}")), "{} --{flag}", command.get_name());
        }
    }
    for code in [64, 69, 70, 73, 75, 77, 78, 79, 126, 127] {
        let row = text.lines().any(|line| line.starts_with('|') && line.replace('*', "").contains(&code.to_string()));
        assert!(row, "{code}");
    }
}

#[test]
fn blocks_are_found_with_their_lines() {
    let text = "a\n```sh\nb\nc\n```\n```text\nd\n```\n```sh\ne\n```\n";
    assert_eq!(blocks(text), [(3, "b\nc\n".to_owned()), (10, "e\n".to_owned())]);
}
