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
/// In so many windows there must be too many before the watch on the prefix is given up: a burst is over by then.
const LASTING: u32 = 5;
/// About so many events of others cost as much as it does to open a watch, server and client together: an estimate.
const EVENTS_PER_WATCH: u64 = 10;
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
    /// How many holds there are that last for a while.
    holds: usize,
    window: Moment,
    /// The events of the window that concern no attempt of this client.
    others: u64,
    /// The events beyond [`BUSY`] that were not made up for by quiet windows since.
    surplus: u64,
    /// The windows with too many events since there was no surplus.
    busy: u32,
    /// The prefix is not watched before this moment.
    not_before: Moment,
    pause: Duration,
}

impl Default for HoldWatch {
    fn default() -> Self {
        let start = Moment::from_nanos(0);
        HoldWatch {
            choice: WatchChoice::Own,
            holds: 0,
            window: start,
            others: 0,
            surplus: 0,
            busy: 0,
            not_before: start,
            pause: PAUSE.0,
        }
    }
}

impl HoldWatch {
    /// A hold is to be watched, one of `holds` that last for a while.
    pub(crate) fn choose(&mut self, holds: usize, now: Moment) -> WatchChoice {
        self.holds = holds;
        match self.choice {
            WatchChoice::Own if holds >= MANY && now >= self.not_before => {
                self.choice = WatchChoice::Prefix;
                (self.window, self.others, self.surplus, self.busy) = (now, 0, 0, 0);
            }
            WatchChoice::Prefix if holds < FEW => self.choice = WatchChoice::Own,
            _ => {}
        }
        self.choice
    }

    /// Returns the choice as it is.
    pub(crate) fn choice(&self) -> WatchChoice {
        self.choice
    }

    /// The watch on the prefix saw an event that concerns no attempt of this client.
    pub(crate) fn saw_event_of_others(&mut self) {
        self.others += 1;
    }

    /// Time has passed: gives the watch on the prefix up if the events that it saw have cost more than a watch for each
    /// hold would, and go on.
    pub(crate) fn tick(&mut self, now: Moment) {
        if now.since(self.window) < WINDOW {
            return;
        }
        // A process that was stopped gets the events of a longer time at once.
        let few = BUSY * now.since(self.window).as_secs().max(1);
        let events = std::mem::take(&mut self.others);
        self.window = now;
        self.surplus = self.surplus.saturating_add(events).saturating_sub(few);
        self.busy = match self.surplus {
            0 => 0,
            _ => self.busy.saturating_add(u32::from(events > few)),
        };
        let costs_more = self.surplus > EVENTS_PER_WATCH.saturating_mul(self.holds as u64);
        if self.choice == WatchChoice::Prefix && self.busy >= LASTING && costs_more {
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

    /// Lets windows of one second pass, with `events` in each. Returns how many passed before the prefix was given up.
    fn windows_until_own(watch: &mut HoldWatch, holds: usize, events: u64, from_s: u64) -> Option<u64> {
        (1..=100).find(|window| {
            saw(watch, events);
            let now = at((from_s + window) * 1_000);
            watch.tick(now);
            watch.choose(holds, now) == WatchChoice::Own
        })
    }

    #[test]
    fn a_busy_prefix_is_not_watched_and_tried_again_ever_later() {
        let mut watch = HoldWatch::default();
        assert_eq!(watch.choose(MANY, at(0)), WatchChoice::Prefix);
        assert_eq!(windows_until_own(&mut watch, MANY, BUSY, 0), None, "so many are few");
        saw(&mut watch, 10 * BUSY);
        watch.tick(at(100_999));
        assert_eq!(watch.surplus, 0, "the window is not over");
        watch.tick(at(110_000));
        assert_eq!(watch.surplus, 0, "that is what ten seconds have brought");
        assert_eq!(windows_until_own(&mut watch, MANY, 2 * BUSY, 110), Some(u64::from(LASTING)));
        assert_eq!(watch.choose(MANY, at(174_999)), WatchChoice::Own);
        assert_eq!(watch.choose(MANY, at(175_000)), WatchChoice::Prefix);
        assert_eq!(windows_until_own(&mut watch, MANY, 2 * BUSY, 175), Some(u64::from(LASTING)));
        assert_eq!(watch.choose(MANY, at(299_999)), WatchChoice::Own);
        assert_eq!(watch.choose(MANY, at(300_000)), WatchChoice::Prefix);
    }

    #[test]
    fn a_burst_does_not_end_the_watch_on_the_prefix() {
        for holds in [MANY, 10_000] {
            let mut watch = HoldWatch::default();
            watch.choose(holds, at(0));
            // The death of ten thousand locks, and as many that are taken in the three seconds after it.
            let events = [10_000, 3_500, 3_500, 3_500].into_iter().chain(std::iter::repeat_n(BUSY, 200));
            for (second, events) in (1..).zip(events) {
                saw(&mut watch, events);
                watch.tick(at(second * 1_000));
                assert_eq!(watch.choose(holds, at(second * 1_000)), WatchChoice::Prefix, "{holds} holds, {second} s");
            }
        }
    }

    #[test]
    fn the_watch_on_the_prefix_stays_as_long_as_others_cost_more() {
        let mut watch = HoldWatch::default();
        watch.choose(10_000, at(0));
        let events = EVENTS_PER_WATCH * 10_000 / 20;
        assert_eq!(windows_until_own(&mut watch, 10_000, BUSY + events, 0), Some(21));
    }

    #[test]
    fn a_prefix_that_may_not_be_watched_is_not_tried_again() {
        let mut watch = HoldWatch::default();
        watch.choose(MANY, at(0));
        watch.refused();
        assert_eq!(watch.choose(MANY, at(1 << 40)), WatchChoice::Own);
    }
}
