//! What is done from time to time: end what the core does not ask for again, watch longer holds, drop unused watches.

use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::protocol::messages::EventType;
use super::state::attempts::Attempt;
use super::state::effect::Chore;
use crate::types::clock::Moment;

/// How often the agenda is looked at.
const TICK: Duration = Duration::from_millis(200);
/// How often an attempt that is well is looked after.
const ROUND: Duration = Duration::from_secs(2);

impl Engine {
    /// Starts what runs in the background for ever.
    pub(super) fn start(self: &Arc<Self>) {
        if !self.tasks.start() {
            return;
        }
        let engine = self.clone();
        self.run(async move {
            engine
                .watches
                .follow(&engine.client, &engine.clock, |kind, key, revision| match kind {
                    EventType::Delete => engine.saw_deletion(key, revision),
                    EventType::Put => engine.saw_write(key, revision),
                })
                .await;
        });
        let engine = self.clone();
        self.run(async move { engine.keep_house().await });
    }

    async fn keep_house(self: Arc<Self>) {
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

    /// Does an attempt's chore. Returns when to look again.
    fn look_after(self: &Arc<Self>, attempt: &Arc<Attempt>, now: Moment) -> Moment {
        let (chore, keep_until) = {
            let mut state = attempt.state();
            if !state.is_leaving() {
                state.leases().for_each(|lease| lease.touch(now));
            }
            (state.due(now), state.keep_until())
        };
        let later = keep_until.min(now.after(ROUND));
        match chore {
            Chore::Rest => now.after(TICK),
            Chore::Forget => {
                self.attempts.remove(attempt);
                later
            }
            Chore::Delete => {
                self.delete_soon(attempt);
                now.after(TICK)
            }
            Chore::End => {
                attempt.turn().notify_one();
                self.delete_soon(attempt);
                now.after(TICK)
            }
            Chore::WatchQueue => {
                // A waiter behind another client's key keeps its watch; one that has not come to wait yet opens none.
                let before = attempt.state().before().to_vec();
                if before.iter().any(|before| !self.attempts.is_own(before)) {
                    self.watches.watch(attempt.lock(), 0, now);
                }
                later
            }
            Chore::LookAt(moment) => moment,
            Chore::WatchKey { revision, in_question } => {
                let ends = self.watches.watch(attempt.lock(), revision.saturating_add(1), now);
                let writes = self.watches.watch_writes(attempt.key(), revision.saturating_add(1), now);
                if ends.misses(revision) || writes.misses(revision) || in_question {
                    self.look_for(attempt);
                    return now.after(TICK);
                }
                later
            }
        }
    }

    fn delete_soon(self: &Arc<Self>, attempt: &Arc<Attempt>) {
        let (engine, attempt) = (self.clone(), attempt.clone());
        self.run(async move { engine.delete(&attempt).await });
    }
}
