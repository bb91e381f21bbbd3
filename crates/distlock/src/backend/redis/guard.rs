//! What keeps a server that has forgotten leases from granting too early.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{Cmd, Value};

use crate::backend::redis::names;

/// The client's part of the guard: the canary's key, and the longest lease that is known of.
#[derive(Debug)]
pub(super) struct Guard {
    canary: String,
    longest_ms: AtomicU64,
}

impl Guard {
    pub(super) fn new(prefix: &str) -> Guard {
        Guard { canary: names::canary(prefix), longest_ms: AtomicU64::new(0) }
    }

    /// A lease of this length is about to be asked for.
    pub(super) fn note(&self, ttl: Duration) {
        self.longest_ms.fetch_max(super::millis(ttl), Ordering::Relaxed);
    }

    /// Adds what the guarded scripts need behind their own arguments.
    pub(super) fn fill(&self, command: &mut Cmd) {
        command.arg(&self.canary).arg(self.longest_ms.load(Ordering::Relaxed));
    }

    /// Asks for the canary, to know of it when it is gone.
    pub(super) fn ask(&self) -> Cmd {
        let mut command = redis::cmd("GET");
        command.arg(&self.canary);
        command
    }

    /// Takes the answer to [`ask`](Guard::ask): others may have longer leases than we.
    pub(super) fn learn(&self, answer: &Value) {
        let Value::BulkString(canary) = answer else { return };
        let longest = std::str::from_utf8(canary).ok().and_then(|text| text.rsplit(' ').next()?.parse().ok());
        self.longest_ms.fetch_max(longest.unwrap_or(0), Ordering::Relaxed);
    }
}
