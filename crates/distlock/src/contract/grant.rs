//! A grant, and its lease on the local clock.

use std::time::Duration;

use crate::types::clock::Moment;
use crate::types::token::FencingToken;

/// The proof that a claim holds its lock.
#[derive(Debug, Clone, Copy)]
pub struct Grant {
    /// Higher than every token granted before for this lock.
    pub token: FencingToken,
    /// The lease; `None` if the engine frees the lock only when the holder's process ends.
    pub term: Option<Term>,
    /// The number of the semaphore slot, from 0 on.
    pub slot: Option<u32>,
}

impl Grant {
    /// Returns a grant without a semaphore slot.
    #[must_use]
    pub fn new(token: FencingToken, term: Option<Term>) -> Self {
        Grant { token, term, slot: None }
    }
}

/// A lease as the local clock sees it.
#[derive(Debug, Clone, Copy)]
pub struct Term {
    /// The local clock just **before** the request that began or renewed the lease was written.
    pub start: Moment,
    /// Its length as the engine granted it, without the lock delay.
    pub ttl: Duration,
}
