//! The holds that were lost or broken in the last 24 hours, as far as this console can know.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use distlock::{FencingToken, Key};
use serde::Serialize;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::timeline::{End, GAP_MS, PastHold};

/// How far back it goes.
const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
/// How many losses are remembered.
const MOST: usize = 10_000;
/// How many are shown.
const MOST_SHOWN: usize = 200;
/// How many locks may wait for their histories to be read; of the others nothing is read, and that is said.
const MOST_UNREAD: usize = 5_000;
/// How long a history is left to be written, after something has happened to its lock.
const DELAY: Duration = Duration::from_millis(1_500);

/// What was lost, from three sources: looks, the histories of locks, and the breaks that were done here.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    holds: HashMap<(Key, FencingToken), PastHold>,
    /// Since when one look has followed the other, and nothing was forgotten.
    since_ms: u64,
    /// What ended before is not counted any more.
    from_ms: u64,
    /// Of how many locks nothing older is known: there were too many to read all histories.
    unread: usize,
    /// Those whose histories could not be read, at most as many as may be in line.
    pub(crate) missed: HashSet<Key>,
}

/// How many there are.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Lost {
    pub(crate) count: usize,
    /// Since when all were seen; older ones are only those that histories or earlier looks told of.
    pub(crate) since_ms: u64,
    /// Of how many locks nothing older is known.
    pub(crate) unread: usize,
    /// The lock of the last one.
    last: Option<String>,
}

/// One of them.
#[derive(Debug, Serialize)]
pub(crate) struct Loss<'a> {
    name: &'a str,
    #[serde(flatten)]
    hold: &'a PastHold,
}

impl Losses {
    /// There was a look at `now_ms`, and one before at `seen_ms`. Says whether there was a gap between the two.
    pub(crate) fn look(&mut self, seen_ms: Option<u64>, now_ms: u64) -> bool {
        let is_gap = seen_ms.is_none_or(|seen| now_ms.saturating_sub(seen) > GAP_MS);
        if is_gap {
            self.leave_out(0, now_ms);
        }
        // A clock that was ahead, a client's or ours, is believed no longer than until now.
        self.holds.values_mut().for_each(|past| past.ended_ms = past.ended_ms.min(now_ms));
        self.from_ms = now_ms.saturating_sub(DAY_MS);
        if let Some(excess) = self.holds.len().checked_sub(MOST + 1) {
            let mut ends: Vec<u64> = self.holds.values().map(|past| past.ended_ms).collect();
            self.from_ms = self.from_ms.max(ends.select_nth_unstable(excess).1.saturating_add(1));
        }
        self.since_ms = self.since_ms.max(self.from_ms);
        self.holds.retain(|_, past| past.ended_ms >= self.from_ms);
        is_gap
    }

    /// What came before `now_ms` is known from histories only, and of so many locks not even from those.
    pub(crate) fn leave_out(&mut self, unread: usize, now_ms: u64) {
        (self.since_ms, self.unread) = (now_ms, unread);
        self.missed.clear();
    }

    /// The same of one more lock, whose history could not be read. Of one that is counted already that is no news.
    pub(crate) fn miss(&mut self, key: Key, now_ms: u64) {
        if self.missed.contains(&key) {
            return;
        }
        self.since_ms = now_ms;
        if self.missed.len() < MOST_UNREAD {
            self.missed.insert(key);
        }
    }

    /// Takes in a hold that is over. What the holder or a history says wins over what a look made of it. Holds of other
    /// programs are not counted: with them a lease that runs out may be the ordinary end.
    pub(crate) fn learn(&mut self, key: &Key, past: &PastHold) {
        let Some(token) = past.hold.token else { return };
        let id = (key.clone(), token);
        let mut past = past.clone();
        if let Some(known) = self.holds.get(&id) {
            // It was over by then. A history that a clock ahead has dated says at each reading that it was just now.
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

    /// The last ones, the newest first.
    pub(crate) fn rows(&self) -> Vec<Loss<'_>> {
        let mut rows: Vec<_> = self.holds.iter().map(|((key, _), hold)| Loss { name: key.as_str(), hold }).collect();
        rows.sort_by_key(|row| (std::cmp::Reverse(row.hold.ended_ms), row.name));
        rows.truncate(MOST_SHOWN);
        rows
    }
}

/// The locks whose histories are to be read, each once.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    line: Mutex<Line>,
    added: Notify,
}

/// Who is in line since when, and who is.
type Line = (VecDeque<(Instant, Key)>, HashSet<Key>);

impl Unread {
    /// Puts them in line, and says for how many there was no room.
    pub(crate) fn add<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> usize {
        let (now, (line, there)) = (Instant::now(), &mut *self.line());
        let mut left_out = HashSet::new();
        for key in keys {
            if line.len() >= MOST_UNREAD && !there.contains(key) {
                left_out.insert(key);
            } else if there.insert(key.clone()) {
                line.push_back((now, key.clone()));
            }
        }
        self.added.notify_one();
        left_out.len()
    }

    /// The next one, for the only one who asks. Dropping the future takes none away.
    pub(crate) async fn next(&self) -> Key {
        loop {
            let first = self.line().0.front().map(|(since, _)| *since);
            match first {
                Some(since) => sleep_until(since + DELAY).await,
                None => self.added.notified().await,
            }
            let (line, there) = &mut *self.line();
            if let Some((_, key)) = first.and_then(|_| line.pop_front()) {
                there.remove(&key);
                return key;
            }
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
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
        let hold = Hold { token, record: None, since_ms: None, expires_ms: None, longest_ms: 0, blur_ms: 0 };
        PastHold { hold, seen_ms: ended_ms, ended_ms, end, reason: None }
    }

    fn ends(losses: &Losses) -> Vec<(u64, End)> {
        losses.rows().iter().map(|row| (row.hold.hold.token.unwrap().get(), row.hold.end)).collect()
    }

    #[test]
    fn each_hold_is_counted_once_and_what_is_written_down_wins() {
        let (mut losses, a) = (Losses::default(), key("a"));
        for (token, end) in
            [(1, End::Ended), (2, End::Unseen), (3, End::Released), (4, End::Expired), (5, End::Expired)]
        {
            losses.learn(&a, &past(Some(token), token, end));
        }
        losses.learn(&a, &past(None, 9, End::Expired));
        assert_eq!(ends(&losses), [(5, End::Expired), (4, End::Expired)], "the newest first, and nobody else's");
        // It was released after all: the look did not see its last renewal.
        losses.learn(&a, &past(Some(4), 4, End::Released));
        losses.learn(&a, &past(Some(5), 6, End::Lost));
        losses.learn(&a, &past(Some(5), 7, End::Broken));
        losses.learn(&a, &past(Some(5), 8, End::Lost));
        losses.learn(&a, &past(Some(5), 8, End::Expired));
        assert_eq!(ends(&losses), [(5, End::Broken)]);
        losses.learn(&key("b"), &past(Some(5), 99, End::Lost));
        assert_eq!((losses.count().count, losses.count().last.as_deref()), (2, Some("b")));
    }

    #[test]
    fn it_says_since_when_it_knows_and_forgets_after_a_day() {
        let (mut losses, a) = (Losses::default(), key("a"));
        let start = 10 * DAY_MS;
        assert!(losses.look(None, start), "nobody looked before");
        losses.learn(&a, &past(Some(1), start - 5_000, End::Lost));
        losses.learn(&a, &past(Some(2), start - DAY_MS - 1, End::Lost));
        assert_eq!((losses.count().count, losses.count().since_ms), (1, start), "the other is older than a day");
        assert!(!losses.look(Some(start), start + GAP_MS));
        assert_eq!(losses.count().since_ms, start);
        assert!(losses.look(Some(start), start + GAP_MS + 1), "nobody looked meanwhile");
        assert_eq!((losses.count().count, losses.count().since_ms), (1, start + GAP_MS + 1));
        losses.since_ms = start;
        losses.look(Some(start + DAY_MS), start + DAY_MS + 1_000);
        assert_eq!((losses.count().count, losses.count().since_ms), (0, start + 1_000), "the whole day");
    }

    #[test]
    fn of_too_many_the_oldest_are_forgotten_and_that_is_said() {
        let (mut losses, a) = (Losses::default(), key("a"));
        losses.look(None, 1);
        for token in 1..=MOST as u64 + 3 {
            losses.learn(&a, &past(Some(token), 100 + token, End::Lost));
        }
        losses.look(Some(2 * MOST as u64), 2 * MOST as u64);
        assert_eq!((losses.count().count, losses.count().since_ms), (MOST, 104));
        assert_eq!(losses.rows().len(), MOST_SHOWN);
    }

    #[test]
    fn what_a_clock_that_is_ahead_has_dated_is_forgotten_like_everything_else() {
        let (mut losses, a, start) = (Losses::default(), key("a"), 10 * DAY_MS);
        losses.look(None, start);
        losses.learn(&a, &past(Some(1), u64::MAX, End::Lost));
        losses.look(Some(start), start + 1_000);
        losses.learn(&key("b"), &past(Some(1), start + 2_000, End::Lost));
        // Whenever that history is read, it says that it was just now.
        losses.learn(&a, &past(Some(1), start + 3_000, End::Lost));
        losses.look(Some(start), start + 3_000);
        assert_eq!((losses.count().count, losses.count().last.as_deref()), (2, Some("b")));
        losses.look(Some(start + DAY_MS), start + DAY_MS + 1_001);
        assert_eq!(losses.count().count, 1, "it is a day old");
    }

    #[test]
    fn of_losses_that_clocks_ahead_have_dated_no_more_are_remembered_than_of_others() {
        let (mut losses, a) = (Losses::default(), key("a"));
        for token in 1..=MOST as u64 + 3 {
            losses.learn(&a, &past(Some(token), u64::MAX, End::Lost));
        }
        losses.look(Some(1), 2);
        assert!(losses.count().count <= MOST, "{}", losses.count().count);
    }

    #[tokio::test(start_paused = true)]
    async fn a_history_is_in_line_once_and_the_line_is_bounded() {
        let unread = Unread::default();
        let keys: Vec<Key> = (0..MOST_UNREAD + 9).map(|number| key(&number.to_string())).collect();
        assert_eq!(unread.add([&keys[1], &keys[0], &keys[1]].into_iter()), 0);
        assert_eq!(unread.add(keys.iter()), 9, "for these there is no room");
        assert_eq!(unread.line().0.len(), MOST_UNREAD);
        let began = Instant::now();
        assert_eq!((unread.next().await, unread.next().await), (keys[1].clone(), keys[0].clone()));
        assert_eq!(began.elapsed().as_millis(), DELAY.as_millis(), "by then it is written");
        unread.add([&keys[1]].into_iter());
        assert_eq!(unread.line().0.back().unwrap().1, keys[1], "again, once it was read");
    }
}
