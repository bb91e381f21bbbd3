//! What the supervisor needs to know about a hold.

use std::future::Future;

use distlock::{LockGuard, LossReason, Moment};

/// A lock that is or was held.
pub trait Hold {
    /// Returns once the lock is lost.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect; the next call resolves for the same loss.
    fn lost(&self) -> impl Future<Output = LossReason>;

    /// Whether the lock is lost by now, by a clock that also runs while this process is stopped.
    fn is_lost(&self) -> bool;

    /// When the lock is lost unless a renewal succeeds before; `None` when it has no lease.
    fn deadline(&self) -> Option<Moment>;
}

impl Hold for LockGuard {
    fn lost(&self) -> impl Future<Output = LossReason> {
        LockGuard::lost(self)
    }

    fn is_lost(&self) -> bool {
        LockGuard::is_lost(self)
    }

    fn deadline(&self) -> Option<Moment> {
        LockGuard::deadline(self)
    }
}
