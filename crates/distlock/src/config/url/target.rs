//! Where the locks live.

use std::path::PathBuf;

use crate::config::Driver;
use crate::config::url::{Credentials, Host, Node};

/// An engine and what it needs to be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Locks inside this process; those of the same name are shared.
    Memory { name: Option<String> },
    /// Locks in a directory of this machine; `None`: the usual one.
    File { dir: Option<PathBuf> },
    /// One Redis, however many servers it is made of.
    Redis { servers: RedisServers, credentials: Credentials, options: RedisOptions },
    /// A majority of independent Redis nodes, an odd number of them.
    Redlock { nodes: Vec<Node>, options: RedisOptions },
    /// An etcd cluster. With `verbatim` a slash in a name is one in the key.
    Etcd { hosts: Vec<Host>, credentials: Credentials, tls: bool, verbatim: bool },
}

/// How a Redis is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RedisServers {
    One(Host),
    Unix(PathBuf),
    Sentinel { sentinels: Vec<Host>, service: String },
    Cluster(Vec<Host>),
}

/// How to speak to each Redis server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RedisOptions {
    pub(crate) tls: bool,
    pub(crate) db: u32,
    /// `None`: the best that the server speaks.
    pub(crate) protocol: Option<Protocol>,
    /// `None`: the engine's own default.
    pub(crate) restart_guard: Option<bool>,
    /// How many replicas must have a grant.
    pub(crate) wait_replicas: u32,
}

/// The version of the Redis protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Resp2,
    Resp3,
}

impl Target {
    /// The engine's name in a configuration.
    pub(crate) fn driver(&self) -> Driver {
        match self {
            Target::Memory { .. } => Driver::Memory,
            Target::File { .. } => Driver::File,
            Target::Redis { .. } => Driver::Redis,
            Target::Redlock { .. } => Driver::Redlock,
            Target::Etcd { .. } => Driver::Etcd,
        }
    }

    /// Whether the connections are encrypted; `None` where nothing leaves this machine.
    pub(crate) fn tls(&self) -> Option<bool> {
        match self {
            Target::Memory { .. } | Target::File { .. } | Target::Redis { servers: RedisServers::Unix(_), .. } => None,
            Target::Redis { options, .. } | Target::Redlock { options, .. } => Some(options.tls),
            Target::Etcd { tls, .. } => Some(*tls),
        }
    }

    /// Every place that credentials can stand in.
    pub(crate) fn credentials_mut(&mut self) -> Vec<&mut Credentials> {
        match self {
            Target::Memory { .. } | Target::File { .. } => Vec::new(),
            Target::Redis { credentials, .. } | Target::Etcd { credentials, .. } => vec![credentials],
            Target::Redlock { nodes, .. } => nodes.iter_mut().map(|node| &mut node.credentials).collect(),
        }
    }
}
