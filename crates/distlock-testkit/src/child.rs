//! A second process that takes locks, to be killed and frozen by its pid.
//!
//! It is the test's own program, started again: so it has the engines that the test was built with. A test program says
//! once, anywhere, `distlock_testkit::child!();` and then uses [`Child`].

mod answer;
mod fork;
mod program;

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::ops::{Deref, DerefMut};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub use answer::{Answer, Outcome};
#[doc(hidden)]
pub use program::serve;

use crate::netns::Namespace;
use crate::servers::{Directory, PATIENCE, Process, eventually};

/// Names the socket over which the child is told what to do; a test program without it is no child.
const VARIABLE: &str = "DISTLOCK_TESTKIT_CHILD";

/// What the name of the child's entry holds; the test harness selects it by that.
const ENTRY: &str = "testkit_child_entry";

/// Makes a test program able to start itself again as a [`Child`].
#[macro_export]
macro_rules! child {
    () => {
        /// Not a test: where a child process begins. In an ordinary run it has nothing to do.
        #[test]
        fn testkit_child_entry() {
            assert_eq!($crate::child::serve(), Ok(()));
        }
    };
}

/// A process with one `Locker`. It does one thing after the other. Dropping it kills it.
#[derive(Debug)]
pub struct Child {
    process: Process,
    line: BufReader<UnixStream>,
    _directory: Directory,
}

impl Child {
    /// Starts the process and waits until it listens.
    #[track_caller]
    pub fn start() -> Child {
        Child::start_with(|_| {})
    }

    /// The same, with whatever `configure` adds to the command: variables, say.
    #[track_caller]
    pub fn start_with(configure: impl FnOnce(&mut Command)) -> Child {
        Child::launch(&own_program(), &[], configure)
    }

    /// The same, inside a network namespace.
    #[track_caller]
    pub fn start_in(namespace: &Namespace) -> Child {
        let (program, words) = Namespace::wrap(namespace.name(), &own_program());
        Child::launch(&program, &words, |_| {})
    }

    #[track_caller]
    fn launch(program: &Path, words: &[String], configure: impl FnOnce(&mut Command)) -> Child {
        let directory = Directory::new();
        let socket = directory.path().join("child.sock");
        let listener = UnixListener::bind(&socket).expect("a unix socket");
        listener.set_nonblocking(true).expect("a socket need not block");
        let started = Process::start(program, &directory.path().join("log"), |command| {
            command.args(words).args([ENTRY, "--nocapture", "--test-threads=1"]).env(VARIABLE, &socket);
            configure(command);
        });
        let mut process = started.expect("the test's own program starts");
        let stream = eventually("a child process", || {
            let log = process.log();
            assert!(process.ended().is_none(), "the child ended; does the test say child!()?\n{log}");
            listener.accept().ok().map(|(stream, _)| stream)
        });
        stream.set_nonblocking(false).expect("a socket may block");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has a timeout");
        Child { process, line: BufReader::new(stream), _directory: directory }
    }

    /// Connects the child's locker.
    #[track_caller]
    pub fn connect(&mut self, url: &str) {
        let answer = self.ask(format_args!("connect {url}"));
        assert_eq!(answer.outcome, Outcome::Done, "{url}");
    }

    /// Takes a lock, waiting for it. To do something else meanwhile, see [`send`](Self::send).
    #[track_caller]
    pub fn lock(&mut self, key: &str, ttl: Duration) -> Answer {
        self.ask(format_args!("lock {key} {}", ttl.as_millis()))
    }

    /// Takes a lock if it is free.
    #[track_caller]
    pub fn try_lock(&mut self, key: &str, ttl: Duration) -> Answer {
        self.ask(format_args!("try {key} {}", ttl.as_millis()))
    }

    /// Unlocks what it holds.
    #[track_caller]
    pub fn unlock(&mut self, key: &str) -> Answer {
        self.ask(format_args!("unlock {key}"))
    }

    /// Drops the guard of what it holds.
    #[track_caller]
    pub fn drop_guard(&mut self, key: &str) -> Answer {
        self.ask(format_args!("drop {key}"))
    }

    /// How it sees what it holds.
    #[track_caller]
    pub fn state(&mut self, key: &str) -> Answer {
        self.ask(format_args!("state {key}"))
    }

    /// Waits until it is told that it lost what it holds.
    #[track_caller]
    pub fn lost(&mut self, key: &str) -> Answer {
        self.ask(format_args!("lost {key}"))
    }

    /// Forks it, uses what it holds and its locker in the copy, and drops both there; answers what the copy saw: the
    /// state of the hold, then how `check`, `extend`, `unlock` and another `try_lock` ended.
    #[track_caller]
    pub fn fork(&mut self, key: &str) -> Answer {
        self.ask(format_args!("fork {key}"))
    }

    /// Tells it something and waits for the answer.
    #[track_caller]
    pub fn ask(&mut self, order: impl Display) -> Answer {
        self.send(order);
        self.receive()
    }

    /// Tells it something without waiting: `connect URL`, `lock KEY TTL_MS`, `try KEY TTL_MS`, `read KEY TTL_MS`,
    /// `permit KEY TTL_MS SLOTS`, `enter KEY TTL_MS OWNER`, `unlock KEY`, `drop KEY`, `state KEY`, `lost KEY` or `fork KEY`.
    #[track_caller]
    pub fn send(&mut self, order: impl Display) {
        let sent = writeln!(self.line.get_mut(), "{order}");
        sent.unwrap_or_else(|error| panic!("the child is gone: {error}\n{}", self.process.log()));
    }

    /// Waits for the answer to the earliest order that has none yet.
    #[track_caller]
    pub fn receive(&mut self) -> Answer {
        let mut line = String::new();
        let read = self.line.read_line(&mut line);
        match read.map(|_| line.trim_end().parse()) {
            Ok(Ok(answer)) => answer,
            other => panic!("the child answered {line:?}: {other:?}\n{}", self.process.log()),
        }
    }
}

/// Its process, to kill, freeze and thaw.
impl Deref for Child {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Child {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

fn own_program() -> PathBuf {
    std::env::current_exe().expect("the test's own program")
}
