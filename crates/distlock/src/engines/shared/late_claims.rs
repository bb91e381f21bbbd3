//! Claims and adoptions that were sent and not answered.
//!
//! Such a request may arrive after its attempt was released over another connection. It would take the lock, or a place
//! in the queue, for an attempt that is over. So the keeper releases the attempt again until no request of it
//! can arrive.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::types::clock::Moment;
use crate::types::sync::Mutex;
use crate::types::sync::atomic::{AtomicUsize, Ordering};
use crate::types::token::AttemptId;

/// The unanswered claims of one engine: the last of each attempt.
pub(crate) struct LateClaims {
    /// How long after it was noted a claim may still be carried out.
    latest: Duration,
    claims: Mutex<BTreeMap<AttemptId, LateClaim>>,
    /// How many there are: most often none, and then nothing is locked.
    count: AtomicUsize,
}

struct LateClaim {
    noted: Moment,
    /// The connection that it was sent over; `None` when that is unknown, or claims of the attempt may arrive over several.
    over: Option<u64>,
}

impl LateClaims {
    pub(crate) fn new(latest: Duration) -> LateClaims {
        LateClaims { latest, claims: Mutex::default(), count: AtomicUsize::new(0) }
    }

    /// Notes that claims of `attempts`, sent over the connection with the id `over`, were not answered.
    pub(crate) fn note(&self, attempts: impl IntoIterator<Item = AttemptId>, now: Moment, over: Option<u64>) {
        let mut claims = self.claims.lock();
        let may_arrive = |claim: &LateClaim| now.since(claim.noted) < self.latest;
        for attempt in attempts {
            // An attempt that is never released is forgotten when there are many.
            if claims.len().is_power_of_two() {
                claims.retain(|_, claim| may_arrive(claim));
            }
            let earlier = claims.get(&attempt).filter(|earlier| may_arrive(earlier));
            let is_elsewhere = earlier.is_some_and(|earlier| earlier.over != over);
            claims.insert(attempt, LateClaim { noted: now, over: over.filter(|_| !is_elsewhere) });
        }
        self.count.store(claims.len(), Ordering::Release);
    }

    /// Records that `attempt` was released over the connection `over`, and is never claimed with again.
    pub(crate) fn released(&self, attempt: AttemptId, over: u64, now: Moment) {
        if self.is_empty() {
            return;
        }
        let mut claims = self.claims.lock();
        // On one connection the release arrives after the claim.
        let is_over = |claim: &LateClaim| claim.over == Some(over) || now.since(claim.noted) >= self.latest;
        if claims.get(&attempt).is_some_and(is_over) {
            claims.remove(&attempt);
            self.count.store(claims.len(), Ordering::Release);
        }
    }

    /// Returns until when a claim of `attempt` may still arrive.
    pub(crate) fn until(&self, attempt: AttemptId) -> Option<Moment> {
        if self.is_empty() {
            return None;
        }
        self.claims.lock().get(&attempt).map(|claim| claim.noted.after(self.latest))
    }

    /// Returns whether every claim that was sent so far was answered. An attempt that asks knows of its own claims.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATEST: Duration = Duration::from_secs(2);

    #[test]
    fn a_release_over_the_last_connection_does_not_end_a_claim_on_another() {
        let (late_claims, start) = (LateClaims::new(LATEST), Moment::from_nanos(5_000_000_000));
        let attempt = AttemptId::random();
        late_claims.note([attempt], start, Some(1));
        late_claims.released(attempt, 1, start);
        assert_eq!(late_claims.until(attempt), None, "on one connection the release follows the claim");
        let retried = start.after(Duration::from_millis(500));
        for first in [Some(1), None] {
            late_claims.note([attempt], start, first);
            late_claims.note([attempt], retried, Some(2));
            late_claims.released(attempt, 2, retried);
            assert_eq!(late_claims.until(attempt), Some(retried.after(LATEST)), "the first claim may still arrive");
            late_claims.released(attempt, 2, retried.after(LATEST));
            assert_eq!(late_claims.until(attempt), None);
        }
    }
}
