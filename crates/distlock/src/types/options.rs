//! The options of a request, and their defaults.

use std::sync::Arc;
use std::time::Duration;

use crate::types::error::{Error, Result};
use crate::types::meter::Group;
use crate::types::mode::Mode;
use crate::types::owner::check_text;
use crate::types::watchdog::{Watchdog, WatchdogKind};

/// The default TTL: 10 s.
pub const DEFAULT_TTL: Duration = Duration::from_secs(10);
/// The shortest lease: 100 ms.
pub const MIN_TTL: Duration = Duration::from_millis(100);
/// The longest lease: 24 h.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// The default pause between two claims if the engine does not say when to claim again: 100 ms.
pub const DEFAULT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// The shortest retry interval: 1 ms.
pub const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// The longest retry interval: 1 h.
pub const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(60 * 60);
/// How many requests in a row may fail before a wait gives up on the engine.
pub const DEFAULT_MAX_RETRIES: u32 = 8;
/// The longest wait that can be set: 10 years. A wait that is not set has no limit.
pub const MAX_WAIT: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// A lease is renewed when this part of it has passed.
const DEFAULT_RENEW_AT: f64 = 1.0 / 3.0;

/// The options of a request besides the lock's name.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) ttl: Duration,
    pub(crate) wait: Option<Duration>,
    /// Whether a held lock is a result (`None`) and not an error.
    pub(crate) once: bool,
    pub(crate) max_attempts: Option<u32>,
    pub(crate) retry_interval: Duration,
    pub(crate) max_retries: u32,
    pub(crate) renew_at: f64,
    pub(crate) watchdog: Watchdog,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) at_least: Duration,
    pub(crate) delay: Duration,
    pub(crate) mode: Mode,
    pub(crate) resizes: bool,
    pub(crate) reentrant: bool,
    pub(crate) label: Option<Arc<str>>,
    /// The metrics label.
    pub(crate) group: Group,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            ttl: DEFAULT_TTL,
            wait: None,
            once: false,
            max_attempts: None,
            retry_interval: DEFAULT_RETRY_INTERVAL,
            max_retries: DEFAULT_MAX_RETRIES,
            renew_at: DEFAULT_RENEW_AT,
            watchdog: Watchdog::on(),
            max_hold: None,
            at_least: Duration::ZERO,
            delay: Duration::ZERO,
            mode: Mode::Exclusive,
            resizes: false,
            reentrant: false,
            label: None,
            group: Default::default(),
        }
    }
}

impl Options {
    /// Refuses options that no engine supports, before anything is sent.
    pub(crate) fn check(&self) -> Result<()> {
        self.mode.check()?;
        check_ttl(self.ttl)?;
        check_range("retry_interval", self.retry_interval, MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL)?;
        if self.wait.is_some_and(|wait| wait > MAX_WAIT) {
            return Err(Error::invalid("wait", format_args!("longer than {MAX_WAIT:?}"))
                .with_help("leave it out to wait without limit"));
        }
        if self.max_attempts == Some(0) {
            return Err(Error::invalid("max_attempts", "0 attempts cannot succeed"));
        }
        if self.max_hold == Some(Duration::ZERO) {
            return Err(Error::invalid("max_hold", "the lock would be lost at once"));
        }
        if self.watchdog.0 == WatchdogKind::Fed(Duration::ZERO) {
            return Err(Error::invalid("watchdog", "the work cannot feed it that often"));
        }
        check_range("lock_delay", self.delay, Duration::ZERO, MAX_TTL)?;
        check_range("at_least", self.at_least, Duration::ZERO, MAX_TTL)?;
        if self.max_hold.is_some_and(|most| most < self.at_least) {
            return Err(Error::invalid("at_least", "longer than max_hold, which ends the hold before"));
        }
        if !(0.05..=0.8).contains(&self.renew_at) {
            return Err(Error::invalid("renew_at", format_args!("{} is not from 0.05 to 0.8", self.renew_at)));
        }
        self.label.as_deref().map_or(Ok(()), |label| check_text("label", label))
    }

    /// Returns whether the lease may run out while the process lives.
    pub(crate) fn lapses(&self) -> bool {
        self.watchdog.0 != WatchdogKind::On || self.max_hold.is_some()
    }
}

pub(crate) fn check_ttl(ttl: Duration) -> Result<()> {
    check_range("ttl", ttl, MIN_TTL, MAX_TTL)
}

fn check_range(field: &str, value: Duration, least: Duration, most: Duration) -> Result<()> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(Error::invalid(field, format_args!("{value:?} is not from {least:?} to {most:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::error::ErrorKind;

    #[test]
    fn the_defaults_are_acceptable() {
        assert!(Options::default().check().is_ok());
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        type Change = fn(&mut Options);
        let cases: [(&str, Change); 16] = [
            ("slots: 0", |o| o.mode = Mode::Slot { of: 0 }),
            ("ttl: 0ns", |o| o.ttl = Duration::ZERO),
            ("ttl: 99ms", |o| o.ttl = Duration::from_millis(99)),
            ("ttl: ", |o| o.ttl = Duration::MAX),
            ("retry_interval: 0ns", |o| o.retry_interval = Duration::ZERO),
            ("retry_interval: ", |o| o.retry_interval = Duration::MAX),
            ("wait: longer", |o| o.wait = Some(Duration::MAX)),
            ("max_attempts: 0", |o| o.max_attempts = Some(0)),
            ("max_hold: ", |o| o.max_hold = Some(Duration::ZERO)),
            ("watchdog: ", |o| o.watchdog = Watchdog::fed(Duration::ZERO)),
            ("lock_delay: ", |o| o.delay = Duration::MAX),
            ("at_least: ", |o| o.at_least = Duration::MAX),
            ("at_least: longer", |o| (o.at_least, o.max_hold) = (MAX_TTL, Some(MIN_TTL))),
            ("renew_at: NaN", |o| o.renew_at = f64::NAN),
            ("renew_at: 0.9", |o| o.renew_at = 0.9),
            ("label: ", |o| o.label = Some("a\nb".into())),
        ];
        for (start, change) in cases {
            let mut options = Options::default();
            change(&mut options);
            let error = options.check().expect_err(start);
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().starts_with(start), "{error}");
        }
    }
}
