//! Which locks certainly have a row.

use crate::types::sync::atomic::{AtomicU64, Ordering};

const PLACES: usize = 4096;

/// The hashes of names whose rows this client has seen. Two names that share a place forget each other, and names with the same
/// hash are taken for each other: both cost a statement, and nothing else.
#[derive(Debug)]
pub(in crate::engines) struct KnownNames(Box<[AtomicU64]>);

impl KnownNames {
    pub(in crate::engines) fn new() -> KnownNames {
        KnownNames((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }

    pub(in crate::engines) fn note(&self, name: &str) {
        let hash = hash(name);
        self.place(hash).store(hash, Ordering::Relaxed);
    }

    pub(in crate::engines) fn has(&self, name: &str) -> bool {
        let hash = hash(name);
        self.place(hash).load(Ordering::Relaxed) == hash
    }

    fn place(&self, hash: u64) -> &AtomicU64 {
        &self.0[((hash ^ (hash >> 32)) as usize) % PLACES]
    }
}

/// FNV-1a, and never 0.
fn hash(name: &str) -> u64 {
    let add = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, add) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_known_once_it_was_noted_and_until_another_takes_its_place() {
        let names = KnownNames::new();
        assert!(!names.has("a") && !names.has(""));
        names.note("a");
        names.note("");
        assert!(names.has("a") && names.has("") && !names.has("b"));
        (0..100_000).for_each(|number| names.note(&format!("lock:{number}")));
        assert!(!names.has("a"), "the table is bounded");
        assert!(names.has("lock:99999"));
    }
}
