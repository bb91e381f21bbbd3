//! The commands in the documentation run, and it lists every command, flag and code.
//!
//! Blocks run as they stand on the page, but for three things of which every run has its own: `/tmp/`, the address of
//! Redis (127.0.0.1:6379) and that of an application (127.0.0.1:8080). cargo is a stand-in that starts what is built.
#![allow(missing_docs)]

mod common;

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use distlock_testkit::servers::{Port, RedisServer};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the text of a file of the repository.
fn page(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the blocks in this language, each with its first line number.
fn blocks(text: &str, language: &str) -> Vec<(usize, String)> {
    let begin = format!("```{language}");
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut is_inside = false;
    for (number, line) in (1..).zip(text.lines()) {
        match line {
            _ if line == begin => {
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

/// What the blocks of one page run in: a directory, removed at the end, and the servers that the page names.
struct Scratch {
    dir: PathBuf,
    redis: Option<RedisServer>,
    port: Port,
}

impl Scratch {
    fn new(path: &str, text: &str) -> Scratch {
        let name = path.replace('/', "-");
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("home")).unwrap();
        std::fs::create_dir_all(dir.join("bin")).unwrap();
        let redis = text.contains("127.0.0.1:6379").then(RedisServer::start);
        Scratch { dir, redis, port: Port::free() }
    }

    /// Puts a stand-in for cargo into the search path. It knows the commands of the pages, and refuses any other.
    fn put_cargo(&self, text: &str) {
        let program = env!("CARGO_BIN_EXE_distlock");
        let example = |name: &str| {
            let run = format!("run -p distlock-examples --example {name}");
            text.contains(&run).then(|| format!("'{run}') exec '{}' ;;", common::example(name).display()))
        };
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in\n\
             'run --release -- '*) shift 3; exec '{program}' \"$@\" ;;\n\
             'install --locked --path crates/distlock-cli') mkdir -p ~/.cargo/bin; exec ln -sf '{program}' ~/.cargo/bin/ ;;\n\
             {}\n\
             *) echo \"the stand-in does not know: cargo $*\" >&2; exit 64 ;;\nesac\n",
            example("service").unwrap_or_default()
        );
        let path = self.dir.join("bin/cargo");
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// Returns a script with the places of this run.
    fn placed(&self, script: &str) -> String {
        let script = script.replace("/tmp/", &format!("{}/", self.dir.display()));
        let script = script.replace("127.0.0.1:8080", &self.port.address().to_string());
        match &self.redis {
            Some(redis) => script.replace("127.0.0.1:6379", &redis.address().to_string()),
            None => script,
        }
    }

    /// Runs a block, and kills what it has left behind. Returns its exit code and what it printed.
    fn run(&self, script: &str) -> (Option<i32>, String) {
        let path = self.dir.join("output");
        let output = File::create(&path).unwrap();
        let mut shell = self.shell(script);
        shell.process_group(0).stdout(output.try_clone().unwrap()).stderr(output);
        let mut child = shell.spawn().unwrap();
        let pid = Pid::from_child(&child);
        // Not reaped before its group is killed: the number stays ours.
        waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
        kill_process_group(pid, Signal::KILL).unwrap();
        let status = child.wait().unwrap();
        (status.code(), String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned())
    }

    /// Returns a shell that runs a block.
    fn shell(&self, script: &str) -> Command {
        let dir = &self.dir;
        let program = Path::new(env!("CARGO_BIN_EXE_distlock")).parent().unwrap();
        let places = [&dir.join("bin"), &dir.join("home/.cargo/bin"), program].map(|place| place.display().to_string());
        let path = format!("{}:{}", places.join(":"), std::env::var("PATH").unwrap());
        let mut shell = Command::new("timeout");
        shell.args(["60", "sh", "-euc", &self.placed(script)]).current_dir(dir).stdin(Stdio::null());
        for (variable, _) in std::env::vars_os().filter(|(it, _)| it.to_string_lossy().starts_with("DISTLOCK_")) {
            shell.env_remove(variable);
        }
        shell.env("PATH", &path).env("HOME", dir.join("home")).env_remove("XDG_CONFIG_HOME");
        shell.env("DISTLOCK_LOCK_DIR", dir.join("locks"));
        shell
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn assert_runs(path: &str) {
    let text = page(path);
    let blocks = blocks(&text, "sh");
    assert!(!blocks.is_empty(), "{path}");
    let scratch = Scratch::new(path, &text);
    scratch.put_cargo(&text);
    for (line, script) in &blocks {
        let (code, printed) = scratch.run(script);
        assert_eq!(code, Some(0), "{path}:{line}\n{script}\n{printed}");
    }
}

#[test]
fn every_command_in_the_readme_runs() {
    assert_runs("README.md");
}

#[test]
fn every_command_in_start_shell_md_runs() {
    assert_runs("docs/start-shell.md");
}

#[test]
fn every_command_in_start_rust_md_runs() {
    assert_runs("docs/start-rust.md");
}

#[test]
fn every_command_in_start_operator_md_runs() {
    assert_runs("docs/start-operator.md");
}

#[test]
fn every_command_in_cli_md_runs() {
    assert_runs("docs/cli.md");
}

#[test]
fn every_command_in_operations_md_runs() {
    assert_runs("docs/operations.md");
}

#[test]
fn every_command_in_serve_md_runs() {
    assert_runs("docs/serve.md");
}

#[test]
fn every_command_in_migrating_md_runs() {
    assert_runs("docs/migrating.md");
}

#[test]
fn every_command_in_console_md_runs() {
    assert_runs("docs/console.md");
}

#[test]
fn every_command_in_the_pages_of_engines_runs() {
    assert_runs("docs/backends/file.md");
    assert_runs("docs/backends/redis.md");
}

#[test]
fn every_command_in_choosing_md_and_mistakes_md_runs() {
    assert_runs("docs/choosing.md");
    assert_runs("docs/mistakes.md");
}

/// What the stand-in for cargo replaces is there: `cargo run` at the root starts the program.
#[test]
fn cargo_run_starts_the_program() {
    assert!(page("Cargo.toml").contains("\ndefault-members = [\"crates/distlock-cli\"]\n"));
    assert!(page("crates/distlock-cli/Cargo.toml").contains("\n[[bin]]\nname = \"distlock\"\n"));
}

/// The commands of the recording in the README run, and are all that the picture shows as typed.
#[test]
fn every_recorded_command_runs() {
    let picture = page("docs/images/terminal.svg");
    let typed = picture.split("<tspan class=\"typed\">").skip(1).filter_map(|rest| rest.split("</tspan>").next());
    let typed: Vec<String> = typed
        .map(|text| text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&"))
        .collect();
    assert!(typed.len() > 3, "{typed:?}");
    let scratch = Scratch::new("terminal.svg", "");
    let (code, printed) = scratch.run(&format!("{}\nwait\n", typed.join("\n")));
    assert_eq!(code, Some(0), "{typed:#?}\n{printed}");
}

/// The service of start-rust.md is the example that the tests build.
#[test]
fn start_rust_md_shows_the_example() {
    let text = page("docs/start-rust.md");
    let shown: Vec<String> = blocks(&text, "rust").into_iter().map(|(_, block)| block).collect();
    let example = page("crates/distlock-examples/examples/service.rs");
    let code = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.is_empty() && !line.starts_with("//!")).map(str::to_owned).collect()
    };
    assert_eq!(
        code(&shown.concat()),
        code(&example),
        "docs/start-rust.md shows another service than examples/service.rs"
    );
}

#[test]
fn cli_md_lists_every_command_flag_and_code() {
    let text = page("docs/cli.md");
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
    assert_eq!(blocks(text, "sh"), [(3, "b\nc\n".to_owned()), (10, "e\n".to_owned())]);
}
