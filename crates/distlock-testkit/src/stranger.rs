//! Real lock clients of other languages, controlled line by line.

mod library;

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::time::Duration;

pub use library::Library;

use crate::servers::{TEST_LIMIT, spawn};

/// A process with one client of another lock library. It executes orders one after the other. Dropping it kills the
/// process.
#[derive(Debug)]
pub struct Stranger {
    process: Child,
    line: BufReader<UnixStream>,
}

impl Stranger {
    /// Starts a client of `library` for the Redis server at `server`. Downloads the library on first use.
    #[track_caller]
    pub fn start(library: Library, server: SocketAddr) -> Stranger {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let input = OwnedFd::from(theirs.try_clone().expect("a copy of a socket"));
        let mut command = library.command();
        command.args([server.ip().to_string(), server.port().to_string()]);
        command.stdin(input).stdout(OwnedFd::from(theirs));
        let process = spawn(command).expect("an interpreter that was found starts");
        ours.set_read_timeout(Some(TEST_LIMIT)).expect("a socket has a timeout");
        Stranger { process, line: BufReader::new(ours) }
    }

    /// Takes a lock if it is free; without a TTL it has no lease, where the library supports that.
    #[track_caller]
    pub fn try_lock(&mut self, key: &str, ttl: Option<Duration>) -> bool {
        self.ask_whether(format_args!("try {key} {}", millis(ttl)), "held", "busy")
    }

    /// Starts waiting for a lock; [`has_lock`](Self::has_lock) waits for the outcome.
    #[track_caller]
    pub fn wait_for(&mut self, key: &str, ttl: Duration) {
        self.send(format_args!("lock {key} {}", millis(Some(ttl))));
    }

    /// Waits for the outcome of [`wait_for`](Self::wait_for); returns whether the lock was taken.
    #[track_caller]
    pub fn has_lock(&mut self) -> bool {
        self.receive() == "held"
    }

    /// Unlocks `key`; returns `false` if another client holds it.
    #[track_caller]
    pub fn unlock(&mut self, key: &str) -> bool {
        self.ask_whether(format_args!("unlock {key}"), "done", "not ours")
    }

    /// Renews the lease of `key`; returns `false` if another client holds it.
    #[track_caller]
    pub fn extend(&mut self, key: &str, ttl: Duration) -> bool {
        self.ask_whether(format_args!("extend {key} {}", millis(Some(ttl))), "done", "not ours")
    }

    /// Starts taking a lock `times` times, each time counting the clients inside in `KEY:inside`.
    #[track_caller]
    pub fn meet(&mut self, key: &str, times: u32) {
        self.send(format_args!("meet {key} {times}"));
    }

    /// Waits for the end of [`meet`](Self::meet); returns whether the client was always alone.
    #[track_caller]
    pub fn was_alone(&mut self) -> bool {
        self.receive() == "done"
    }

    #[track_caller]
    fn ask_whether(&mut self, order: impl Display, yes: &str, no: &str) -> bool {
        self.send(order);
        let answer = self.receive();
        assert!(answer == yes || answer == no, "the other client answered {answer:?}");
        answer == yes
    }

    #[track_caller]
    fn send(&mut self, order: impl Display) {
        writeln!(self.line.get_mut(), "{order}").expect("the other client listens");
    }

    #[track_caller]
    fn receive(&mut self) -> String {
        let mut line = String::new();
        self.line.read_line(&mut line).expect("the other client answers");
        assert!(!line.is_empty(), "the other client ended: {:?}", self.process.try_wait());
        line.trim_end().to_owned()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// 0 means no lease.
fn millis(ttl: Option<Duration>) -> u128 {
    ttl.map_or(0, |ttl| ttl.as_millis())
}
