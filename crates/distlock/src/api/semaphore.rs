//! Counting semaphores.

use std::fmt;
use std::sync::Arc;

use crate::api::request::{LockRequest, TryLockRequest};
use crate::core::family::Family;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::key::Key;
use crate::types::options::Options;
use crate::types::owner::OwnerId;

/// A counting semaphore; made by [`Locker::semaphore`](crate::Locker::semaphore).
///
/// Each permit is a [`LockGuard`](crate::LockGuard) with its own lease, loss signal and fencing token, and with the
/// number of its [slot](crate::LockGuard::slot). One owner may hold several permits.
///
/// ```
/// # use distlock::Locker;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// let locker = Locker::connect("mem://").await?;
/// let uploads = locker.semaphore("uploads", 2);
/// let (first, second) = (uploads.acquire().await?, uploads.acquire().await?);
/// assert_eq!((first.slot(), second.slot()), (Some(0), Some(1)));
/// assert!(uploads.try_acquire().await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    family: Arc<Family>,
    /// An invalid name is refused at each request.
    key: std::result::Result<Key, (ErrorKind, String)>,
    owner: OwnerId,
    options: Options,
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Semaphore { key, owner, options, .. } = self;
        let mut out = f.debug_struct("Semaphore");
        out.field("key", key).field("owner", owner).field("mode", &options.mode).finish_non_exhaustive()
    }
}

impl Semaphore {
    pub(crate) fn new(family: Arc<Family>, key: Result<Key>, owner: OwnerId, options: Options) -> Self {
        let key = key.map_err(|error| (error.kind(), error.to_string()));
        Semaphore { family, key, owner, options }
    }

    /// Lets this semaphore be used with several numbers of slots at the same time, while instances with the old and with
    /// the new number run side by side in a rolling deploy. Without it, another number than that of the holders and
    /// waiters is refused with kind `InvalidInput`, as long as there is one.
    ///
    /// The number of each request counts for itself: with `n` slots it is granted when it is the first in the queue and
    /// fewer than `n` permits are held, whatever number those were requested with. So there are never more holders than
    /// the largest number in use, no holder loses its slot, no request overtakes another, and once all instances say
    /// the same number, that number is the size.
    ///
    /// All users of the semaphore must say `or_resize`: a request without it agrees only with its own number. Deploy
    /// `or_resize` with the old number first, and the new number after that.
    ///
    /// ```
    /// # use distlock::Locker;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// let locker = Locker::connect("mem://").await?;
    /// let (old, new) = (locker.semaphore("uploads", 1).or_resize(), locker.semaphore("uploads", 2).or_resize());
    /// let first = old.acquire().await?;
    /// assert!(old.try_acquire().await?.is_none(), "one permit is held");
    /// let second = new.acquire().await?; // fewer than two are held
    /// assert!(new.try_acquire().await?.is_none());
    /// first.unlock().await?;
    /// assert!(old.try_acquire().await?.is_none(), "one permit is held");
    /// # second.unlock().await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn or_resize(mut self) -> Semaphore {
        self.options.resizes = true;
        self
    }

    /// Requests a permit and waits for it, with the options of [`LockRequest`]. Awaiting it returns a
    /// [`LockGuard`](crate::LockGuard).
    pub fn acquire(&self) -> LockRequest {
        LockRequest::new(self.family.clone(), self.key(), self.owner.clone(), self.options.clone())
    }

    /// Requests a permit once, without waiting: `None` if all are taken, or a waiter is before this request.
    pub fn try_acquire(&self) -> TryLockRequest {
        TryLockRequest::new(self.family.clone(), self.key(), self.owner.clone(), self.options.clone())
    }

    fn key(&self) -> Result<Key> {
        self.key.clone().map_err(|(kind, message)| Error::new(kind, message))
    }
}
