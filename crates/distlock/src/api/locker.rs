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
use crate::contract::{Backend, Capabilities, DynBackend};
use crate::core::acquire::adopt;
use crate::core::family::{Core, Family};
use crate::core::history::HistoryWriter;
use crate::core::keeper;
use crate::core::reporter::Reporter;
use crate::types::clock::{Clock, DEFAULT_DRIFT, Moment};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::Observer;
use crate::types::history::MAX_HISTORY;
use crate::types::key::Key;
use crate::types::mode::Mode;
use crate::types::options::Options;
use crate::types::owner::OwnerId;
use crate::types::ticket::HoldTicket;

/// A handle for taking locks. Each handle is one owner.
///
/// `clone()` makes a **new owner** over the same connections, so that tasks with a clone each contend with one
/// another. Sharing one handle by reference or [`Arc`] shares the owner: locking a key that the owner holds already
/// is an error of kind `AlreadyHeld`, or a re-entry with `.reentrant()`. A service whose requests share one handle
/// makes each its own owner with [`as_new_owner`](LockRequest::as_new_owner) or, for all of them, with
/// [`owner_per_request`](LockerBuilder::owner_per_request).
///
/// When the last clone and the last guard are dropped, all remaining holds are released in the background.
/// [`close`](Locker::close) does the same and waits for the releases.
pub struct Locker {
    family: Arc<Family>,
    owner: OwnerId,
    owners: Owners,
    options: Options,
}

impl Locker {
    /// Returns a locker over `backend` with all defaults.
    ///
    /// # Errors
    /// Kind `Backend` if the keeper's thread cannot be started.
    pub fn new(backend: impl Backend) -> Result<Locker> {
        Locker::builder().build(backend)
    }

    /// Returns a builder for a locker with other defaults.
    pub fn builder() -> LockerBuilder {
        LockerBuilder {
            options: Options::default(),
            clock: None,
            drift: DEFAULT_DRIFT,
            observer: None,
            history: 0,
            owners: Owners::Handle,
        }
    }

    /// Requests a lock and waits for it.
    ///
    /// The name is text, a [`Key`], or bytes that are text. See [`LockRequest`] for the options.
    pub fn lock<K>(&self, key: K) -> LockRequest
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        LockRequest::new(self.family.clone(), checked(key), self.requester(), self.options.clone())
    }

    /// Requests a lock once, without waiting: `None` if another owner holds it, an error only for a failure.
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
    /// waiter, another number is an error of kind `InvalidInput`, and so is a lock of the same name.
    pub fn semaphore<K>(&self, key: K, slots: u32) -> Semaphore
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        Semaphore::new(self.family.clone(), checked(key), self.requester(), self.in_mode(Mode::Slot { of: slots }))
    }

    /// Requests several locks, all or nothing, in a deadlock-free order.
    pub fn lock_all<K>(&self, keys: impl IntoIterator<Item = K>) -> LockAllRequest
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        LockAllRequest::new(self.family.clone(), keys, self.requester(), self.options.clone())
    }

    /// Returns an election: the holder of the lock of that name is the leader.
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
    /// the tick is done for everybody.
    pub fn once<K>(&self, name: K) -> Once
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        Once::new(self.family.clone(), checked(name), self.requester(), self.options.clone())
    }

    /// Takes over a hold that another process [exported](crate::LockGuard::export), for example this service before
    /// its restart, without waiting for its lease to end. Owner, fencing token, mode and lock delay stay the same.
    /// The old guard, if it still exists, is lost.
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
    /// [`asked`](crate::LockGuard::asked) returns the reason.
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

    /// Unlocks by name, to end a hold whose guard was [detached](crate::LockGuard::detach). Kind `NotHeld` if this
    /// owner does not hold the lock; otherwise as [`LockGuard::unlock`](crate::LockGuard::unlock).
    pub fn unlock<K>(&self, key: K) -> UnlockRequest
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        UnlockRequest::new(self.family.clone(), key, self.owner.clone())
    }

    /// Returns a view of locks, their holders and waiters.
    #[must_use]
    pub fn inspect(&self) -> Inspect {
        Inspect::new(self.family.clone(), self.owner.clone())
    }

    /// Returns what the engine can do.
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
    /// Remaining guards become lost. Later calls are errors of kind `Closed`; closing twice is allowed.
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

/// A builder of a [`Locker`] with other defaults.
#[must_use = "a builder does nothing until it is built"]
pub struct LockerBuilder {
    pub(crate) options: Options,
    pub(crate) history: u32,
    clock: Option<Clock>,
    drift: f64,
    observer: Option<Arc<dyn Observer>>,
    owners: Owners,
}

/// Who the owner of a request is that does not name one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owners {
    /// The handle.
    Handle,
    /// The request itself.
    Request,
}

impl fmt::Debug for LockerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LockerBuilder { options, history, drift, owners, .. } = self;
        let mut out = f.debug_struct("LockerBuilder");
        out.field("options", options).field("history", history).field("clock_drift", drift).field("owners", owners);
        out.finish_non_exhaustive()
    }
}

impl LockerBuilder {
    /// Sets the TTL of requests that do not set one. Default: 10 s.
    pub fn default_ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// Sets the longest time that requests wait that do not set one with [`wait`](LockRequest::wait): locks, semaphores and
    /// several locks at once, not campaigns of elections. Default: no limit.
    ///
    /// ```
    /// use std::time::Duration;
    /// use distlock::{ErrorKind, Locker};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// let builder = Locker::builder().default_wait(Duration::from_millis(20));
    /// let locker = builder.connect("mem://default-wait").await?;
    /// let _held = locker.lock("order:7").await?;
    /// let waited = locker.clone().lock("order:7").await;
    /// assert_eq!(waited.unwrap_err().kind(), ErrorKind::Timeout);
    /// # Ok(()) }
    /// ```
    pub fn default_wait(mut self, most: Duration) -> Self {
        self.options.wait = Some(most);
        self
    }

    /// Sets the pause between two claims if the engine does not say when to claim again. Default: 100 ms.
    pub fn retry_interval(mut self, interval: Duration) -> Self {
        self.options.retry_interval = interval;
        self
    }

    /// Sets how many requests in a row may fail before a wait gives up on the engine. Default: 8, about 20 s of trying.
    pub fn max_retries(mut self, most: u32) -> Self {
        self.options.max_retries = most;
        self
    }

    /// Sets the clock. Default: the engine's own, if it has one, as a [`Store`](crate::backend::memory::Store) for tests
    /// has; otherwise the machine's CLOCK_BOOTTIME.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets how much the clock rates of this machine and of the server may differ. Default: 0.001, one part in a
    /// thousand.
    pub fn clock_drift(mut self, part: f64) -> Self {
        self.drift = part;
        self
    }

    /// Sets the metrics label of requests that do not set one; use few different words, never a lock's name. Default:
    /// `default`.
    #[cfg(feature = "metrics")]
    pub fn group(mut self, group: &'static str) -> Self {
        self.options.group = crate::types::meter::Group(group);
        self
    }

    /// Sets the observer of all events. Default: none.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Sets how many entries each lock keeps about who acquired, released, lost or broke it, for
    /// [`Inspect::history`]; at most [`MAX_HISTORY`](crate::MAX_HISTORY). Default: 0, none are written.
    ///
    /// Entries are written in the background, in batches: no lock waits for them or fails with them.
    ///
    /// ```
    /// use distlock::{HistoryKind, Locker, backend::memory::{Memory, Store}};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// let store = Store::new();
    /// let locker = Locker::builder().history(100).build(Memory::on(&store))?;
    /// locker.lock("invoice:42").label("monthly").await?.unlock().await?;
    /// locker.close().await?;
    ///
    /// let entries = Locker::new(Memory::on(&store))?.inspect().history("invoice:42", 10).await?;
    /// assert_eq!(entries[1].kind, HistoryKind::Released);
    /// # Ok(()) }
    /// ```
    pub fn history(mut self, most: u32) -> Self {
        self.history = most;
        self
    }

    /// Makes every request an owner of its own unless it names an [`owner`](LockRequest::owner), as if each called
    /// [`as_new_owner`](LockRequest::as_new_owner). Default: all requests of a handle have the handle's owner.
    ///
    /// For services whose requests share one handle, such as the state of a web server: they contend with each other
    /// instead of failing with kind `AlreadyHeld`. A hold is then unlocked through its guard, and re-entry needs an
    /// owner that is named.
    ///
    /// ```
    /// # use distlock::Locker;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// let locker = Locker::builder().owner_per_request().connect("mem://per-request").await?;
    /// let first = locker.lock("order:7").await?;
    /// assert!(locker.try_lock("order:7").await?.is_none());
    /// # first.unlock().await }
    /// ```
    pub fn owner_per_request(mut self) -> Self {
        self.owners = Owners::Request;
        self
    }

    /// Returns a locker over `backend`.
    ///
    /// # Errors
    /// Kind `Config` if a default is invalid, naming it; `Unsupported` if a history is wanted and the engine cannot
    /// keep one; `Backend` if the keeper cannot be started.
    pub fn build(self, backend: impl Backend) -> Result<Locker> {
        self.build_boxed(Box::new(backend))
    }

    pub(crate) fn build_boxed(self, backend: Box<dyn DynBackend>) -> Result<Locker> {
        self.check_defaults()?;
        let clock = self.clock.or_else(|| backend.clock()).unwrap_or_else(Clock::system);
        let reporter = Reporter::new(backend.name(), self.observer, &clock)?;
        let history = (self.history > 0).then(|| HistoryWriter::new(self.history));
        if history.is_some() && !backend.capabilities().history {
            let message = format!("the {} engine cannot keep a history", backend.name());
            return Err(Error::new(ErrorKind::Unsupported, message).with_help("leave history out, or set it to 0"));
        }
        let family = keeper::start(Core::new(backend, clock, self.drift, reporter, history))?;
        Ok(Locker { family, owner: OwnerId::random(), owners: self.owners, options: self.options })
    }

    /// Refuses defaults that are invalid.
    pub(crate) fn check_defaults(&self) -> Result<()> {
        self.check().map_err(|error| Error::new(ErrorKind::Config, error.to_string()))
    }

    fn check(&self) -> Result<()> {
        if !(0.0..=0.2).contains(&self.drift) {
            return Err(Error::invalid("clock_drift", format_args!("{} is not from 0 to 0.2", self.drift)));
        }
        if self.history > MAX_HISTORY {
            return Err(Error::invalid("history", format_args!("{} is not from 0 to {MAX_HISTORY}", self.history)));
        }
        self.options.check()
    }
}
