//! The past holds seen in listings, bounded.

use std::collections::{HashMap, VecDeque};

use distlock::Key;
use serde::Serialize;

use crate::lock::{Hold, TOLERANCE_MS};

/// How many holds are kept, over all locks.
const MAX_HOLDS: usize = 20_000;
/// Listings further apart leave the time between them unknown, as with an engine that takes a second to list.
pub(crate) const GAP_MS: u64 = 10_000;

/// A hold that has ended.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PastHold {
    #[serde(flatten)]
    pub(crate) hold: Hold,
    /// The last listing in which the hold was present.
    pub(crate) seen_ms: u64,
    /// The hold had ended by then.
    pub(crate) ended_ms: u64,
    pub(crate) end: End,
    /// The reason, where a history has it.
    pub(crate) reason: Option<String>,
}

/// How a hold ended, as far as can be seen from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    /// Broken by this console, or by another client according to the history.
    Broken,
    /// Released by its holder, according to the history.
    Released,
    /// Lost by its holder, according to the history.
    Lost,
    /// It ended while its lease still had time: released, or broken by another client.
    Ended,
    /// Its lease expired.
    Expired,
    /// No listing saw when it ended.
    Unseen,
}

impl End {
    /// Returns how a hold ended that was present at `seen_ms` and absent at `now_ms`.
    fn of(hold: &Hold, seen_ms: u64, now_ms: u64) -> End {
        match hold.expires_ms {
            _ if now_ms.saturating_sub(seen_ms) > GAP_MS => End::Unseen,
            // A holder gives up a lost lease a little before the engine does.
            Some(expires) if expires > now_ms + TOLERANCE_MS + hold.error_ms => End::Ended,
            // The holder was late already: it renews long before half of the lease is over.
            Some(expires) if expires.saturating_sub(seen_ms) <= hold.longest_ms / 2 => End::Expired,
            // It may have been renewed and released since.
            Some(_) => End::Unseen,
            None => End::Ended,
        }
    }
}

/// The past holds of all locks.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    /// For each lock, the oldest first.
    holds: HashMap<Key, VecDeque<PastHold>>,
    /// The lock of each hold in the order of their ends: the order in which they are dropped.
    order: VecDeque<Key>,
}

impl Timeline {
    /// Adds a hold that was present at `seen_ms` and absent at `now_ms`, and returns it.
    pub(crate) fn end(&mut self, key: Key, hold: Hold, seen_ms: u64, now_ms: u64) -> PastHold {
        let end = End::of(&hold, seen_ms, now_ms);
        let past = PastHold { hold, seen_ms, ended_ms: now_ms, end, reason: None };
        self.holds.entry(key.clone()).or_default().push_back(past.clone());
        self.order.push_back(key);
        if self.order.len() > MAX_HOLDS {
            self.forget_oldest();
        }
        past
    }

    /// Returns the last `most` holds of a lock, the oldest first. Breaks are checked only now: a listing may miss a
    /// hold before the break that ended it is recorded.
    pub(crate) fn of(&self, key: &Key, most: usize, is_broken: impl Fn(&Hold) -> bool) -> Vec<PastHold> {
        let Some(holds) = self.holds.get(key) else { return Vec::new() };
        let last = holds.iter().skip(holds.len().saturating_sub(most));
        last.map(|past| {
            let end = if is_broken(&past.hold) { End::Broken } else { past.end };
            PastHold { end, ..past.clone() }
        })
        .collect()
    }

    fn forget_oldest(&mut self) {
        let Some(key) = self.order.pop_front() else { return };
        if let Some(holds) = self.holds.get_mut(&key) {
            holds.pop_front();
            if holds.is_empty() {
                self.holds.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(expires_ms: Option<u64>) -> Hold {
        Hold { token: None, record: None, since_ms: None, expires_ms, longest_ms: 2_000, error_ms: 0 }
    }

    #[test]
    fn the_end_of_a_hold_follows_from_the_listings() {
        assert_eq!(End::of(&hold(Some(9_000)), 1_000, 2_000), End::Ended);
        assert_eq!(End::of(&hold(Some(1_900)), 1_000, 2_000), End::Expired);
        assert_eq!(End::of(&hold(Some(2_000)), 1_000, 1_990), End::Expired, "its holder gave it up early");
        assert_eq!(End::of(&hold(Some(2_001)), 1_000, 3_000), End::Unseen, "it had time to be renewed and released");
        assert_eq!(End::of(&hold(None), 1_000, 2_000), End::Ended, "it has no lease");
        assert_eq!(End::of(&hold(Some(1_900)), 1_000, 60_000), End::Unseen);
        let mut timeline = Timeline::default();
        let key = Key::new("a").unwrap();
        timeline.end(key.clone(), hold(Some(9_000)), 1_000, 2_000);
        assert_eq!(timeline.of(&key, 1, |_| true)[0].end, End::Broken);
    }

    #[test]
    fn only_the_last_holds_are_kept() {
        let mut timeline = Timeline::default();
        let (old, hot) = (Key::new("old").unwrap(), Key::new("hot").unwrap());
        timeline.end(old.clone(), hold(None), 0, 1);
        for moment in 0..MAX_HOLDS as u64 {
            timeline.end(hot.clone(), hold(None), moment, moment + 1);
        }
        assert!(timeline.of(&old, 10, |_| false).is_empty() && !timeline.holds.contains_key(&old));
        let last = timeline.of(&hot, 3, |_| false);
        assert_eq!(last.iter().map(|past| past.seen_ms).collect::<Vec<_>>(), [19_997, 19_998, 19_999]);
        assert_eq!((timeline.order.len(), timeline.holds[&hot].len()), (MAX_HOLDS, MAX_HOLDS));
    }
}
