//! Which locks were contended a moment ago.

use std::time::Duration;

use crate::types::clock::Moment;
use crate::types::sync::atomic::{AtomicU64, Ordering};

/// How long a lock counts as contended: its requests go the long way at once.
const LASTS: Duration = Duration::from_secs(1);
const PLACES: usize = 1024;

/// The times until which locks count as contended, by a hash of their keys. Two locks that share a place cost each other a
/// little speed, and nothing else.
#[derive(Debug)]
pub(in crate::engines) struct Contention(Box<[AtomicU64]>);

impl Contention {
    pub(in crate::engines) fn new() -> Contention {
        Contention((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }

    /// Notes that the lock with this key was seen to be held by another attempt, or to have waiters.
    pub(in crate::engines) fn note(&self, lock: &(impl AsRef<[u8]> + ?Sized), now: Moment) {
        self.place(lock.as_ref()).store(now.after(LASTS).as_nanos(), Ordering::Relaxed);
    }

    /// Returns whether the lock with this key counts as contended.
    pub(in crate::engines) fn is_recent(&self, lock: &(impl AsRef<[u8]> + ?Sized), now: Moment) -> bool {
        self.place(lock.as_ref()).load(Ordering::Relaxed) > now.as_nanos()
    }

    fn place(&self, lock: &[u8]) -> &AtomicU64 {
        // FNV-1a.
        let hash = lock
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        &self.0[((hash ^ (hash >> 32)) as usize) % PLACES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_counts_as_contended_for_a_second() {
        let (contention, now) = (Contention::new(), Moment::from_nanos(7_000_000_000));
        contention.note("a", now);
        assert!(contention.is_recent("a", now.after(LASTS - Duration::from_nanos(1))));
        assert!(!contention.is_recent("a", now.after(LASTS)));
        let others = (0..1000).filter(|number| contention.is_recent(&format!("lock:{number}"), now)).count();
        assert!(others < 10, "{others} of a thousand other locks share its place");
    }
}
