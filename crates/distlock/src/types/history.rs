//! The history of a lock: an entry for each time it was acquired, released, lost or broken.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::types::error::{Error, Result};
use crate::types::event::EventKind;
use crate::types::key::Key;
use crate::types::owner::{Record, read_optional_text};
use crate::types::token::FencingToken;

/// The largest number of entries that each lock can keep.
pub const MAX_HISTORY: u32 = 10_000;

/// The longest entry: it has five texts of at most 256 bytes each, twice that when escaped.
pub(crate) const LONGEST_LINE: usize = 4096;

/// How long an engine with expiry keeps a history without new entries.
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
pub(crate) const HISTORY_TTL: std::time::Duration = std::time::Duration::from_secs(7 * 24 * 3600);

/// What happened to a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum HistoryKind {
    /// It was granted.
    Acquired,
    /// A hold of it was ended by force.
    Broken,
    /// Its holder lost it and recorded that.
    Lost,
    /// Its holder released it.
    Released,
}

impl HistoryKind {
    /// Returns the word for it, as in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            HistoryKind::Acquired => "acquired",
            HistoryKind::Broken => "broken",
            HistoryKind::Lost => "lost",
            HistoryKind::Released => "released",
        }
    }
}

impl fmt::Display for HistoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One event of a lock, as the client that caused or suffered it recorded it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// When, in milliseconds of the Unix epoch by the writer's wall clock.
    pub at_ms: u64,
    /// What.
    #[serde(rename = "what")]
    pub kind: HistoryKind,
    /// Which hold it is about.
    #[serde(serialize_with = "write_token", deserialize_with = "read_token")]
    pub token: FencingToken,
    /// For an acquisition, how long it waited; otherwise how long the lock was held, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// Why it was lost or broken.
    #[serde(default, deserialize_with = "read_optional_text", skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The owner of the hold; of a break, the owner that broke it.
    #[serde(flatten)]
    pub record: Record,
}

impl HistoryEntry {
    /// Returns an entry without further details.
    #[must_use]
    pub fn new(at_ms: u64, kind: HistoryKind, token: FencingToken, record: Record) -> Self {
        HistoryEntry { at_ms, kind, token, took_ms: None, reason: None, record }
    }

    /// Returns the entry of an event; `None` if the event has none.
    pub(crate) fn of(event: &EventKind<'_>, token: FencingToken, record: &Record, at_ms: u64) -> Option<Self> {
        let (kind, took, reason) = match event {
            EventKind::Acquired { waited } => (HistoryKind::Acquired, waited, None),
            EventKind::Released { held } => (HistoryKind::Released, held, None),
            EventKind::Lost { reason, held } => (HistoryKind::Lost, held, Some(reason.describe().to_owned())),
            _ => return None,
        };
        let took_ms = Some(u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        Some(HistoryEntry { took_ms, reason, ..HistoryEntry::new(at_ms, kind, token, record.clone()) })
    }

    /// Returns the entry as one line of JSON, as engines store it.
    ///
    /// # Errors
    /// None in practice: an entry has only text and numbers.
    pub fn to_line(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::invalid("history", error))
    }

    /// Reads what [`to_line`](HistoryEntry::to_line) wrote; `None` for anything else, such as a kind of a later
    /// version, or text with control characters.
    #[must_use]
    pub fn from_line(line: &[u8]) -> Option<Self> {
        if line.len() > LONGEST_LINE {
            return None;
        }
        serde_json::from_slice(line).ok()
    }
}

/// Puts entries into the order in which things happened.
///
/// Several processes with different clocks wrote them, a little later. The order of fencing tokens is certain, and a
/// hold's acquisition comes before its other entries. Duplicates are removed.
pub(crate) fn in_order(mut entries: Vec<HistoryEntry>) -> Vec<HistoryEntry> {
    entries.sort_by_key(|entry| (entry.token, entry.kind, entry.at_ms));
    entries.dedup();
    entries
}

/// Returns the result of a batch for each of its requests.
pub(crate) fn answer_all(outcome: &Result<()>, count: usize) -> Vec<Result<()>> {
    let answer = || match outcome {
        Ok(()) => Ok(()),
        Err(error) => Err(Error::new(error.kind(), error.to_string())),
    };
    (0..count).map(|_| answer()).collect()
}

/// Returns the indexes of the entries of each lock.
pub(crate) fn by_lock(entries: &[(Key, HistoryEntry)]) -> BTreeMap<&Key, Vec<usize>> {
    let mut locks: BTreeMap<&Key, Vec<usize>> = BTreeMap::new();
    entries.iter().enumerate().for_each(|(place, (key, _))| locks.entry(key).or_default().push(place));
    locks
}

pub(crate) fn write_token<S: Serializer>(token: &FencingToken, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(token.get())
}

pub(crate) fn read_token<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FencingToken, D::Error> {
    u64::deserialize(deserializer).map(FencingToken::new)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::types::event::LossReason;
    use crate::types::owner::{OwnerId, Process};

    fn entry(token: u64, kind: HistoryKind, at_ms: u64) -> HistoryEntry {
        let record =
            Record::new(OwnerId::new("o").unwrap(), Process::current(), Some("x".into()), SystemTime::UNIX_EPOCH);
        HistoryEntry::new(at_ms, kind, FencingToken::new(token), record)
    }

    #[test]
    fn an_entry_is_one_line_and_comes_back() {
        let record = entry(0, HistoryKind::Lost, 0).record;
        let lost = EventKind::Lost { reason: &LossReason::Expired, held: Duration::from_millis(1_500) };
        let lost = HistoryEntry::of(&lost, FencingToken::new(u64::MAX), &record, 7).unwrap();
        assert_eq!((lost.took_ms, lost.reason.as_deref()), (Some(1_500), Some(LossReason::Expired.describe())));
        let line = lost.to_line().unwrap();
        assert!(
            !line.contains('\n') && line.contains("\"what\":\"lost\"") && line.contains("\"label\":\"x\""),
            "{line}"
        );
        assert_eq!(HistoryEntry::from_line(line.as_bytes()), Some(lost));
        assert_eq!(HistoryEntry::from_line(b"{\"what\":\"painted\"}"), None);
        assert_eq!(HistoryEntry::of(&EventKind::Renewed { margin: None }, FencingToken::new(1), &record, 7), None);
    }

    #[test]
    fn an_entry_with_text_that_we_would_not_write_is_none() {
        let mut longest = entry(1, HistoryKind::Broken, u64::MAX);
        let text = "\"".repeat(256);
        let process = Process { host: text.clone(), pid: u32::MAX, user: text.clone() };
        longest.record =
            Record::new(OwnerId::new(&text).unwrap(), process.into(), Some(text.as_str().into()), SystemTime::now());
        longest.reason = Some(text);
        let line = longest.to_line().unwrap();
        assert_eq!(HistoryEntry::from_line(line.as_bytes()), Some(longest.clone()), "{} bytes", line.len());
        assert_eq!(HistoryEntry::from_line(format!("{line}{:LONGEST_LINE$}", "").as_bytes()), None);
        let hostile = "\u{1b}[2J\nforged";
        let with_reason = HistoryEntry { reason: Some(hostile.into()), ..longest.clone() };
        longest.record.label = Some(hostile.into());
        for entry in [with_reason, longest] {
            assert_eq!(HistoryEntry::from_line(entry.to_line().unwrap().as_bytes()), None);
        }
    }

    #[test]
    fn late_and_repeated_entries_find_their_place() {
        use HistoryKind::{Acquired, Broken, Lost, Released};
        // The second holder wrote first, and its clock is behind.
        let written = [
            entry(2, Acquired, 10),
            entry(1, Acquired, 90),
            entry(1, Released, 95),
            entry(2, Lost, 30),
            entry(2, Broken, 99),
            entry(1, Released, 95),
        ];
        let order: Vec<_> = in_order(written.into()).iter().map(|entry| (entry.token.get(), entry.kind)).collect();
        assert_eq!(order, [(1, Acquired), (1, Released), (2, Acquired), (2, Broken), (2, Lost)]);
    }
}
