//! Ticks: the periods or names for which a job runs once, and the notes about them that an engine keeps beside a lock.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::types::error::{Error, Result};
use crate::types::history::{LONGEST_LINE, read_token, write_token};
use crate::types::owner::{Record, check_text};
use crate::types::token::FencingToken;

/// The largest number of notes that a lock has at a time. The next tick is refused until one of them is forgotten: to
/// forget one early would let its tick run again.
pub const MAX_TICKS: usize = 1000;

/// A tick of a lock: what runs once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Tick {
    /// A period on the engine's clock.
    Period {
        /// Its start in milliseconds of the Unix epoch: a multiple of its length.
        start_ms: u64,
        /// Its length in milliseconds.
        length_ms: u64,
    },
    /// A name that the caller gives.
    Named(Arc<str>),
}

impl Tick {
    /// Returns the period of `length` that contains `now_ms`.
    #[must_use]
    pub fn at(now_ms: u64, length: Duration) -> Tick {
        let length_ms = millis(length).max(1);
        Tick::Period { start_ms: now_ms - now_ms % length_ms, length_ms }
    }

    /// Returns the tick with this name.
    ///
    /// # Errors
    /// Kind `InvalidInput` when the text is empty, longer than 256 bytes or has control characters.
    pub fn named(name: impl AsRef<str>) -> Result<Tick> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(Error::invalid("tick", "the text is empty"));
        }
        check_text("tick", name)?;
        Ok(Tick::Named(name.into()))
    }

    /// Returns the end of the period; `None` for a name, which has none.
    #[must_use]
    pub fn end_ms(&self) -> Option<u64> {
        match self {
            Tick::Period { start_ms, length_ms } => Some(start_ms.saturating_add(*length_ms)),
            Tick::Named(_) => None,
        }
    }
}

/// Writes the tick as engines store it: `period:START+LENGTH` in milliseconds, or `name:TEXT`.
impl fmt::Display for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tick::Period { start_ms, length_ms } => write!(f, "period:{start_ms}+{length_ms}"),
            Tick::Named(name) => write!(f, "name:{name}"),
        }
    }
}

impl FromStr for Tick {
    type Err = Error;
    fn from_str(text: &str) -> Result<Tick> {
        let period = |text: &str| {
            let (start, length) = text.split_once('+')?;
            let (start_ms, length_ms) = (start.parse().ok()?, length.parse().ok()?);
            Some(Tick::Period { start_ms, length_ms })
        };
        match text.split_once(':') {
            Some(("name", name)) => Tick::named(name),
            Some(("period", text)) => period(text).ok_or_else(|| Error::invalid("tick", "not a period")),
            _ => Err(Error::invalid("tick", "neither a period nor a name")),
        }
    }
}

impl Serialize for Tick {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Tick {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tick, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// What an engine keeps about a tick of a lock: the last run that was started for it. All times are those of the
/// engine's clock, in milliseconds of the Unix epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TickNote {
    /// The tick.
    pub tick: Tick,
    /// The end of the tick; of a named one, when it is forgotten.
    pub until_ms: u64,
    /// When the note is forgotten: a period after its end, so that a clock that is set back runs no tick again.
    pub forget_ms: u64,
    /// How many runs were started for the tick, this one included.
    pub starts: u32,
    /// When the last run was started.
    pub started_ms: u64,
    /// How long the run took, once it has succeeded: then the tick is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// The fencing token of the run.
    #[serde(serialize_with = "write_token", deserialize_with = "read_token")]
    pub token: FencingToken,
    /// The owner of the run.
    #[serde(flatten)]
    pub record: Record,
}

impl TickNote {
    /// Returns the note of a first run that starts at `now_ms`. The note of a named tick is kept for `keep`; that of a
    /// period for another one after its end.
    #[must_use]
    pub fn start(tick: Tick, now_ms: u64, keep: Duration, token: FencingToken, record: Record) -> TickNote {
        let note =
            TickNote { tick, until_ms: 0, forget_ms: 0, starts: 1, started_ms: now_ms, took_ms: None, token, record };
        note.kept_from(now_ms, keep)
    }

    /// Returns the note with the number of runs that were started, this one included.
    #[must_use]
    pub fn with_starts(mut self, starts: u32) -> TickNote {
        self.starts = starts;
        self
    }

    /// Returns the note of the same run once it has succeeded, at `now_ms`.
    #[must_use]
    pub fn done(self, took: Duration, now_ms: u64, keep: Duration) -> TickNote {
        TickNote { took_ms: Some(millis(took)), ..self.kept_from(now_ms, keep) }
    }

    /// Returns whether the tick is done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.took_ms.is_some()
    }

    /// Returns whether a holder may write this note in place of `old`: a tick that is done stays done.
    #[must_use]
    pub fn may_replace(&self, old: &TickNote) -> bool {
        self.is_done() || !old.is_done()
    }

    /// Returns the note as one line of JSON, as engines store it.
    ///
    /// # Errors
    /// None in practice: a note has only text and numbers.
    pub fn to_line(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|error| Error::invalid("tick", error))
    }

    /// Reads what [`to_line`](TickNote::to_line) wrote; `None` for anything else.
    #[must_use]
    pub fn from_line(line: &[u8]) -> Option<TickNote> {
        if line.len() > LONGEST_LINE {
            return None;
        }
        serde_json::from_slice(line).ok()
    }

    /// A name is forgotten `keep` after its last change, a period one period after its end, and not before a run of
    /// the period before it could end.
    fn kept_from(mut self, now_ms: u64, keep: Duration) -> TickNote {
        match self.tick {
            Tick::Named(_) => {
                self.until_ms = now_ms.saturating_add(millis(keep));
                self.forget_ms = self.until_ms;
            }
            Tick::Period { start_ms, length_ms } => {
                self.until_ms = start_ms.saturating_add(length_ms);
                self.forget_ms = self.until_ms.max(now_ms).saturating_add(length_ms);
            }
        }
        self
    }
}

/// How far this machine's clock is off. Ticks are not: they follow the engine's clock, or, where it has none, the machine
/// whose clock is fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClockSkew {
    /// This machine's clock is ahead of the engine's by this much.
    Ahead(Duration),
    /// This machine's clock is behind the engine's, or behind that of another machine, by this much.
    Behind(Duration),
}

impl fmt::Display for ClockSkew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (by, side) = match self {
            ClockSkew::Ahead(by) => (by, "ahead of"),
            ClockSkew::Behind(by) => (by, "behind"),
        };
        write!(f, "this machine's clock is {:.1} s {side} the clock that ticks follow", by.as_secs_f64())
    }
}

/// Refuses one more note where a lock has `live` others already.
pub(crate) fn check_count(live: usize) -> Result<()> {
    if live < MAX_TICKS {
        return Ok(());
    }
    let problem = format_args!("the lock has notes of {live} ticks, and may have {MAX_TICKS}").to_string();
    Err(Error::invalid("tick", problem).with_help("keep them for a shorter time, or give each job a lock of its own"))
}

/// Returns whole milliseconds, rounded down.
pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::types::owner::{OwnerId, Process};

    const HOUR: Duration = Duration::from_secs(3600);

    fn note(tick: Tick, now_ms: u64) -> TickNote {
        let record =
            Record::new(OwnerId::new("o").unwrap(), Process::current(), Some("x".into()), SystemTime::UNIX_EPOCH);
        TickNote::start(tick, now_ms, HOUR, FencingToken::new(u64::MAX), record)
    }

    #[test]
    fn a_period_is_aligned_and_a_name_is_text() {
        let tick = Tick::at(7_300_000, HOUR);
        assert_eq!(tick, Tick::Period { start_ms: 7_200_000, length_ms: 3_600_000 });
        assert_eq!(Tick::at(7_200_000, HOUR), tick, "its first millisecond");
        assert_ne!(Tick::at(7_199_999, HOUR), tick, "the last one before");
        for tick in [tick, Tick::named("a:b+c \"é").unwrap(), Tick::named("period:1+2").unwrap()] {
            assert_eq!(tick.to_string().parse::<Tick>().unwrap(), tick);
        }
        for bad in ["", "a\nb", &"x".repeat(257)] {
            assert!(Tick::named(bad).unwrap_err().to_string().starts_with("tick: "), "{bad:?}");
        }
        for bad in ["", "name:", "name", "period:1", "period:-1+2", "period:1+x", "other:1"] {
            assert!(bad.parse::<Tick>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_note_is_one_line_and_comes_back() {
        let started = note(Tick::at(7_300_000, HOUR), 7_300_000).with_starts(2);
        assert_eq!((started.until_ms, started.forget_ms, started.is_done()), (10_800_000, 14_400_000, false));
        let done = started.clone().done(Duration::from_millis(1_500), 7_301_500, HOUR);
        assert!(done.is_done() && done.starts == 2 && done.forget_ms == 14_400_000);
        for note in [&started, &done] {
            let line = note.to_line().unwrap();
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(TickNote::from_line(line.as_bytes()).as_ref(), Some(note));
            assert_eq!(TickNote::from_line(format!("{line}{:LONGEST_LINE$}", "").as_bytes()), None);
        }
        assert!(done.may_replace(&started) && !started.may_replace(&done) && done.may_replace(&done));
        assert_eq!(TickNote::from_line(b"{}"), None);
    }

    #[test]
    fn the_longest_note_fits_a_line() {
        let text = "\"".repeat(256);
        let mut longest = note(Tick::named(&text).unwrap(), u64::MAX).done(HOUR, u64::MAX, HOUR);
        let process = Process { host: text.clone(), pid: u32::MAX, user: text.clone() };
        longest.record =
            Record::new(OwnerId::new(&text).unwrap(), process.into(), Some(text.as_str().into()), SystemTime::now());
        let line = longest.to_line().unwrap();
        assert_eq!(TickNote::from_line(line.as_bytes()), Some(longest), "{} bytes", line.len());
    }

    #[test]
    fn a_late_run_and_a_name_are_kept_from_their_last_change() {
        let late = note(Tick::at(0, HOUR), 0).done(HOUR * 5, 18_000_000, HOUR);
        assert_eq!((late.until_ms, late.forget_ms), (3_600_000, 21_600_000));
        let named = note(Tick::named("a").unwrap(), 1_000);
        assert_eq!((named.until_ms, named.forget_ms), (3_601_000, 3_601_000));
        assert_eq!(named.done(HOUR, 3_601_000, HOUR).forget_ms, 7_201_000);
    }

    #[test]
    fn no_tick_is_refused_while_there_is_room() {
        assert!(check_count(MAX_TICKS - 1).is_ok());
        let error = check_count(MAX_TICKS).unwrap_err();
        assert!(error.to_string().contains("1000"), "{error}");
    }
}
