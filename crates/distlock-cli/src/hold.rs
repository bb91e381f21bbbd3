//! What the supervisor needs to know about a lock that is held.

use std::future::Future;

use distlock::{LockGuard, LossReason, Moment};

/// A lock that is held, or was.
pub trait Hold {
    /// Returns once the lock is lost.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect; the next call knows of the loss too.
    fn lost(&self) -> impl Future<Output = LossReason>;

    /// Whether the lock is lost by now, by a clock that also counts the time in which this process stood still.
    fn is_lost(&self) -> bool;

    /// When it is lost unless a renewal is answered before; `None` when it has no lease.
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
