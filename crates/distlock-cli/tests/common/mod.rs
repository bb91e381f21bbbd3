//! Real processes for the tests: start, signal and await the harness.
#![allow(missing_docs, dead_code)]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// Longer than any step here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Builds and returns the path of the harness: `distlock run` on a controllable lock; see tests/harness/supervised.rs.
pub(crate) fn harness() -> &'static Path {
    static HARNESS: LazyLock<PathBuf> = LazyLock::new(|| example("supervised"));
    &HARNESS
}

/// Builds and returns the path of an example of the workspace.
pub(crate) fn example(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_distlock")).with_file_name("examples").join(name);
    // `cargo test --test …` builds no examples, and would silently test an old one.
    let mut build = Command::new(env!("CARGO"));
    // The features of `cargo xtask test`: with others, half the dependencies would be compiled again.
    build.args(["build", "--quiet", "--workspace", "--all-features", "--example", name]);
    build.args(path.iter().any(|part| part == "release").then_some("--release"));
    // Build scripts of other packages take cargo's variables for this package as a change.
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            build.env_remove(name);
        }
    }
    assert!(build.stderr(Stdio::null()).status().expect("cargo runs").success(), "{name} is built");
    path
}

pub(crate) fn run(words: &[&str]) -> Command {
    let mut command = Command::new(harness());
    command.arg("run").args(words);
    command
}

/// A running harness; killed with all its processes when a test fails.
pub(crate) struct Wrapper {
    child: Child,
    stdout: BufReader<ChildStdout>,
    pub(crate) started: Instant,
}

impl Wrapper {
    pub(crate) fn start(command: &mut Command) -> Wrapper {
        let started = Instant::now();
        let mut child = command.process_group(0).stdout(Stdio::piped()).spawn().expect("the harness starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Wrapper { child, stdout, started }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Returns the next line of the command's output.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line.trim_end().to_string()
    }

    /// Returns the next line as a process id.
    pub(crate) fn line_pid(&mut self) -> Pid {
        Pid::from_raw(self.line().trim().parse().expect("a process id")).expect("not zero")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the wrapper is there");
    }

    pub(crate) fn signal_group(&self, signal: Signal) {
        kill_process_group(self.pid(), signal).expect("the wrapper is there");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        eventually("the wrapper ends", || self.child.try_wait().expect("a child"))
    }

    /// Returns the harness's stdin, if it is a pipe; dropping it ends the command's input.
    pub(crate) fn stdin(&mut self) -> std::process::ChildStdin {
        self.child.stdin.take().expect("piped, and not taken before")
    }

    /// Returns the remaining output once every process has closed it.
    pub(crate) fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).expect("text");
        rest
    }
}

impl Drop for Wrapper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the code, or 128 + signal as shells do.
pub(crate) fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().expect("a signal"))
}

/// Waits until `probe` returns a value.
pub(crate) fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(start.elapsed() < LIMIT, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the state letter of a process; `None` when it is gone. A zombie has ended.
pub(crate) fn state(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

pub(crate) fn is_alive(pid: Pid) -> bool {
    !matches!(state(pid), None | Some('Z' | 'X'))
}

pub(crate) fn await_gone(pid: Pid) {
    eventually("a process is gone", || (!is_alive(pid)).then_some(()));
}

pub(crate) fn await_state(pid: Pid, letter: char) {
    eventually("a process changes its state", || (state(pid) == Some(letter)).then_some(()));
}

/// Returns a file name for one test.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}
