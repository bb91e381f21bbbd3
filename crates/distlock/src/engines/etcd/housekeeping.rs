//! What must be done from time to time: end what nobody keeps, watch what is held for a while, drop what is not needed.

use std::sync::Arc;
use std::time::Duration;

use crate::engines::etcd::engine::Engine;
use crate::engines::etcd::state::attempts::{Attempt, Phase};
use crate::types::clock::Moment;

/// How often there is a look whether anything is due.
const TICK: Duration = Duration::from_millis(200);
/// How often an attempt that is well is looked after.
const ROUND: Duration = Duration::from_secs(2);
/// A hold that lasts longer than this is watched: most are over before that, and cost no watch.
pub(super) const WATCH_AFTER: Duration = Duration::from_millis(250);
/// When a key is deleted again that a request on its way may still make, though nobody wants it any more.
pub(super) const AGAIN: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(15), Duration::from_secs(40)];
/// How long a key that may still be made by a request that was not answered is deleted again and again.
const DOUBT: Duration = Duration::from_secs(60);

impl Engine {
    /// Goes through the attempts for ever.
    pub(super) async fn keep_house(self: Arc<Self>) {
        loop {
            self.clock.sleep_until(self.clock.now().after(TICK)).await;
            let now = self.clock.now();
            for attempt in self.attempts.due(now) {
                let next = self.look_after(&attempt, now);
                self.attempts.look_again(&attempt, next);
            }
            self.look_after_entries(now);
            self.watches.prune(now);
        }
    }

    /// Does for an attempt what is to be done now, and says when to look again.
    fn look_after(self: &Arc<Self>, attempt: &Arc<Attempt>, now: Moment) -> Moment {
        let (phase, keep_until, revision) = {
            let state = attempt.state();
            (state.phase, state.keep_until, state.revision)
        };
        let is_over = now >= keep_until;
        if !matches!(phase, Phase::Leaving { .. }) {
            attempt.state().leases().for_each(|session| session.touch(now));
        }
        match phase {
            Phase::Gone => self.attempts.remove(attempt),
            Phase::Leaving { .. } => {
                self.see_off(attempt, is_over, now);
                return now.after(TICK);
            }
            Phase::Held(_) | Phase::Waiting if is_over => {
                attempt.state().phase = Phase::Leaving { was_held: phase != Phase::Waiting };
                attempt.turn.notify_one();
                self.delete_soon(attempt);
                return now.after(TICK);
            }
            Phase::Waiting => {
                // Who waits for another client keeps its watch; who has not come to wait yet opens none.
                let before = attempt.state().before.clone();
                if before.iter().any(|before| !self.attempts.is_own(before)) {
                    self.watches.watch(&attempt.lock, 0, now);
                }
            }
            Phase::Held(since) if now.since(since) < WATCH_AFTER => return since.after(WATCH_AFTER),
            Phase::Held(_) => {
                let ends = self.watches.watch(&attempt.lock, revision.saturating_add(1), now);
                let writes = self.watches.watch_writes(&attempt.key, revision.saturating_add(1), now);
                if ends.misses(revision) || writes.misses(revision) || attempt.state().in_question {
                    self.look_for(attempt);
                    return now.after(TICK);
                }
            }
        }
        keep_until.min(now.after(ROUND))
    }

    /// Deletes what is left of an attempt that is given up.
    fn see_off(self: &Arc<Self>, attempt: &Arc<Attempt>, is_over: bool, now: Moment) {
        let again = attempt.state().again;
        match again {
            Some((began, _)) if now.since(began) > DOUBT => self.attempts.remove(attempt),
            Some((began, next)) if now >= next => {
                // Ever more seldom: what is late by a minute is seldom late by a second.
                attempt.state().again = Some((began, now.after(now.since(began))));
                self.delete_soon(attempt);
            }
            Some(_) => {}
            // A release that failed is the core's to repeat, until the time of the hold is over; then it is ours.
            None if is_over => self.delete_soon(attempt),
            None => {}
        }
    }

    /// Deletes the key of an attempt whose time is over.
    pub(super) async fn delete(self: &Arc<Self>, attempt: &Attempt) {
        // The one before is still at it.
        let Ok(_alone) = attempt.making.try_lock() else { return };
        if !self.attempts.has(attempt) {
            // It has done it, and another key may have its name by now.
            return;
        }
        let was_known = attempt.mark().is_some();
        if let Ok(left) = self.send_leave(attempt, None).await {
            self.has_left(attempt, was_known, left.deleted);
        }
    }

    fn delete_soon(self: &Arc<Self>, attempt: &Arc<Attempt>) {
        let (engine, attempt) = (self.clone(), attempt.clone());
        self.run(async move { engine.delete(&attempt).await });
    }

    /// A watch may have missed the end of a hold: looks whether its key is there, and ours.
    pub(super) fn look_for(self: &Arc<Self>, attempt: &Arc<Attempt>) {
        let (engine, attempt) = (self.clone(), attempt.clone());
        self.run(async move { engine.look_who_wrote(&attempt, None).await });
    }
}
