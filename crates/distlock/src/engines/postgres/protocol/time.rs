//! Durations that the client and the functions of the schema agree on.

use std::time::Duration;

use crate::contract::SHORTEST_HEARTBEAT;

/// How long a request may take before it counts as unanswered. The server refuses a claim that arrives later.
pub(in crate::engines) const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest time for which a waiter keeps its place without a sign of life.
const LONGEST_HEARTBEAT: Duration = Duration::from_secs(30);
/// A waiter claims again this often in a heartbeat, whatever it hears.
pub(in crate::engines) const CLAIMS_PER_HEARTBEAT: u32 = 3;

/// Returns whole milliseconds for the server, rounded up: its lease is never shorter than ours.
pub(in crate::engines) fn millis(length: Duration) -> i64 {
    i64::try_from(length.as_micros().div_ceil(1000)).unwrap_or(i64::MAX)
}

/// Returns a number of milliseconds of ours.
pub(in crate::engines) fn from_millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or_default())
}

/// Returns how long a waiter keeps its place without a sign of life: as long as its lease, within bounds.
pub(in crate::engines) fn heartbeat(ttl: Duration) -> Duration {
    ttl.clamp(SHORTEST_HEARTBEAT, LONGEST_HEARTBEAT)
}

/// Returns a number of microseconds of the server; `None` when it is negative.
pub(in crate::engines) fn from_micros(us: i64) -> Option<Duration> {
    u64::try_from(us).ok().map(Duration::from_micros)
}
