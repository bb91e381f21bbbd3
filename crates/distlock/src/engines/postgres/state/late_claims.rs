//! Claims and adoptions that were sent and not answered.
//!
//! Such a request may be carried out after its attempt was released over another connection. So the keeper releases the
//! attempt again until no request of it can arrive.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engines::postgres::protocol::time::COMMAND_TIMEOUT;
use crate::types::clock::{Clock, Moment};
use crate::types::sync::Mutex;
use crate::types::token::AttemptId;

/// How long after its sender gave up a claim may be carried out. The server refuses a claim that is older than the first
/// timeout; the second covers the error of that check, and its commit.
const LATEST: Duration = COMMAND_TIMEOUT.saturating_add(COMMAND_TIMEOUT);

/// The unanswered claims of one engine.
pub(in crate::engines) struct LateClaims {
    clock: Clock,
    claims: Mutex<BTreeMap<AttemptId, LateClaim>>,
}

struct LateClaim {
    /// When its sender gave up.
    given_up: Moment,
    /// The connection that it was sent over, if that is known.
    over: Option<u64>,
}

impl LateClaims {
    pub(in crate::engines) fn new(clock: Clock) -> LateClaims {
        LateClaims { clock, claims: Mutex::default() }
    }

    /// Notes that the claims of `attempts` are about to be sent. Dropped without a reply, they are late.
    pub(in crate::engines) fn sending(&self, attempts: Vec<AttemptId>) -> Sending<'_> {
        Sending { late_claims: self, attempts, progress: Progress::default() }
    }

    /// Forgets claims of `attempt` that can no longer be carried out, after a release of it over the connection `over` was
    /// answered: on one connection the release arrives after the claim.
    pub(in crate::engines) fn released(&self, attempt: AttemptId, over: u64) {
        let now = self.clock.now();
        let mut claims = self.claims.lock();
        let is_over = |claim: &LateClaim| claim.over == Some(over) || now.since(claim.given_up) >= LATEST;
        if claims.get(&attempt).is_some_and(is_over) {
            claims.remove(&attempt);
        }
    }

    /// Returns until when a claim of `attempt` may still be carried out.
    pub(in crate::engines) fn until(&self, attempt: AttemptId) -> Option<Moment> {
        self.claims.lock().get(&attempt).map(|claim| claim.given_up.after(LATEST))
    }
}

/// Claims that are sent in one request.
pub(in crate::engines) struct Sending<'a> {
    late_claims: &'a LateClaims,
    attempts: Vec<AttemptId>,
    pub(in crate::engines) progress: Progress,
}

impl Sending<'_> {
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
        let (now, over) = (self.late_claims.clock.now(), self.progress.over());
        let mut claims = self.late_claims.claims.lock();
        for attempt in self.attempts.drain(..) {
            // An attempt that is never released is forgotten when there are many.
            if claims.len().is_power_of_two() {
                claims.retain(|_, claim| now.since(claim.given_up) < LATEST);
            }
            claims.insert(attempt, LateClaim { given_up: now, over });
        }
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
        let late_claims = LateClaims::new(clock);
        let attempts: Vec<_> = (0..4).map(|_| AttemptId::random()).collect();
        let sending: Vec<_> = attempts.iter().map(|attempt| late_claims.sending(vec![*attempt])).collect();
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
        attempts.iter().for_each(|attempt| late_claims.released(*attempt, 7));
        assert_eq!(are_late(&late_claims), [false, true, false, false]);
        hand.jump(LATEST);
        attempts.iter().for_each(|attempt| late_claims.released(*attempt, 8));
        assert_eq!(are_late(&late_claims), [false; 4]);
    }
}
