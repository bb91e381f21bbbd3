//! Locks seen from outside: who holds them, who waits, and the way to end a hold that nobody else will end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::LockInfo;
use crate::core::family::Family;
use crate::types::error::{Error, Result};
use crate::types::history::{HistoryEntry, HistoryKind, MAX_HISTORY, in_order};
use crate::types::key::Key;
use crate::types::meter;
use crate::types::owner::{MAX_TEXT_BYTES, OwnerId, Record, check_text};
use crate::types::token::FencingToken;

/// How often to look at the most.
pub(crate) const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);

/// Looks at locks from outside; made by [`Locker::inspect`](crate::Locker::inspect).
pub struct Inspect {
    family: Arc<Family>,
    /// Who looks, and breaks.
    owner: OwnerId,
}

impl Inspect {
    pub(crate) fn new(family: Arc<Family>, owner: OwnerId) -> Self {
        Inspect { family, owner }
    }

    /// The locks whose names begin with `prefix`, in the order of their names; all of them when it is empty.
    ///
    /// # Errors
    /// What the engine says; kind `Unsupported` when it cannot list.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.check()?;
        self.family.backend.list(prefix).await
    }

    /// One lock; `None` when nobody holds it or waits for it.
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

    /// Ends the hold of `key` that has `token`, whoever has it. Its holder is told, but may be in the middle of
    /// something: only a resource that checks fencing tokens is safe from it.
    ///
    /// # Errors
    /// Kind `InvalidInput` without a reason; `NotHeld` when nobody holds it with that token; `Foreign` when it is not
    /// ours to end; `Unsupported` when the engine cannot.
    ///
    /// # Cancel safety
    /// When the future is dropped the hold may or may not have been ended; not by half.
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

    /// What has happened to `key`: its last entries, at most `most` of them, the oldest first.
    ///
    /// Only lockers that [keep a history](crate::LockerBuilder::history) write one, a moment after things happened and as
    /// well as they can; whoever looks need not be one of them. A holder whose process died has left no entry of its end.
    /// Of one hold after the other the order is that of their fencing tokens, whatever the clocks of their machines say.
    ///
    /// # Errors
    /// What the engine says; kind `Unsupported` where [`Capabilities::history`](crate::backend::Capabilities) says so.
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

    /// Follows the locks whose names begin with `prefix`, looking every `interval`, at most every 10 ms.
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

/// A lock that changed hands, as [`Watch`] saw it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Change {
    /// The lock has a holder, a new one, or other waiters than before.
    Changed(LockInfo),
    /// Nobody holds the lock or waits for it any more.
    Freed(Key),
}

/// Follows locks; made by [`Inspect::watch`].
pub struct Watch {
    inspect: Inspect,
    prefix: String,
    interval: Duration,
    seen: BTreeMap<Key, Seen>,
    changes: Vec<Change>,
}

/// What makes two looks at a lock differ; the time left on its lease does not.
type Seen = (Vec<Option<FencingToken>>, Vec<OwnerId>);

impl Watch {
    /// The next change; the first ones are the locks there are.
    ///
    /// # Errors
    /// What the engine says. Asking again after an error goes on where it was.
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
        // Popped from the end: what was listed first comes first.
        self.changes.reverse();
    }
}
