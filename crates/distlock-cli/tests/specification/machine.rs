//! A separate machine for each test: an empty lock directory, an empty home, no configuration.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::Pid;
use serde_json::Value;

use crate::common::{Wrapper, code, eventually};

/// The lock directory, the working directory and the home of the processes started here. Removed at the end.
pub(crate) struct Machine {
    dir: PathBuf,
    /// The engine that the environment names.
    url: Option<String>,
}

impl Machine {
    pub(crate) fn new() -> Machine {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("machine-{}-{number}", std::process::id()));
        // Files of a killed test run with the same process id.
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Machine { dir, url: None }
    }

    /// Returns a machine whose locks are on a server.
    pub(crate) fn with_server(url: String) -> Machine {
        let mut machine = Machine::new();
        machine.url = Some(url);
        machine
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Returns a command for any program, in the environment of this machine.
    pub(crate) fn command(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DISTLOCK_")) {
            command.env_remove(name);
        }
        let home = self.path("home");
        command.args(words).current_dir(&self.dir).stdin(Stdio::null());
        command.env("HOME", &home).env("XDG_CONFIG_HOME", home.join(".config"));
        command.env("DISTLOCK_LOCK_DIR", self.path("locks")).env("DISTLOCK", DISTLOCK);
        command.envs(self.url.iter().map(|url| ("DISTLOCK_URL", url)));
        command
    }

    pub(crate) fn distlock(&self, words: &[&str]) -> Command {
        self.command(DISTLOCK, words)
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, words: &[&str]) -> Done {
        finish(&mut self.distlock(words))
    }

    /// Returns the exit code of the program.
    pub(crate) fn code(&self, words: &[&str]) -> i32 {
        self.run(words).code
    }

    /// Whether the lock can be acquired now.
    pub(crate) fn is_free(&self, name: &str) -> bool {
        match self.code(&["run", "-n", "-q", name, "true"]) {
            0 => true,
            75 => false,
            other => panic!("{name}: {other}"),
        }
    }

    /// Holds `name` until the wrapper is dropped or signalled.
    pub(crate) fn hold(&self, name: &str) -> Wrapper {
        let mut holder = Wrapper::start(self.distlock(&["hold", name]).stdin(Stdio::piped()));
        assert!(holder.line().starts_with(&format!("{name} token ")), "it holds {name}");
        holder
    }

    /// Returns the output of `show`.
    pub(crate) fn show(&self, name: &str) -> Value {
        serde_json::from_str(&self.run(&["show", "--json", name]).stdout).expect("JSON")
    }

    /// Waits until `count` waiters wait for `name`.
    pub(crate) fn await_waiters(&self, name: &str, count: usize) {
        let waiting = || self.show(name)["waiters"].as_array().map(Vec::len);
        eventually("a waiter in the queue", || (waiting() == Some(count)).then_some(()));
    }

    pub(crate) fn await_free(&self, name: &str) {
        eventually("the lock is free", || self.is_free(name).then_some(()));
    }

    /// Returns the files in the lock directory, subdirectories included.
    pub(crate) fn lock_files(&self) -> Vec<String> {
        let mut found = Vec::new();
        list(&self.path("locks"), "", &mut found);
        // Every lock has an anchor, which stays like its file.
        found.retain(|name| !name.ends_with(".held"));
        found.sort();
        found
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill_remaining();
        // A process may still be leaving a queue in it.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Machine {
    /// Kills the processes of a failed test, background processes included.
    fn kill_remaining(&self) {
        let mark = format!("DISTLOCK_LOCK_DIR={}", self.text("locks")).into_bytes();
        for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
            let pid = process.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
            if let Some(pid) = pid.filter(|_| environment.split(|byte| *byte == 0).any(|entry| entry == mark)) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

pub(crate) const DISTLOCK: &str = env!("CARGO_BIN_EXE_distlock");

fn list(dir: &Path, inside: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = format!("{inside}{}", entry.file_name().to_string_lossy());
        list(&entry.path(), &format!("{name}/"), found);
        found.push(name);
    }
}

/// The result of a program that has ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) status: ExitStatus,
    /// The code, or 128 + signal.
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs a program to its end. A program that does not end is killed and fails the test instead of hanging it.
pub(crate) fn finish(command: &mut Command) -> Done {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let pid = rustix::process::Pid::from_child(&child);
    let end = std::thread::scope(|scope| {
        let mut pipes = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let read = |pipe: &mut dyn std::io::Read| {
            let mut bytes = Vec::new();
            pipe.read_to_end(&mut bytes).map(|_| bytes)
        };
        let stdout = scope.spawn(move || read(&mut pipes.0));
        let stderr = scope.spawn(move || read(&mut pipes.1));
        let start = std::time::Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if start.elapsed() > crate::common::LIMIT {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                break None;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        };
        let (stdout, stderr) = (stdout.join().unwrap().unwrap(), stderr.join().unwrap().unwrap());
        status.map(|status| Output { status, stdout, stderr })
    });
    let Output { status, stdout, stderr } = end.unwrap_or_else(|| panic!("not in time: {command:?}"));
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Done { status, code: code(status), stdout: text(stdout), stderr: text(stderr) }
}
