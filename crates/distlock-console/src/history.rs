//! A lock's past holds, from its history and from what this console has seen.

use std::collections::BTreeMap;
use std::sync::Arc;

use distlock::{FencingToken, HistoryEntry, HistoryKind};
use serde::Serialize;

use crate::lock::{Hold, Who};
use crate::timeline::{End, PastHold};

/// Returns the ended holds of a history, the oldest first. `is_held` tells which are still held: any other hold
/// without an end entry ended without being recorded. All times are capped to `now_ms`, whatever the clocks of the
/// writers said.
pub(crate) fn past_holds(
    entries: &[HistoryEntry],
    now_ms: u64,
    is_held: impl Fn(FencingToken) -> bool,
) -> Vec<PastHold> {
    let mut holds: BTreeMap<FencingToken, PastHold> = BTreeMap::new();
    for entry in entries {
        let at_ms = entry.at_ms.min(now_ms);
        let hold = holds.entry(entry.token).or_insert_with(|| begin(entry, at_ms));
        if let Some(end) = end_of(entry.kind) {
            // A break is recorded before the holder records the loss, and says more.
            hold.end = if hold.end == End::Broken { End::Broken } else { end };
            (hold.seen_ms, hold.ended_ms) = (at_ms, at_ms);
            hold.reason = hold.reason.take().or_else(|| entry.reason.clone());
        }
    }
    let mut past = Vec::new();
    let mut next_ms = now_ms;
    for (token, mut hold) in holds.into_iter().rev() {
        let since_ms = hold.hold.since_ms;
        if hold.end != End::Unseen {
            past.push(hold);
        } else if !is_held(token) {
            // It ended before the next holder acquired the lock.
            hold.ended_ms = next_ms.max(hold.seen_ms);
            past.push(hold);
        }
        next_ms = since_ms.unwrap_or(next_ms);
    }
    past.reverse();
    past
}

/// Adds what the console saw and the history does not contain: other clients, and ends that were not recorded.
pub(crate) fn merge(mut written: Vec<PastHold>, seen: Vec<PastHold>) -> Vec<PastHold> {
    for past in seen {
        match written.iter_mut().find(|other| other.hold.is_same(&past.hold)) {
            Some(known) if known.end == End::Unseen => {
                let since_ms = known.hold.since_ms.or(past.hold.since_ms);
                *known = PastHold { hold: Hold { since_ms, ..past.hold.clone() }, ..past };
            }
            Some(_) => {}
            None => written.push(past),
        }
    }
    written.sort_by_key(|past| past.ended_ms);
    written
}

/// A history entry as it is shown.
#[derive(Debug, Serialize)]
pub(crate) struct HistoryEvent<'a> {
    /// When, by the writer's clock.
    at_ms: u64,
    what: &'static str,
    /// As text: readers of JSON round numbers of this size.
    token: String,
    /// For an acquisition how long the wait was; otherwise how long the hold was, where known.
    took_ms: Option<u64>,
    reason: Option<&'a str>,
    /// The holder; for a break, the user who broke it.
    #[serde(flatten)]
    who: Who<'a>,
}

impl<'a> From<&'a HistoryEntry> for HistoryEvent<'a> {
    fn from(entry: &'a HistoryEntry) -> HistoryEvent<'a> {
        let HistoryEntry { at_ms, kind, token, took_ms, reason, record, .. } = entry;
        let (what, token, reason) = (kind.as_str(), token.to_string(), reason.as_deref());
        HistoryEvent { at_ms: *at_ms, what, token, took_ms: *took_ms, reason, who: record.into() }
    }
}

fn begin(entry: &HistoryEntry, at_ms: u64) -> PastHold {
    // The acquisition may have been trimmed from the history: the end entry has the duration.
    let since_ms = match entry.kind {
        HistoryKind::Acquired => Some(at_ms),
        _ => entry.took_ms.map(|held| at_ms.saturating_sub(held)),
    };
    // A break is recorded by another client than the holder.
    let record = (entry.kind != HistoryKind::Broken).then(|| Arc::new(entry.record.clone()));
    let hold = Hold { record, since_ms, ..Hold::unseen(entry.token) };
    PastHold { hold, seen_ms: at_ms, ended_ms: at_ms, end: End::Unseen, reason: None }
}

fn end_of(kind: HistoryKind) -> Option<End> {
    match kind {
        HistoryKind::Released => Some(End::Released),
        HistoryKind::Lost => Some(End::Lost),
        HistoryKind::Broken => Some(End::Broken),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use distlock::HistoryKind::{Acquired, Broken, Lost, Released};
    use distlock::{OwnerId, Process, Record};

    use super::*;

    fn entry(token: u64, kind: HistoryKind, at_ms: u64) -> HistoryEntry {
        let record = Record::new(OwnerId::new("o").unwrap(), Process::current(), None, SystemTime::UNIX_EPOCH);
        let mut entry = HistoryEntry::new(at_ms, kind, FencingToken::new(token), record);
        entry.reason = (kind == Broken).then(|| "it hangs".to_owned());
        entry
    }

    fn summary(holds: &[PastHold]) -> Vec<(u64, Option<u64>, u64, End)> {
        let token = |past: &PastHold| past.hold.token.unwrap().get();
        holds.iter().map(|past| (token(past), past.hold.since_ms, past.ended_ms, past.end)).collect()
    }

    #[test]
    fn holds_without_an_end_entry_end_before_the_next_hold() {
        let mut forgotten = entry(1, Released, 50);
        forgotten.took_ms = Some(30);
        let history = [
            forgotten,
            entry(2, Acquired, 60),
            entry(3, Acquired, 90),
            entry(3, Broken, 120),
            entry(3, Lost, 121),
            entry(4, Acquired, 130),
        ];
        let holds = past_holds(&history, 1_000, |token| token.get() == 4);
        let expected =
            [(1, Some(20), 50, End::Released), (2, Some(60), 90, End::Unseen), (3, Some(90), 121, End::Broken)];
        assert_eq!(summary(&holds), expected);
        assert_eq!(holds[2].reason.as_deref(), Some("it hangs"));
        assert_eq!(summary(&past_holds(&history, 1_000, |_| false))[3], (4, Some(130), 1_000, End::Unseen));
    }

    #[test]
    fn times_from_a_clock_that_is_ahead_are_capped_to_now() {
        let mut forgotten = entry(1, Released, u64::MAX);
        forgotten.took_ms = Some(30);
        let history = [forgotten, entry(2, Acquired, 2_000), entry(2, Lost, u64::MAX), entry(3, Acquired, 2_000)];
        let expected = [
            (1, Some(970), 1_000, End::Released),
            (2, Some(1_000), 1_000, End::Lost),
            (3, Some(1_000), 1_000, End::Unseen),
        ];
        assert_eq!(summary(&past_holds(&history, 1_000, |_| false)), expected);
    }

    #[test]
    fn seen_holds_fill_the_gaps_of_a_history() {
        let written =
            past_holds(&[entry(1, Acquired, 10), entry(2, Acquired, 20), entry(2, Released, 30)], 99, |_| false);
        let seen = |token, end| PastHold { end, ended_ms: 17, ..begin(&entry(token, Acquired, 12), 12) };
        let merged = merge(written, vec![seen(1, End::Expired), seen(2, End::Ended), seen(3, End::Ended)]);
        let expected =
            [(1, Some(10), 17, End::Expired), (3, Some(12), 17, End::Ended), (2, Some(20), 30, End::Released)];
        assert_eq!(summary(&merged), expected);
    }
}
