//! The engines under test.

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
    /// A PostgreSQL server with a synchronous replica.
    Postgres,
}

impl Engine {
    /// All engines, by their names on the command line.
    pub const ALL: [(&'static str, Engine); 7] = [
        ("redis", Engine::Redis),
        ("sentinel", Engine::Sentinel),
        ("redlock", Engine::Redlock),
        ("cluster", Engine::Cluster),
        ("etcd", Engine::Etcd),
        ("file", Engine::File),
        ("postgres", Engine::Postgres),
    ];

    /// Returns the lease of every lock: the shortest that the engine can keep renewed on a busy machine.
    pub(crate) fn ttl(self) -> Duration {
        match self {
            Engine::Redis | Engine::Sentinel | Engine::File => Duration::from_secs(1),
            Engine::Redlock | Engine::Cluster | Engine::Etcd | Engine::Postgres => Duration::from_secs(2),
        }
    }

    /// Returns whether waiters are served in order of arrival.
    pub(crate) fn is_fair(self) -> bool {
        self != Engine::Redlock
    }

    /// Returns whether each worker also keeps a lock on each server for several leases, which tests the renewals.
    pub(crate) fn has_keepers(self) -> bool {
        self == Engine::Cluster
    }

    /// Returns whether workers stay in some holds for up to a lease: only a hold that is renewed after a failover shows that
    /// the promoted server has it.
    pub(crate) fn has_long_holds(self) -> bool {
        self == Engine::Postgres
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
