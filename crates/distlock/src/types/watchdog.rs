//! What keeps a hold alive.

use std::time::Duration;

/// What keeps a hold alive until it is unlocked.
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
    /// Returns the lease is renewed as long as the process lives.
    #[must_use]
    pub const fn on() -> Self {
        Watchdog(WatchdogKind::On)
    }

    /// Nobody renews the lease but [`LockGuard::extend`](crate::LockGuard::extend).
    #[must_use]
    pub const fn off() -> Self {
        Watchdog(WatchdogKind::Off)
    }

    /// Returns the lease is renewed as long as the work says that it lives, by [`LockGuard::feed`](crate::LockGuard::feed), at
    /// least every `max_silence`. A process that hangs then loses its locks although it has not died.
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
