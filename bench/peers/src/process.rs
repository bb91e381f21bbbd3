//! A worker process, as the driver sees it. Dropping it kills it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use crate::contestants::{Language, Programs, language};
use crate::last_holder;

/// Why a worker has no result.
pub(crate) type Failure = String;

pub(crate) struct Worker {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Worker {
    /// Starts the worker of `contestant`; the words are the arguments after its name.
    pub(crate) fn start(contestant: &str, words: &[String], programs: &Programs) -> Result<Worker, Failure> {
        let mut command = program(language(contestant), programs).ok_or("its program is not here")?;
        command.arg(contestant).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env(last_holder::VARIABLE, last_holder::path());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (stdin, stdout) = stdin.zip(stdout).ok_or("it has no pipes")?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Ok(Worker { child, stdin, lines })
    }

    pub(crate) fn say(&mut self, line: &str) -> Result<(), Failure> {
        writeln!(self.stdin, "{line}").and_then(|()| self.stdin.flush()).map_err(|error| error.to_string())
    }

    /// Waits for a line that begins with `word`; returns the rest of it.
    pub(crate) fn expect(&self, word: &str, limit: Duration) -> Result<String, Failure> {
        Ok(self.read_until(word, limit)?.remove(word).unwrap_or_default())
    }

    /// Waits for a line that begins with `word`; returns the lines up to it by their first words.
    pub(crate) fn read_until(&self, word: &str, limit: Duration) -> Result<HashMap<String, String>, Failure> {
        let (start, mut read) = (Instant::now(), HashMap::new());
        while !read.contains_key(word) {
            let left = limit.saturating_sub(start.elapsed());
            let line = self.lines.recv_timeout(left).map_err(|error| match error {
                mpsc::RecvTimeoutError::Timeout => format!("no `{word}` within {} s", limit.as_secs()),
                mpsc::RecvTimeoutError::Disconnected => format!("it ended before `{word}`"),
            })?;
            let (first, rest) = line.split_once(' ').unwrap_or((&line, ""));
            read.insert(first.to_owned(), rest.to_owned());
        }
        Ok(read)
    }

    /// Ends it as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.kill();
    }
}

fn program(language: Language, programs: &Programs) -> Option<Command> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    match language {
        Language::Rust => {
            let mut command = Command::new(std::env::current_exe().ok()?);
            command.arg("worker");
            Some(command)
        }
        Language::Python => {
            let mut command = Command::new(programs.python.as_ref()?);
            command.arg(here.join("python/worker.py"));
            Some(command)
        }
        Language::JavaScript => {
            let mut command = Command::new("node");
            // A module is looked up from the script's directory, and from here.
            command.env("NODE_PATH", programs.node.as_ref()?.join("node_modules"));
            command.arg(here.join("node/worker.cjs"));
            Some(command)
        }
        Language::Go => Some(Command::new(programs.go.as_ref()?)),
    }
}
