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

    /// Requests a permit and waits for it.
    pub fn acquire(&self) -> LockRequest {
        LockRequest::new(self.family.clone(), self.key(), self.owner.clone(), self.options.clone())
    }

    /// Requests a permit once: `None` if all are taken.
    pub fn try_acquire(&self) -> TryLockRequest {
        TryLockRequest::new(self.family.clone(), self.key(), self.owner.clone(), self.options.clone())
    }

    fn key(&self) -> Result<Key> {
        self.key.clone().map_err(|(kind, message)| Error::new(kind, message))
    }
}
