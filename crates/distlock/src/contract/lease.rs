//! A hold as its engine is asked to renew and end it.

use crate::contract::claim::Claim;
use crate::contract::grant::Term;
use crate::types::event::LossReason;
use crate::types::token::FencingToken;

/// A hold to renew.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Lease {
    /// The claim that was granted, with the lease that is asked for now.
    pub claim: Claim,
    /// The token it was granted with.
    pub token: FencingToken,
}

impl Lease {
    /// The hold that `claim` became.
    #[must_use]
    pub fn new(claim: Claim, token: FencingToken) -> Self {
        Lease { claim, token }
    }
}

/// What became of a renewal.
#[derive(Debug, Clone)]
pub enum Renewal {
    /// The lease was renewed; `None`: it needs no renewing.
    Renewed(Option<Term>),
    /// The hold is not ours any more.
    Lost(LossReason),
}

/// What became of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// It was ours and now is not.
    Released,
    /// It was not ours. A place in the queue, if there was one, is given up.
    NotOurs,
}
