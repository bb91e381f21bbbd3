//! A second process that takes locks, to be killed and frozen by its pid.
//!
//! It is the test's own program, started again, so it contains the engines that the test was built with. A test
//! program writes `distlock_testkit::child!();` once, anywhere, and then uses [`Child`].

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
use crate::servers::{Directory, Process, TEST_LIMIT, eventually};

/// The variable with the path of the socket that carries the orders. A process without it is not a child.
const VARIABLE: &str = "DISTLOCK_TESTKIT_CHILD";

/// A part of the name of the child's entry; the test harness selects the entry by it.
const ENTRY: &str = "testkit_child_entry";

/// Makes a test program able to start itself again as a [`Child`].
#[macro_export]
macro_rules! child {
    () => {
        /// Not a test: the entry of a child process. It does nothing in an ordinary run.
        #[test]
        fn testkit_child_entry() {
            assert_eq!($crate::child::serve(), Ok(()));
        }
    };
}

/// A process with one `Locker`. It executes orders one after the other. Dropping it kills the process.
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

    /// Like [`start`](Self::start); `configure` may add variables and arguments to the command.
    #[track_caller]
    pub fn start_with(configure: impl FnOnce(&mut Command)) -> Child {
        Child::launch(&own_program(), &[], configure)
    }

    /// Like [`start`](Self::start), inside a network namespace.
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
        stream.set_read_timeout(Some(TEST_LIMIT)).expect("a socket has a timeout");
        Child { process, line: BufReader::new(stream), _directory: directory }
    }

    /// Connects the child's locker.
    #[track_caller]
    pub fn connect(&mut self, url: &str) {
        let answer = self.ask(format_args!("connect {url}"));
        assert_eq!(answer.outcome, Outcome::Done, "{url}");
    }

    /// Takes a lock, waiting for it. To continue in the meantime, use [`send`](Self::send).
    #[track_caller]
    pub fn lock(&mut self, key: &str, ttl: Duration) -> Answer {
        self.ask(format_args!("lock {key} {}", ttl.as_millis()))
    }

    /// Takes a lock if it is free.
    #[track_caller]
    pub fn try_lock(&mut self, key: &str, ttl: Duration) -> Answer {
        self.ask(format_args!("try {key} {}", ttl.as_millis()))
    }

    /// Unlocks `key`.
    #[track_caller]
    pub fn unlock(&mut self, key: &str) -> Answer {
        self.ask(format_args!("unlock {key}"))
    }

    /// Drops the guard of `key`.
    #[track_caller]
    pub fn drop_guard(&mut self, key: &str) -> Answer {
        self.ask(format_args!("drop {key}"))
    }

    /// Returns the child's view of its hold on `key`.
    #[track_caller]
    pub fn state(&mut self, key: &str) -> Answer {
        self.ask(format_args!("state {key}"))
    }

    /// Waits until the child learns that it lost `key`.
    #[track_caller]
    pub fn lost(&mut self, key: &str) -> Answer {
        self.ask(format_args!("lost {key}"))
    }

    /// Forks the child, uses its hold and its locker in the copy, and drops both there. Returns what the copy saw: the
    /// state of the hold, then how `check`, `extend`, `unlock` and another `try_lock` ended.
    #[track_caller]
    pub fn fork(&mut self, key: &str) -> Answer {
        self.ask(format_args!("fork {key}"))
    }

    /// Forks the child, and draws attempt ids in the copy and in the child. Returns how many were drawn, and how many of
    /// them are different.
    #[track_caller]
    pub fn fork_and_draw(&mut self) -> Answer {
        self.ask(format_args!("draw"))
    }

    /// Sends an order and waits for the answer.
    #[track_caller]
    pub fn ask(&mut self, order: impl Display) -> Answer {
        self.send(order);
        self.receive()
    }

    /// Sends an order without waiting for the answer: `connect URL`, `lock KEY TTL_MS`, `try KEY TTL_MS`, `read KEY
    /// TTL_MS`, `permit KEY TTL_MS SLOTS`, `enter KEY TTL_MS OWNER`, `unlock KEY`, `drop KEY`, `state KEY`, `lost KEY`,
    /// `fork KEY` or `draw`.
    #[track_caller]
    pub fn send(&mut self, order: impl Display) {
        let sent = writeln!(self.line.get_mut(), "{order}");
        sent.unwrap_or_else(|error| panic!("the child is gone: {error}\n{}", self.process.log()));
    }

    /// Waits for the answer to the oldest unanswered order.
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

/// The child's process, to kill, freeze and thaw.
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
