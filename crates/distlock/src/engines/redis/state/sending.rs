//! Claims that were sent, and are late if no reply comes.

use std::time::Duration;

use crate::contract::Claim;
use crate::engines::redis::protocol::time::COMMAND_TIMEOUT;
use crate::engines::shared::late_claims::LateClaims;
use crate::types::clock::Moment;
use crate::types::error::{Error, Result};

/// How long after it was sent a claim may be carried out. The server refuses a claim that is older than the first
/// timeout. The second covers the error of that check: what is known of the server's clock is as old as a reply.
pub(in crate::engines) const LATEST: Duration = COMMAND_TIMEOUT.saturating_add(COMMAND_TIMEOUT);

/// Claims that were sent. Dropped without a reply, they are late.
pub(in crate::engines) struct Sending<'a> {
    late_claims: &'a LateClaims,
    claims: &'a [Claim],
    sent: Moment,
    over: u64,
    is_answered: bool,
}

impl<'a> Sending<'a> {
    /// Notes that `claims` were sent at `sent` over the connection with the id `over`.
    pub(in crate::engines) fn new(late_claims: &'a LateClaims, claims: &'a [Claim], sent: Moment, over: u64) -> Self {
        Sending { late_claims, claims, sent, over, is_answered: false }
    }

    /// The server replied, or certainly did not carry them out.
    pub(in crate::engines) fn answered(mut self) {
        self.is_answered = true;
    }

    /// The request has this outcome.
    pub(in crate::engines) fn ended<T>(self, outcome: &Result<T>) {
        if !outcome.as_ref().is_err_and(Error::may_be_applied) {
            self.answered();
        }
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.late_claims.note(self.claims.iter().map(|claim| claim.attempt), self.sent, Some(self.over));
        }
    }
}
