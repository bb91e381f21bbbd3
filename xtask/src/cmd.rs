//! A command line that can be printed as it would be typed, and run.

use std::fmt;
use std::io::{self, BufRead, BufReader, IsTerminal, PipeReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How often a silent command is polled.
const GLANCE: Duration = Duration::from_millis(100);
/// How long the last lines of a command are awaited after its end.
const LAST_LINES: Duration = Duration::from_secs(1);

/// A program with its arguments and variables.
#[derive(Debug, Clone)]
pub(crate) struct Cmd {
    words: Vec<String>,
    env: Vec<(String, String)>,
    hidden_env: Vec<(String, String)>,
    limit: Option<Duration>,
}

impl Cmd {
    /// A program without arguments.
    pub(crate) fn new(program: &str) -> Self {
        Cmd { words: vec![program.into()], env: Vec::new(), hidden_env: Vec::new(), limit: None }
    }

    /// Cargo with these arguments. On a CI server, where nothing is built a second time, it prepares nothing for that.
    pub(crate) fn cargo(args: &[&str]) -> Self {
        let cargo = Cmd::new("cargo").args(args);
        if std::env::var_os("CI").is_some() { cargo.hidden_env("CARGO_INCREMENTAL", "0") } else { cargo }
    }

    /// Adds arguments.
    pub(crate) fn args(mut self, args: &[&str]) -> Self {
        self.words.extend(args.iter().map(ToString::to_string));
        self
    }

    /// Sets a variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets a variable that is not needed to reproduce the result.
    pub(crate) fn hidden_env(mut self, name: &str, value: &str) -> Self {
        self.hidden_env.push((name.into(), value.into()));
        self
    }

    /// Kills the command when it takes longer.
    pub(crate) fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Runs it with its output shown; returns whether it succeeded.
    pub(crate) fn succeeds(&self) -> bool {
        match self.command().status() {
            Ok(status) => status.success(),
            Err(error) => self.complain(&error),
        }
    }

    /// Runs it without output; returns whether it succeeded. A missing program has failed.
    pub(crate) fn succeeds_silently(&self) -> bool {
        let quiet = self.command().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        quiet.is_ok_and(|status| status.success())
    }

    /// Shows its output while it runs, passes each line to `on_line`, and returns whether it succeeded.
    pub(crate) fn stream(&self, mut on_line: impl FnMut(&str)) -> bool {
        let started = io::pipe().and_then(|(reader, writer)| {
            let mut command = self.command();
            if io::stdout().is_terminal() {
                command.env("CARGO_TERM_COLOR", "always");
            }
            // One pipe for both, so that the lines keep their order.
            let child = command.stdout(writer.try_clone()?).stderr(writer).spawn()?;
            Ok((child, reader))
        });
        match started {
            Ok((child, reader)) => self.follow(child, reader, |line| {
                println!("{line}");
                on_line(&without_colours(line));
            }),
            Err(error) => self.complain(&error),
        }
    }

    /// Returns its stdout, or `None` if it failed. Its stderr is shown.
    pub(crate) fn read(&self) -> Option<String> {
        let started = io::pipe().and_then(|(reader, writer)| Ok((self.command().stdout(writer).spawn()?, reader)));
        let mut text = String::new();
        let good = match started {
            Ok((child, reader)) => self.follow(child, reader, |line| {
                text.push_str(line);
                text.push('\n');
            }),
            Err(error) => self.complain(&error),
        };
        good.then_some(text)
    }

    /// Returns its whole stdout, up to the end of the last process that has it open, or `None` if it failed.
    pub(crate) fn output(&self) -> Option<String> {
        match self.command().stdin(Stdio::null()).stderr(Stdio::inherit()).output() {
            Ok(output) => output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()),
            Err(error) => {
                self.complain(&error);
                None
            }
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).envs(self.env.iter().chain(&self.hidden_env).map(|(k, v)| (k, v)));
        // Cargo's variables for this package would make some build scripts of other packages run again.
        for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
                command.env_remove(name);
            }
        }
        // Incremental artifacts make a build from scratch a third longer.
        if std::env::var_os("CARGO_INCREMENTAL").is_none() {
            command.env("CARGO_INCREMENTAL", "0");
        }
        command
    }

    fn follow(&self, mut child: Child, reader: PipeReader, mut on_line: impl FnMut(&str)) -> bool {
        let start = Instant::now();
        let lines = lines_of(reader);
        let mut ended: Option<Instant> = None;
        loop {
            match lines.recv_timeout(GLANCE) {
                Ok(line) => on_line(&line),
                Err(RecvTimeoutError::Disconnected) => break,
                // A server that a test left behind may keep the pipe open for ever; the end of the child itself counts,
                // and a while for its last lines, which a busy machine reads late.
                Err(RecvTimeoutError::Timeout) if child.try_wait().is_ok_and(|status| status.is_some()) => {
                    if ended.get_or_insert_with(Instant::now).elapsed() > LAST_LINES {
                        break;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.limit.is_some_and(|limit| start.elapsed() > limit) {
                eprintln!("ended after {} s: {self}", start.elapsed().as_secs());
                let _ = child.kill();
                break;
            }
        }
        child.wait().is_ok_and(|status| status.success())
    }

    fn complain(&self, error: &io::Error) -> bool {
        eprintln!("cannot run {}: {error}", self.words[0]);
        false
    }
}

impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            write!(f, "{name}={} ", quoted(value))?;
        }
        let words: Vec<String> = self.words.iter().map(|word| quoted(word)).collect();
        f.write_str(&words.join(" "))
    }
}

/// Reads in a thread, because a pipe cannot be read with a timeout.
fn lines_of(reader: PipeReader) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']).to_owned();
            line.clear();
            if sender.send(text).is_err() {
                break;
            }
        }
    });
    receiver
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// Removes terminal colours, which would hide numbers from the parser.
fn without_colours(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_ascii_alphabetic()).map_or(part.len(), |at| at + 1);
        plain.push_str(&part[end..]);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_it_would_be_typed() {
        let cmd = Cmd::cargo(&["doc", "-E", "not test(x)"]).env("FLAGS", "-D warnings").hidden_env("SECRET", "1");
        assert_eq!(cmd.to_string(), "FLAGS='-D warnings' cargo doc -E 'not test(x)'");
        assert_eq!(Cmd::new("echo").args(&["it's", ""]).to_string(), r"echo 'it'\''s' ''");
    }

    #[test]
    fn colours_are_taken_out() {
        assert_eq!(without_colours("\u{1b}[32;1m12\u{1b}[0m passed"), "12 passed");
        assert_eq!(without_colours("plain"), "plain");
    }

    #[test]
    fn the_output_and_the_status_of_a_command_are_seen() {
        let script = |text: &str| Cmd::new("sh").args(&["-c", text]);
        assert_eq!(script("echo a; echo b").read().as_deref(), Some("a\nb\n"));
        assert_eq!(script("echo a; exit 3").read(), None);
        assert_eq!(script("(sleep 0.3; echo late) & echo a").output().as_deref(), Some("a\nlate\n"));
        assert_eq!(script("echo a; exit 3").output(), None);
        let mut lines = Vec::new();
        assert!(script("echo out; echo err >&2").stream(|line| lines.push(line.to_owned())));
        assert_eq!(lines, ["out", "err"]);
        assert!(!Cmd::new("no-such-program-anywhere").succeeds_silently());
    }

    #[test]
    fn a_leftover_child_does_not_block_the_run() {
        let start = Instant::now();
        assert!(Cmd::new("sh").args(&["-c", "sleep 5 2> /dev/null & echo done"]).read().is_some());
        assert!(start.elapsed() < Duration::from_secs(4));
    }

    #[test]
    fn a_hanging_command_is_killed_at_its_limit() {
        let start = Instant::now();
        let hangs = Cmd::new("sleep").args(&["20"]).limit(Duration::from_millis(200));
        assert_eq!(hangs.read(), None);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}
