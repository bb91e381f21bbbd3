//! The environment of the fault tests: a server, a proxy in front of it, and lockers on both.

use std::time::Duration;

use distlock::Locker;
use distlock::backend::redis::Redis;
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{RedisOptions, RedisServer, Reply};

pub(crate) use crate::redis_faults_kit::{TEST_LIMIT, ms, now, sleep};
use crate::redis_faults_kit::{expect_none_left, warm_locker};

/// A lease that ends soon and that a busy machine can keep renewed.
pub(crate) const TTL: Duration = Duration::from_millis(1500);

/// A server behind a proxy.
pub(crate) struct Bench {
    pub(crate) server: RedisServer,
    pub(crate) proxy: Proxy,
}

impl Bench {
    pub(crate) fn start() -> Bench {
        Bench::with(RedisServer::options())
    }

    pub(crate) fn with(options: RedisOptions) -> Bench {
        let server = options.start();
        let proxy = Proxy::start(server.address());
        Bench { server, proxy }
    }

    /// Returns a connected locker behind the proxy.
    pub(crate) async fn behind_proxy(&self) -> Locker {
        connected(self.proxy.port()).await
    }

    /// Returns a connected locker without the proxy.
    pub(crate) async fn direct(&self) -> Locker {
        connected(self.server.port()).await
    }

    pub(crate) fn command(&self, line: &str) -> Reply {
        self.server.command(&line.split(' ').collect::<Vec<_>>())
    }

    /// Returns every key except the fences, which stay for a week.
    pub(crate) fn keys(&self) -> Vec<String> {
        let keys = self.command("KEYS *");
        keys.array().iter().map(ToString::to_string).filter(|key| !key.ends_with(":f")).collect()
    }

    pub(crate) async fn expect_nothing_left(&self) {
        expect_none_left(|| self.keys()).await;
    }
}

pub(crate) async fn connected(port: u16) -> Locker {
    locker_of(Redis::tcp("127.0.0.1", port).build().expect("an engine")).await
}

pub(crate) async fn locker_of(engine: Redis) -> Locker {
    warm_locker(engine, TTL).await
}
