//! The watchdog of a hold.

use std::time::Duration;

/// The rule by which a hold is renewed until it is unlocked; set by
/// [`LockRequest::watchdog`](crate::LockRequest::watchdog).
///
/// # Default
/// [`Watchdog::on`]. `true` and `false` convert into `on` and `off`.
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
    /// `max_silence`. So a process that hangs loses its locks, with reason [`Silent`](crate::LossReason::Silent).
    ///
    /// ```
    /// use std::time::Duration;
    /// use distlock::{Locker, LossReason, Watchdog, backend::memory::{Memory, Store}};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// let (store, clock) = Store::manual();
    /// let locker = Locker::new(Memory::on(&store))?;
    /// let guard = locker.lock("import").watchdog(Watchdog::fed(Duration::from_secs(60))).await?;
    ///
    /// clock.advance(Duration::from_secs(50)).await;
    /// guard.feed(); // after each step of the work
    /// clock.advance(Duration::from_secs(50)).await;
    /// assert!(!guard.is_lost());
    /// clock.advance(Duration::from_secs(60)).await; // the work hangs
    /// assert_eq!(guard.lost().await, LossReason::Silent);
    /// # Ok(()) }
    /// ```
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
