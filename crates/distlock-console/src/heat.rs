//! Recent wait times: for each lock with waiters, a strip of time slots.

use std::collections::{HashMap, VecDeque};

use distlock::Key;
use serde::Serialize;

use crate::locks::Locks;

/// The length of a slot; below, how many are kept.
const SLOT_MS: u64 = 10_000;
const SLOTS: u64 = 60;
/// How many locks have a strip; further locks have none.
const MAX_LOCKS: usize = 500;
/// How many strips are shown: those with the longest waits.
const MAX_SHOWN: usize = 12;

/// The strips of all locks.
#[derive(Debug, Default)]
pub(crate) struct Heat(HashMap<Key, VecDeque<Cell>>);

/// A slot with at least one waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Cell {
    /// The start of the slot.
    at_ms: u64,
    /// The 95th percentile of the wait times in the slot's worst listing.
    p95_ms: u64,
}

/// The strips that are shown.
#[derive(Debug, Serialize)]
pub(crate) struct Strips<'a> {
    slot_ms: u64,
    from_ms: u64,
    till_ms: u64,
    /// How many strips there are, shown or not.
    locks: usize,
    rows: Vec<Strip<'a>>,
}

/// The strip of one lock.
#[derive(Debug, Serialize)]
struct Strip<'a> {
    name: &'a str,
    cells: &'a VecDeque<Cell>,
}

impl Heat {
    /// Records the waits of a listing at `now_ms`.
    pub(crate) fn record(&mut self, locks: &Locks, now_ms: u64) {
        self.0.retain(|_, cells| {
            while cells.front().is_some_and(|cell| cell.at_ms + SLOT_MS * SLOTS <= now_ms) {
                cells.pop_front();
            }
            !cells.is_empty()
        });
        let at_ms = now_ms - now_ms % SLOT_MS;
        for lock in locks.iter().filter(|lock| !lock.waiters.is_empty()) {
            if self.0.len() >= MAX_LOCKS && !self.0.contains_key(&lock.key) {
                continue;
            }
            let p95_ms = p95(lock.waiters.iter().map(|waiter| now_ms.saturating_sub(waiter.since_ms)).collect());
            let cells = self.0.entry(lock.key.clone()).or_default();
            match cells.back_mut() {
                Some(cell) if cell.at_ms == at_ms => cell.p95_ms = cell.p95_ms.max(p95_ms),
                _ => cells.push_back(Cell { at_ms, p95_ms }),
            }
        }
    }

    /// Returns the strips with the longest waits, the worst first.
    pub(crate) fn worst(&self, now_ms: u64) -> Strips<'_> {
        let longest = |cells: &VecDeque<Cell>| cells.iter().map(|cell| cell.p95_ms).max();
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_by_key(|(key, cells)| (std::cmp::Reverse(longest(cells)), key.as_str()));
        let till_ms = now_ms - now_ms % SLOT_MS + SLOT_MS;
        let rows = all.into_iter().take(MAX_SHOWN).map(|(key, cells)| Strip { name: key.as_str(), cells });
        let from_ms = till_ms.saturating_sub(SLOT_MS * SLOTS);
        Strips { slot_ms: SLOT_MS, from_ms, till_ms, locks: self.0.len(), rows: rows.collect() }
    }
}

fn p95(mut waits: Vec<u64>) -> u64 {
    waits.sort_unstable();
    let rank = (waits.len() * 95).div_ceil(100);
    waits.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use distlock::backend::LockInfo;
    use distlock::{OwnerId, Process, Record};

    use super::*;
    use crate::frame::ListingInfo;

    fn locks(waiting: &[(&str, &[u64])], at_ms: u64) -> Locks {
        let waiter = |since: &u64| {
            let since = SystemTime::UNIX_EPOCH + Duration::from_millis(*since);
            Arc::new(Record::new(OwnerId::random(), Process::current(), None, since))
        };
        let info = |(name, since): &(&str, &[u64])| {
            LockInfo::new(Key::new(name).unwrap(), None, since.iter().map(waiter).collect())
        };
        let mut locks = Locks::default();
        locks.replace(waiting.iter().map(info).collect(), ListingInfo { look: 1, at_ms, took_ms: 0 });
        locks
    }

    #[test]
    fn p95_is_not_exceeded_by_nineteen_in_twenty() {
        assert_eq!(p95((1..=100).collect()), 95);
        assert_eq!(p95((1..=20).rev().collect()), 19);
        assert_eq!(p95(vec![7]), 7);
    }

    #[test]
    fn a_slot_keeps_its_worst_listing_and_old_slots_expire() {
        let mut heat = Heat::default();
        heat.record(&locks(&[("a", &[91_000]), ("b", &[99_000])], 100_000), 100_000);
        heat.record(&locks(&[("a", &[98_000])], 105_000), 105_000);
        heat.record(&locks(&[("a", &[109_000])], 111_000), 111_000);
        let shown = serde_json::to_value(heat.worst(111_000)).unwrap();
        assert_eq!(shown["rows"][0]["name"], "a", "the worst first");
        let cells = serde_json::json!([{"at_ms": 100_000, "p95_ms": 9_000}, {"at_ms": 110_000, "p95_ms": 2_000}]);
        assert_eq!(shown["rows"][0]["cells"], cells);
        assert_eq!((&shown["from_ms"], &shown["till_ms"], &shown["locks"]), (&0.into(), &120_000.into(), &2.into()));
        let later = 100_000 + SLOT_MS * SLOTS;
        heat.record(&locks(&[], later), later);
        assert_eq!(heat.worst(later).rows.len(), 1, "all slots of b have expired");
    }
}
