//! The holds that were lost or broken in the last 24 hours, as far as this console knows.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock::{FencingToken, Key};
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::timeline::{End, GAP_MS, PastHold};

/// The time that is covered.
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// How many losses are kept.
const MAX_LOSSES: usize = 10_000;
/// How many are shown.
const MAX_SHOWN: usize = 200;
/// How many locks may wait for their histories to be read. Further histories are not read, which is reported.
const MAX_QUEUED: usize = 5_000;
/// How long to wait before a history is read: clients write it shortly after the event.
const DELAY: Duration = Duration::from_millis(1_500);

/// The losses from three sources: listings, the locks' histories, and the breaks made in this console.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    holds: HashMap<(Key, FencingToken), PastHold>,
    /// Since when listings have followed each other without a gap and no loss was dropped.
    since_ms: u64,
    /// Losses before this moment are not counted any more.
    from_ms: u64,
    /// How many locks have unknown earlier losses: there were too many histories to read.
    unread: usize,
    /// The locks whose histories could not be read; bounded like the queue.
    pub(crate) missed: HashSet<Key>,
}

/// The number of losses.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Lost {
    pub(crate) count: usize,
    /// Since when all losses were seen; older ones are known only from histories or earlier listings.
    pub(crate) since_ms: u64,
    /// How many locks have unknown earlier losses.
    pub(crate) unread: usize,
    /// The lock of the last loss.
    last: Option<String>,
}

/// One loss.
#[derive(Debug, Serialize)]
pub(crate) struct Loss<'a> {
    name: &'a str,
    #[serde(flatten)]
    hold: &'a PastHold,
}

impl Losses {
    /// Records a listing at `now_ms`; the one before was at `seen_ms`. Returns whether there was a gap between the
    /// two.
    pub(crate) fn record_listing(&mut self, seen_ms: Option<u64>, now_ms: u64) -> bool {
        let is_gap = seen_ms.is_none_or(|seen| now_ms.saturating_sub(seen) > GAP_MS);
        if is_gap {
            self.record_unread_count(0, now_ms);
        }
        // A time from a clock that is ahead, a client's or this machine's, is capped to now.
        self.holds.values_mut().for_each(|past| past.ended_ms = past.ended_ms.min(now_ms));
        self.from_ms = now_ms.saturating_sub(DAY_MS);
        if let Some(excess) = self.holds.len().checked_sub(MAX_LOSSES + 1) {
            let mut ends: Vec<u64> = self.holds.values().map(|past| past.ended_ms).collect();
            self.from_ms = self.from_ms.max(ends.select_nth_unstable(excess).1.saturating_add(1));
        }
        self.since_ms = self.since_ms.max(self.from_ms);
        self.holds.retain(|_, past| past.ended_ms >= self.from_ms);
        is_gap
    }

    /// Records that losses before `now_ms` are known from histories only, and for `unread` locks not at all.
    pub(crate) fn record_unread_count(&mut self, unread: usize, now_ms: u64) {
        (self.since_ms, self.unread) = (now_ms, unread);
        self.missed.clear();
    }

    /// Records the same for a lock whose history could not be read, once per lock.
    pub(crate) fn record_unread(&mut self, key: Key, now_ms: u64) {
        if self.missed.contains(&key) {
            return;
        }
        self.since_ms = now_ms;
        if self.missed.len() < MAX_QUEUED {
            self.missed.insert(key);
        }
    }

    /// Records a hold that has ended. A report of the holder or of a history overrides what a listing suggests. Holds
    /// of other programs are not counted: for them, an expired lease may be the normal end.
    pub(crate) fn record(&mut self, key: &Key, past: &PastHold) {
        let Some(token) = past.hold.token else { return };
        let id = (key.clone(), token);
        let mut past = past.clone();
        if let Some(known) = self.holds.get(&id) {
            // A history dated by a clock that is ahead would otherwise seem to end just now at every reading.
            past.ended_ms = past.ended_ms.min(known.ended_ms);
        }
        match past.end {
            _ if past.ended_ms < self.from_ms => {}
            End::Released => drop(self.holds.remove(&id)),
            End::Expired => drop(self.holds.entry(id).or_insert(past)),
            End::Lost if self.holds.get(&id).is_some_and(|known| known.end == End::Broken) => {}
            End::Lost | End::Broken => drop(self.holds.insert(id, past)),
            _ => {}
        }
    }

    pub(crate) fn count(&self) -> Lost {
        let last = self.holds.iter().max_by_key(|(_, past)| past.ended_ms);
        let last = last.map(|((key, _), _)| key.as_str().to_owned());
        let unread = self.unread + self.missed.len();
        Lost { count: self.holds.len(), since_ms: self.since_ms, unread, last }
    }

    /// Returns the last losses, the newest first.
    pub(crate) fn rows(&self) -> Vec<Loss<'_>> {
        let mut rows: Vec<_> = self.holds.iter().map(|((key, _), hold)| Loss { name: key.as_str(), hold }).collect();
        rows.sort_by_key(|row| (std::cmp::Reverse(row.hold.ended_ms), row.name));
        rows.truncate(MAX_SHOWN);
        rows
    }
}

/// The locks whose histories are to be read, each queued once.
#[derive(Debug, Default)]
pub(crate) struct HistoryQueue {
    queue: Mutex<QueuedKeys>,
    added: Notify,
}

/// The queue with the time of each entry, and the set of queued locks.
type QueuedKeys = (VecDeque<(Instant, Key)>, HashSet<Key>);

impl HistoryQueue {
    /// Queues the locks. Returns for how many there was no room.
    pub(crate) fn add<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> usize {
        let (now, (queue, there)) = (Instant::now(), &mut *self.queue());
        let mut unqueued = HashSet::new();
        for key in keys {
            if queue.len() >= MAX_QUEUED && !there.contains(key) {
                unqueued.insert(key);
            } else if there.insert(key.clone()) {
                queue.push_back((now, key.clone()));
            }
        }
        self.added.notify_one();
        unqueued.len()
    }

    /// Returns the next lock, for a single consumer. Dropping the future loses none.
    pub(crate) async fn next(&self) -> Key {
        loop {
            let first = self.queue().0.front().map(|(since, _)| *since);
            match first {
                Some(since) => sleep_until(since + DELAY).await,
                None => self.added.notified().await,
            }
            let (queue, there) = &mut *self.queue();
            if let Some((_, key)) = first.and_then(|_| queue.pop_front()) {
                there.remove(&key);
                return key;
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, QueuedKeys> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Hold;

    fn key(name: &str) -> Key {
        Key::new(name).unwrap()
    }

    fn past(token: Option<u64>, ended_ms: u64, end: End) -> PastHold {
        let token = token.map(FencingToken::new);
        let hold = Hold { token, record: None, since_ms: None, expires_ms: None, longest_ms: 0, error_ms: 0 };
        PastHold { hold, seen_ms: ended_ms, ended_ms, end, reason: None }
    }

    fn ends(losses: &Losses) -> Vec<(u64, End)> {
        losses.rows().iter().map(|row| (row.hold.hold.token.unwrap().get(), row.hold.end)).collect()
    }

    #[test]
    fn each_hold_is_counted_once_and_histories_take_precedence() {
        let (mut losses, a) = (Losses::default(), key("a"));
        for (token, end) in
            [(1, End::Ended), (2, End::Unseen), (3, End::Released), (4, End::Expired), (5, End::Expired)]
        {
            losses.record(&a, &past(Some(token), token, end));
        }
        losses.record(&a, &past(None, 9, End::Expired));
        assert_eq!(
            ends(&losses),
            [(5, End::Expired), (4, End::Expired)],
            "the newest first, without other programs' holds"
        );
        // It was released after all: the listing did not see its last renewal.
        losses.record(&a, &past(Some(4), 4, End::Released));
        losses.record(&a, &past(Some(5), 6, End::Lost));
        losses.record(&a, &past(Some(5), 7, End::Broken));
        losses.record(&a, &past(Some(5), 8, End::Lost));
        losses.record(&a, &past(Some(5), 8, End::Expired));
        assert_eq!(ends(&losses), [(5, End::Broken)]);
        losses.record(&key("b"), &past(Some(5), 99, End::Lost));
        assert_eq!((losses.count().count, losses.count().last.as_deref()), (2, Some("b")));
    }

    #[test]
    fn the_start_of_complete_knowledge_is_reported_and_losses_expire_after_a_day() {
        let (mut losses, a) = (Losses::default(), key("a"));
        let start = 10 * DAY_MS;
        assert!(losses.record_listing(None, start), "no listing before");
        losses.record(&a, &past(Some(1), start - 5_000, End::Lost));
        losses.record(&a, &past(Some(2), start - DAY_MS - 1, End::Lost));
        assert_eq!((losses.count().count, losses.count().since_ms), (1, start), "the other is older than a day");
        assert!(!losses.record_listing(Some(start), start + GAP_MS));
        assert_eq!(losses.count().since_ms, start);
        assert!(losses.record_listing(Some(start), start + GAP_MS + 1), "no listing meanwhile");
        assert_eq!((losses.count().count, losses.count().since_ms), (1, start + GAP_MS + 1));
        losses.since_ms = start;
        losses.record_listing(Some(start + DAY_MS), start + DAY_MS + 1_000);
        assert_eq!((losses.count().count, losses.count().since_ms), (0, start + 1_000), "the whole day");
    }

    #[test]
    fn the_oldest_losses_are_dropped_above_the_limit_and_reported() {
        let (mut losses, a) = (Losses::default(), key("a"));
        losses.record_listing(None, 1);
        for token in 1..=MAX_LOSSES as u64 + 3 {
            losses.record(&a, &past(Some(token), 100 + token, End::Lost));
        }
        losses.record_listing(Some(2 * MAX_LOSSES as u64), 2 * MAX_LOSSES as u64);
        assert_eq!((losses.count().count, losses.count().since_ms), (MAX_LOSSES, 104));
        assert_eq!(losses.rows().len(), MAX_SHOWN);
    }

    #[test]
    fn losses_dated_by_a_clock_that_is_ahead_also_expire() {
        let (mut losses, a, start) = (Losses::default(), key("a"), 10 * DAY_MS);
        losses.record_listing(None, start);
        losses.record(&a, &past(Some(1), u64::MAX, End::Lost));
        losses.record_listing(Some(start), start + 1_000);
        losses.record(&key("b"), &past(Some(1), start + 2_000, End::Lost));
        // Every reading of that history says that it was just now.
        losses.record(&a, &past(Some(1), start + 3_000, End::Lost));
        losses.record_listing(Some(start), start + 3_000);
        assert_eq!((losses.count().count, losses.count().last.as_deref()), (2, Some("b")));
        losses.record_listing(Some(start + DAY_MS), start + DAY_MS + 1_001);
        assert_eq!(losses.count().count, 1, "it is a day old");
    }

    #[test]
    fn losses_dated_by_clocks_that_are_ahead_are_bounded_too() {
        let (mut losses, a) = (Losses::default(), key("a"));
        for token in 1..=MAX_LOSSES as u64 + 3 {
            losses.record(&a, &past(Some(token), u64::MAX, End::Lost));
        }
        losses.record_listing(Some(1), 2);
        assert!(losses.count().count <= MAX_LOSSES, "{}", losses.count().count);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_is_queued_once_and_the_queue_is_bounded() {
        let unread = HistoryQueue::default();
        let keys: Vec<Key> = (0..MAX_QUEUED + 9).map(|number| key(&number.to_string())).collect();
        assert_eq!(unread.add([&keys[1], &keys[0], &keys[1]].into_iter()), 0);
        assert_eq!(unread.add(keys.iter()), 9, "no room in the queue");
        assert_eq!(unread.queue().0.len(), MAX_QUEUED);
        let began = Instant::now();
        assert_eq!((unread.next().await, unread.next().await), (keys[1].clone(), keys[0].clone()));
        assert_eq!(began.elapsed().as_millis(), DELAY.as_millis(), "the history is written by then");
        unread.add([&keys[1]].into_iter());
        assert_eq!(unread.queue().0.back().unwrap().1, keys[1], "again, once it was read");
    }
}
