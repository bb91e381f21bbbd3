//! What is known of the server's clock, and whether it leaps.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::Attachment;
use crate::clock::{Clock, Moment};

/// What is no leap yet: as much as a well-kept clock is slewed rather than set.
const UNREMARKABLE: Duration = Duration::from_millis(50);
/// Whoever is connected notices a leap within this: an idle connection is looked at every second.
const NOTICED: Duration = Duration::from_secs(2);

/// The server's clock as the connections to it saw it, one after the other.
#[derive(Debug)]
pub(super) struct ServerClock {
    clock: Clock,
    drift: f64,
    state: Mutex<State>,
    leapt: Notify,
}

#[derive(Debug)]
struct State {
    known: Option<Known>,
    /// A leap forward that somebody has to deal with.
    leap: Option<LeapForward>,
    /// What was answered before this, by the server's clock, may rest on leases that ended early.
    trusted_from_us: u64,
}

/// What is known of one server's clock.
#[derive(Debug)]
struct Known {
    place: Arc<str>,
    since: Moment,
    last: Reading,
}

/// The server's clock showed `server_us` at some moment between the two.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) sent: Moment,
    pub(super) received: Moment,
    pub(super) server_us: u64,
}

/// By how much the server's clock was set, at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leap {
    Forward(Duration),
    Back(Duration),
}

/// What whoever deals with a leap forward must know of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend) struct LeapForward {
    /// By how much the clock was set at the most.
    pub(in crate::backend) most_us: u64,
    /// Whatever the server's clock stamped later than this, it stamped after the leap.
    pub(in crate::backend) after_us: u64,
}

/// How far the leases that a server keeps can be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::backend) enum Trust {
    Full,
    /// Its clock may have leapt a moment before this process saw it first.
    Young,
    /// Its clock leapt, and nobody has dealt with that yet.
    None,
}

impl ServerClock {
    pub(super) fn new(attachment: &Attachment) -> ServerClock {
        let state = State { known: None, leap: None, trusted_from_us: 0 };
        let (clock, drift) = (attachment.clock.clone(), attachment.drift);
        ServerClock { clock, drift, state: Mutex::new(state), leapt: Notify::new() }
    }

    /// Our own clock, by which readings are taken.
    pub(super) fn now(&self) -> Moment {
        self.clock.now()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the clock shows at the latest when `after` has passed from `now` on, unless it leaps.
    pub(super) fn latest(&self, now: Moment, after: Duration) -> u64 {
        let Some(Reading { sent, server_us, .. }) = self.state().known.as_ref().map(|known| known.last) else {
            return 0;
        };
        let passed = now.since(sent).mul_f64(1.0 + self.drift) + after;
        server_us.saturating_add(micros(passed))
    }

    /// Takes the first reading of a new connection. That of another server says nothing about the clock of this one.
    pub(super) fn met(&self, place: &Arc<str>, reading: Reading) -> Option<Leap> {
        let mut state = self.state();
        if state.known.as_ref().is_some_and(|known| known.place == *place) {
            drop(state);
            return self.saw(reading);
        }
        let known = Known { place: place.clone(), since: reading.received, last: reading };
        *state = State { known: Some(known), leap: None, trusted_from_us: 0 };
        None
    }

    /// Takes a new reading, and compares it with the last: what passed on the server's clock must have passed on ours.
    pub(super) fn saw(&self, reading: Reading) -> Option<Leap> {
        let mut state = self.state();
        let known = state.known.as_mut()?;
        // An answer that was overtaken by a later one says nothing new.
        if reading.sent < known.last.sent {
            return None;
        }
        let earlier = std::mem::replace(&mut known.last, reading);
        let window = reading.received.since(earlier.sent).mul_f64(1.0 + self.drift);
        let least = reading.sent.since(earlier.received).mul_f64(1.0 - self.drift);
        let ahead = Duration::from_micros(reading.server_us.saturating_sub(earlier.server_us));
        let behind = Duration::from_micros(earlier.server_us.saturating_sub(reading.server_us));
        if ahead > window + UNREMARKABLE {
            let before = state.leap.map_or(0, |leap| leap.most_us);
            let expected_us = earlier.server_us.saturating_add(micros(window));
            state.leap = Some(LeapForward {
                most_us: before.saturating_add(micros(ahead.saturating_sub(least))),
                after_us: expected_us.max(reading.server_us.saturating_sub(micros(window))),
            });
            self.leapt.notify_one();
            Some(Leap::Forward(ahead - window - UNREMARKABLE))
        } else if least + behind > ahead + UNREMARKABLE {
            // Otherwise the server would not be trusted until its clock is again where it was.
            state.trusted_from_us = state.trusted_from_us.min(reading.server_us);
            Some(Leap::Back(least + behind - ahead - UNREMARKABLE))
        } else {
            None
        }
    }

    /// What an answer is worth that came at `now`, and for which the server's clock showed `server_us`.
    pub(super) fn trust(&self, now: Moment, server_us: u64) -> Trust {
        let state = self.state();
        let is_young = state.known.as_ref().is_none_or(|known| now.since(known.since) < NOTICED);
        if state.leap.is_some() || server_us < state.trusted_from_us {
            Trust::None
        } else if is_young {
            Trust::Young
        } else {
            Trust::Full
        }
    }

    /// Returns when there is a leap forward to deal with.
    pub(super) async fn leapt(&self) -> LeapForward {
        loop {
            let leap = self.state().leap;
            match leap {
                Some(leap) => return leap,
                None => self.leapt.notified().await,
            }
        }
    }

    /// `leap` was dealt with when the server's clock showed `server_us`.
    pub(super) fn settle(&self, leap: LeapForward, server_us: u64) {
        let mut state = self.state();
        if state.leap == Some(leap) {
            state.leap = None;
            state.trusted_from_us = server_us;
        }
    }
}

fn micros(length: Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}

impl fmt::Display for Leap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Leap::Forward(by) => write!(f, "+{:.1}s", by.as_secs_f64()),
            Leap::Back(by) => write!(f, "-{:.1}s", by.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    /// Sent and received at these milliseconds of our clock, at this millisecond of the server's.
    fn at(sent: u64, received: u64, server: u64) -> Reading {
        let moment = |ms: u64| Moment::from_nanos(ms * 1_000_000);
        Reading { sent: moment(sent), received: moment(received), server_us: server * 1000 }
    }

    fn clock() -> ServerClock {
        let state = State { known: None, leap: None, trusted_from_us: 0 };
        let clock =
            ServerClock { clock: Clock::system(), drift: 0.001, state: Mutex::new(state), leapt: Notify::new() };
        assert_eq!(clock.met(&"a:1".into(), at(1000, 1010, HOUR_MS)), None);
        clock
    }

    fn trust(clock: &ServerClock, ms: u64, server: u64) -> Trust {
        clock.trust(Moment::from_nanos(ms * 1_000_000), server * 1000)
    }

    #[test]
    fn a_clock_that_keeps_time_does_not_leap_however_slow_the_way_is() {
        let clock = clock();
        // On time; after a minute of standing still before the answer; overtaken; a little ahead, a little behind.
        let readings = [(2000, 2010, 1000), (3000, 63_000, 2500), (2500, 2600, 1500), (64_000, 64_001, 63_040)];
        for (sent, received, passed) in readings {
            assert_eq!(clock.saw(at(sent, received, HOUR_MS + passed)), None, "{sent}");
        }
        assert_eq!(clock.saw(at(65_000, 65_001, HOUR_MS + 63_995)), None);
    }

    #[test]
    fn a_rate_within_the_bound_is_no_leap() {
        let clock = clock();
        assert_eq!(clock.saw(at(1_001_000, 1_001_010, HOUR_MS + 1_000_990)), None);
        assert_eq!(clock.saw(at(2_001_000, 2_001_010, HOUR_MS + 1_999_995)), None);
    }

    #[test]
    fn a_leap_is_seen_once_in_its_direction_and_size() {
        let clock = clock();
        let Some(Leap::Forward(by)) = clock.saw(at(2000, 2010, HOUR_MS + 61_000)) else { panic!("not seen") };
        assert!(by > Duration::from_millis(59_900) && by <= Duration::from_secs(60), "{by:?}");
        assert_eq!(clock.saw(at(3000, 3010, HOUR_MS + 62_000)), None, "told once");
        let Some(Leap::Back(by)) = clock.saw(at(4000, 4010, 63_000)) else { panic!("not seen") };
        assert!(by > Duration::from_millis(3_599_900) && by <= Duration::from_secs(3600), "{by:?}");
        assert_eq!(clock.saw(at(5000, 5010, 64_000)), None, "told once");
    }

    #[test]
    fn the_latest_time_counts_from_before_the_reading() {
        let latest = clock().latest(Moment::from_nanos(2_000_000_000), Duration::from_secs(1));
        assert_eq!(latest, HOUR_MS * 1000 + 2_001_000);
    }

    #[test]
    fn a_leap_while_there_was_no_connection_is_seen_by_the_next_one_to_the_same_server() {
        let (clock, place) = (clock(), Arc::<str>::from("a:1"));
        assert!(matches!(clock.met(&place, at(2000, 2010, HOUR_MS + 9000)), Some(Leap::Forward(_))));
        assert_eq!(trust(&clock, 60_000, HOUR_MS + 70_000), Trust::None);
        assert_eq!(clock.met(&"b:1".into(), at(3000, 3010, HOUR_MS * 2)), None, "another server has another clock");
        assert_eq!(trust(&clock, 60_000, HOUR_MS * 2), Trust::Full);
    }

    #[tokio::test]
    async fn a_server_is_trusted_when_it_is_known_and_what_was_answered_before_a_leap_was_dealt_with_never_is() {
        let clock = clock();
        assert_eq!(trust(&clock, 2900, HOUR_MS + 1900), Trust::Young);
        assert_eq!(trust(&clock, 3100, HOUR_MS + 2100), Trust::Full);
        clock.saw(at(4000, 4010, HOUR_MS + 13_000));
        assert_eq!(trust(&clock, 4020, HOUR_MS + 13_010), Trust::None);
        let leap = clock.leapt().await;
        assert!((10_000_000..10_020_000).contains(&leap.most_us), "{leap:?}");
        clock.saw(at(5000, 5010, HOUR_MS + 24_000));
        clock.settle(leap, (HOUR_MS + 24_100) * 1000);
        assert_eq!(trust(&clock, 5200, HOUR_MS + 24_200), Trust::None, "there was another one");
        let both = clock.leapt().await;
        assert!((20_000_000..20_040_000).contains(&both.most_us), "{both:?}");
        clock.settle(both, (HOUR_MS + 24_300) * 1000);
        assert_eq!(trust(&clock, 5400, HOUR_MS + 24_290), Trust::None, "answered before that");
        assert_eq!(trust(&clock, 5400, HOUR_MS + 24_310), Trust::Full);
        clock.saw(at(6000, 6010, HOUR_MS));
        assert_eq!(trust(&clock, 6020, HOUR_MS + 10), Trust::Full, "a clock that goes back does not take that away");
    }

    #[tokio::test]
    async fn whatever_was_stamped_after_a_leap_can_be_told_from_what_was_stamped_before() {
        let clock = clock();
        // Looked at after a long time, in which the clock leapt by less than that: some stamps could be either.
        clock.saw(at(101_000, 101_010, HOUR_MS + 110_000));
        let leap = clock.leapt().await;
        assert!(leap.after_us >= (HOUR_MS + 100_010) * 1000, "{leap:?}: it could show that without a leap");
        clock.settle(leap, 0);
        // Looked at often: what it showed long ago was no matter of this leap, though it is later than expected.
        clock.saw(at(102_000, 102_010, HOUR_MS - 60_000));
        clock.saw(at(103_000, 103_010, HOUR_MS + 112_000));
        let leap = clock.leapt().await;
        assert!(leap.after_us >= (HOUR_MS + 110_000) * 1000, "{leap:?}: the first leap was stamped about then");
    }
}
