//! The servers of an engine: one, or the masters of a cluster.

use std::sync::Arc;
use std::time::Duration;

use crate::engines::redis::wire::cluster::{Cluster, is_moving};
use crate::engines::redis::wire::hash_slot::hash_slot;
use crate::engines::redis::wire::server_connections::ServerConnections;
use crate::types::error::{Error, Result};

/// What becomes of a request whose hash slot moves to another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engines) enum Moving {
    /// It is sent again until the hash slot has arrived.
    Wait,
    /// It follows the redirection: of use to a request with one key. The new node refuses one with several until all of
    /// them are there.
    FollowAsk,
    /// It fails at once: the caller sends its parts one by one.
    GiveUp,
}

pub(in crate::engines) enum Servers {
    One(Arc<ServerConnections>),
    Cluster(Box<Cluster>),
}

impl Servers {
    /// Sends a request about the lock with this key to the server that serves it, and again when it certainly was not
    /// carried out because the hash slot is elsewhere. `request` is told whether it must announce itself with ASKING.
    pub(in crate::engines) async fn routed<T, F: Future<Output = Result<T>>>(
        &self,
        lock: &str,
        moving: Moving,
        request: impl Fn(Arc<ServerConnections>, bool) -> F,
    ) -> Result<T> {
        let mut route = match self {
            Servers::One(server) => return request(server.clone(), false).await,
            Servers::Cluster(cluster) => cluster.route(lock),
        };
        loop {
            let (server, is_asking) = route.next().await?;
            match request(server, is_asking).await {
                Err(error) if moving == Moving::GiveUp && is_moving(&error) => return Err(error),
                Err(error) if route.again(&error, moving == Moving::FollowAsk).await => {}
                outcome => return outcome,
            }
        }
    }

    /// Calls `look` with the server that serves the lock with this key, if it is known without asking.
    pub(in crate::engines) fn at_once<T>(
        &self,
        lock: &str,
        look: impl FnOnce(&ServerConnections) -> Option<T>,
    ) -> Option<T> {
        match self {
            Servers::One(server) => look(server),
            Servers::Cluster(cluster) => look(&*cluster.known_server(lock)?),
        }
    }

    /// Returns the server that serves the lock with this key.
    pub(in crate::engines) async fn server_of(&self, lock: &str) -> Result<Arc<ServerConnections>> {
        match self {
            Servers::One(server) => Ok(server.clone()),
            Servers::Cluster(cluster) => cluster.route(lock).next().await.map(|(server, _)| server),
        }
    }

    /// Returns the hash slot of a lock, which two locks must share to be in one request; 0 where there are none.
    pub(in crate::engines) fn hash_slot(&self, lock: &str) -> u16 {
        match self {
            Servers::One(_) => 0,
            Servers::Cluster(_) => hash_slot(lock),
        }
    }

    /// Returns a number for the server that serves the lock with this key, as far as is known.
    pub(in crate::engines) fn shard(&self, lock: &str) -> u64 {
        match self {
            Servers::One(_) => 0,
            Servers::Cluster(cluster) => cluster.shard(lock),
        }
    }

    pub(in crate::engines) async fn all(&self) -> Result<Vec<Arc<ServerConnections>>> {
        match self {
            Servers::One(server) => Ok(vec![server.clone()]),
            Servers::Cluster(cluster) => cluster.all().await,
        }
    }

    /// Returns when they can be used or could not be reached.
    pub(in crate::engines) async fn first(&self, wait: Duration) -> Result<()> {
        match self {
            Servers::One(server) => server.first(wait).await,
            Servers::Cluster(cluster) => {
                let late = |_| Err(Error::unavailable("redis: the cluster does not answer"));
                tokio::time::timeout(wait, cluster.learn()).await.unwrap_or_else(late)
            }
        }
    }

    /// Returns whether messages come in, as far as is known.
    pub(in crate::engines) fn hears(&self) -> bool {
        match self {
            Servers::One(server) => server.may_hear(),
            Servers::Cluster(cluster) => cluster.may_hear(),
        }
    }

    pub(in crate::engines) fn close(&self) {
        match self {
            Servers::One(server) => server.close(),
            Servers::Cluster(cluster) => cluster.close(),
        }
    }
}
