//! What is known of the server's clock, and whether it leaps.

use std::time::Duration;

use crate::types::clock::{Clock, Moment};
use crate::types::sync::Mutex;

/// What is no leap yet: as much as a well-kept clock is slewed rather than set.
const UNREMARKABLE_US: i128 = 50_000;

/// The server's clock as the connections to it saw it, one after the other.
pub(in crate::engines) struct ServerClock {
    clock: Clock,
    drift: f64,
    known: Mutex<Option<Known>>,
    leaps: tokio::sync::Notify,
}

/// By how many microseconds the server's clock was ahead of ours at a moment: at least, at most.
#[derive(Clone, Copy)]
struct Known {
    at: Moment,
    low: i128,
    high: i128,
}

/// The server's clock showed `server_us` at some moment between the two.
#[derive(Debug, Clone, Copy)]
pub(in crate::engines) struct Reading {
    pub(in crate::engines) sent: Moment,
    pub(in crate::engines) received: Moment,
    pub(in crate::engines) server_us: i64,
}

impl ServerClock {
    pub(in crate::engines) fn new(clock: Clock, drift: f64) -> ServerClock {
        ServerClock { clock, drift, known: Mutex::default(), leaps: tokio::sync::Notify::new() }
    }

    /// Returns our own clock's time, by which readings are taken.
    pub(in crate::engines) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Returns what the server's clock shows at the latest when `after` has passed from `now` on, unless it leaps.
    pub(in crate::engines) fn latest(&self, now: Moment, after: Duration) -> i64 {
        let Some(known) = *self.known.lock() else { return 0 };
        let slack = micros(now.since(known.at).mul_f64(self.drift));
        i64::try_from(micros_of(now) + known.high + slack + micros(after)).unwrap_or(i64::MAX)
    }

    /// Takes a reading. Logs a leap, and tells the waiters of it: leases may have ended early.
    pub(in crate::engines) fn saw(&self, reading: Reading) {
        let server_us = i128::from(reading.server_us);
        let (low, high) = (server_us - micros_of(reading.received), server_us - micros_of(reading.sent));
        let mut known = self.known.lock();
        let before = known.replace(Known { at: reading.received, low, high });
        drop(known);
        let Some(before) = before else { return };
        let slack = UNREMARKABLE_US + micros(reading.received.since(before.at).mul_f64(self.drift));
        if low > before.high + slack {
            let by_ms = (low - before.high) / 1000;
            tracing::warn!(target: "distlock", by_ms, "the clock of the PostgreSQL server leapt forward: leases end early");
            self.leaps.notify_one();
        } else if high < before.low - slack {
            let by_ms = (before.low - high) / 1000;
            tracing::warn!(target: "distlock", by_ms, "the clock of the PostgreSQL server went back: leases last longer");
        }
    }

    /// Returns when the server's clock leapt forward.
    pub(in crate::engines) async fn leapt(&self) {
        self.leaps.notified().await;
    }
}

fn micros_of(moment: Moment) -> i128 {
    i128::from(moment.as_nanos() / 1000)
}

fn micros(length: Duration) -> i128 {
    i128::try_from(length.as_micros()).unwrap_or(i128::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(1_000_000_000 + ms * 1_000_000)
    }

    fn saw(clock: &ServerClock, sent: u64, received: u64, server_ms: i64) {
        clock.saw(Reading { sent: at(sent), received: at(received), server_us: server_ms * 1000 });
    }

    #[tokio::test]
    async fn the_latest_time_is_counted_from_when_the_last_reading_was_asked_for() {
        let clock = ServerClock::new(Clock::system(), 0.001);
        assert_eq!(clock.latest(at(0), Duration::from_secs(1)), 0, "nothing is known: every claim is late");
        saw(&clock, 0, 20, 500_000);
        assert_eq!(clock.latest(at(20), Duration::from_secs(1)), 501_020_000);
        assert_eq!(clock.latest(at(1020), Duration::ZERO), 501_021_000, "and the drift since");
    }

    #[tokio::test]
    async fn a_leap_forward_is_told_and_a_slow_reply_is_none() {
        let clock = ServerClock::new(Clock::system(), 0.001);
        let leapt = |clock: &ServerClock| {
            let mut leapt = std::pin::pin!(clock.leapt());
            let waker = std::task::Waker::noop();
            std::future::Future::poll(leapt.as_mut(), &mut std::task::Context::from_waker(waker)).is_ready()
        };
        saw(&clock, 0, 10, 500_000);
        saw(&clock, 1000, 9000, 505_000);
        assert!(!leapt(&clock), "the server may have read its clock at any moment before its reply");
        saw(&clock, 9000, 9010, 569_000);
        assert!(leapt(&clock));
        saw(&clock, 9020, 9030, 509_000);
        assert!(!leapt(&clock), "back: leases last longer, and none ended early");
    }
}
