//! Claims that are on their way, and late if no reply comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engines::postgres::protocol::time::COMMAND_TIMEOUT;
use crate::engines::shared::late_claims::LateClaims;
use crate::types::clock::Clock;
use crate::types::token::AttemptId;

/// How long after its sender gave up a claim may be carried out. The server refuses a claim that is older than the first
/// timeout; the second covers the error of that check, and its commit.
pub(in crate::engines) const LATEST: Duration = COMMAND_TIMEOUT.saturating_add(COMMAND_TIMEOUT);

/// Claims that are sent in one request. Dropped without a reply, they are late.
pub(in crate::engines) struct Sending<'a> {
    late_claims: &'a LateClaims,
    clock: &'a Clock,
    attempts: Vec<AttemptId>,
    pub(in crate::engines) progress: Progress,
}

impl<'a> Sending<'a> {
    /// Notes that the claims of `attempts` are about to be sent.
    pub(in crate::engines) fn new(late_claims: &'a LateClaims, clock: &'a Clock, attempts: Vec<AttemptId>) -> Self {
        Sending { late_claims, clock, attempts, progress: Progress::default() }
    }

    /// The server replied, or certainly did not carry them out.
    pub(in crate::engines) fn answered(mut self) {
        self.attempts.clear();
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if self.attempts.is_empty() || self.progress.cancel() {
            return;
        }
        self.late_claims.note(self.attempts.drain(..), self.clock.now(), self.progress.over());
    }
}

/// How far a request has come on its way to the server.
#[derive(Debug, Clone, Default)]
pub(in crate::engines) struct Progress(Arc<AtomicU64>);

/// Connections are numbered from 1 on.
const QUEUED: u64 = 0;
const CANCELLED: u64 = u64::MAX;
const LEAVING: u64 = u64::MAX - 1;

impl Progress {
    /// Takes the request out of the queue. Returns false when it is cancelled, and must not be sent.
    pub(in crate::engines) fn leave(&self) -> bool {
        self.0.compare_exchange(QUEUED, LEAVING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The request was handed to a connection: whatever is handed to it later arrives later.
    pub(in crate::engines) fn sent(&self, connection: u64) {
        self.0.store(connection, Ordering::Release);
    }

    /// The request is about to be sent once more.
    pub(in crate::engines) fn leave_again(&self) {
        self.0.store(LEAVING, Ordering::Release);
    }

    /// Returns true when the request was not taken out of the queue, and never will be.
    fn cancel(&self) -> bool {
        self.0.compare_exchange(QUEUED, CANCELLED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn over(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Acquire)).filter(|over| *over != LEAVING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_late_until_a_release_follows_it_on_its_connection_or_its_time_is_over() {
        let (clock, hand) = Clock::manual();
        let late_claims = LateClaims::new(LATEST);
        let attempts: Vec<_> = (0..4).map(|_| AttemptId::random()).collect();
        let sending: Vec<_> =
            attempts.iter().map(|attempt| Sending::new(&late_claims, &clock, vec![*attempt])).collect();
        // Never sent; handed over but perhaps not written; sent over connection 7; answered.
        assert!(sending[1..].iter().all(|sending| sending.progress.leave()));
        sending[2].progress.sent(7);
        let mut sending = sending.into_iter();
        let progress = sending.as_slice()[0].progress.clone();
        sending.by_ref().take(3).for_each(drop);
        sending.for_each(Sending::answered);
        assert!(!progress.leave(), "a cancelled claim is not sent");
        let are_late =
            |late_claims: &LateClaims| attempts.iter().map(|it| late_claims.until(*it).is_some()).collect::<Vec<_>>();
        assert_eq!(are_late(&late_claims), [false, true, true, false]);
        attempts.iter().for_each(|attempt| late_claims.released(*attempt, 7, clock.now()));
        assert_eq!(are_late(&late_claims), [false, true, false, false]);
        hand.jump(LATEST);
        attempts.iter().for_each(|attempt| late_claims.released(*attempt, 8, clock.now()));
        assert_eq!(are_late(&late_claims), [false; 4]);
    }
}
