//! The handle that locks are taken with.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::ask::AskRequest;
use crate::api::election::Election;
use crate::api::guard::LockGuard;
use crate::api::inspect::Inspect;
use crate::api::multi::LockAllRequest;
use crate::api::once::Once;
use crate::api::request::{LockRequest, TryLockRequest, UnlockRequest};
use crate::api::semaphore::Semaphore;
use crate::contract::Capabilities;
use crate::core::acquire::adopt;
use crate::core::family::Family;
use crate::types::clock::Moment;
use crate::types::error::{Error, Result};
use crate::types::key::Key;
use crate::types::mode::Mode;
use crate::types::options::Options;
use crate::types::owner::OwnerId;
use crate::types::ticket::HoldTicket;

/// A handle for taking locks. Each handle is one owner.
///
/// ```
/// use distlock::Locker;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// let locker = Locker::connect("mem://locker").await?; // one for the whole program
/// let guard = locker.lock("invoice:42").await?;
///
/// let other = locker.clone(); // another owner
/// assert!(other.try_lock("invoice:42").await?.is_none());
/// guard.unlock().await?;
/// locker.close().await?; // at the end of the program: releases what is left
/// # Ok(()) }
/// ```
///
/// `clone()` makes a **new owner** over the same connections, so that tasks with a clone each contend with one
/// another. Sharing one handle by reference or [`Arc`] shares the owner: locking a key that the owner holds already
/// is an error of kind `AlreadyHeld`, or a re-entry with `.reentrant()`. A service whose requests share one handle
/// makes each its own owner with [`as_new_owner`](LockRequest::as_new_owner) or, for all of them, with
/// [`owner_per_request`](crate::LockerBuilder::owner_per_request).
///
/// When the last clone and the last guard are dropped, all remaining holds are released in the background.
/// [`close`](Locker::close) does the same and waits for the releases.
pub struct Locker {
    pub(super) family: Arc<Family>,
    pub(super) owner: OwnerId,
    pub(super) owners: Owners,
    pub(super) options: Options,
}

/// Who the owner of a request is that does not name one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owners {
    /// The handle.
    Handle,
    /// The request itself.
    Request,
}

impl Locker {
    /// Requests a lock and waits for it. The request is a builder: await it, after its options.
    ///
    /// The name is text, a number, a [`Key`], or bytes that are text. See [`LockRequest`] for the options.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distlock::{ErrorKind, Locker};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// # let locker = Locker::connect("mem://lock").await?;
    /// # let other = locker.clone();
    /// let guard = locker.lock("invoice:42").label("monthly run").await?;
    /// let error = other.lock("invoice:42").wait(Duration::from_millis(20)).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Timeout); // its text names the holder and the label
    /// # guard.unlock().await }
    /// ```
    ///
    /// # Errors
    /// When it is awaited: `Timeout` after [`wait`](LockRequest::wait); `AlreadyHeld` if this owner holds the lock;
    /// `Unavailable` or `Unknown` if the engine cannot be reached; `InvalidInput` for an invalid name or option.
    /// [`ErrorKind`](crate::ErrorKind) says what to do for each.
    pub fn lock<K>(&self, key: K) -> LockRequest
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        LockRequest::new(self.family.clone(), checked(key), self.requester(), self.options.clone())
    }

    /// Requests a lock once, without waiting: `None` if another owner holds it, an error only for a failure.
    ///
    /// ```
    /// # use distlock::Locker;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// # let locker = Locker::connect("mem://try-lock").await?;
    /// match locker.try_lock("nightly").await? {
    ///     Some(guard) => guard.unlock().await?, // after the work
    ///     None => println!("another machine runs it"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`lock`](Locker::lock), except `Timeout`: a held lock is `None`.
    pub fn try_lock<K>(&self, key: K) -> TryLockRequest
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        TryLockRequest::new(self.family.clone(), checked(key), self.requester(), self.options.clone())
    }

    /// Requests a shared lock: readers share it, writers exclude them. A reader behind a waiting writer waits.
    ///
    /// It is the same lock as that of [`lock`](Locker::lock) and [`write`](Locker::write). A resource that checks
    /// fencing tokens keeps those of writes only, and refuses a reader whose token is lower.
    ///
    /// ```
    /// # use distlock::Locker;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// # let locker = Locker::connect("mem://read").await?;
    /// # let other = locker.clone();
    /// let (one, two) = (locker.read("catalogue").await?, other.read("catalogue").await?);
    /// assert!(other.try_write("catalogue").await.is_err()); // this owner reads: AlreadyHeld
    /// assert!(locker.clone().try_write("catalogue").await?.is_none()); // others read
    /// # one.unlock().await?;
    /// # two.unlock().await }
    /// ```
    ///
    /// # Errors
    /// As [`lock`](Locker::lock); `Unsupported` where [`Capabilities::shares`] is `false`.
    pub fn read<K>(&self, key: K) -> LockRequest
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        LockRequest::new(self.family.clone(), checked(key), self.requester(), self.in_mode(Mode::Shared))
    }

    /// Requests a shared lock once: `None` if a writer holds it or waits for it.
    pub fn try_read<K>(&self, key: K) -> TryLockRequest
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        TryLockRequest::new(self.family.clone(), checked(key), self.requester(), self.in_mode(Mode::Shared))
    }

    /// Requests an exclusive lock: an alias of [`lock`](Locker::lock), to go with [`read`](Locker::read).
    pub fn write<K>(&self, key: K) -> LockRequest
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        self.lock(key)
    }

    /// Requests an exclusive lock once: an alias of [`try_lock`](Locker::try_lock).
    pub fn try_write<K>(&self, key: K) -> TryLockRequest
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        self.try_lock(key)
    }

    /// Returns a counting semaphore: at most `slots` holders at a time, first come, first served.
    ///
    /// All users give the same number, from 1 to [`MAX_SLOTS`](crate::MAX_SLOTS). While the semaphore has a holder or
    /// waiter, another number is an error of kind `InvalidInput`, and so is a lock of the same name. The example is at
    /// [`Semaphore`].
    ///
    /// # Errors
    /// When a permit is awaited: as [`lock`](Locker::lock); `Unsupported` where [`Capabilities::slots`] is `false`.
    pub fn semaphore<K>(&self, key: K, slots: u32) -> Semaphore
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        Semaphore::new(self.family.clone(), checked(key), self.requester(), self.in_mode(Mode::Slot { of: slots }))
    }

    /// Requests several locks, all or nothing, in a deadlock-free order. The example is at [`LockAllRequest`].
    ///
    /// # Errors
    /// As [`lock`](Locker::lock), naming the lock; then none of them is held. `InvalidInput` if there is no name, or the
    /// same one twice.
    pub fn lock_all<K>(&self, keys: impl IntoIterator<Item = K>) -> LockAllRequest
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        LockAllRequest::new(self.family.clone(), keys, self.requester(), self.options.clone())
    }

    /// Returns an election: the holder of the lock of that name is the leader. The example is at [`Election`].
    pub fn election<K>(&self, name: K) -> Election
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        // A campaign waits for its turn, however long requests for locks wait by default.
        let options = Options { wait: None, ..self.options.clone() };
        Election::new(Locker { options, ..self.same_owner() }, checked(name))
    }

    /// Returns a job that runs once per [tick](Once): the first request of a tick runs it, and once it has succeeded,
    /// the tick is done for all clients. The example is at [`Once`].
    pub fn once<K>(&self, name: K) -> Once
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        Once::new(self.family.clone(), checked(name), self.requester(), self.options.clone())
    }

    /// Takes over a hold that another process [exported](crate::LockGuard::export), for example this service before
    /// its restart, without waiting for its lease to end. Owner, fencing token, mode and lock delay stay the same.
    /// The old guard, if it still exists, is lost with reason [`Adopted`](crate::LossReason::Adopted).
    ///
    /// ```
    /// # use distlock::Locker;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// # let (before, after) = (Locker::connect("mem://adopt").await?, Locker::connect("mem://adopt").await?);
    /// let guard = before.lock("import").await?;
    /// let ticket = guard.export(); // stored for the next process, before it is needed
    ///
    /// let adopted = after.adopt(&ticket).await?;
    /// assert_eq!(adopted.fencing_token(), guard.fencing_token());
    /// # adopted.unlock().await }
    /// ```
    ///
    /// # Errors
    /// Kind `NotHeld` if that hold has ended; `AlreadyHeld` if this owner holds the lock in this process;
    /// `Unsupported` where [`Capabilities::adopts`] says so.
    ///
    /// # Cancel safety
    /// If the future is dropped after the takeover, the hold is released.
    pub async fn adopt(&self, ticket: &HoldTicket) -> Result<LockGuard> {
        let options = Options { ttl: ticket.ttl, delay: ticket.delay, mode: ticket.mode, ..self.options.clone() };
        options.check().map_err(|error| error.with_key(&ticket.key))?;
        let hold = adopt(&self.family, ticket, &options).await?;
        Ok(LockGuard::new(self.family.clone(), hold))
    }

    /// Asks the holder of `key` to release it, and waits until it does. The holder's
    /// [`asked`](crate::LockGuard::asked) returns the reason. The example is at [`AskRequest`].
    ///
    /// # Errors
    /// When it is awaited: `Timeout` after [`wait`](AskRequest::wait); `Unsupported` where [`Capabilities::inspects`] is
    /// `false`; otherwise the engine's error.
    pub fn ask<K>(&self, key: K, reason: impl Into<Arc<str>>) -> AskRequest
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        // A new owner, because the holder may be this one.
        AskRequest::new(self.clone(), checked(key), reason.into())
    }

    pub(crate) fn same_owner(&self) -> Locker {
        Locker { owner: self.owner.clone(), ..self.clone() }
    }

    /// Returns the owner of the next request.
    fn requester(&self) -> OwnerId {
        match self.owners {
            Owners::Handle => self.owner.clone(),
            Owners::Request => OwnerId::random(),
        }
    }

    pub(crate) async fn pause(&self, time: Duration) -> Result<()> {
        self.family.sleep_until(self.now().after(time)).await
    }

    pub(crate) fn now(&self) -> Moment {
        self.family.clock.now()
    }

    fn in_mode(&self, mode: Mode) -> Options {
        Options { mode, ..self.options.clone() }
    }

    /// Unlocks by name, to end a hold whose guard was [detached](crate::LockGuard::detach).
    ///
    /// ```
    /// # use distlock::Locker;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// # let locker = Locker::connect("mem://unlock").await?;
    /// locker.lock("maintenance").await?.detach(); // stays held without a guard
    /// locker.unlock("maintenance").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// When it is awaited: `NotHeld` if this owner does not hold the lock in this process; otherwise as
    /// [`LockGuard::unlock`](crate::LockGuard::unlock).
    pub fn unlock<K>(&self, key: K) -> UnlockRequest
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        UnlockRequest::new(self.family.clone(), key, self.owner.clone())
    }

    /// Returns a view of locks, their holders and waiters. The example is at [`Inspect`].
    #[must_use]
    pub fn inspect(&self) -> Inspect {
        Inspect::new(self.family.clone(), self.owner.clone())
    }

    /// Returns what the engine can do. A request that the engine cannot serve is an error of kind `Unsupported`.
    ///
    /// ```
    /// use distlock::{Locker, backend::Scope};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// let can = Locker::connect("mem://").await?.capabilities();
    /// assert!(can.fair && can.slots);
    /// assert_eq!(can.scope, Scope::Process); // a service on several machines wants Scope::Cluster
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.family.backend.capabilities()
    }

    /// Blocks the thread until `work` is done, on the keeper's runtime.
    #[cfg(feature = "blocking")]
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.family.check_process()?;
        let waiting = self.family.waits.enter();
        let runtime = waiting.runtime().filter(|_| self.family.closed.get().is_none()).ok_or_else(Error::closed)?;
        runtime.block_on(work)
    }

    /// Returns once the engine can be used.
    pub(crate) async fn ready(&self) -> Result<()> {
        self.family.backend.ready().await
    }

    /// Returns the owner of this handle.
    #[must_use]
    pub fn owner(&self) -> &OwnerId {
        &self.owner
    }

    /// Releases all holds of this locker and its clones, stops the keeper and closes the engine's connections.
    ///
    /// Call it at the end of the program: the next process then need not wait for leases to end. Remaining guards become
    /// lost with reason [`Closed`](crate::LossReason::Closed). Later calls are errors of kind `Closed`; closing twice is
    /// allowed.
    ///
    /// # Errors
    /// Kind `Unknown` if the engine did not confirm every release; those locks become free when their leases end.
    ///
    /// # Cancel safety
    /// Once polled, closing continues in the background if the future is dropped.
    pub async fn close(&self) -> Result<()> {
        self.family.close().await
    }
}

fn checked<K>(key: K) -> Result<Key>
where
    K: TryInto<Key>,
    K::Error: Into<Error>,
{
    key.try_into().map_err(Into::into)
}

impl Clone for Locker {
    /// Returns a **new owner** over the same connections.
    fn clone(&self) -> Self {
        let (owner, owners) = (OwnerId::random(), self.owners);
        Locker { family: self.family.clone(), owner, owners, options: self.options.clone() }
    }
}

impl fmt::Debug for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locker").field("backend", &self.family.backend).field("owner", &self.owner).finish()
    }
}
