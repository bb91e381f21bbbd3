//! The notes of a lock's ticks as they are shown.

use distlock::TickNote;
use serde::Serialize;

use crate::lock::Who;

/// How many of the last notes are shown.
const MOST_SHOWN: usize = 20;

/// The note of a tick.
#[derive(Debug, Serialize)]
pub(crate) struct ShownTick<'a> {
    tick: String,
    done: bool,
    /// Until when it is done, or could be, by the engine's clock.
    until_ms: u64,
    started_ms: u64,
    /// How long the run took that succeeded.
    took_ms: Option<u64>,
    starts: u32,
    /// As text: readers of JSON round numbers of this size.
    token: String,
    /// Whose run it was.
    #[serde(flatten)]
    who: Who<'a>,
}

impl<'a> From<&'a TickNote> for ShownTick<'a> {
    fn from(note: &'a TickNote) -> ShownTick<'a> {
        ShownTick {
            tick: note.tick.to_string(),
            done: note.is_done(),
            until_ms: note.until_ms,
            started_ms: note.started_ms,
            took_ms: note.took_ms,
            starts: note.starts,
            token: note.token.to_string(),
            who: (&note.record).into(),
        }
    }
}

/// Returns the last notes, the newest first.
pub(crate) fn newest(notes: &[TickNote]) -> Vec<ShownTick<'_>> {
    notes.iter().rev().take(MOST_SHOWN).map(ShownTick::from).collect()
}
