//! This library.

use std::sync::Arc;
use std::time::Duration;

use distlock::backend::etcd::Etcd;
use distlock::backend::redis::{Redis, RedisBuilder};
use distlock::backend::redlock::Redlock;
use distlock::{LockGuard, Locker};

use crate::peer::Peer;

pub(crate) struct Ours(Locker);

impl Ours {
    pub(crate) fn redis(server: &str, ttl: Duration) -> Ours {
        Ours(Locker::builder().default_ttl(ttl).build(node(server).build().expect("an engine")).expect("a locker"))
    }

    pub(crate) fn redlock(servers: &[&str], ttl: Duration) -> Ours {
        let engine = Redlock::of(servers.iter().map(|server| node(server))).build().expect("an engine");
        Ours(Locker::builder().default_ttl(ttl).build(engine).expect("a locker"))
    }

    pub(crate) fn etcd(server: &str, ttl: Duration) -> Ours {
        let engine = Etcd::builder([server.to_owned()]).build().expect("an engine");
        Ours(Locker::builder().default_ttl(ttl).build(engine).expect("a locker"))
    }
}

fn node(server: &str) -> RedisBuilder {
    let (host, port) = server.split_once(':').expect("host:port");
    Redis::tcp(host, port.parse().expect("a port"))
}

impl Peer for Ours {
    type Guard = LockGuard;

    /// Each task is an owner.
    fn for_task(self: &Arc<Self>) -> Arc<Ours> {
        Arc::new(Ours(self.0.clone()))
    }

    async fn lock(&self, key: &str) -> LockGuard {
        self.0.lock(key).await.expect("granted")
    }

    async fn unlock(&self, guard: LockGuard) {
        guard.unlock().await.expect("released");
    }
}
