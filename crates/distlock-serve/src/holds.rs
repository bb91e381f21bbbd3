//! All holds, and when each must be looked at because its client may be gone.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use distlock::{Clock, Moment};
use tokio::sync::Notify;

use crate::hold::{End, Hold, HoldId};

/// All holds of the daemon.
#[derive(Debug)]
pub(crate) struct Holds {
    clock: Clock,
    table: Mutex<Table>,
    /// Signals that a look is sooner than the next one was, or that a hold has left.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    holds: HashMap<HoldId, Slot>,
    /// When to look at which hold. The look may be early: the end of a hold only moves forward.
    looks: BTreeSet<(Moment, HoldId)>,
    /// When [`Holds::next_end`] looks next.
    wakes_at: Option<Moment>,
    is_stopping: bool,
}

#[derive(Debug)]
struct Slot {
    hold: Arc<Hold>,
    look: Option<Moment>,
}

impl Table {
    /// Sets when to look at a hold. Returns whether that is sooner than [`Holds::next_end`] looks.
    fn look_at(&mut self, id: HoldId, look: Option<Moment>) -> bool {
        let Some(slot) = self.holds.get_mut(&id) else { return false };
        if let Some(old) = std::mem::replace(&mut slot.look, look) {
            self.looks.remove(&(old, id));
        }
        let Some(look) = look else { return false };
        self.looks.insert((look, id));
        self.wakes_at.is_none_or(|wake| look < wake)
    }

    fn remove(&mut self, id: HoldId) -> Option<Arc<Hold>> {
        let Slot { hold, look } = self.holds.remove(&id)?;
        if let Some(look) = look {
            self.looks.remove(&(look, id));
        }
        Some(hold)
    }
}

impl Holds {
    pub(crate) fn new(clock: Clock) -> Holds {
        Holds { clock, table: Mutex::default(), changed: Notify::new() }
    }

    /// Adds a hold, unless the daemon stops.
    pub(crate) fn add(&self, hold: &Arc<Hold>) -> bool {
        let look = hold.life().ends_at();
        let mut table = self.table();
        if table.is_stopping {
            return false;
        }
        table.holds.insert(hold.id, Slot { hold: hold.clone(), look: None });
        if table.look_at(hold.id, look) {
            self.changed.notify_waiters();
        }
        true
    }

    pub(crate) fn get(&self, id: HoldId) -> Option<Arc<Hold>> {
        self.table().holds.get(&id).map(|slot| slot.hold.clone())
    }

    /// Removes a hold. Of several callers one gets it.
    pub(crate) fn remove(&self, id: HoldId) -> Option<Arc<Hold>> {
        let mut table = self.table();
        let hold = table.remove(id);
        if table.is_stopping {
            self.changed.notify_waiters();
        }
        hold
    }

    /// Looks at a hold when it may end by itself, which has changed: its stream was closed.
    pub(crate) fn look_again(&self, hold: &Hold) {
        let look = hold.life().ends_at();
        if self.table().look_at(hold.id, look) {
            self.changed.notify_waiters();
        }
    }

    /// Waits for the next hold whose client is gone, and removes it.
    ///
    /// # Cancel safety
    /// Dropping the future removes nothing.
    pub(crate) async fn next_end(&self) -> (Arc<Hold>, End) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let next = match self.end_one() {
                Ok(ended) => return ended,
                Err(next) => next,
            };
            tokio::select! {
                () = self.clock.sleep_until(next.unwrap_or(Moment::NEVER)) => {}
                () = changed => {}
            }
        }
    }

    /// Removes a hold whose end has passed, or returns when to look again.
    fn end_one(&self) -> Result<(Arc<Hold>, End), Option<Moment>> {
        let mut table = self.table();
        loop {
            let first = table.looks.first().copied();
            let now = self.clock.now();
            let Some((_, id)) = first.filter(|(look, _)| *look <= now) else {
                table.wakes_at = first.map(|(look, _)| look);
                return Err(table.wakes_at);
            };
            let Some(slot) = table.holds.get(&id) else {
                table.looks.pop_first();
                continue;
            };
            let (is_over, ends_at) = {
                let mut life = slot.hold.life();
                (life.expire(now), life.ends_at())
            };
            if let Some(hold) = is_over.then(|| table.remove(id)).flatten() {
                let end = if table.is_stopping { End::Stopped } else { End::Silent };
                if table.is_stopping {
                    // It may have been the last one that the stop waits for.
                    self.changed.notify_waiters();
                }
                return Ok((hold, end));
            }
            table.look_at(id, ends_at);
        }
    }

    /// Accepts no more holds, and ends each when the deadline of its client has passed.
    pub(crate) fn stop(&self) {
        let mut table = self.table();
        table.is_stopping = true;
        let holds: Vec<Arc<Hold>> = table.holds.values().map(|slot| slot.hold.clone()).collect();
        for hold in holds {
            hold.life().stop();
            let look = hold.life().ends_at();
            table.look_at(hold.id, look);
            hold.news.notify_one();
        }
        drop(table);
        self.changed.notify_waiters();
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.table().is_stopping
    }

    /// Waits until no hold is left, once the daemon stops.
    pub(crate) async fn emptied(&self) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.table().holds.is_empty() {
                return;
            }
            changed.await;
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.table().holds.len()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use distlock::Locker;
    use distlock::backend::memory::Memory;
    use distlock_http::Peer;
    use tokio::time::timeout;

    use super::*;
    use crate::liveness::{Liveness, Proof};

    const TEST_LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn the_stop_ends_with_the_deadline_of_the_last_client() {
        let clock = Clock::system();
        let guard = Locker::new(Memory::new()).unwrap().lock("a").await.unwrap();
        let silence = Duration::from_millis(50);
        let life = Liveness::new(Proof::Calls, silence, silence, clock.now());
        let hold = Arc::new(Hold::new(guard, Peer::Process { pid: None, uid: 0 }, None, life));
        hold.life().announce(None, clock.now());
        let holds = Holds::new(clock);
        assert!(holds.add(&hold));
        holds.stop();
        let both = async { tokio::join!(holds.emptied(), holds.next_end()).1.1 };
        assert_eq!(timeout(TEST_LIMIT, both).await, Ok(End::Stopped));
    }
}
