//! Inspection of locks: holders, waiters, history, and force release.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::{LockInfo, LockTicks};
use crate::core::family::Family;
use crate::types::error::{Error, Result};
use crate::types::history::{HistoryEntry, HistoryKind, MAX_HISTORY, in_order};
use crate::types::key::Key;
use crate::types::meter;
use crate::types::owner::{MAX_TEXT_BYTES, OwnerId, Record, check_text};
use crate::types::tick::TickNote;
use crate::types::token::FencingToken;

/// The shortest interval between two polls.
pub(crate) const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);

/// Inspects locks, and breaks holds; made by [`Locker::inspect`](crate::Locker::inspect).
///
/// ```
/// # use distlock::Locker;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// # let locker = Locker::connect("mem://inspect").await?;
/// let guard = locker.lock("order:7").label("shipping").await?;
///
/// for lock in locker.inspect().list("order:").await? {
///     let holder = lock.holder().expect("it is held");
///     println!("{} is held by {holder}; {} wait", lock.key, lock.waiters.len());
/// }
/// assert!(locker.inspect().get("order:8").await?.is_none()); // free
/// # guard.unlock().await }
/// ```
///
/// What it returns was true when the engine replied. Never decide by it whether to write: take the lock.
#[derive(Clone)]
pub struct Inspect {
    family: Arc<Family>,
    /// The owner that inspects and force-releases.
    owner: OwnerId,
}

impl Inspect {
    pub(crate) fn new(family: Arc<Family>, owner: OwnerId) -> Self {
        Inspect { family, owner }
    }

    /// Returns the locks whose names begin with `prefix`, in the order of their names; all of them when it is empty.
    ///
    /// # Errors
    /// The engine's error; kind `Unsupported` if it cannot list locks.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.check()?;
        self.family.backend.list(prefix).await
    }

    /// Returns one lock; `None` if it has neither holder nor waiter.
    ///
    /// # Errors
    /// As [`list`](Inspect::list).
    pub async fn get<K>(&self, key: K) -> Result<Option<LockInfo>>
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        let key = key.try_into().map_err(Into::into)?;
        self.check()?;
        self.family.backend.get(&key).await.map_err(|error| error.with_key(&key))
    }

    /// Ends the hold of `key` that has `token`, whatever its owner. The holder is notified, but may be in the middle
    /// of its work: only a resource that checks fencing tokens is safe from late writes. A later hold has another token, so
    /// it is never ended by mistake.
    ///
    /// ```
    /// # use distlock::{Locker, LossReason};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// # let (locker, operator) = (Locker::connect("mem://force").await?, Locker::connect("mem://force").await?);
    /// let guard = locker.lock("report").await?; // it hangs
    ///
    /// let lock = operator.inspect().get("report").await?.expect("it is held");
    /// let token = lock.holder().and_then(|holder| holder.token).expect("it has a token");
    /// operator.inspect().force_release("report", token, "hangs since noon").await?;
    /// assert_eq!(guard.lost().await, LossReason::Broken);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Kind `InvalidInput` without a reason; `NotHeld` if there is no hold with that token; `Foreign` if the data is
    /// not of this library; `Unsupported` if the engine cannot force-release.
    ///
    /// # Cancel safety
    /// If the future is dropped, the hold may or may not have been ended, but never partially.
    pub async fn force_release<K>(&self, key: K, token: FencingToken, reason: &str) -> Result<()>
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        let key = key.try_into().map_err(Into::into)?;
        if reason.trim().is_empty() {
            let problem = format_args!("say in 1 to {MAX_TEXT_BYTES} bytes why").to_string();
            return Err(Error::invalid("reason", problem).with_key(&key));
        }
        check_text("reason", reason).map_err(|error| error.with_key(&key))?;
        self.check()?;
        let outcome = self.family.backend.force_release(&key, token, reason).await;
        meter::forced(self.family.backend.name(), &outcome);
        if outcome.is_ok() {
            tracing::warn!(target: "distlock", { lock.name = %key, lock.token = token.get(), reason }, "lock forced");
            let who = Record::new(self.owner.clone(), self.family.process.clone(), None, self.family.clock.wall());
            let entry = HistoryEntry::new(self.family.wall_ms(), HistoryKind::Broken, token, who);
            self.family.write_down(&key, HistoryEntry { reason: Some(reason.to_owned()), ..entry });
        }
        outcome.map_err(|error| error.with_key(&key))
    }

    /// Returns the history of `key`: its last entries, at most `most` of them, the oldest first.
    ///
    /// Only lockers that [keep a history](crate::LockerBuilder::history) write one, asynchronously and on a
    /// best-effort basis; the reader need not be one of them. A holder whose process died left no entry of its end.
    /// Holds are ordered by their fencing tokens, whatever the clocks of their machines say. The example is at
    /// [`LockerBuilder::history`](crate::LockerBuilder::history).
    ///
    /// # Errors
    /// The engine's error; kind `Unsupported` where
    /// [`Capabilities::history`](crate::backend::Capabilities::history) is `false`.
    pub async fn history<K>(&self, key: K, most: u32) -> Result<Vec<HistoryEntry>>
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        let key = key.try_into().map_err(Into::into)?;
        self.check()?;
        let most = most.min(MAX_HISTORY);
        let entries = self.family.backend.history(&key, most).await.map_err(|error| error.with_key(&key))?;
        Ok(in_order(entries))
    }

    /// Returns the notes of the [ticks](crate::Once) of `key`, in the order of their starts, the last one last.
    ///
    /// # Errors
    /// The engine's error; kind `Unsupported` where [`Capabilities::ticks`](crate::backend::Capabilities::ticks) is
    /// `false`.
    pub async fn ticks<K>(&self, key: K) -> Result<Vec<TickNote>>
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        let key = key.try_into().map_err(Into::into)?;
        self.check()?;
        let found = self.family.backend.ticks(&key, None).await.map_err(|error| error.with_key(&key))?;
        Ok(in_order_of_starts(found.notes))
    }

    /// Returns the notes of the ticks of all locks whose names begin with `prefix`, in the order of their names. Most of
    /// these locks are free, so [`list`](Inspect::list) does not have them.
    ///
    /// # Errors
    /// As [`ticks`](Inspect::ticks).
    pub async fn list_ticks(&self, prefix: &str) -> Result<Vec<LockTicks>> {
        self.check()?;
        let found = self.family.backend.list_ticks(prefix).await?;
        Ok(found.into_iter().map(|(key, notes)| (key, in_order_of_starts(notes))).collect())
    }

    /// Watches the locks whose names begin with `prefix` by polling every `interval`, at most every 10 ms. The example is
    /// at [`Watch`].
    #[must_use]
    pub fn watch(self, prefix: &str, interval: Duration) -> Watch {
        let interval = interval.max(SHORTEST_INTERVAL);
        Watch { inspect: self, prefix: prefix.into(), interval, seen: BTreeMap::new(), changes: Vec::new() }
    }

    fn check(&self) -> Result<()> {
        self.family.check_caller()?;
        if self.family.holds.is_closed() { Err(Error::closed()) } else { Ok(()) }
    }
}

fn in_order_of_starts(mut notes: Vec<TickNote>) -> Vec<TickNote> {
    notes.sort_by_key(|note| (note.token, note.started_ms));
    notes
}

impl fmt::Debug for Inspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inspect").field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// A change of a lock that a [`Watch`] returns.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Change {
    /// The lock has new holders or other waiters than before.
    Changed(LockInfo),
    /// The lock has neither holder nor waiter any more.
    Freed(Key),
}

/// Watches locks; made by [`Inspect::watch`].
///
/// ```
/// use std::time::Duration;
/// use distlock::{Change, Locker};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// # let locker = Locker::connect("mem://watch").await?;
/// let guard = locker.lock("order:7").await?;
/// let mut watch = locker.inspect().watch("order:", Duration::from_millis(50));
///
/// assert!(matches!(watch.next().await?, Change::Changed(lock) if lock.key.as_str() == "order:7"));
/// guard.unlock().await?;
/// assert!(matches!(watch.next().await?, Change::Freed(_)));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Watch {
    inspect: Inspect,
    prefix: String,
    interval: Duration,
    seen: BTreeMap<Key, Seen>,
    changes: Vec<Change>,
}

/// What counts as a change of a lock; the time left on its lease does not.
type Seen = (Vec<Option<FencingToken>>, Vec<OwnerId>);

impl Watch {
    /// Returns the next change; the first changes are the existing locks.
    ///
    /// # Errors
    /// The engine's error. The next call continues where this one was.
    ///
    /// # Cancel safety
    /// Dropping the future loses no change.
    pub async fn next(&mut self) -> Result<Change> {
        loop {
            if let Some(change) = self.changes.pop() {
                return Ok(change);
            }
            let locks = self.inspect.list(&self.prefix).await?;
            self.compare(locks);
            if self.changes.is_empty() {
                let clock = &self.inspect.family.clock;
                self.inspect.family.sleep_until(clock.now().after(self.interval)).await?;
            }
        }
    }

    fn compare(&mut self, locks: Vec<LockInfo>) {
        let mut before = std::mem::take(&mut self.seen);
        for lock in locks {
            let tokens = lock.holders.iter().map(|holder| holder.token).collect();
            let now = (tokens, lock.waiters.iter().map(|waiter| waiter.owner.clone()).collect());
            let changed = before.remove(&lock.key).as_ref() != Some(&now);
            self.seen.insert(lock.key.clone(), now);
            if changed {
                self.changes.push(Change::Changed(lock));
            }
        }
        self.changes.extend(before.into_keys().map(Change::Freed));
        // Popped from the end, so the first listed comes first.
        self.changes.reverse();
    }
}
