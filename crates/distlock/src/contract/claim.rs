//! A claim, and what became of it.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::grant::Grant;
use crate::types::key::Key;
use crate::types::mode::Mode;
use crate::types::owner::{Holder, Record};
use crate::types::token::AttemptId;

/// For how long at least an engine may keep the place of a waiter that gives no sign of life, however short its lease is.
pub(crate) const SHORTEST_HEARTBEAT: Duration = Duration::from_secs(3);

/// One attempt to take a lock.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Claim {
    /// The lock.
    pub key: Key,
    /// Names this attempt, and the hold it may become.
    pub attempt: AttemptId,
    /// The lease that is asked for.
    pub ttl: Duration,
    /// For how long after a lease has run out nobody is granted the lock: the engine keeps it for
    /// [`lease`](Claim::lease), while its holder counts on `ttl` alone.
    pub delay: Duration,
    /// Whether to take a place in the queue when the lock is not free.
    pub queue: bool,
    /// What others may read about the one who asks.
    pub record: Arc<Record>,
}

impl Claim {
    /// A claim with a fresh attempt id.
    #[must_use]
    pub fn new(key: Key, ttl: Duration, queue: bool, record: Arc<Record>) -> Self {
        Claim { key, attempt: AttemptId::random(), ttl, delay: Duration::ZERO, queue, record }
    }

    /// How long the engine keeps the lock when it hears nothing more: the lease and the delay after it.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.ttl.saturating_add(self.delay)
    }

    /// Who may hold the lock beside this claim.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.record.mode
    }
}

/// What became of a [`Claim`].
#[derive(Debug)]
pub enum Claimed {
    /// The lock is ours.
    Granted(Grant),
    /// Somebody else has it, or is before us in the queue.
    Busy(Busy),
}

/// What became of several claims at once.
#[derive(Debug)]
pub enum ClaimedAll {
    /// All locks are ours; in the order of the claims.
    Granted(Vec<Grant>),
    /// Somebody else has this one, or waits for it; none was granted.
    Busy(Key, Option<Holder>),
}

/// The lock is not ours.
#[derive(Debug, Clone, Default)]
pub struct Busy {
    /// Who has it, where that is known.
    pub holder: Option<Holder>,
    /// When to claim again at the latest; `None`: after the caller's retry interval.
    pub poll_after: Option<Duration>,
}

/// Why a wait ended.
#[derive(Debug)]
pub enum Wake {
    /// The lock was handed to the waiting claim.
    Granted(Grant),
    /// Something changed: claim again.
    Retry,
}
