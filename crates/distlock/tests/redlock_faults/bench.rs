//! What the fault tests work with: nodes, a proxy in front of each, and lockers on both.

use std::time::Duration;

use distlock::backend::redis::Redis;
use distlock::backend::redlock::{Redlock, RedlockBuilder};
use distlock::{Clock, LockGuard, Locker, Moment};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{RedisOptions, RedisServer, RedlockNodes};

/// A lease that is over soon and that a busy machine keeps up with.
pub(crate) const TTL: Duration = Duration::from_millis(2000);
/// How long something may take that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// How long a node may take to answer when the lease is long.
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_millis(500);

pub(crate) fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

pub(crate) fn now() -> Moment {
    Clock::system().now()
}

pub(crate) async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Nodes, each behind a proxy.
pub(crate) struct Bench {
    pub(crate) nodes: RedlockNodes,
    pub(crate) proxies: Vec<Proxy>,
}

impl Bench {
    /// Nodes that have been in use for long.
    pub(crate) fn start(count: usize) -> Bench {
        let bench = Bench::with(vec![RedisServer::options(); count]);
        bench.nodes.settle();
        bench
    }

    pub(crate) fn with(options: Vec<RedisOptions>) -> Bench {
        let nodes = RedlockNodes::with(options);
        let proxies = nodes.ports().map(|port| Proxy::start(([127, 0, 0, 1], port).into())).collect();
        Bench { nodes, proxies }
    }

    /// The ports of a client that goes through the proxies to `behind`, and straight to the other nodes.
    fn ports(&self, behind: &[usize]) -> Vec<u16> {
        let straight: Vec<_> = self.nodes.ports().collect();
        (0..straight.len())
            .map(|at| if behind.contains(&at) { self.proxies[at].port() } else { straight[at] })
            .collect()
    }

    pub(crate) fn engine(&self, behind: &[usize]) -> RedlockBuilder {
        Redlock::of(self.ports(behind).into_iter().map(|port| Redis::tcp("127.0.0.1", port)))
    }

    /// A locker that goes through the proxies to `behind`, connected.
    pub(crate) async fn behind(&self, behind: &[usize]) -> Locker {
        locker_of(self.engine(behind)).await
    }

    /// A locker that goes straight to all nodes, connected.
    pub(crate) async fn direct(&self) -> Locker {
        self.behind(&[]).await
    }

    /// Whether a node keeps the lock `key`.
    pub(crate) fn has(&self, node: usize, key: &str) -> bool {
        self.nodes[node].command(&["EXISTS", key]).int() == 1
    }

    /// What is left on the nodes that are alive.
    pub(crate) fn keys(&self, alive: &[usize]) -> Vec<String> {
        alive.iter().flat_map(|at| self.nodes.keys(*at)).collect()
    }

    pub(crate) async fn expect_nothing_left(&self, alive: &[usize]) {
        let until = now().after(PATIENCE);
        while !self.keys(alive).is_empty() {
            assert!(now() < until, "left behind: {:?}", self.keys(alive));
            sleep(ms(10)).await;
        }
    }
}

pub(crate) async fn locker_of(engine: RedlockBuilder) -> Locker {
    let engine = engine.build().expect("an engine");
    let locker = Locker::builder().default_ttl(TTL).retry_interval(ms(50)).build(engine).expect("a locker");
    // Once around, so that a fault hits what the test means: not the dialling, nor a script that a node lacks.
    let guard = locker.lock("warm").await.expect("granted");
    guard.extend(TTL).await.expect("extended");
    guard.unlock().await.expect("released");
    locker
}

/// Polls until `is_so`, and fails the test when that takes too long.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = now().after(PATIENCE);
    while !is_so() {
        assert!(now() < until, "never: {what}");
        sleep(ms(10)).await;
    }
}

pub(crate) async fn unlock(guard: LockGuard) {
    guard.unlock().await.expect("released");
}
