//! What is known of the server's clock, and whether it leaps.

use crate::types::sync::{Mutex, MutexGuard};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::contract::Attachment;
use crate::types::clock::{Clock, Moment};

/// What is no leap yet: as much as a well-kept clock is slewed rather than set.
const UNREMARKABLE: Duration = Duration::from_millis(50);
/// A connected client notices a leap within this: an idle connection reads the clock every second.
const NOTICED: Duration = Duration::from_secs(2);

/// The server's clock as the connections to it saw it, one after the other.
#[derive(Debug)]
pub(in crate::engines) struct ServerClock {
    clock: Clock,
    drift: f64,
    state: Mutex<State>,
    leapt: Notify,
}

#[derive(Debug, Default)]
struct State {
    known: Option<Known>,
    readings: u64,
    /// A leap forward that is not dealt with yet.
    leap: Option<LeapForward>,
    /// A reply from before this, by the server's clock, may rest on leases that ended early.
    trusted_from_us: u64,
}

/// What is known of one server's clock.
#[derive(Debug)]
struct Known {
    place: Arc<str>,
    /// From when on no leap could have been missed.
    since: Moment,
    /// By how much it is ahead of ours, when that was thought of last.
    ahead: Ahead,
    at: Moment,
    last: Reading,
}

/// The server's clock showed `server_us` at some moment between the two.
#[derive(Debug, Clone, Copy)]
pub(in crate::engines) struct Reading {
    pub(in crate::engines) sent: Moment,
    pub(in crate::engines) received: Moment,
    pub(in crate::engines) server_us: u64,
}

/// By how many microseconds the server's clock is ahead of ours: at least, at most.
#[derive(Debug, Clone, Copy)]
struct Ahead {
    low: i128,
    high: i128,
}

impl Ahead {
    fn of(reading: Reading) -> Ahead {
        let server_us = i128::from(reading.server_us);
        Ahead { low: server_us - micros_of(reading.received), high: server_us - micros_of(reading.sent) }
    }

    fn widened(self, by: Duration) -> Ahead {
        Ahead { low: self.low - micros(by), high: self.high + micros(by) }
    }

    /// What both say; `self` when they contradict each other, but not so much that it would be a leap.
    fn and(self, other: Ahead) -> Ahead {
        let both = Ahead { low: self.low.max(other.low), high: self.high.min(other.high) };
        if both.low <= both.high { both } else { self }
    }
}

/// By how much the server's clock was set, at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engines) enum Leap {
    Forward(Duration),
    Back(Duration),
}

/// A leap forward, for the code that deals with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engines) struct LeapForward {
    /// By how much the clock was set at the most.
    pub(in crate::engines) most_us: u64,
    /// Whatever the server's clock stamped later than this, it stamped after the leap.
    pub(in crate::engines) after_us: u64,
}

/// How far the leases that a server keeps can be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engines) enum Trust {
    Full,
    /// Its clock may have leapt unseen a moment ago.
    Young,
    /// Its clock leapt, and that is not dealt with yet.
    None,
}

impl ServerClock {
    pub(in crate::engines) fn new(attachment: &Attachment) -> ServerClock {
        let (clock, drift) = (attachment.clock.clone(), attachment.drift);
        ServerClock { clock, drift, state: Mutex::default(), leapt: Notify::new() }
    }

    /// Our own clock, by which readings are taken.
    pub(in crate::engines) fn now(&self) -> Moment {
        self.clock.now()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// How often the clock was read so far.
    pub(in crate::engines) fn readings(&self) -> u64 {
        self.state().readings
    }

    /// What the clock shows at the latest when `after` has passed from `now` on, unless it leaps.
    pub(in crate::engines) fn latest(&self, now: Moment, after: Duration) -> u64 {
        let state = self.state();
        let Some(known) = &state.known else { return 0 };
        let ahead = known.ahead.widened(now.since(known.at).mul_f64(self.drift));
        clamped(micros_of(now) + ahead.high + micros(after))
    }

    /// Takes the first reading of a new connection. That of another server says nothing about the clock of this one.
    pub(in crate::engines) fn met(&self, place: &Arc<str>, reading: Reading) -> Option<Leap> {
        let mut state = self.state();
        if state.known.as_ref().is_some_and(|known| known.place == *place) {
            drop(state);
            return self.saw(reading);
        }
        let (since, at) = (reading.received, reading.received);
        let known = Known { place: place.clone(), since, ahead: Ahead::of(reading), at, last: reading };
        *state = State { known: Some(known), readings: state.readings + 1, ..State::default() };
        None
    }

    /// Takes a new reading, and compares it with what is known: how far the clocks are apart must not have changed.
    pub(in crate::engines) fn saw(&self, reading: Reading) -> Option<Leap> {
        let mut state = self.state();
        state.readings += 1;
        let State { known: Some(known), leap, trusted_from_us, .. } = &mut *state else { return None };
        let (earlier, seen) = (known.last, Ahead::of(reading));
        let ahead = known.ahead.widened(reading.received.since(known.at).mul_f64(self.drift));
        // An answer that was overtaken by a later one may tell of a leap, and nothing else.
        let is_overtaken = reading.sent < earlier.sent;
        let unremarkable = micros(UNREMARKABLE);
        (known.ahead, known.at) = (ahead, reading.received);
        if !is_overtaken {
            known.last = reading;
            if reading.sent.since(earlier.received) > NOTICED {
                known.since = reading.received;
            }
        }
        if seen.low > ahead.high + unremarkable {
            known.ahead = seen;
            let window = micros(reading.received.since(earlier.sent).mul_f64(1.0 + self.drift));
            let expected_us = micros_of(reading.received) + ahead.high;
            let before = leap.map_or(0, |leap| leap.most_us);
            *leap = Some(LeapForward {
                most_us: before.saturating_add(clamped(seen.high - ahead.low)),
                after_us: clamped(expected_us.max(i128::from(reading.server_us) - window)),
            });
            self.leapt.notify_one();
            Some(Leap::Forward(length(seen.low - ahead.high)))
        } else if seen.high < ahead.low - unremarkable && !is_overtaken {
            known.ahead = seen;
            // Otherwise the server would not be trusted until its clock is again where it was.
            *trusted_from_us = (*trusted_from_us).min(reading.server_us);
            Some(Leap::Back(length(ahead.low - seen.high)))
        } else {
            if !is_overtaken {
                known.ahead = ahead.and(seen);
            }
            None
        }
    }

    /// What an answer is worth that `reading` came with, which was taken.
    pub(in crate::engines) fn trust(&self, reading: Reading) -> Trust {
        let state = self.state();
        let Some(known) = &state.known else { return Trust::None };
        let is_young = reading.sent.since(known.since) < NOTICED;
        if state.leap.is_some() || reading.server_us < state.trusted_from_us {
            Trust::None
        } else if is_young {
            Trust::Young
        } else {
            Trust::Full
        }
    }

    /// Returns when there is a leap forward to deal with.
    pub(in crate::engines) async fn leapt(&self) -> LeapForward {
        loop {
            let leap = self.state().leap;
            match leap {
                Some(leap) => return leap,
                None => self.leapt.notified().await,
            }
        }
    }

    /// `leap` was dealt with when the server's clock showed `server_us`.
    pub(in crate::engines) fn settle(&self, leap: LeapForward, server_us: u64) {
        let mut state = self.state();
        if state.leap == Some(leap) {
            state.leap = None;
            // A claim of the same microsecond may have been carried out before.
            state.trusted_from_us = server_us + 1;
        }
    }

    /// `leap` was none: our own clock stood still. From now on the server is as good as new to us.
    pub(in crate::engines) fn meet_again(&self, leap: LeapForward) {
        let now = self.now();
        let mut state = self.state();
        if state.leap == Some(leap) {
            state.leap = None;
            state.known.iter_mut().for_each(|known| known.since = now);
        }
    }
}

fn micros(length: Duration) -> i128 {
    i128::try_from(length.as_micros()).unwrap_or(i128::from(u64::MAX))
}

fn micros_of(moment: Moment) -> i128 {
    i128::from(moment.as_nanos() / 1000)
}

fn clamped(us: i128) -> u64 {
    u64::try_from(us.max(0)).unwrap_or(u64::MAX)
}

fn length(us: i128) -> Duration {
    Duration::from_micros(clamped(us))
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

    /// A server's clock an hour ahead of ours.
    fn clock() -> ServerClock {
        let clock = ServerClock { clock: Clock::system(), drift: 0.001, state: Mutex::default(), leapt: Notify::new() };
        assert_eq!(clock.met(&"a:1".into(), at(1000, 1010, HOUR_MS + 1005)), None);
        clock
    }

    /// Takes a quick reading of a clock that is an hour and `extra` milliseconds ahead.
    fn look(clock: &ServerClock, ms: u64, extra: u64) -> (Option<Leap>, Trust) {
        let reading = at(ms, ms + 2, HOUR_MS + ms + extra);
        (clock.saw(reading), clock.trust(reading))
    }

    fn forward(leap: Option<Leap>) -> Duration {
        let Some(Leap::Forward(by)) = leap else { panic!("not seen: {leap:?}") };
        by
    }

    #[test]
    fn a_clock_that_keeps_time_does_not_leap_however_slow_the_way_is() {
        let clock = clock();
        // On time; after a minute of standing still before the answer; overtaken; a little ahead, a little behind.
        let readings = [(2000, 2010, 2005), (3000, 63_000, 3500), (2500, 2600, 2505), (64_000, 64_001, 64_040)];
        for (sent, received, server) in readings {
            assert_eq!(clock.saw(at(sent, received, HOUR_MS + server)), None, "{sent}");
        }
        assert_eq!(clock.saw(at(65_000, 65_001, HOUR_MS + 64_995)), None);
    }

    #[test]
    fn a_rate_within_the_bound_is_no_leap() {
        let clock = clock();
        assert_eq!(clock.saw(at(1_001_000, 1_001_010, HOUR_MS + 1_001_990)), None);
        assert_eq!(clock.saw(at(2_001_000, 2_001_010, HOUR_MS + 2_000_995)), None);
    }

    #[test]
    fn a_leap_is_seen_once_in_its_direction_and_size() {
        let clock = clock();
        let by = forward(look(&clock, 2000, 60_000).0);
        assert!(by > Duration::from_millis(59_900) && by <= Duration::from_secs(60), "{by:?}");
        assert_eq!(look(&clock, 3000, 60_000).0, None, "told once");
        let Some(Leap::Back(by)) = clock.saw(at(4000, 4010, 4005)) else { panic!("not seen") };
        assert!(by > Duration::from_millis(3_659_900) && by <= Duration::from_secs(3660), "{by:?}");
        assert_eq!(clock.saw(at(5000, 5010, 5005)), None, "told once");
    }

    #[test]
    fn the_latest_time_counts_from_before_the_reading() {
        let latest = clock().latest(Moment::from_nanos(2_000_000_000), Duration::from_secs(1));
        let passed = latest - (HOUR_MS + 3005) * 1000;
        assert!((0..=10_000).contains(&passed), "{latest}");
    }

    #[test]
    fn a_leap_that_a_slow_answer_hides_is_seen_by_the_next_one() {
        let clock = clock();
        assert_eq!(look(&clock, 12_000, 0), (None, Trust::Young), "after a pause it is as good as new");
        assert_eq!(look(&clock, 13_900, 0), (None, Trust::Young));
        assert_eq!(look(&clock, 14_100, 0), (None, Trust::Full));
        assert_eq!(clock.saw(at(14_200, 15_150, HOUR_MS + 14_200 + 900)), None);
        assert!(forward(look(&clock, 15_200, 900).0) > Duration::from_millis(800));
    }

    #[test]
    fn many_small_steps_are_a_leap_and_an_answer_that_was_overtaken_tells_of_one() {
        let clock = clock();
        assert_eq!(look(&clock, 2000, 40).0, None);
        forward(look(&clock, 2100, 80).0);
        assert_eq!(look(&clock, 3000, 80).0, None);
        forward(clock.saw(at(2990, 3010, HOUR_MS + 3000 + 5080)));
        assert_eq!(look(&clock, 3100, 5080).0, None, "told once");
        assert_eq!(clock.saw(at(2980, 3120, HOUR_MS + 2985 + 80)), None, "it was answered before the leap");
    }

    #[test]
    fn a_leap_while_there_was_no_connection_is_seen_by_the_next_one_to_the_same_server() {
        let (clock, place) = (clock(), Arc::<str>::from("a:1"));
        forward(clock.met(&place, at(2000, 2010, HOUR_MS + 11_000)));
        assert_eq!(look(&clock, 2100, 8995).1, Trust::None);
        assert_eq!(clock.met(&"b:1".into(), at(3000, 3010, HOUR_MS * 2)), None, "another server has another clock");
        assert_eq!(clock.trust(at(5100, 5101, HOUR_MS * 2 + 2096)), Trust::Full);
    }

    #[tokio::test]
    async fn what_was_answered_before_a_leap_was_dealt_with_is_not_trusted() {
        let clock = clock();
        let at_last = |extra| look(&clock, 3600, extra).1;
        assert_eq!((look(&clock, 2500, 0).1, at_last(0)), (Trust::Young, Trust::Full));
        assert_eq!(look(&clock, 4000, 10_000).1, Trust::None);
        let leap = clock.leapt().await;
        assert!((10_000_000..10_040_000).contains(&leap.most_us), "{leap:?}");
        look(&clock, 5000, 20_000);
        clock.settle(leap, (HOUR_MS + 24_100) * 1000);
        assert_eq!(look(&clock, 5200, 20_000).1, Trust::None, "there was another one");
        let both = clock.leapt().await;
        assert!((20_000_000..20_060_000).contains(&both.most_us), "{both:?}");
        clock.settle(both, (HOUR_MS + 25_300) * 1000);
        assert_eq!(look(&clock, 5290, 20_000).1, Trust::None, "answered before that");
        assert_eq!(look(&clock, 5310, 20_000).1, Trust::Full);
        assert!(
            matches!(look(&clock, 6000, 0), (Some(Leap::Back(_)), Trust::Full)),
            "going back does not take that away"
        );
    }

    #[tokio::test]
    async fn a_server_that_only_seemed_to_leap_is_new_again() {
        let clock = clock();
        look(&clock, 3500, 10_000);
        let leap = clock.leapt().await;
        clock.meet_again(leap);
        assert_eq!(look(&clock, 3600, 10_000).1, Trust::Young);
    }

    #[tokio::test]
    async fn whatever_was_stamped_after_a_leap_can_be_told_from_what_was_stamped_before() {
        let clock = clock();
        // Looked at after a long time, in which the clock leapt by less than that: some stamps could be either.
        look(&clock, 101_000, 9000);
        let leap = clock.leapt().await;
        assert!(leap.after_us >= (HOUR_MS + 101_002) * 1000, "{leap:?}: it could show that without a leap");
        clock.settle(leap, 0);
        // Looked at often: what it showed long ago was no matter of this leap, though it is later than expected.
        clock.saw(at(102_000, 102_002, HOUR_MS - 60_000));
        look(&clock, 103_000, 10_000);
        let leap = clock.leapt().await;
        assert!(leap.after_us >= (HOUR_MS + 111_500) * 1000, "{leap:?}: the first leap was stamped before that");
    }
}
