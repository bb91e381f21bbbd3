//! The environment of the fault tests: nodes, a proxy in front of each, and lockers on both.

use std::time::Duration;

use distlock::backend::redis::Redis;
use distlock::backend::redlock::{Redlock, RedlockBuilder};
use distlock::{LockGuard, Locker};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{RedisOptions, RedisServer, RedlockNodes};

pub(crate) use crate::redis_faults_kit::{TEST_LIMIT, ms, now, sleep};
use crate::redis_faults_kit::{expect_none_left, warm_locker};

/// A lease that ends soon and that a busy machine can keep renewed.
pub(crate) const TTL: Duration = Duration::from_millis(2000);
/// A node's reply timeout when the lease is long.
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// Runs a check on three nodes, and then on five.
pub(crate) async fn check_on_3_and_5(check: impl AsyncFn(Bench)) {
    for count in [3, 5] {
        // Shown when the check fails.
        eprintln!("on {count} nodes");
        check(Bench::start(count)).await;
    }
}

/// Nodes, each behind a proxy.
pub(crate) struct Bench {
    pub(crate) nodes: RedlockNodes,
    pub(crate) proxies: Vec<Proxy>,
}

impl Bench {
    /// Starts nodes that count as in use for long.
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

    pub(crate) fn all(&self) -> Vec<usize> {
        (0..self.proxies.len()).collect()
    }

    /// Returns as many nodes as may fail: the last ones.
    pub(crate) fn minority(&self) -> Vec<usize> {
        self.all().split_off(self.proxies.len() / 2 + 1)
    }

    /// Returns as many nodes as decide: the last ones.
    pub(crate) fn majority(&self) -> Vec<usize> {
        self.all().split_off(self.proxies.len() / 2)
    }

    /// Applies a fault to the proxies of some nodes.
    pub(crate) fn each(&self, nodes: &[usize], fault: impl Fn(&Proxy)) {
        nodes.iter().for_each(|at| fault(&self.proxies[*at]));
    }

    /// Returns the ports of a client that uses the proxies for `behind`, and connects directly to the other nodes.
    pub(crate) fn ports(&self, behind: &[usize]) -> Vec<u16> {
        let straight = self.nodes.ports().enumerate();
        straight.map(|(at, port)| if behind.contains(&at) { self.proxies[at].port() } else { port }).collect()
    }

    pub(crate) fn engine(&self, behind: &[usize]) -> RedlockBuilder {
        Redlock::of(self.ports(behind).into_iter().map(|port| Redis::tcp("127.0.0.1", port)))
    }

    /// Returns the URL of a client that uses all proxies.
    pub(crate) fn url_behind(&self) -> String {
        let places: Vec<_> = self.proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        format!("redlock://{}", places.join(","))
    }

    /// Returns a connected locker that uses the proxies for `behind`.
    pub(crate) async fn behind(&self, behind: &[usize]) -> Locker {
        locker_of(self.engine(behind)).await
    }

    /// Returns a connected locker without proxies.
    pub(crate) async fn direct(&self) -> Locker {
        self.behind(&[]).await
    }

    /// Returns whether a node keeps the lock `key`.
    pub(crate) fn has(&self, node: usize, key: &str) -> bool {
        self.nodes[node].command(&["EXISTS", key]).int() == 1
    }

    /// Returns the value of the lock `key` on each node.
    pub(crate) fn values(&self, key: &str) -> Vec<String> {
        self.all().into_iter().map(|at| self.nodes[at].command(&["GET", key]).to_string()).collect()
    }

    /// Returns the number of script calls so far, on all nodes.
    pub(crate) fn calls(&self) -> u64 {
        self.all().into_iter().map(|at| self.nodes[at].calls("evalsha")).sum()
    }

    /// Returns the remaining keys on the nodes that are alive.
    pub(crate) fn keys(&self, alive: &[usize]) -> Vec<String> {
        alive.iter().flat_map(|at| self.nodes.keys(*at)).collect()
    }

    pub(crate) async fn expect_nothing_left(&self, alive: &[usize]) {
        expect_none_left(|| self.keys(alive)).await;
    }
}

pub(crate) async fn locker_of(engine: RedlockBuilder) -> Locker {
    warm_locker(engine.build().expect("an engine"), TTL).await
}

/// Polls until `is_so` returns true, and fails the test when that takes too long.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = now().after(TEST_LIMIT);
    while !is_so() {
        assert!(now() < until, "never: {what}");
        sleep(ms(10)).await;
    }
}

pub(crate) async fn unlock(guard: LockGuard) {
    guard.unlock().await.expect("released");
}
