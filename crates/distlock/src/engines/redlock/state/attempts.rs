//! The attempts of this engine: the ballot that each of them goes by.

use crate::types::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::contract::Claim;
use crate::types::clock::Moment;
use crate::types::token::AttemptId;

/// How many attempts there may be before those that must be over are looked for.
const FIRST_SWEEP: usize = 1024;

/// No clock is ahead of another by a day; the nodes refuse ballots that are.
const FAR_AHEAD_US: u64 = 24 * 60 * 60 * 1_000_000;

/// What the nodes know an attempt by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// The fencing token, if it is granted.
    pub(crate) ballot: u64,
    /// Where it stands among those who wait: the same on every node.
    pub(crate) ticket: u64,
    /// It was told to wait: the nodes keep a place for it.
    pub(crate) waits: bool,
    /// A node may keep a place for it that must be given up when it ends.
    pub(crate) places: bool,
    /// How often in a row the votes were split.
    pub(crate) splits: u32,
    pub(crate) was_granted: bool,
    /// Its release has begun.
    is_ending: bool,
    /// The ballot was given up: the next claim needs another.
    spent: bool,
    /// Whoever has not been heard of by then is over.
    until: Moment,
}

/// Every attempt that a node may know of.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    table: Mutex<Table>,
    /// The highest ballot used so far.
    last: AtomicU64,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<AttemptId, Attempt>,
    sweep_at: usize,
}

impl Attempts {
    /// The ballot for a claim of `attempt`: the one that it may have been granted with already, or a new one.
    pub(crate) fn begin(&self, claim: &Claim, wall: SystemTime, now: Moment) -> Attempt {
        let fresh = || self.ballot_above(micros(wall).saturating_sub(1));
        let mut table = self.table();
        table.sweep(now);
        let until = still_there_until(now, claim.ttl);
        let entry = table.entries.entry(claim.attempt).or_insert_with(|| {
            let ballot = fresh();
            Attempt {
                ballot,
                ticket: ballot,
                waits: false,
                places: false,
                splits: 0,
                was_granted: false,
                is_ending: false,
                spent: false,
                until,
            }
        });
        if entry.spent {
            entry.ballot = fresh();
            entry.spent = false;
        }
        entry.places |= claim.queue;
        entry.until = until;
        *entry
    }

    /// The claim of `attempt` was granted; `places` if a node may have told it to wait all the same.
    pub(crate) fn granted(&self, id: AttemptId, places: bool) {
        if let Some(entry) = self.table().entries.get_mut(&id) {
            entry.places = places;
            entry.waits = false;
            entry.splits = 0;
            entry.was_granted = true;
        }
    }

    /// Another ballot for the same attempt, above one that a node has told.
    pub(crate) fn raise(&self, id: AttemptId, above: u64, wall: SystemTime) -> u64 {
        let ballot = above.saturating_add(1);
        // Somebody's clock is ahead of ours: the next claim begins there. What stands further ahead was written by hand
        // into one lock's fence, and is no matter of the others.
        if ballot < micros(wall).saturating_add(FAR_AHEAD_US) {
            self.last.fetch_max(ballot, Ordering::Relaxed);
        }
        if let Some(entry) = self.table().entries.get_mut(&id) {
            entry.ballot = entry.ballot.max(ballot);
            return entry.ballot;
        }
        ballot
    }

    pub(crate) fn get(&self, id: AttemptId) -> Option<Attempt> {
        self.table().entries.get(&id).copied()
    }

    /// The claim of `attempt` was not granted and is taken back: its ballot is spent. Answers how often in a row that
    /// happened because votes were split.
    pub(crate) fn refused(&self, id: AttemptId, waits: bool, split: bool) -> u32 {
        let mut table = self.table();
        let Some(entry) = table.entries.get_mut(&id) else { return 0 };
        entry.spent = true;
        entry.waits |= waits;
        entry.splits = if split { entry.splits + 1 } else { 0 };
        entry.splits
    }

    /// A renewal is on its way: the attempt lives.
    pub(crate) fn keep(&self, id: AttemptId, now: Moment, ttl: Duration) {
        if let Some(entry) = self.table().entries.get_mut(&id) {
            entry.until = still_there_until(now, ttl);
        }
    }

    /// Whether `attempt` was granted, and is not being released: only then may a node be asked to set it again.
    pub(crate) fn holds(&self, id: AttemptId) -> bool {
        self.get(id).is_some_and(|entry| entry.was_granted && !entry.is_ending)
    }

    /// The release of `attempt` begins.
    pub(crate) fn end(&self, id: AttemptId) {
        if let Some(entry) = self.table().entries.get_mut(&id) {
            entry.is_ending = true;
        }
    }

    pub(crate) fn forget(&self, id: AttemptId) {
        self.table().entries.remove(&id);
    }

    /// A ballot above all that this engine has used, and above `least`.
    fn ballot_above(&self, least: u64) -> u64 {
        let above = |last: u64| Some(last.max(least) + 1);
        let before = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, above).unwrap_or_else(|last| last);
        before.max(least) + 1
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

impl Table {
    /// A hold that was lost by the nodes' own word is never released: without this its entry would stay.
    fn sweep(&mut self, now: Moment) {
        if self.entries.len() >= self.sweep_at.max(FIRST_SWEEP) {
            self.entries.retain(|_, entry| entry.until > now);
            self.sweep_at = self.entries.len() * 2;
        }
    }
}

fn still_there_until(now: Moment, ttl: Duration) -> Moment {
    now.after(ttl * 4 + Duration::from_secs(60))
}

fn micros(wall: SystemTime) -> u64 {
    let since = wall.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::types::key::Key;
    use crate::types::owner::{OwnerId, Process, Record};

    fn claim() -> Claim {
        let record = Record::new(OwnerId::random(), Process::current(), None, SystemTime::UNIX_EPOCH);
        Claim::new(Key::new("a").unwrap(), Duration::from_secs(1), true, Arc::new(record))
    }

    fn now() -> Moment {
        Moment::from_nanos(1_000_000_000_000)
    }

    fn wall(us: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_micros(us)
    }

    #[test]
    fn ballots_rise_when_the_wall_clock_stands_or_goes_back() {
        let attempts = Attempts::default();
        let ballot = |us| attempts.begin(&claim(), wall(us), now()).ballot;
        let ballots = [ballot(5_000), ballot(5_000), ballot(4_000), ballot(9_000)];
        assert_eq!(ballots, [5_000, 5_001, 5_002, 9_000]);
    }

    #[test]
    fn a_repeated_claim_goes_by_the_same_ballot_until_it_is_refused() {
        let (attempts, claim) = (Attempts::default(), claim());
        let id = claim.attempt;
        let first = attempts.begin(&claim, wall(5_000), now());
        assert_eq!(attempts.begin(&claim, wall(6_000), now()).ballot, first.ballot);
        attempts.refused(id, true, false);
        let next = attempts.begin(&claim, wall(6_000), now());
        assert!(next.ballot > first.ballot);
        assert_eq!((next.ticket, next.waits), (first.ticket, true), "its place stays");
        assert_eq!(attempts.raise(id, 90_000, wall(6_000)), 90_001);
    }

    #[test]
    fn a_ballot_that_another_clock_made_is_remembered_but_not_one_made_by_hand() {
        let attempts = Attempts::default();
        let begin = || attempts.begin(&claim(), wall(5_000), now()).ballot;
        attempts.raise(AttemptId::random(), FAR_AHEAD_US * 2, wall(5_000));
        assert_eq!(begin(), 5_000);
        attempts.raise(AttemptId::random(), 70_000, wall(5_000));
        assert_eq!(begin(), 70_002);
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let attempts = Attempts::default();
        for _ in 0..FIRST_SWEEP {
            attempts.begin(&claim(), wall(1), now());
        }
        let later = now().after(Duration::from_secs(3600));
        attempts.begin(&claim(), wall(1), later);
        assert_eq!(attempts.table().entries.len(), 1);
    }
}
