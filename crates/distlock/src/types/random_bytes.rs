//! Random bytes from the kernel, fetched for several ids at a time.

use std::cell::RefCell;
use std::num::NonZeroU64;

/// How many bytes a thread fetches with one system call.
const FETCHED: usize = 512;

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; FETCHED], left: 0, of: None }) };
}

/// The bytes that a thread has fetched.
struct Pool {
    bytes: [u8; FETCHED],
    /// How many of them are unused: the first ones.
    left: usize,
    /// The process that fetched them.
    of: Option<NonZeroU64>,
}

/// Returns bytes that are used once: no other call, thread or fork of this process gets the same ones.
///
/// # Panics
/// If the kernel has no random numbers; there is no safe lock without them.
pub(crate) fn draw<const N: usize>() -> [u8; N] {
    match distlock_fork::generation() {
        Some(process) => POOL.with_borrow_mut(|pool| pool.draw(process)),
        // Without news of forks nothing can be kept.
        None => fetch(),
    }
}

impl Pool {
    fn draw<const N: usize>(&mut self, process: NonZeroU64) -> [u8; N] {
        if self.left < N || self.of != Some(process) {
            self.bytes = fetch();
            (self.left, self.of) = (FETCHED, Some(process));
        }
        self.left -= N;
        let drawn = &mut self.bytes[self.left..self.left + N];
        let mut bytes = [0; N];
        // Erased here, so that nothing can be drawn twice.
        bytes.swap_with_slice(drawn);
        bytes
    }
}

fn fetch<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the kernel gives random numbers");
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_draw_has_bytes_of_its_own() {
        let draws = |_| std::thread::spawn(|| (0..100).map(|_| draw::<16>()).collect::<Vec<_>>());
        let threads: Vec<_> = (0..4).map(draws).collect();
        let all: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 400);
        assert!(all.iter().all(|bytes| *bytes != [0; 16]));
    }

    #[test]
    fn what_an_ancestor_has_fetched_is_thrown_away() {
        let [parent, child] = [1, 2].map(NonZeroU64::new).map(Option::unwrap);
        let mut pool = Pool { bytes: [0; FETCHED], left: 0, of: None };
        let _: [u8; 16] = pool.draw(parent);
        let before = pool.bytes;
        let mut copy = Pool { ..pool };
        let (ours, theirs): ([u8; 16], [u8; 16]) = (pool.draw(parent), copy.draw(child));
        assert_ne!(ours, theirs);
        assert_eq!(ours, before[FETCHED - 32..FETCHED - 16], "the parent uses what it has");
        let unused = FETCHED - 16;
        assert!(copy.bytes[..unused].chunks(16).zip(before.chunks(16)).all(|(new, old)| new != old));
    }
}
