//! What is known of the server's clock, and whether it leaps.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Moment;

/// What is no leap yet: as much as a well-kept clock is slewed rather than set.
const UNREMARKABLE: Duration = Duration::from_millis(50);

/// The server's clock as one connection saw it last.
#[derive(Debug)]
pub(super) struct ServerClock {
    drift: f64,
    last: Mutex<Reading>,
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

impl ServerClock {
    pub(super) fn new(drift: f64, first: Reading) -> ServerClock {
        ServerClock { drift, last: Mutex::new(first) }
    }

    /// What the clock shows at the latest when `after` has passed from `now` on, unless it leaps.
    pub(super) fn latest(&self, now: Moment, after: Duration) -> u64 {
        let Reading { sent, server_us, .. } = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = now.since(sent).mul_f64(1.0 + self.drift) + after;
        server_us.saturating_add(u64::try_from(passed.as_micros()).unwrap_or(u64::MAX))
    }

    /// Takes a new reading, and compares it with the last: what passed on the server's clock must have passed on ours.
    pub(super) fn saw(&self, reading: Reading) -> Option<Leap> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // An answer that was overtaken by a later one says nothing new.
        if reading.sent < last.sent {
            return None;
        }
        let earlier = std::mem::replace(&mut *last, reading);
        let most = reading.received.since(earlier.sent).mul_f64(1.0 + self.drift) + UNREMARKABLE;
        let least = reading.sent.since(earlier.received).mul_f64(1.0 - self.drift);
        let ahead = Duration::from_micros(reading.server_us.saturating_sub(earlier.server_us));
        let behind = Duration::from_micros(earlier.server_us.saturating_sub(reading.server_us));
        if ahead > most {
            Some(Leap::Forward(ahead - most))
        } else if least + behind > ahead + UNREMARKABLE {
            Some(Leap::Back(least + behind - ahead - UNREMARKABLE))
        } else {
            None
        }
    }
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
        ServerClock::new(0.001, at(1000, 1010, HOUR_MS))
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
}
