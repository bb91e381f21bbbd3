//! The store: where the locks are, shared by its clients.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::SystemTime;

use super::faults::{Fault, Operation, ScriptedFaults};
use super::history::Histories;
use super::state::{EndedHold, LockTable};
use super::ticks::TickTable;
use crate::types::clock::{Clock, Moment};
use crate::types::error::Result;
use crate::types::event::LossReason;
use crate::types::key::Key;
use crate::types::manual_clock::ManualClock;
use crate::types::sync::{Mutex, MutexGuard};
use crate::types::tick::millis;

/// The server of the memory engine: it has the locks, and every [`Memory`](super::Memory) on it is a client.
#[derive(Debug, Clone)]
pub struct Store(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: Clock,
    locks: Mutex<LockTable>,
    histories: Mutex<Histories>,
    ticks: Mutex<TickTable>,
    /// The wall clock, if a test has set it, and when by `clock` it did.
    wall: Mutex<Option<(SystemTime, Moment)>>,
    faults: ScriptedFaults,
    /// Whether it has a name, so that other code of this process finds it: then later stores continue its tokens.
    is_public: bool,
}

/// The highest token of all public stores that this process has had. A new public store starts above it, so tokens do
/// not fall when the last client of a store goes and another store of the name is made.
static LAST_TOKEN: AtomicU64 = AtomicU64::new(0);

impl Store {
    /// Returns an empty store.
    #[must_use]
    pub fn new() -> Store {
        Store::with_clock(Clock::system())
    }

    /// Returns an empty store whose leases run by `clock`.
    #[must_use]
    pub fn with_clock(clock: Clock) -> Store {
        Store::start(clock, None)
    }

    /// Returns an empty store for a test, and the control of its clock. Every locker on the store has the same clock,
    /// unless its builder is given another.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distlock::{ErrorKind, Locker, backend::memory::{Memory, Store}};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// let (store, clock) = Store::manual();
    /// let [mine, other] = [Locker::new(Memory::on(&store))?, Locker::new(Memory::on(&store))?];
    /// let guard = mine.lock("order:7").await?;
    ///
    /// let waiter = tokio::spawn(other.lock("order:7").wait(Duration::from_secs(30)).into_future());
    /// clock.advance(Duration::from_secs(30)).await;
    /// assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    /// assert!(!guard.is_lost(), "renewed all the time");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn manual() -> (Store, ManualClock) {
        let (clock, hand) = Clock::manual();
        (Store::with_clock(clock), hand)
    }

    /// Returns the store that has this name in this process: the one of `mem://name`.
    ///
    /// It lasts as long as a client of it does. Then its locks and histories are gone; the tokens of the next store of
    /// any name are still higher.
    #[must_use]
    pub fn named(name: &str) -> Store {
        Store::public(Some(name))
    }

    /// Returns the store of `mem://name`, or that of `mem://`.
    pub(crate) fn public(name: Option<&str>) -> Store {
        static STORES: LazyLock<Mutex<HashMap<Option<String>, Weak<Inner>>>> = LazyLock::new(Mutex::default);
        let mut stores = STORES.lock();
        stores.retain(|_, store| store.strong_count() > 0);
        let name = name.map(str::to_owned);
        if let Some(store) = stores.get(&name).and_then(Weak::upgrade) {
            return Store(store);
        }
        // An earlier store of this name has no client any more, so all its tokens are counted.
        let store = Store::start(Clock::system(), Some(LAST_TOKEN.load(Ordering::SeqCst)));
        stores.insert(name, Arc::downgrade(&store.0));
        store
    }

    fn start(clock: Clock, public_after: Option<u64>) -> Store {
        Store(Arc::new(Inner {
            clock,
            locks: Mutex::new(LockTable::after(public_after.unwrap_or_default())),
            histories: Mutex::default(),
            ticks: Mutex::default(),
            wall: Mutex::default(),
            faults: ScriptedFaults::default(),
            is_public: public_after.is_some(),
        }))
    }

    /// Scripts a fault into the next request for `operation`. Several faults apply to as many requests, in order.
    pub fn script(&self, operation: Operation, fault: Fault) {
        self.0.faults.push(operation, fault);
    }

    /// Refuses every request with kind `Unavailable` until [`reconnect`](Store::reconnect), like an engine that is away.
    /// Locks and leases stay as they are.
    pub fn disconnect(&self) {
        self.0.faults.set_away(true);
    }

    /// Accepts requests again.
    pub fn reconnect(&self) {
        self.0.faults.set_away(false);
    }

    /// Ends the leases of `key` now, as if their time were over. The next waiter is granted the lock. The holder learns of
    /// it by its next renewal, or at once with [`EndedHolds::tell_holders`].
    ///
    /// ```
    /// use distlock::{LossReason, Locker, backend::memory::{Memory, Store}};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// let store = Store::new();
    /// let guard = Locker::new(Memory::on(&store))?.lock("order:7").await?;
    ///
    /// store.expire("order:7").tell_holders();
    /// assert_eq!(guard.lost().await, LossReason::Revoked);
    /// # Ok(()) }
    /// ```
    pub fn expire<K: TryInto<Key>>(&self, key: K) -> EndedHolds {
        self.end(key, LockTable::expire)
    }

    /// Gives `key` for a second to a holder that is not a client, as a server that lost its data would. The present holder
    /// learns of it by its next renewal, or at once with [`EndedHolds::tell_holders`].
    pub fn steal<K: TryInto<Key>>(&self, key: K) -> EndedHolds {
        self.end(key, LockTable::steal)
    }

    /// A name that is not valid names no lock.
    fn end<K: TryInto<Key>>(&self, key: K, end: fn(&mut LockTable, &Key, Moment) -> Vec<EndedHold>) -> EndedHolds {
        EndedHolds(key.try_into().map_or_else(|_| Vec::new(), |key| self.locks(|locks, now| end(locks, &key, now))))
    }

    /// Sets the wall clock that [ticks](crate::Once) follow. From then on it goes with the store's clock.
    pub fn set_time(&self, now: SystemTime) {
        *self.0.wall.lock() = Some((now, self.0.clock.now()));
    }

    /// Returns whether the store has no holder, no waiter and no unfinished attempt.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.locks(|locks, now| locks.is_empty(now))
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    pub(super) async fn request<T>(
        &self,
        operation: Operation,
        apply: impl FnOnce(&mut LockTable, Moment) -> Result<T>,
    ) -> Result<T> {
        self.0.faults.apply(operation, &self.0.clock, || self.locks(apply)).await
    }

    pub(super) fn histories(&self) -> MutexGuard<'_, Histories> {
        self.0.histories.lock()
    }

    pub(super) fn ticks(&self) -> MutexGuard<'_, TickTable> {
        self.0.ticks.lock()
    }

    /// Returns the milliseconds of the Unix epoch by the store's wall clock.
    pub(super) fn wall_ms(&self) -> u64 {
        let clock = &self.0.clock;
        let set = *self.0.wall.lock();
        let wall = set.map_or_else(|| clock.wall(), |(set, at)| set + clock.now().since(at));
        millis(wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
    }

    pub(super) fn locks<T>(&self, action: impl FnOnce(&mut LockTable, Moment) -> T) -> T {
        let mut locks = self.0.locks.lock();
        let done = action(&mut locks, self.0.clock.now());
        if self.0.is_public {
            LAST_TOKEN.fetch_max(locks.last_token(), Ordering::SeqCst);
        }
        done
    }
}

/// The holds that a test has ended, and whose holders do not know it yet; made by [`Store::expire`] and [`Store::steal`].
#[derive(Debug)]
pub struct EndedHolds(Vec<EndedHold>);

impl EndedHolds {
    /// Returns how many holds were ended; 0 when the lock had no holder.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Tells the holders now, as an engine does that sees the loss. The reason is [`LossReason::Revoked`]. Their guards are
    /// lost when [`LockGuard::lost`](crate::LockGuard::lost) completes, or with a manual clock when it has
    /// [settled](ManualClock::settle).
    pub fn tell_holders(self) {
        for (losses, attempt) in self.0 {
            losses.inspect(|losses| losses.push(attempt, LossReason::Revoked));
        }
    }
}

impl Default for Store {
    fn default() -> Self {
        Store::new()
    }
}
