//! Claims and adoptions that were sent and not answered.
//!
//! Such a request may arrive after its attempt was released over another connection. It would take the lock, or a place
//! in the queue, for an attempt that is over. So the keeper releases the attempt again until no request of it
//! can arrive.

use crate::types::sync::Mutex;
use crate::types::sync::atomic::{AtomicUsize, Ordering};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::contract::Claim;
use crate::engines::redis::protocol::time::COMMAND_TIMEOUT;
use crate::types::clock::Moment;
use crate::types::token::AttemptId;

/// How long after it was sent a claim may be carried out. The server refuses a claim that is older than the first
/// timeout. The second covers the error of that check: what is known of the server's clock is as old as a reply.
const LATEST: Duration = COMMAND_TIMEOUT.saturating_add(COMMAND_TIMEOUT);

/// The unanswered claims of one engine: the last of each attempt.
#[derive(Default)]
pub(in crate::engines) struct LateClaims {
    claims: Mutex<BTreeMap<AttemptId, LateClaim>>,
    /// How many there are: most often none, and then nothing is locked.
    count: AtomicUsize,
}

struct LateClaim {
    sent: Moment,
    /// The connection that it was sent over; `None` when claims of the attempt may arrive over several.
    over: Option<u64>,
}

impl LateClaims {
    /// Notes that `claims` were sent at `sent` over the connection with this id, unless the returned value is told that
    /// they were answered.
    pub(in crate::engines) fn sending<'a>(&'a self, claims: &'a [Claim], sent: Moment, over: u64) -> Sending<'a> {
        Sending { late_claims: self, claims, sent, over, is_answered: false }
    }

    /// Records that `attempt` was released over the connection `over`, and is never claimed with again.
    pub(in crate::engines) fn released(&self, attempt: AttemptId, over: u64, now: Moment) {
        if self.is_empty() {
            return;
        }
        let mut claims = self.claims.lock();
        // On one connection the release arrives after the claim.
        let is_over = |claim: &LateClaim| claim.over == Some(over) || now.since(claim.sent) >= LATEST;
        if claims.get(&attempt).is_some_and(is_over) {
            claims.remove(&attempt);
            self.count.store(claims.len(), Ordering::Release);
        }
    }

    /// Returns until when a claim of `attempt` may still arrive.
    pub(in crate::engines) fn until(&self, attempt: AttemptId) -> Option<Moment> {
        if self.is_empty() {
            return None;
        }
        self.claims.lock().get(&attempt).map(|claim| claim.sent.after(LATEST))
    }

    /// Returns whether every claim that was sent so far was answered. An attempt that asks knows of its own claims.
    pub(in crate::engines) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn note(&self, sending: &Sending<'_>) {
        let mut claims = self.claims.lock();
        for claim in sending.claims {
            // An attempt that is never released is forgotten when there are many.
            if claims.len().is_power_of_two() {
                claims.retain(|_, claim| sending.sent.since(claim.sent) < LATEST);
            }
            let earlier = claims.get(&claim.attempt).filter(|earlier| sending.sent.since(earlier.sent) < LATEST);
            let is_elsewhere = earlier.is_some_and(|earlier| earlier.over != Some(sending.over));
            let over = Some(sending.over).filter(|_| !is_elsewhere);
            claims.insert(claim.attempt, LateClaim { sent: sending.sent, over });
        }
        self.count.store(claims.len(), Ordering::Release);
    }
}

/// Claims that were sent. Dropped without a reply, they are late.
pub(in crate::engines) struct Sending<'a> {
    late_claims: &'a LateClaims,
    claims: &'a [Claim],
    sent: Moment,
    over: u64,
    is_answered: bool,
}

impl Sending<'_> {
    /// The server replied, or certainly did not carry them out.
    pub(in crate::engines) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.late_claims.note(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use super::*;
    use crate::types::key::Key;
    use crate::types::owner::{OwnerId, Process, Record};

    fn claim() -> Claim {
        let record = Record::new(OwnerId::random(), Process::current(), None, SystemTime::UNIX_EPOCH);
        Claim::new(Key::new("k").unwrap(), Duration::from_secs(10), true, Arc::new(record))
    }

    #[test]
    fn a_release_over_the_last_connection_does_not_end_a_claim_on_another() {
        let (late_claims, claims, start) = (LateClaims::default(), [claim()], Moment::from_nanos(5_000_000_000));
        let attempt = claims[0].attempt;
        drop(late_claims.sending(&claims, start, 1));
        late_claims.released(attempt, 1, start);
        assert_eq!(late_claims.until(attempt), None, "on one connection the release follows the claim");
        drop(late_claims.sending(&claims, start, 1));
        let retried = start.after(Duration::from_millis(500));
        drop(late_claims.sending(&claims, retried, 2));
        late_claims.released(attempt, 2, retried);
        assert_eq!(late_claims.until(attempt), Some(retried.after(LATEST)), "the first claim may still arrive");
        late_claims.released(attempt, 2, retried.after(LATEST));
        assert_eq!(late_claims.until(attempt), None);
    }
}
