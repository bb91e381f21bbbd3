//! Detects stalls of a process: a process that was not scheduled cannot have acted in time.

use std::thread;
use std::time::Duration;

use distlock::{Clock, Moment};

/// The interval between two beats, and the delay that counts as a stall.
const PULSE: Duration = Duration::from_millis(25);
const STALL: Duration = Duration::from_millis(150);

/// Waits for one beat. If the process was stalled, returns from when until when.
pub(crate) fn beat(clock: &Clock) -> Option<(Moment, Moment)> {
    let since = clock.now();
    // The sleep waits for nothing: its actual duration is the measurement.
    thread::sleep(PULSE);
    let now = clock.now();
    (now.since(since) > STALL).then_some((since, now))
}
