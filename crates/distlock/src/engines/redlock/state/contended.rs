//! The locks for which claims have competed a moment ago.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::types::clock::Moment;

/// How long a lock counts as contended.
const MEMORY: Duration = Duration::from_secs(1);
const PLACES: usize = 1024;

/// When each lock was contended last. Locks may share a place: that costs speed, and nothing else. Which ones do is the
/// same in every process, so that a simulated world is the same each time.
#[derive(Debug)]
pub(crate) struct ContendedLocks(Box<[AtomicU64]>);

impl Default for ContendedLocks {
    fn default() -> Self {
        ContendedLocks((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }
}

impl ContendedLocks {
    pub(crate) fn note(&self, lock: &str, now: Moment) {
        self.place(lock).store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Whether the lock was contended a moment ago, so that the lean scripts would probably be asked in vain.
    pub(crate) fn is_recent(&self, lock: &str, now: Moment) -> bool {
        match self.place(lock).load(Ordering::Relaxed) {
            0 => false,
            last => now.since(Moment::from_nanos(last)) < MEMORY,
        }
    }

    fn place(&self, lock: &str) -> &AtomicU64 {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(lock.as_bytes());
        &self.0[usize::try_from(hash % PLACES as u64).unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_counts_as_contended_for_a_moment() {
        let (locks, start) = (ContendedLocks::default(), Moment::from_nanos(1_000_000_000_000));
        assert!(!locks.is_recent("a", start));
        locks.note("a", start);
        assert!(locks.is_recent("a", start.after(MEMORY / 2)));
        assert!(!locks.is_recent("a", start.after(MEMORY)));
        let others = (0..100).filter(|n| locks.is_recent(&n.to_string(), start)).count();
        assert!(others < 50, "one lock is not all locks: {others}");
    }
}
