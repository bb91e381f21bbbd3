//! The servers with the locks.

use distlock_testkit::servers::{EtcdServer, RedisServer};

pub(crate) enum Engine {
    Redis(RedisServer),
    Etcd(EtcdServer),
}

impl Engine {
    pub(crate) fn redis() -> Engine {
        Engine::Redis(RedisServer::start())
    }

    pub(crate) fn etcd() -> Engine {
        Engine::Etcd(EtcdServer::start())
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Engine::Redis(server) => server.url(),
            Engine::Etcd(server) => server.url(),
        }
    }

    /// The name in metrics.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Engine::Redis(_) => "redis",
            Engine::Etcd(_) => "etcd",
        }
    }

    /// Removes all its data.
    pub(crate) fn flush(&self) {
        match self {
            Engine::Redis(server) => {
                server.command(&["FLUSHALL"]);
            }
            Engine::Etcd(server) => {
                server.etcdctl().run(&["del", "", "--prefix"]);
            }
        }
    }
}
