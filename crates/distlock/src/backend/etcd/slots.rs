//! The numbers at the end of this client's keys.
//!
//! etcd remembers every key that ever was until its history is compacted, and walks over those memories whenever it reads
//! a queue. So a lock that is taken a thousand times a second must not leave a thousand names behind: a number is used
//! again once nothing can come of its last use.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Semaphore;

/// How many of one client may join the queue of a lock at the same time: each costs the server more the longer the queue is,
/// and a release must not wait for a thousand of them.
const AT_ONCE: usize = 8;

/// Which numbers are taken, for each lease and lock.
#[derive(Debug, Default)]
pub(super) struct Slots(HashMap<(i64, Vec<u8>), Taken>);

#[derive(Debug)]
struct Taken {
    /// The lowest that was never taken.
    next: u32,
    free: Vec<u32>,
    gate: Arc<Semaphore>,
}

impl Default for Taken {
    fn default() -> Self {
        Taken { next: 0, free: Vec::new(), gate: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

impl Slots {
    /// A number that nobody has, and the gate that all of them go through.
    pub(super) fn take(&mut self, lease: i64, lock: &[u8]) -> (u32, Arc<Semaphore>) {
        let taken = self.0.entry((lease, lock.to_vec())).or_default();
        let slot = taken.free.pop().unwrap_or_else(|| {
            taken.next += 1;
            taken.next - 1
        });
        (slot, taken.gate.clone())
    }

    /// Nothing can come of this use any more.
    pub(super) fn give_back(&mut self, lease: i64, lock: &[u8], slot: u32) {
        let place = (lease, lock.to_vec());
        let Some(taken) = self.0.get_mut(&place) else { return };
        taken.free.push(slot);
        if taken.free.len() == taken.next as usize {
            self.0.remove(&place);
        }
    }

    /// The lease is gone, and with it everything that hung on it.
    pub(super) fn forget(&mut self, lease: i64) {
        self.0.retain(|(other, _), _| *other != lease);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_used_again_only_when_it_was_given_back() {
        let mut slots = Slots::default();
        let take = |slots: &mut Slots, lease, lock: &[u8]| slots.take(lease, lock).0;
        let taken = [(1, b"a"), (1, b"a"), (1, b"b"), (2, b"a")].map(|(lease, lock)| take(&mut slots, lease, lock));
        assert_eq!(taken, [0, 1, 0, 0]);
        slots.give_back(1, b"a", 0);
        assert_eq!([take(&mut slots, 1, b"a"), take(&mut slots, 1, b"a")], [0, 2]);
        for slot in 0..3 {
            slots.give_back(1, b"a", slot);
        }
        slots.forget(2);
        slots.give_back(2, b"a", 0);
        slots.give_back(1, b"b", 0);
        assert!(slots.0.is_empty(), "what nobody uses costs nothing");
    }
}
