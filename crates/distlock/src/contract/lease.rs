//! A hold as the engine renews and releases it.

use crate::contract::claim::Claim;
use crate::contract::grant::Term;
use crate::types::event::LossReason;
use crate::types::token::FencingToken;

/// A hold to renew.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Lease {
    /// The claim that was granted, with the requested lease.
    pub claim: Claim,
    /// The token it was granted with.
    pub token: FencingToken,
}

impl Lease {
    /// Returns the hold of a granted claim.
    #[must_use]
    pub fn new(claim: Claim, token: FencingToken) -> Self {
        Lease { claim, token }
    }
}

/// The result of a renewal.
#[derive(Debug, Clone)]
pub enum Renewal {
    /// The lease was renewed; `None`: the hold needs no renewal.
    Renewed(Option<Term>),
    /// The attempt no longer holds the lock.
    Lost(LossReason),
}

/// The result of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// The attempt held the lock, and it is released.
    Released,
    /// The attempt did not hold the lock. Its place in the queue, if it had one, is removed.
    NotOurs,
}
