//! Time that passes only while this process runs.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use distlock::ManualClock;

const TICK: Duration = Duration::from_millis(5);

/// Advances a manual clock about as fast as real time until it is dropped. When the machine stops or slows this
/// process, the clock stops or slows with it, so that no lease ends because of that.
#[derive(Debug)]
pub struct Ticks {
    _until_dropped: Sender<()>,
}

impl Ticks {
    /// Starts advancing the clock.
    #[must_use]
    pub fn of(hand: ManualClock) -> Ticks {
        let (sender, dropped) = channel::<()>();
        std::thread::spawn(move || {
            // One tick each, even if this thread was not scheduled for long.
            while dropped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                hand.jump(TICK);
            }
        });
        Ticks { _until_dropped: sender }
    }
}

#[cfg(test)]
mod tests {
    use distlock::Clock;

    use super::*;
    use crate::servers::eventually;

    #[test]
    fn a_clock_ticks_until_its_ticks_are_dropped() {
        let (clock, hand) = Clock::manual();
        let (start, ticks) = (clock.now(), Ticks::of(hand));
        eventually("three ticks", || (clock.now() >= start.after(TICK * 3)).then_some(()));
        drop(ticks);
        let dropped = clock.now();
        // Real time must pass in which the clock would tick.
        std::thread::sleep(TICK * 10);
        assert!(clock.now() <= dropped.after(TICK), "no more than the tick that was on its way");
    }
}
