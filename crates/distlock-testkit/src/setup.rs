//! The environment of a conformance case.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock::backend::memory::{Memory, Store};
use distlock::backend::{Attachment, Backend, Capabilities};
use distlock::{Clock, Key, Locker, LockerBuilder, Moment};

use tokio::runtime::Handle;

use crate::any_engine::{AnyEngine, BoxFuture};
use crate::wire::{Calls, Wire};

/// Longer than any case.
const LASTING: Duration = Duration::from_secs(600);

/// An engine with the servers it needs.
pub trait Setup: Sized + Send + Sync + 'static {
    /// The engine.
    type Engine: Backend;

    /// Starts the servers for one case.
    fn start() -> impl Future<Output = Self> + Send;

    /// Returns a new client with its own connections.
    fn client(&self) -> impl Future<Output = Self::Engine> + Send;

    /// Returns a short lease that the engine and a slow machine can keep renewed.
    fn ttl(&self) -> Duration {
        Duration::from_millis(900)
    }

    /// Returns the names of the state that is left where the engine keeps its locks, except state that must stay, such
    /// as a counter.
    fn leftovers(&self) -> impl Future<Output = Vec<String>> + Send;
}

/// A set-up behind a trait object: the cases are compiled once, not for each set-up.
trait AnySetup: Send + Sync {
    fn ttl(&self) -> Duration;
    fn capabilities(&self) -> BoxFuture<'_, Capabilities>;
    fn locker(&self, builder: LockerBuilder, calls: Arc<Calls>) -> BoxFuture<'_, Locker>;
    fn engine(&self) -> BoxFuture<'_, Box<dyn AnyEngine>>;
    fn leftovers(&self) -> BoxFuture<'_, Vec<String>>;
}

impl<S: Setup> AnySetup for S {
    fn ttl(&self) -> Duration {
        Setup::ttl(self)
    }

    fn capabilities(&self) -> BoxFuture<'_, Capabilities> {
        Box::pin(async { self.client().await.capabilities() })
    }

    fn locker(&self, builder: LockerBuilder, calls: Arc<Calls>) -> BoxFuture<'_, Locker> {
        Box::pin(async { builder.build(Wire::new(self.client().await, calls)).expect("a locker") })
    }

    fn engine(&self) -> BoxFuture<'_, Box<dyn AnyEngine>> {
        Box::pin(async {
            let engine = self.client().await;
            engine.attach(Attachment::standalone(&Handle::current()));
            engine.ready().await.expect("the engine is ready");
            Box::new(engine) as Box<dyn AnyEngine>
        })
    }

    fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(Setup::leftovers(self))
    }
}

/// A running set-up and its helpers.
pub struct World {
    setup: Box<dyn AnySetup>,
    /// The machine's clock, for measuring.
    pub clock: Clock,
    names: AtomicU64,
}

impl World {
    pub(crate) fn start<S: Setup>() -> BoxFuture<'static, World> {
        Box::pin(async {
            World { setup: Box::new(S::start().await), clock: Clock::system(), names: AtomicU64::new(0) }
        })
    }

    /// What the engine can do.
    pub async fn capabilities(&self) -> Capabilities {
        self.setup.capabilities().await
    }

    /// The set-up's short lease.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.setup.ttl()
    }

    /// A new client.
    pub async fn client(&self) -> Client {
        self.client_by(Locker::builder(), self.ttl()).await
    }

    /// Returns a client for futures that are dropped. Its leases outlast every case: a lock that becomes free was
    /// released, and no lock is lost on a slow machine. Its wire is delayed as described at [`Calls::delay`].
    pub async fn lasting_client(&self) -> Client {
        let client = self.client_by(Locker::builder(), LASTING).await;
        client.calls.delay();
        client
    }

    /// Returns a new client whose locks keep a history of `most` entries.
    pub async fn chronicler(&self, most: u32) -> Client {
        self.client_by(Locker::builder().history(most), self.ttl()).await
    }

    async fn client_by(&self, builder: LockerBuilder, ttl: Duration) -> Client {
        let calls = Arc::new(Calls::default());
        let locker = self.setup.locker(builder.default_ttl(ttl), calls.clone()).await;
        Client { locker, calls }
    }

    /// Returns a client's engine without a locker.
    pub(crate) async fn engine(&self) -> Box<dyn AnyEngine> {
        self.setup.engine().await
    }

    /// Returns a lock name that no other case uses.
    pub fn key(&self, about: &str) -> Key {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        Key::new(format!("case:{about}:{}:{number}", std::process::id())).expect("a good name")
    }

    /// The moment now.
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Returns how long to wait for a condition: generous, since machines are slow at times.
    pub fn test_limit(&self) -> Duration {
        self.ttl() * 4 + Duration::from_secs(10)
    }

    /// Waits until no state is left, and fails the case if that takes much longer than a lease.
    pub async fn expect_nothing_left(&self) {
        let until = self.now().after(self.test_limit());
        loop {
            let left = self.setup.leftovers().await;
            if left.is_empty() {
                return;
            }
            assert!(self.now() < until, "left behind: {left:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A client of a set-up.
pub struct Client {
    /// Its locker. The default lease is the set-up's short lease, except for a lasting client.
    pub locker: Locker,
    /// The calls that it made.
    pub calls: Arc<Calls>,
}

/// The memory engine.
pub struct MemorySetup {
    store: Store,
}

impl Setup for MemorySetup {
    type Engine = Memory;

    async fn start() -> Self {
        MemorySetup { store: Store::new() }
    }

    async fn client(&self) -> Memory {
        Memory::on(&self.store)
    }

    async fn leftovers(&self) -> Vec<String> {
        let engine = Memory::on(&self.store);
        let locks = engine.list("").await.expect("memory lists");
        locks.into_iter().map(|lock| format!("{lock:?}")).collect()
    }
}
