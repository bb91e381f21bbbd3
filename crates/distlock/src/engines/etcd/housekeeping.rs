//! What is done from time to time: end what the core does not ask for again, watch longer holds, drop unused watches.

use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::protocol::messages::EventType;
use super::state::attempts::Attempt;
use super::state::effect::Chore;
use super::state::hold_watch::WatchChoice;
use super::wire::watches::{Change, Sight};
use crate::types::clock::Moment;

/// How often the agenda is looked at.
const TICK: Duration = Duration::from_millis(200);
/// How often an attempt that is well is looked after.
const ROUND: Duration = Duration::from_secs(2);
/// The same for a hold that the watch on the prefix covers: nothing is to be done about it while that one stays.
const COVERED_ROUND: Duration = Duration::from_secs(60);

/// From which revision on the watch on the prefix covers holds; `None`: it does not.
#[derive(Debug, Default)]
struct Cover(Option<i64>);

impl Engine {
    /// Starts what runs in the background for ever.
    pub(super) fn start(self: &Arc<Self>) {
        if !self.tasks.start() {
            return;
        }
        let engine = self.clone();
        self.run(async move {
            let told = |change: Option<Change<'_>>| match change {
                Some(change) => engine.saw_change(change),
                None => engine.hold_watch.lock().refused(),
            };
            engine.watches.follow(&engine.client, &engine.clock, told).await;
        });
        let engine = self.clone();
        self.run(async move { engine.keep_house().await });
    }

    fn saw_change(self: &Arc<Self>, change: Change<'_>) {
        if change.by_prefix {
            let owner = self.attempts.owner_of(change.key);
            if owner.is_none_or(|owner| owner.state().is_leaving()) {
                self.hold_watch.lock().saw_event_of_others();
            }
        }
        match change.kind {
            EventType::Delete => self.saw_deletion(change.key, change.revision),
            EventType::Put => self.saw_write(change.key, change.revision),
        }
    }

    async fn keep_house(self: Arc<Self>) {
        let mut cover = Cover::default();
        loop {
            self.clock.sleep_until(self.clock.now().after(TICK)).await;
            let now = self.clock.now();
            for attempt in self.attempts.due(now) {
                let next = self.look_after(&attempt, now);
                self.attempts.look_again(&attempt, next);
            }
            self.look_after_entries(now);
            self.hold_watch.lock().tick(now);
            self.look_after_cover(&mut cover, now);
            self.watches.prune(now);
        }
    }

    /// Keeps the watch on the prefix for the holds that it covers. If it has been opened anew since `last`, or is given
    /// up, all holds are looked after soon.
    fn look_after_cover(&self, last: &mut Cover, now: Moment) {
        let choice = self.hold_watch.lock().choice();
        if choice == WatchChoice::Own && last.0.is_none() {
            return;
        }
        // Also when it is given up just now: the watches of the holds go on where this one is.
        let since = self.watches.keep_prefix(now).filter(|_| choice == WatchChoice::Prefix);
        if std::mem::replace(&mut last.0, since) != since {
            self.attempts.look_at_all(now, ROUND);
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
                let (sight, choice) = self.watch_hold(attempt, revision, now);
                if sight.misses(revision) || in_question {
                    self.look_for(attempt);
                    return now.after(TICK);
                }
                match choice {
                    WatchChoice::Own => later,
                    WatchChoice::Prefix => keep_until.min(now.after(COVERED_ROUND)),
                }
            }
        }
    }

    /// Watches the key of a hold, which was there at `revision`: by itself, or with all others of this client.
    fn watch_hold(&self, attempt: &Attempt, revision: i64, now: Moment) -> (Sight, WatchChoice) {
        let holds = self.attempts.count_long_hold(attempt);
        let choice = self.hold_watch.lock().choose(holds, now);
        // A watch on the key alone stays as long as the hold, unless it is one of too many.
        match choice {
            WatchChoice::Prefix if !self.watches.has_key(attempt.key()) => {
                let first = if self.watches.has_prefix() { revision } else { self.first_unwatched().min(revision) };
                (self.watches.watch_prefix(first, now), WatchChoice::Prefix)
            }
            WatchChoice::Own | WatchChoice::Prefix => {
                (self.watches.watch_key(attempt.key(), revision, now), WatchChoice::Own)
            }
        }
    }

    /// Returns the lowest revision at which the key of a hold was there that is not watched yet.
    fn first_unwatched(&self) -> i64 {
        let revision = |attempt: Arc<Attempt>| attempt.state().held_at();
        let unwatched = self.attempts.all().into_iter().filter(|attempt| !self.watches.has_key(attempt.key()));
        unwatched.filter_map(revision).min().unwrap_or(i64::MAX)
    }

    fn delete_soon(self: &Arc<Self>, attempt: &Arc<Attempt>) {
        let (engine, attempt) = (self.clone(), attempt.clone());
        self.run(async move { engine.delete(&attempt).await });
    }
}
