//! Requests: builders that are awaited.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::api::guard::LockGuard;
use crate::core::acquire::acquire;
use crate::core::family::Family;
use crate::core::holds::Left;
use crate::core::release::release_now;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::key::Key;
use crate::types::options::Options;
use crate::types::owner::OwnerId;
use crate::types::watchdog::Watchdog;

/// The boxed future of a request, for code that has to name its type. `into_future()` makes it, for example to spawn a
/// request.
pub type RequestFuture<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// The parts of every request. An invalid argument is kept, and refused before any I/O when the request is awaited.
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

    /// Returns the same request once more.
    fn repeat(&self) -> Self {
        let key = self.key.as_ref().map(Key::clone).map_err(Error::duplicate);
        let owner = self.owner.as_ref().map(OwnerId::clone).map_err(Error::duplicate);
        RequestParts { family: self.family.clone(), key, owner, options: self.options.clone() }
    }

    /// Acquires the lock; `finish` turns the guard, if there is one, into the caller's result. An `async fn` would have room
    /// for the parts twice.
    fn acquire<T>(self, finish: fn(Option<LockGuard>) -> Result<T>) -> impl Future<Output = Result<T>> + Send {
        let RequestParts { family, key, owner, options } = self;
        async move {
            let key = key?;
            let owner = owner.map_err(|error| error.with_key(&key))?;
            options.check().map_err(|error| error.with_key(&key))?;
            let hold = acquire(&family, key, owner, &options).await?;
            finish(hold.map(|hold| LockGuard::new(family, hold)))
        }
    }
}

impl fmt::Debug for RequestParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RequestParts { key, owner, options, .. } = self;
        f.debug_struct("Request")
            .field("key", key)
            .field("owner", owner)
            .field("options", options)
            .finish_non_exhaustive()
    }
}

/// The options of both `lock` and `try_lock`.
macro_rules! common_options {
    () => {
        /// Sets the length of the lease.
        ///
        /// The lease is renewed long before it ends, so it is not how long the work may take. It bounds how long others
        /// wait after this process has died, and how long this process keeps the lock while the engine is unreachable.
        ///
        /// # Default
        /// 10 s, or the locker's default. From 100 ms to 24 h.
        pub fn ttl(mut self, ttl: Duration) -> Self {
            self.0.options.ttl = ttl;
            self
        }

        /// Names the owner: a trace id, a request id, a business id. Requests with the same id are the same owner, in
        /// every process.
        ///
        /// # Default
        /// The locker's owner: each clone has its own.
        pub fn owner(mut self, id: impl AsRef<str>) -> Self {
            self.0.owner = OwnerId::new(id);
            self
        }

        /// Makes this request an owner of its own, as if it were made with a clone of the locker: it contends with other
        /// requests of the same handle instead of failing with kind `AlreadyHeld`.
        ///
        /// For services that share one handle between their requests or tasks. Such a hold is unlocked through its guard;
        /// [`Locker::unlock`](crate::Locker::unlock) by name needs an [`owner`](Self::owner) that the caller knows.
        ///
        /// ```
        /// # use distlock::Locker;
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
        /// let locker = Locker::connect("mem://new-owner").await?;
        /// let first = locker.try_lock("order:7").as_new_owner().await?;
        /// let second = locker.try_lock("order:7").as_new_owner().await?;
        /// assert!(first.is_some() && second.is_none()); // without `as_new_owner`: an error of kind AlreadyHeld
        /// # Ok(()) }
        /// ```
        pub fn as_new_owner(mut self) -> Self {
            self.0.owner = Ok(OwnerId::random());
            self
        }

        /// Sets the label: what the lock is for, shown to clients that find it held. At most 256 bytes.
        ///
        /// # Default
        /// None.
        pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
            self.0.options.label = Some(label.into());
            self
        }

        /// Sets the metrics label; use few different words, never the lock's name. Default: the locker's.
        #[cfg(feature = "metrics")]
        pub fn group(mut self, group: &'static str) -> Self {
            self.0.options.group = crate::types::meter::Group(group);
            self
        }

        /// Lets the owner re-enter a lock that it holds already: holds are counted, the fencing token stays the same,
        /// and the last unlock releases.
        ///
        /// ```
        /// # use distlock::Locker;
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
        /// # let locker = Locker::connect("mem://reentrant").await?;
        /// let outer = locker.try_lock("order:7").owner("order-7").reentrant().await?.expect("it is free");
        /// let inner = locker.try_lock("order:7").owner("order-7").reentrant().await?.expect("the same owner");
        /// assert_eq!(inner.fencing_token(), outer.fencing_token());
        /// # Ok(()) }
        /// ```
        ///
        /// Re-entry from another process needs an engine whose
        /// [`Capabilities::reenters`](crate::backend::Capabilities::reenters) is `true`.
        pub fn reentrant(mut self) -> Self {
            self.0.options.reentrant = true;
            self
        }

        /// Sets whether the lease is renewed until the lock is unlocked.
        ///
        /// # Default
        /// `true`. With `false` the lock is lost when the lease ends, unless [`LockGuard::extend`] is called.
        /// [`Watchdog::fed`] renews only while the work feeds it; the example is there.
        pub fn watchdog(mut self, watchdog: impl Into<Watchdog>) -> Self {
            self.0.options.watchdog = watchdog.into();
            self
        }

        /// Sets the part of the lease after which it is renewed.
        ///
        /// # Default
        /// One third. From 0.05 to 0.8.
        pub fn renew_at(mut self, part: f64) -> Self {
            self.0.options.renew_at = part;
            self
        }

        /// Sets the shortest time to hold the lock. A lock that is unlocked or dropped earlier becomes free only
        /// then, so that no other client repeats the same work. If the locker is closed or the process ends earlier,
        /// the lock becomes free when its lease ends.
        ///
        /// # Default
        /// Zero.
        pub fn at_least(mut self, least: Duration) -> Self {
            self.0.options.at_least = least;
            self
        }

        /// Sets the lock delay: how long after a loss the lock is granted to no one, so that operations of the lost
        /// holder can end. An unlock or a drop frees the lock at once.
        ///
        /// # Default
        /// None. Kind `Unsupported` where [`Capabilities::delays`](crate::backend::Capabilities::delays) is `false`.
        pub fn lock_delay(mut self, delay: Duration) -> Self {
            self.0.options.delay = delay;
            self
        }

        /// Sets the longest time to hold the lock; after it the lock is lost with reason
        /// [`MaxHold`](crate::LossReason::MaxHold), whatever the holder does. It bounds work that hangs, which renewal
        /// does not.
        ///
        /// # Default
        /// No limit.
        pub fn max_hold(mut self, most: Duration) -> Self {
            self.0.options.max_hold = Some(most);
            self
        }
    };
}

/// A request for a lock that waits for it; made by [`Locker::lock`](crate::Locker::lock). Awaiting it returns a
/// [`LockGuard`].
///
/// ```
/// use std::time::Duration;
/// use distlock::Locker;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// # let locker = Locker::connect("mem://request").await?;
/// let guard = locker
///     .lock("invoice:42")
///     .wait(Duration::from_secs(5)) // then an error of kind Timeout
///     .max_hold(Duration::from_secs(600)) // then the lock is lost
///     .label("monthly run") // shown to others
///     .await?;
/// # guard.unlock().await }
/// ```
///
/// An invalid option is refused before anything is sent, with kind `InvalidInput`.
///
/// # Cancel safety
/// Dropping the future at any point withdraws the claim from the queue, or releases the lock if it was just granted. So
/// `tokio::time::timeout` and `select!` are safe; [`wait`](LockRequest::wait) also tells who holds the lock.
#[derive(Debug)]
#[must_use = "a request does nothing until it is awaited"]
pub struct LockRequest(RequestParts);

impl LockRequest {
    pub(crate) fn new(family: Arc<Family>, key: Result<Key>, owner: OwnerId, options: Options) -> Self {
        LockRequest(RequestParts::new(family, key, owner, options))
    }

    /// Returns the same request once more.
    pub(crate) fn repeat(&self) -> Self {
        LockRequest(self.0.repeat())
    }

    /// Refuses an invalid argument before any I/O, as awaiting it would.
    pub(crate) fn check(&self) -> Result<()> {
        let key = self.0.key.as_ref().map_err(Error::duplicate)?;
        let about = |error: Error| error.with_key(key);
        self.0.owner.as_ref().map_err(|error| about(error.duplicate()))?;
        self.0.options.check().map_err(about)
    }

    common_options!();

    /// Sets the longest time to wait; after it the error is of kind `Timeout` and names the holder.
    ///
    /// At the end of the wait the request claims once more, so that the error names the holder at that time. It waits
    /// for this last reply for 250 ms, or for twice the time of the reply before, at most 1 s. Without that reply and
    /// without a reply of the last second the engine counts as unreachable: kind `Unavailable`, or `Unknown` if a
    /// claim may have been applied.
    ///
    /// # Default
    /// No limit, or the locker's [default](crate::LockerBuilder::default_wait). Zero claims once and does not wait.
    pub fn wait(mut self, most: Duration) -> Self {
        self.0.options.wait = Some(most);
        self
    }

    /// Sets the number of claims; after them the error is of kind `Timeout`.
    ///
    /// # Default
    /// No limit.
    pub fn max_attempts(mut self, most: u32) -> Self {
        self.0.options.max_attempts = Some(most);
        self
    }

    /// Sets the pause between two claims if the engine does not say when to claim again.
    ///
    /// # Default
    /// 100 ms, or the locker's default.
    pub fn retry_interval(mut self, interval: Duration) -> Self {
        self.0.options.retry_interval = interval;
        self
    }
}

impl IntoFuture for LockRequest {
    type Output = Result<LockGuard>;
    type IntoFuture = RequestFuture<LockGuard>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.0.acquire(|guard| guard.ok_or_else(|| Error::new(ErrorKind::Timeout, "another owner has it"))))
    }
}

/// A request for a lock that does not wait; made by [`Locker::try_lock`](crate::Locker::try_lock). Awaiting it returns
/// `Some` guard, or `None` if another owner holds the lock.
///
/// # Cancel safety
/// Dropping the future at any point releases the lock if it was just granted.
#[derive(Debug)]
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
        Box::pin(self.0.acquire(Ok))
    }
}

/// A request to unlock by name; made by [`Locker::unlock`](crate::Locker::unlock).
///
/// # Cancel safety
/// Once polled, the release continues in the background if the future is dropped.
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

    /// Sets the owner of the hold.
    ///
    /// # Default
    /// The locker's owner.
    pub fn owner(mut self, id: impl AsRef<str>) -> Self {
        self.owner = OwnerId::new(id);
        self
    }

    async fn run(self) -> Result<()> {
        let UnlockRequest { family, key, owner } = self;
        let (key, owner) = (key?, owner?);
        family.check_caller()?;
        let _under_way = family.holds.begin().map_err(|error| error.with_key(&key))?;
        let now = family.clock.now();
        let Some(hold) = family.holds.held(&owner, &key, family.holds.hash(&owner, &key), now) else {
            let message = format!("owner {owner} does not hold it");
            return Err(Error::new(ErrorKind::NotHeld, message).with_key(&key));
        };
        match family.holds.leave(hold.claim.attempt, now) {
            Left::Inside | Left::Parked => Ok(()),
            Left::Last(hold) => release_now(&family, hold, now).await,
            // Between the two lookups the keeper found it lost, or another task unlocked it.
            Left::Gone => Err(Error::new(ErrorKind::NotHeld, "it has just ended").with_key(&key)),
        }
    }
}

impl fmt::Debug for UnlockRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnlockRequest { key, owner, .. } = self;
        f.debug_struct("UnlockRequest").field("key", key).field("owner", owner).finish_non_exhaustive()
    }
}

impl IntoFuture for UnlockRequest {
    type Output = Result<()>;
    type IntoFuture = RequestFuture<()>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

#[cfg(test)]
mod tests {
    use crate::Locker;
    use crate::engines::memory::Memory;

    /// What the allocator of the C library serves from the thread's own cache.
    const SMALL: usize = 1032;

    #[tokio::test]
    async fn the_futures_of_a_lock_and_an_unlock_are_small() {
        let locker = Locker::new(Memory::new()).unwrap();
        let lock = size_of_val(&locker.lock("k").0.acquire(Ok));
        let unlock = size_of_val(&locker.lock("k").await.unwrap().unlock());
        assert!(lock <= SMALL && unlock <= SMALL, "lock {lock}, unlock {unlock}");
    }
}
