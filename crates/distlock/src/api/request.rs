//! Builders that become a lock when awaited.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::api::guard::{LockGuard, release_last};
use crate::core::acquire::acquire;
use crate::core::family::Family;
use crate::core::holds::Left;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::key::Key;
use crate::types::options::Options;
use crate::types::owner::OwnerId;
use crate::types::watchdog::Watchdog;

/// A boxed future, what the builders turn into.
pub type RequestFuture<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// What every request carries: the first bad argument is kept until it is awaited, and then refused before any I/O.
struct RequestParts {
    family: Arc<Family>,
    key: Result<Key>,
    owner: Result<OwnerId>,
    options: Options,
}

impl RequestParts {
    fn new(family: Arc<Family>, key: Result<Key>, owner: OwnerId, options: Options) -> Self {
        RequestParts { family, key, owner: Ok(owner), options }
    }

    async fn acquire(self) -> Result<Option<LockGuard>> {
        let key = self.key?;
        let owner = self.owner.map_err(|error| error.with_key(&key))?;
        self.options.check().map_err(|error| error.with_key(&key))?;
        let hold = acquire(&self.family, key, owner, &self.options).await?;
        Ok(hold.map(|hold| LockGuard::new(self.family.clone(), hold)))
    }
}

/// The options that waiting and trying share.
macro_rules! common_options {
    () => {
        /// The length of the lease.
        ///
        /// # Default
        /// 10 s, or what the locker was built with. From 100 ms to 24 h. It is renewed long before it ends, so it only
        /// bounds how long others wait after this process has died.
        pub fn ttl(mut self, ttl: Duration) -> Self {
            self.0.options.ttl = ttl;
            self
        }

        /// Names the owner: a trace id, a request id, a business id.
        ///
        /// # Default
        /// The locker's own: each clone is an owner.
        pub fn owner(mut self, id: impl AsRef<str>) -> Self {
            self.0.owner = OwnerId::new(id);
            self
        }

        /// What the lock is for, shown to whoever finds it taken.
        pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
            self.0.options.label = Some(label.into());
            self
        }

        /// What the lock is counted under; one of few words, never its name. Default: what the locker says.
        #[cfg(feature = "metrics")]
        pub fn group(mut self, group: &'static str) -> Self {
            self.0.options.group = crate::types::meter::Group(group);
            self
        }

        /// Lets the owner enter a lock that it has already: the hold is counted, the fencing token stays the same, and
        /// the last unlock releases it.
        pub fn reentrant(mut self) -> Self {
            self.0.options.reentrant = true;
            self
        }

        /// Whether the lease is renewed until it is unlocked.
        ///
        /// # Default
        /// `true`. Without it the lock is lost when the lease ends, unless [`LockGuard::extend`] is called.
        /// [`Watchdog::fed`] renews only as long as the work says that it lives.
        pub fn watchdog(mut self, watchdog: impl Into<Watchdog>) -> Self {
            self.0.options.watchdog = watchdog.into();
            self
        }

        /// The part of the lease after which it is renewed.
        ///
        /// # Default
        /// One third. From 0.05 to 0.8.
        pub fn renew_at(mut self, part: f64) -> Self {
            self.0.options.renew_at = part;
            self
        }

        /// The shortest time to hold the lock: one that is unlocked or dropped before becomes free only then, so that
        /// nobody else does the same work once more. Should the locker be closed or the process end before, it becomes
        /// free when its lease ends.
        pub fn at_least(mut self, least: Duration) -> Self {
            self.0.options.at_least = least;
            self
        }

        /// How long nobody is granted the lock after it was lost: time for what the holder had under way to end. An
        /// unlock or a drop frees it at once.
        ///
        /// # Default
        /// None. Kind `Unsupported` where [`Capabilities::delays`](crate::backend::Capabilities) says so.
        pub fn lock_delay(mut self, delay: Duration) -> Self {
            self.0.options.delay = delay;
            self
        }

        /// The longest time to hold the lock: then it is lost with reason `MaxHold`, whatever the holder does.
        pub fn max_hold(mut self, most: Duration) -> Self {
            self.0.options.max_hold = Some(most);
            self
        }
    };
}

/// Asks for a lock and waits for it; made by [`Locker::lock`](crate::Locker::lock).
///
/// # Cancel safety
/// Dropping the future at any point gives up the place in the queue, or the lock if it was just granted.
#[must_use = "a request does nothing until it is awaited"]
pub struct LockRequest(RequestParts);

impl LockRequest {
    pub(crate) fn new(family: Arc<Family>, key: Result<Key>, owner: OwnerId, options: Options) -> Self {
        LockRequest(RequestParts::new(family, key, owner, options))
    }

    common_options!();

    /// The longest time to wait; then the error is of kind `Timeout` and says who has the lock.
    ///
    /// When the time is over the engine is asked once more, so the holder is that of the end. Its reply is awaited for
    /// 250 ms, or for twice as long as the one before took, at most 1 s. Without it, and without one from the last second,
    /// the engine counts as out of reach: kind `Unavailable`, or `Unknown` when a claim may have been carried out.
    ///
    /// # Default
    /// Without limit. Zero asks once and does not wait.
    pub fn wait(mut self, most: Duration) -> Self {
        self.0.options.wait = Some(most);
        self
    }

    /// How often to ask the engine; then the error is of kind `Timeout`.
    ///
    /// # Default
    /// Without limit.
    pub fn max_attempts(mut self, most: u32) -> Self {
        self.0.options.max_attempts = Some(most);
        self
    }

    /// The pause between two claims where the engine does not say when it makes sense to claim again.
    ///
    /// # Default
    /// 100 ms, or what the locker was built with.
    pub fn retry_interval(mut self, interval: Duration) -> Self {
        self.0.options.retry_interval = interval;
        self
    }
}

impl IntoFuture for LockRequest {
    type Output = Result<LockGuard>;
    type IntoFuture = RequestFuture<LockGuard>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let granted = self.0.acquire().await?;
            granted.ok_or_else(|| Error::new(ErrorKind::Timeout, "somebody else has it"))
        })
    }
}

/// Asks for a lock once, without waiting; made by [`Locker::try_lock`](crate::Locker::try_lock).
///
/// # Cancel safety
/// Dropping the future at any point releases the lock if it was just granted.
#[must_use = "a request does nothing until it is awaited"]
pub struct TryLockRequest(RequestParts);

impl TryLockRequest {
    pub(crate) fn new(family: Arc<Family>, key: Result<Key>, owner: OwnerId, options: Options) -> Self {
        let options = Options { wait: Some(Duration::ZERO), once: true, ..options };
        TryLockRequest(RequestParts::new(family, key, owner, options))
    }

    common_options!();
}

impl IntoFuture for TryLockRequest {
    type Output = Result<Option<LockGuard>>;
    type IntoFuture = RequestFuture<Option<LockGuard>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.0.acquire())
    }
}

/// Unlocks by name; made by [`Locker::unlock`](crate::Locker::unlock).
///
/// # Cancel safety
/// Once polled, the release goes on in the background when the future is dropped.
#[must_use = "a request does nothing until it is awaited"]
pub struct UnlockRequest {
    family: Arc<Family>,
    key: Result<Key>,
    owner: Result<OwnerId>,
}

impl UnlockRequest {
    pub(crate) fn new<K>(family: Arc<Family>, key: K, owner: OwnerId) -> Self
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        UnlockRequest { family, key: key.try_into().map_err(Into::into), owner: Ok(owner) }
    }

    /// Names the owner that the lock was taken for.
    ///
    /// # Default
    /// The locker's own.
    pub fn owner(mut self, id: impl AsRef<str>) -> Self {
        self.owner = OwnerId::new(id);
        self
    }

    async fn run(self) -> Result<()> {
        let UnlockRequest { family, key, owner } = self;
        let (key, owner) = (key?, owner?);
        family.check_caller()?;
        let _under_way = family.holds.begin().map_err(|error| error.with_key(&key))?;
        let Some(hold) = family.holds.held(&owner, &key, family.clock.now()) else {
            let message = format!("owner {owner} does not hold it");
            return Err(Error::new(ErrorKind::NotHeld, message).with_key(&key));
        };
        match family.holds.leave(hold.claim.attempt, family.clock.now()) {
            Left::Inside | Left::Parked => Ok(()),
            Left::Last(hold) => release_last(&family, hold).await,
            // Between the two looks the keeper saw it lost, or another task unlocked it.
            Left::Gone => Err(Error::new(ErrorKind::NotHeld, "it has just ended").with_key(&key)),
        }
    }
}

impl IntoFuture for UnlockRequest {
    type Output = Result<()>;
    type IntoFuture = RequestFuture<()>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
