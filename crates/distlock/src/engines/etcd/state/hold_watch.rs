//! How the keys of holds are watched: each by a watch of its own, or all by one watch on the prefix.
//!
//! One watch on the prefix costs the server nothing per hold, but this client gets the events of all other clients below
//! the prefix. So it is used where holds are many and events are few.

use std::time::Duration;

use crate::types::clock::Moment;

/// From so many long holds on they share one watch.
const MANY: usize = 64;
/// With fewer long holds each has a watch of its own again.
const FEW: usize = 16;
/// The time in which events are counted.
const WINDOW: Duration = Duration::from_secs(1);
/// More events of others in a window are too many.
const BUSY: u64 = 200;
/// The first and the longest time for which one watch for all is not tried again.
const PAUSE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(60 * 60));

/// Which watch a hold is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchChoice {
    /// One on its own key.
    Own,
    /// The one on the prefix.
    Prefix,
}

/// The choice of one client for all its holds.
#[derive(Debug)]
pub(crate) struct HoldWatch {
    choice: WatchChoice,
    window: Moment,
    /// The events of the window that concern no attempt of this client.
    others: u64,
    /// The prefix is not watched before this moment.
    not_before: Moment,
    pause: Duration,
}

impl Default for HoldWatch {
    fn default() -> Self {
        let start = Moment::from_nanos(0);
        HoldWatch { choice: WatchChoice::Own, window: start, others: 0, not_before: start, pause: PAUSE.0 }
    }
}

impl HoldWatch {
    /// A hold is to be watched, one of `holds` that last for a while.
    pub(crate) fn choose(&mut self, holds: usize, now: Moment) -> WatchChoice {
        match self.choice {
            WatchChoice::Own if holds >= MANY && now >= self.not_before => {
                self.choice = WatchChoice::Prefix;
                (self.window, self.others) = (now, 0);
            }
            WatchChoice::Prefix if holds < FEW => self.choice = WatchChoice::Own,
            _ => {}
        }
        self.choice
    }

    /// The watch on the prefix saw an event that concerns no attempt of this client.
    pub(crate) fn saw_event_of_others(&mut self) {
        self.others += 1;
    }

    /// Time has passed: gives the watch on the prefix up if it saw too many events.
    pub(crate) fn tick(&mut self, now: Moment) {
        if now.since(self.window) < WINDOW {
            return;
        }
        let events = std::mem::take(&mut self.others);
        // A process that was stopped gets the events of a longer time at once.
        let windows = now.since(self.window).as_secs().max(1);
        self.window = now;
        if self.choice == WatchChoice::Prefix && events / windows > BUSY {
            self.choice = WatchChoice::Own;
            self.not_before = now.after(self.pause);
            self.pause = (self.pause * 2).min(PAUSE.1);
        }
    }

    /// The server does not let this client watch the prefix.
    pub(crate) fn refused(&mut self) {
        self.choice = WatchChoice::Own;
        self.not_before = Moment::NEVER;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(0).after(Duration::from_millis(ms))
    }

    fn saw(watch: &mut HoldWatch, events: u64) {
        (0..events).for_each(|_| watch.saw_event_of_others());
    }

    #[test]
    fn many_holds_share_a_watch_until_they_are_few() {
        let mut watch = HoldWatch::default();
        assert_eq!(watch.choose(MANY - 1, at(0)), WatchChoice::Own);
        assert_eq!(watch.choose(MANY, at(0)), WatchChoice::Prefix);
        assert_eq!(watch.choose(FEW, at(0)), WatchChoice::Prefix, "it does not go to and fro");
        assert_eq!(watch.choose(FEW - 1, at(0)), WatchChoice::Own);
    }

    #[test]
    fn a_busy_prefix_is_not_watched_and_tried_again_ever_later() {
        let mut watch = HoldWatch::default();
        assert_eq!(watch.choose(MANY, at(0)), WatchChoice::Prefix);
        saw(&mut watch, BUSY);
        watch.tick(at(1_000));
        assert_eq!(watch.choose(MANY, at(1_000)), WatchChoice::Prefix, "so many are few");
        saw(&mut watch, BUSY + 1);
        watch.tick(at(1_999));
        assert_eq!(watch.choose(MANY, at(1_999)), WatchChoice::Prefix, "the window is not over");
        watch.tick(at(2_000));
        assert_eq!(watch.choose(MANY, at(2_000)), WatchChoice::Own);
        assert_eq!(watch.choose(MANY, at(61_999)), WatchChoice::Own);
        assert_eq!(watch.choose(MANY, at(62_000)), WatchChoice::Prefix);
        saw(&mut watch, 10 * BUSY);
        watch.tick(at(72_000));
        assert_eq!(watch.choose(MANY, at(72_000)), WatchChoice::Prefix, "that is what ten seconds have brought");
        saw(&mut watch, BUSY * 2);
        watch.tick(at(73_000));
        assert_eq!(watch.choose(MANY, at(192_999)), WatchChoice::Own);
        assert_eq!(watch.choose(MANY, at(193_000)), WatchChoice::Prefix);
    }

    #[test]
    fn a_prefix_that_may_not_be_watched_is_not_tried_again() {
        let mut watch = HoldWatch::default();
        watch.choose(MANY, at(0));
        watch.refused();
        assert_eq!(watch.choose(MANY, at(1 << 40)), WatchChoice::Own);
    }
}
