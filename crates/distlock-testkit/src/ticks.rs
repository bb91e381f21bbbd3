//! Time that passes only while this process runs.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use distlock::ManualClock;

const TICK: Duration = Duration::from_millis(5);

/// Moves a manual clock on, about as fast as time passes, until it is dropped. A machine that stops this process for a
/// while stops the clock with it, and slows it down where it is slow itself: no lease ends for that.
#[derive(Debug)]
pub struct Ticks {
    _until_dropped: Sender<()>,
}

impl Ticks {
    /// From now on the clock goes by itself.
    #[must_use]
    pub fn of(hand: ManualClock) -> Ticks {
        let (sender, dropped) = channel::<()>();
        std::thread::spawn(move || {
            // One tick, however long it took until this thread ran again.
            while dropped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                hand.advance(TICK);
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
        // Time must pass in which it would tick.
        std::thread::sleep(TICK * 10);
        assert!(clock.now() <= dropped.after(TICK), "no more than the tick that was on its way");
    }
}
