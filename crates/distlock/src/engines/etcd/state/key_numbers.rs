//! The numbers at the end of this client's keys.
//!
//! etcd remembers every key that ever was until its history is compacted, and walks over those memories whenever it
//! reads a queue. So a lock that is taken a thousand times a second must not leave a thousand names behind: a number is
//! used again once nothing can come of its last use.

use std::collections::HashMap;

/// Which numbers are taken, for each lease and lock.
#[derive(Debug, Default)]
pub(crate) struct KeyNumbers(HashMap<(i64, Vec<u8>), Taken>);

#[derive(Debug, Default)]
struct Taken {
    /// The lowest that was never taken.
    next: u32,
    free: Vec<u32>,
}

impl KeyNumbers {
    /// Takes a number that no key has.
    pub(crate) fn take(&mut self, lease: i64, lock: &[u8]) -> u32 {
        let taken = self.0.entry((lease, lock.to_vec())).or_default();
        taken.free.pop().unwrap_or_else(|| {
            taken.next += 1;
            taken.next - 1
        })
    }

    /// Nothing can come of this use any more.
    pub(crate) fn give_back(&mut self, lease: i64, lock: &[u8], slot: u32) {
        let place = (lease, lock.to_vec());
        let Some(taken) = self.0.get_mut(&place) else { return };
        taken.free.push(slot);
        if taken.free.len() == taken.next as usize {
            self.0.remove(&place);
        }
    }

    /// The lease is gone, and with it everything that hung on it.
    pub(crate) fn forget(&mut self, lease: i64) {
        self.0.retain(|(other, _), _| *other != lease);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_used_again_only_when_it_was_given_back() {
        let mut slots = KeyNumbers::default();
        let taken = [(1, b"a"), (1, b"a"), (1, b"b"), (2, b"a")].map(|(lease, lock)| slots.take(lease, lock));
        assert_eq!(taken, [0, 1, 0, 0]);
        slots.give_back(1, b"a", 0);
        assert_eq!([slots.take(1, b"a"), slots.take(1, b"a")], [0, 2]);
        for slot in 0..3 {
            slots.give_back(1, b"a", slot);
        }
        slots.forget(2);
        slots.give_back(2, b"a", 0);
        slots.give_back(1, b"b", 0);
        assert!(slots.0.is_empty(), "what nobody uses costs nothing");
    }
}
