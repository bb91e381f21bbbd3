//! The engine's row: a majority of independent Redis nodes.

#[cfg(feature = "redis")]
use crate::contract::{BoxFuture, DynBackend};
#[cfg(feature = "redis")]
use crate::engines::redis::Redis;
use crate::engines::redis::open::{REDIS_PORT, RedisOptions};
#[cfg(feature = "redis")]
use crate::engines::redlock::Redlock;
use crate::engines::shared::host::{Credentials, ServerAddress};
use crate::engines::shared::row::{EngineAddress, EngineRow, Scheme, WithoutUrl};
#[cfg(feature = "redis")]
use crate::engines::shared::settings::EngineSettings;
use crate::engines::shared::url_parts::UrlParts;
use crate::types::error::Result;
#[cfg(feature = "redis")]
use crate::types::finding::Finding;

/// Not `wait_replicas`: the nodes are independent of each other.
const OPTIONS: &[&str] = &["restart_guard", "protocol", "db"];

pub(crate) static ROW: EngineRow = EngineRow {
    name: "redlock",
    feature: Some("redis"),
    needs_runtime: true,
    needs_username: false,
    schemes: &[
        Scheme { name: "redlock", tls: false, allows_at_in_path: false, options: OPTIONS, read: RedlockAddress::read },
        Scheme { name: "redlocks", tls: true, allows_at_in_path: false, options: OPTIONS, read: RedlockAddress::read },
    ],
    without_url: WithoutUrl::Endpoints { plain: &["redlock", "redis"], tls: &["redlocks", "rediss"] },
};

/// The nodes, an odd number of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RedlockAddress {
    pub(crate) nodes: Vec<ServerAddress>,
    pub(crate) options: RedisOptions,
}

impl RedlockAddress {
    fn read(url: &mut UrlParts<'_>) -> Result<Box<dyn EngineAddress>, String> {
        let nodes = quorum(url.hosts)?;
        Ok(Box::new(RedlockAddress { nodes, options: RedisOptions::read(url, url.path)? }))
    }
}

/// Reads the nodes of a majority vote.
fn quorum(hosts: &str) -> Result<Vec<ServerAddress>, String> {
    let nodes = ServerAddress::parse_list(hosts, REDIS_PORT)?;
    let count = nodes.len();
    if count < 3 {
        return Err(format!("{count} nodes; below 3 no node may fail, so redlock takes 3, 5, 7 or 9"));
    }
    if count > 9 {
        return Err(format!("{count} nodes; each one costs a round trip per lock, so redlock takes 3, 5, 7 or 9"));
    }
    if count.is_multiple_of(2) {
        return Err(format!(
            "{count} nodes; an even one adds no failure that may be survived, so redlock takes 3, 5, 7 or 9"
        ));
    }
    for (i, node) in nodes.iter().enumerate() {
        // With two votes for one server, a majority of votes would not be a majority of servers.
        if let Some(first) = nodes[..i].iter().position(|other| other.host == node.host) {
            return Err(format!("host {} is host {} again; each node has one vote", i + 1, first + 1));
        }
    }
    Ok(nodes)
}

impl EngineAddress for RedlockAddress {
    fn row(&self) -> &'static EngineRow {
        &ROW
    }

    fn tls(&self) -> Option<bool> {
        Some(self.options.tls)
    }

    fn credentials_mut(&mut self) -> Vec<&mut Credentials> {
        self.nodes.iter_mut().map(|node| &mut node.credentials).collect()
    }

    #[cfg(feature = "redis")]
    fn open(&self, settings: &EngineSettings) -> Result<Box<dyn DynBackend>> {
        Ok(Box::new(self.build(settings)?))
    }

    #[cfg(feature = "redis")]
    fn examine<'a>(&'a self, settings: &'a EngineSettings) -> BoxFuture<'a, Result<Vec<Finding>>> {
        Box::pin(async { Ok(self.build(settings)?.examine(settings.default_ttl).await) })
    }
}

#[cfg(feature = "redis")]
impl RedlockAddress {
    fn build(&self, settings: &EngineSettings) -> Result<Redlock> {
        let builder = |node: &ServerAddress| {
            self.options.apply(Redis::tcp(&node.host.name, node.host.port), &node.credentials, &settings.tls)
        };
        let nodes = self.nodes.iter().map(builder).collect::<Result<Vec<_>>>()?;
        let engine = Redlock::of(nodes).prefix(&settings.prefix).dial_timeout(settings.dial_timeout);
        // The restart guard is the engine's own here, not that of each node.
        if self.options.restart_guard == Some(false) { engine.without_restart_guard().build() } else { engine.build() }
    }
}
