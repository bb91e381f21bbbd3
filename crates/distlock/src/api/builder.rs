//! Makes a locker over an engine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::api::locker::{Locker, Owners};
use crate::contract::{Backend, DynBackend};
use crate::core::family::Core;
use crate::core::history::HistoryWriter;
use crate::core::keeper;
use crate::core::reporter::Reporter;
use crate::types::clock::{Clock, DEFAULT_DRIFT};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::Observer;
use crate::types::history::MAX_HISTORY;
use crate::types::options::Options;
use crate::types::owner::OwnerId;

impl Locker {
    /// Returns a locker over `backend` with all defaults. For an engine that a URL names, use
    /// [`connect`](Locker::connect).
    ///
    /// ```
    /// use distlock::{Locker, backend::memory::Memory};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// let locker = Locker::new(Memory::new())?;
    /// locker.lock("invoice:42").await?.unlock().await?;
    /// # Ok(()) }
    /// ```
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
}

/// A builder of a [`Locker`] with other defaults; made by [`Locker::builder`].
///
/// ```
/// use std::time::Duration;
/// use distlock::Locker;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// let locker = Locker::builder()
///     .default_ttl(Duration::from_secs(30)) // the lease; default 10 s
///     .default_wait(Duration::from_secs(5)) // default: no limit
///     .owner_per_request()
///     .connect("mem://builder")
///     .await?;
/// # locker.lock("invoice:42").await?.unlock().await }
/// ```
#[must_use = "a builder does nothing until it is built"]
pub struct LockerBuilder {
    pub(crate) options: Options,
    pub(crate) history: u32,
    clock: Option<Clock>,
    drift: f64,
    observer: Option<Arc<dyn Observer>>,
    owners: Owners,
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

    /// Sets the longest time that requests wait that do not set one with [`wait`](crate::LockRequest::wait): locks, semaphores and
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

    /// Sets the observer of all events. Default: none. The example is at [`Observer`].
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Sets how many entries each lock keeps about who acquired, released, lost or broke it, for
    /// [`Inspect::history`](crate::Inspect::history); at most [`MAX_HISTORY`](crate::MAX_HISTORY). Default: 0, none are written.
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

    /// Makes every request an owner of its own unless it names an [`owner`](crate::LockRequest::owner), as if each called
    /// [`as_new_owner`](crate::LockRequest::as_new_owner). Default: all requests of a handle have the handle's owner.
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
