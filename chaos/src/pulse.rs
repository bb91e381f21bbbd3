//! The pulse of a process: when it did not run, it cannot have done what was its turn.

use std::thread;
use std::time::Duration;

use distlock::{Clock, Moment};

/// How often a process looks at its own pulse, and what it takes for a stall.
const PULSE: Duration = Duration::from_millis(25);
const STALL: Duration = Duration::from_millis(150);

/// Waits for one beat. Answers since when and until when this process stood still, if it did.
pub(crate) fn beat(clock: &Clock) -> Option<(Moment, Moment)> {
    let since = clock.now();
    // Nothing is waited for here: how long this sleep takes is what is measured.
    thread::sleep(PULSE);
    let now = clock.now();
    (now.since(since) > STALL).then_some((since, now))
}
