//! The engines that are put to the test.

use std::str::FromStr;
use std::time::Duration;

/// An engine, on servers of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// One Redis server with the restart guard.
    Redis,
    /// A Redis master with replicas and sentinels, and the restart guard.
    Sentinel,
    /// Three independent Redis servers.
    Redlock,
    /// A Redis Cluster of three masters, each of which has a lock.
    Cluster,
    /// A cluster of three etcd servers.
    Etcd,
    /// A directory of this machine.
    File,
}

impl Engine {
    /// Every engine, by the name that it is asked for.
    pub const ALL: [(&'static str, Engine); 6] = [
        ("redis", Engine::Redis),
        ("sentinel", Engine::Sentinel),
        ("redlock", Engine::Redlock),
        ("cluster", Engine::Cluster),
        ("etcd", Engine::Etcd),
        ("file", Engine::File),
    ];

    /// The lease of every lock: the shortest that the engine can keep up with on a busy machine.
    pub(crate) fn ttl(self) -> Duration {
        match self {
            Engine::Redis | Engine::Sentinel | Engine::File => Duration::from_secs(1),
            Engine::Redlock | Engine::Cluster | Engine::Etcd => Duration::from_secs(2),
        }
    }

    /// Whether whoever came first is served first.
    pub(crate) fn is_fair(self) -> bool {
        self != Engine::Redlock
    }

    /// Whether each worker also keeps a lock on each server for several leases, so that it matters how those are renewed.
    pub(crate) fn has_keepers(self) -> bool {
        self == Engine::Cluster
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        Engine::ALL.iter().find(|(_, engine)| *engine == self).map_or("", |(name, _)| name)
    }
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Engine, String> {
        let found = Engine::ALL.iter().find(|(name, _)| *name == text).map(|(_, engine)| *engine);
        let names = Engine::ALL.map(|(name, _)| name).join(", ");
        found.ok_or_else(|| format!("`{text}` is no engine; there are {names}"))
    }
}
