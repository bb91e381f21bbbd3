//! Daemons, requests and client processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use distlock_testkit::servers::{Directory, EtcdServer, RedisServer};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Longer than any step here takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// An engine that outlives daemons.
pub(crate) struct Engine {
    pub(crate) url: String,
    _server: Box<dyn Send + Sync>,
}

impl Engine {
    pub(crate) fn redis() -> Engine {
        let server = RedisServer::start();
        Engine { url: server.url(), _server: Box::new(server) }
    }

    pub(crate) fn etcd() -> Engine {
        let server = EtcdServer::start();
        Engine { url: server.url(), _server: Box::new(server) }
    }

    pub(crate) fn files() -> Engine {
        let directory = Directory::new();
        Engine { url: format!("file://{}", directory.path().display()), _server: Box::new(directory) }
    }
}

/// A process that is killed at the end of its test.
pub(crate) struct Process {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Process {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Process { child, stdout }
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    /// Returns the rest of the line that begins with `word`.
    pub(crate) fn line_of(&mut self, word: &str) -> String {
        let line = self.line();
        line.strip_prefix(word).unwrap_or_else(|| panic!("{line:?} is not {word:?}")).trim().to_owned()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process is there");
    }

    /// Waits for the end and returns the exit code.
    pub(crate) fn end(&mut self) -> i32 {
        let status = eventually("the process ends", || self.child.try_wait().expect("a child"));
        status.code().unwrap_or(-1)
    }

    pub(crate) fn output(mut self) -> String {
        let mut text = String::new();
        self.stdout.read_to_string(&mut text).expect("text");
        assert_eq!(self.end(), 0, "{text}");
        text
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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

/// Returns the command without the variables that are for other daemons.
pub(crate) fn clean(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DISTLOCK_")) {
        command.env_remove(name);
    }
    command
}

pub(crate) fn distlock(words: &[&str]) -> Command {
    let mut command = clean(env!("CARGO_BIN_EXE_distlock"));
    command.args(words);
    command
}

/// A daemon on a unix socket.
pub(crate) struct Daemon {
    pub(crate) process: Process,
    pub(crate) socket: PathBuf,
    _directory: Directory,
}

impl Daemon {
    pub(crate) fn start(url: &str) -> Daemon {
        let directory = Directory::new();
        let socket = directory.path().join("s");
        let process = Daemon::at(url, &socket);
        Daemon { process, socket, _directory: directory }
    }

    /// Starts a daemon at a path, and waits until it listens.
    pub(crate) fn at(url: &str, socket: &Path) -> Process {
        let mut process = Process::start(&mut distlock(&["serve", "--url", url, "--socket", socket.to_str().unwrap()]));
        assert_eq!(process.line(), socket.to_str().unwrap());
        process
    }

    pub(crate) fn address(&self) -> String {
        self.socket.to_str().unwrap().to_owned()
    }

    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> Answer {
        Answer::read(self.open(method, path, &[], body))
    }

    /// Sends a request and leaves its connection open.
    pub(crate) fn open(&self, method: &str, path: &str, headers: &[&str], body: &str) -> UnixStream {
        let mut stream = UnixStream::connect(&self.socket).expect("it listens");
        let json = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.0\r\nHost: x\r\n{json}{headers}Content-Length: {length}\r\n\r\n");
        // The daemon may answer and close before it has read everything.
        let _ = stream.write_all((head + body).as_bytes());
        stream
    }

    /// Acquires a lock, and returns the answer.
    pub(crate) fn acquire(&self, name: &str, body: &str) -> Value {
        let answer = self.send("POST", &format!("/v1/locks/{name}"), body);
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json
    }

    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.send("GET", "/metrics", "").text;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
    }

    pub(crate) fn await_metric(&self, name: &str, value: u64) {
        eventually(name, || (self.metric(name) == value).then_some(()));
    }
}

/// An answer of the daemon.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) text: String,
    pub(crate) json: Value,
}

impl Answer {
    pub(crate) fn read(mut stream: impl Read) -> Answer {
        let mut text = Vec::new();
        // The daemon may close before it has read everything.
        let _ = stream.read_to_end(&mut text);
        let text = String::from_utf8(text).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status");
        Answer { status, text: body.to_owned(), json: serde_json::from_str(body).unwrap_or_default() }
    }

    pub(crate) fn kind(&self) -> &str {
        self.json["error"]["kind"].as_str().unwrap_or_else(|| panic!("no error: {self:?}"))
    }
}

/// The events of an open stream.
pub(crate) struct Events(BufReader<UnixStream>);

impl Events {
    pub(crate) fn open(daemon: &Daemon, id: &str) -> Events {
        let stream = daemon.open("GET", &format!("/v1/holds/{id}/events"), &[], "");
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Events(BufReader::new(stream))
    }

    /// Returns the name and data of the next event; `None` at the end.
    pub(crate) fn next(&mut self) -> Option<(String, Value)> {
        let mut name = String::new();
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).expect("a line in time") == 0 {
                return None;
            }
            if let Some(event) = line.strip_prefix("event: ") {
                name = event.trim().to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((name, serde_json::from_str(data).expect("JSON")));
            }
        }
    }

    /// Returns the data of the next event of that name.
    pub(crate) fn next_of(&mut self, name: &str) -> Value {
        loop {
            let (event, data) = self.next().unwrap_or_else(|| panic!("no {name}"));
            if event == name {
                return data;
            }
        }
    }
}

pub(crate) fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients")
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/serve").join(name)
}

/// A language with a client.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Language {
    Python,
    Node,
}

impl Language {
    /// Returns the command that runs the test program of this language.
    pub(crate) fn program(self, words: &[&str]) -> Command {
        let mut command = match self {
            Language::Python => {
                let mut command = clean("python3");
                command.arg(script("worker.py")).env("PYTHONPATH", clients().join("python"));
                command.env("PYTHONDONTWRITEBYTECODE", "1");
                command
            }
            Language::Node => {
                let mut command = clean("node");
                command.arg(script("worker.mjs"));
                command
            }
        };
        command.args(words);
        command
    }
}

/// Returns the wall clock in seconds, which the test programs write down too.
pub(crate) fn wall() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64()
}
