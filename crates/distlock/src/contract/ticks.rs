//! The notes of a lock's ticks, as an engine returns them.

use crate::types::key::Key;
use crate::types::tick::TickNote;

/// A lock and the notes of its ticks.
pub type LockTicks = (Key, Vec<TickNote>);

/// The notes of a lock's ticks.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct TickNotes {
    /// The time by the engine's clock, in milliseconds of the Unix epoch.
    pub now_ms: u64,
    /// Whether that clock is the engine's own, the same for all machines; otherwise it is this machine's.
    pub is_common: bool,
    /// The notes that are not forgotten yet, in any order.
    pub notes: Vec<TickNote>,
    /// Notes of ticks that are done by the word of a minority of the engine's servers. A holder makes such a note count
    /// by writing it again.
    pub unconfirmed: Vec<TickNote>,
}

impl TickNotes {
    /// Returns notes read at `now_ms` by a clock that is common to all machines.
    #[must_use]
    pub fn at(now_ms: u64, notes: Vec<TickNote>) -> TickNotes {
        TickNotes { now_ms, is_common: true, notes, unconfirmed: Vec::new() }
    }
}
