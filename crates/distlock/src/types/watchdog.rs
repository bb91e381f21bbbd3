//! The watchdog of a hold.

use std::time::Duration;

/// The rule by which a hold is renewed until it is unlocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Watchdog(pub(crate) WatchdogKind);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum WatchdogKind {
    #[default]
    On,
    Off,
    Fed(Duration),
}

impl Watchdog {
    /// Renews the lease while the process lives.
    #[must_use]
    pub const fn on() -> Self {
        Watchdog(WatchdogKind::On)
    }

    /// Does not renew the lease; only [`LockGuard::extend`](crate::LockGuard::extend) does.
    #[must_use]
    pub const fn off() -> Self {
        Watchdog(WatchdogKind::Off)
    }

    /// Renews the lease while the work calls [`LockGuard::feed`](crate::LockGuard::feed), at least every
    /// `max_silence`. So a process that hangs loses its locks.
    #[must_use]
    pub const fn fed(max_silence: Duration) -> Self {
        Watchdog(WatchdogKind::Fed(max_silence))
    }
}

impl From<bool> for Watchdog {
    fn from(on: bool) -> Self {
        if on { Watchdog::on() } else { Watchdog::off() }
    }
}
