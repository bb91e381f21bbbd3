//! A claim and its result.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::grant::Grant;
use crate::types::key::Key;
use crate::types::mode::{AskedMode, Mode};
use crate::types::owner::{Holder, Record};
use crate::types::token::{AttemptId, FencingToken};

/// The shortest time for which an engine keeps the place of a waiter without a heartbeat, however short its lease is.
pub(crate) const SHORTEST_HEARTBEAT: Duration = Duration::from_secs(3);

/// One attempt to take a lock.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Claim {
    /// The lock.
    pub key: Key,
    /// Names this attempt, and the hold it may become.
    pub attempt: AttemptId,
    /// The requested length of the lease.
    pub ttl: Duration,
    /// The lock delay: how long after the end of a lease the lock is granted to no one. The engine keeps it for
    /// [`lease`](Claim::lease), while its holder counts on `ttl` alone.
    pub delay: Duration,
    /// Whether to take a place in the queue when the lock is not free.
    pub queue: bool,
    /// What others can read about the claimant.
    pub record: Arc<Record>,
    /// The token of its grant. Not an `Option<FencingToken>`, which would make the futures of a lock larger than the
    /// allocator likes.
    pub(crate) token: Option<NonZeroU64>,
}

impl Claim {
    /// Returns a claim with a fresh attempt id.
    #[must_use]
    pub fn new(key: Key, ttl: Duration, queue: bool, record: Arc<Record>) -> Self {
        Claim { key, attempt: AttemptId::random(), ttl, delay: Duration::ZERO, queue, record, token: None }
    }

    /// Returns how long the engine keeps the lock without a renewal: the TTL plus the lock delay.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.ttl.saturating_add(self.delay)
    }

    /// Returns the token of the grant, of the claim of a hold. `None`: it is not known, as after a lost reply.
    #[must_use]
    pub fn token(&self) -> Option<FencingToken> {
        self.token.map(|number| FencingToken::new(number.get()))
    }

    /// Returns the claim of the hold that was granted with `token`.
    pub(crate) fn granted(self, token: FencingToken) -> Self {
        Claim { token: NonZeroU64::new(token.get()), ..self }
    }

    /// Returns who may hold the lock beside this claim.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.record.mode
    }

    /// Returns the mode as it is asked for.
    pub(crate) fn asked(&self) -> AskedMode {
        self.record.asked()
    }
}

/// The result of a [`Claim`].
#[derive(Debug)]
pub enum Claimed {
    /// The claim holds the lock.
    Granted(Grant),
    /// Another owner holds the lock, or a waiter is before this claim in the queue.
    Busy(Busy),
}

/// The result of several claims in one step.
#[derive(Debug)]
pub enum ClaimedAll {
    /// All locks are granted, in the order of the claims.
    Granted(Vec<Grant>),
    /// Another owner holds this lock or waits for it; none was granted.
    Busy(Key, Option<Holder>),
}

/// The reply to a claim that was not granted.
#[derive(Debug, Clone, Default)]
pub struct Busy {
    /// The holder, if known.
    pub holder: Option<Holder>,
    /// The time after which to claim again at the latest; `None`: the caller's retry interval.
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
