//! All locks of the last listing, and what a new listing changes.

use std::collections::BTreeMap;

use distlock::Key;
use distlock::backend::LockInfo;
use serde::{Serialize, Serializer};

use crate::frame::ListingInfo;
use crate::lock::{Hold, Lock};

/// All locks, by name.
#[derive(Debug, Default)]
pub(crate) struct Locks(BTreeMap<Key, Lock>);

/// The changes between two listings.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// New locks, and locks with changed holders or waiters.
    pub(crate) set: Vec<Key>,
    /// Locks of which only the lease ends moved.
    pub(crate) renewed: Vec<Key>,
    /// Locks without holders and waiters any more.
    pub(crate) gone: Vec<Key>,
    /// Holds that have ended.
    pub(crate) ended: Vec<(Key, Hold)>,
}

impl Locks {
    /// Replaces the last listing by a new one. A name that the engine lists twice counts once.
    pub(crate) fn replace(&mut self, listing: Vec<LockInfo>, look: ListingInfo) -> Changes {
        let mut before = std::mem::take(&mut self.0);
        let mut changes = Changes::default();
        for info in listing {
            let mut lock = Lock::new(info, look);
            match before.remove(&lock.key) {
                None => changes.set.push(lock.key.clone()),
                Some(earlier) => changes.compare(earlier, &mut lock),
            }
            self.0.insert(lock.key.clone(), lock);
        }
        for (key, lock) in before {
            changes.ended.extend(lock.holds.into_iter().map(|hold| (key.clone(), hold)));
            changes.gone.push(key);
        }
        changes
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Lock> {
        self.0.get(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lock> + Clone {
        self.0.values()
    }

    /// Returns the locks in `keys` that still exist.
    pub(crate) fn these<'a>(&'a self, keys: &'a [Key]) -> impl Iterator<Item = &'a Lock> + Clone {
        keys.iter().filter_map(|key| self.get(key))
    }
}

impl Changes {
    fn compare(&mut self, earlier: Lock, lock: &mut Lock) {
        for hold in &mut lock.holds {
            if let Some(then) = earlier.holds.iter().find(|then| then.is_same(hold)) {
                hold.keep_earlier_expiry(then);
            }
        }
        if !earlier.is_like(lock) {
            self.set.push(lock.key.clone());
        } else {
            lock.revision = earlier.revision;
            if earlier.expiries() != lock.expiries() {
                self.renewed.push(lock.key.clone());
            }
        }
        let over = earlier.holds.into_iter().filter(|then| !lock.holds.iter().any(|hold| hold.is_same(then)));
        self.ended.extend(over.map(|hold| (lock.key.clone(), hold)));
    }
}

/// Serializes locks as a JSON list, without collecting them first.
pub(crate) struct List<I>(pub(crate) I);

impl<'a, I: Iterator<Item = &'a Lock> + Clone> Serialize for List<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use distlock::{FencingToken, Holder, OwnerId, Process, Record};

    use super::*;

    fn record(owner: &str) -> Arc<Record> {
        let process = Arc::new(Process { host: "vm".into(), pid: 7, user: "me".into() });
        Arc::new(Record::new(OwnerId::new(owner).unwrap(), process, None, SystemTime::UNIX_EPOCH))
    }

    fn held(name: &str, token: u64, ttl_ms: u64, waiters: &[&str]) -> LockInfo {
        let holder = Holder::new(Some(record("holder")), Some(FencingToken::new(token)))
            .with_ttl_left(Some(Duration::from_millis(ttl_ms)))
            .with_held_for(Some(Duration::from_millis(500)));
        LockInfo::new(Key::new(name).unwrap(), Some(holder), waiters.iter().map(|owner| record(owner)).collect())
    }

    fn look(look: u64, at_ms: u64) -> ListingInfo {
        ListingInfo { look, at_ms, took_ms: 5 }
    }

    fn names(keys: &[Key]) -> Vec<&str> {
        keys.iter().map(Key::as_str).collect()
    }

    #[test]
    fn passing_time_changes_nothing_and_a_renewal_only_the_lease() {
        let mut locks = Locks::default();
        assert_eq!(names(&locks.replace(vec![held("a", 1, 10_000, &["w"])], look(1, 100_000)).set), ["a"]);
        let same = locks.replace(vec![held("a", 1, 8_990, &["w"])], look(2, 101_000));
        assert!(same.set.is_empty() && same.renewed.is_empty() && same.gone.is_empty() && same.ended.is_empty());
        assert_eq!(locks.iter().next().unwrap().expiries(), [Some(110_000)], "as at the first look");
        let renewed = locks.replace(vec![held("a", 1, 10_000, &["w"])], look(3, 102_000));
        assert_eq!((names(&renewed.renewed), renewed.set.len()), (vec!["a"], 0));
        assert_eq!(locks.iter().next().unwrap().revision, 1);
    }

    #[test]
    fn a_lease_in_a_slow_and_then_a_quick_listing_has_not_moved() {
        let mut locks = Locks::default();
        // Read at the start of a listing that took 3 s: the lease really ends at 110 000.
        locks.replace(vec![held("a", 1, 13_000, &[])], ListingInfo { look: 1, at_ms: 100_000, took_ms: 3_000 });
        let quick = locks.replace(vec![held("a", 1, 5_000, &[])], look(2, 105_000));
        assert!(quick.renewed.is_empty() && quick.set.is_empty(), "{:?}", quick.renewed);
        let again = locks.replace(vec![held("a", 1, 4_000, &[])], look(3, 106_000));
        assert!(again.renewed.is_empty(), "the error of the first listing is kept");
        let renewed = locks.replace(vec![held("a", 1, 10_000, &[])], look(4, 107_000));
        assert_eq!(names(&renewed.renewed), ["a"]);
        let quick = locks.replace(vec![held("a", 1, 8_500, &[])], look(5, 109_000));
        assert_eq!(names(&quick.renewed), ["a"], "both listings were quick: half a second is a renewal");
    }

    #[test]
    fn new_holders_new_waiters_and_ends_are_changes() {
        let mut locks = Locks::default();
        locks.replace(vec![held("a", 1, 10_000, &["x", "y"]), held("b", 1, 10_000, &[])], look(1, 0));
        let queue = locks.replace(vec![held("a", 1, 10_000, &["y", "x"]), held("b", 1, 10_000, &[])], look(2, 0));
        assert_eq!((names(&queue.set), queue.ended.len()), (vec!["a"], 0), "the order counts");
        let handed = locks.replace(vec![held("a", 2, 10_000, &["x"])], look(3, 0));
        assert_eq!((names(&handed.set), names(&handed.gone)), (vec!["a"], vec!["b"]));
        let ended: Vec<_> = handed.ended.iter().map(|(key, hold)| (key.as_str(), hold.token.unwrap().get())).collect();
        assert_eq!(ended, [("a", 1), ("b", 1)]);
    }
}
