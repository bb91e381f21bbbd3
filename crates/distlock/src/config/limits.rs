//! Which values are accepted, and how lengths of time are written.

use std::time::Duration;

use crate::types::history::MAX_HISTORY;
use crate::types::options::{
    DEFAULT_RETRY_INTERVAL, DEFAULT_TTL, MAX_RETRY_INTERVAL, MAX_TTL, MIN_RETRY_INTERVAL, MIN_TTL,
};

/// The default timeout of a connection attempt: 5 seconds.
pub const DEFAULT_DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// The accepted values of one setting.
#[derive(Debug)]
pub(crate) struct Bounds {
    min: Duration,
    max: Duration,
    default: Duration,
    zero: Zero,
}

#[derive(Debug, PartialEq, Eq)]
enum Zero {
    Default,
    // For a time-out, 0 means "never" to some and "at once" to others.
    Refused,
}

pub(crate) const TTL: Bounds = Bounds { min: MIN_TTL, max: MAX_TTL, default: DEFAULT_TTL, zero: Zero::Default };

pub(crate) const RETRY_INTERVAL: Bounds =
    Bounds { min: MIN_RETRY_INTERVAL, max: MAX_RETRY_INTERVAL, default: DEFAULT_RETRY_INTERVAL, zero: Zero::Default };

pub(crate) const DIAL_TIMEOUT: Bounds = Bounds {
    min: Duration::from_millis(1),
    max: Duration::from_secs(600),
    default: DEFAULT_DIAL_TIMEOUT,
    zero: Zero::Refused,
};

impl Bounds {
    /// Reads `text` and checks it. The text is not repeated in the fault: it may be a secret in the wrong place.
    pub(crate) fn parse(&self, text: &str) -> Result<Duration, String> {
        let length = match text.parse::<f64>() {
            Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
            Err(_) => humantime::parse_duration(text).ok(),
        };
        self.check(length.ok_or_else(|| self.not_a_length())?)
    }

    /// Checks a number of seconds.
    pub(crate) fn seconds(&self, seconds: f64) -> Result<Duration, String> {
        self.check(Duration::try_from_secs_f64(seconds).map_err(|_| self.not_a_length())?)
    }

    pub(crate) fn check(&self, length: Duration) -> Result<Duration, String> {
        if (self.min..=self.max).contains(&length) || (length.is_zero() && self.zero == Zero::Default) {
            return Ok(length);
        }
        Err(format!("{} is not accepted; {}", humantime::format_duration(length), self.accepted()))
    }

    /// Returns the checked value; the default if it is absent or 0.
    pub(crate) fn resolve(&self, length: Option<Duration>) -> Result<Duration, String> {
        let length = self.check(length.unwrap_or(self.default))?;
        Ok(if length.is_zero() { self.default } else { length })
    }

    fn not_a_length(&self) -> String {
        format!("not a length of time such as 10s, 250ms or 1.5 (seconds); {}", self.accepted())
    }

    fn accepted(&self) -> String {
        let [min, max, default] = [self.min, self.max, self.default].map(humantime::format_duration);
        let absent = if self.zero == Zero::Default { "absent or 0" } else { "absent" };
        format!("accepted is {min} to {max}, {absent} means {default}")
    }
}

/// Checks how many entries of history each lock is to keep.
pub(crate) fn check_history(most: u32) -> Result<u32, String> {
    if most <= MAX_HISTORY { Ok(most) } else { Err(format!("{most} is not from 0 to {MAX_HISTORY}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_text_with_a_unit_or_a_number_of_seconds() {
        let cases = [
            ("10s", 10_000),
            ("250ms", 250),
            ("1m 30s", 90_000),
            ("2h", 7_200_000),
            ("1.5s", 1_500),
            ("1.5", 1_500),
            ("0.1", 100),
            ("30", 30_000),
            ("0", 0),
            ("0s", 0),
        ];
        for (text, ms) in cases {
            assert_eq!(TTL.parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(TTL.seconds(0.25), Ok(Duration::from_millis(250)));
    }

    #[test]
    fn what_is_no_length_is_refused_without_being_repeated() {
        for text in
            ["", " ", "-1", "nan", "inf", "1e300", "10 parsecs", "hunter2-s3cret", "10s;", "99999999999999999999s"]
        {
            let fault = TTL.parse(text).expect_err(text);
            assert!(fault.contains("accepted is 100ms to 1day, absent or 0 means 10s"), "{fault}");
            assert!(!fault.contains("hunter2") && !fault.contains("parsecs"), "{fault}");
        }
        for seconds in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(TTL.seconds(seconds).is_err());
        }
    }

    #[test]
    fn both_ends_of_a_range_belong_to_it_and_a_nanosecond_more_does_not() {
        let nano = Duration::from_nanos(1);
        for bounds in [TTL, RETRY_INTERVAL, DIAL_TIMEOUT] {
            assert!(bounds.check(bounds.min).is_ok() && bounds.check(bounds.max).is_ok(), "{bounds:?}");
            assert!(bounds.check(bounds.min - nano).is_err() && bounds.check(bounds.max + nano).is_err(), "{bounds:?}");
        }
    }

    #[test]
    fn absent_and_zero_mean_the_default_except_for_a_timeout_of_zero() {
        assert_eq!(TTL.resolve(None), Ok(Duration::from_secs(10)));
        assert_eq!(TTL.resolve(Some(Duration::ZERO)), Ok(Duration::from_secs(10)));
        assert_eq!(RETRY_INTERVAL.resolve(Some(Duration::ZERO)), Ok(Duration::from_millis(100)));
        assert_eq!(DIAL_TIMEOUT.resolve(None), Ok(Duration::from_secs(5)));
        let fault = DIAL_TIMEOUT.resolve(Some(Duration::ZERO)).unwrap_err();
        assert_eq!(fault, "0s is not accepted; accepted is 1ms to 10m, absent means 5s");
    }

    #[test]
    fn fuzz_lengths_are_within_bounds() {
        distlock_testkit::fuzz("texts.txt", |input| {
            let text = String::from_utf8_lossy(input);
            for bounds in [TTL, RETRY_INTERVAL, DIAL_TIMEOUT] {
                let length = bounds.parse(&text);
                assert!(length.is_err() || length.is_ok_and(|length| length <= bounds.max));
            }
        });
    }
}
