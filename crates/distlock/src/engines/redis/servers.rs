//! The servers of an engine: one, or the masters of a cluster.

use std::sync::Arc;
use std::time::Duration;

use crate::engines::redis::cluster::{Cluster, Route as ClusterRoute};
use crate::engines::redis::pair::Pair;
use crate::engines::redis::slots::slot_of;
use crate::types::error::{Error, Result};

pub(super) enum Servers {
    One(Arc<Pair>),
    Cluster(Box<Cluster>),
}

impl Servers {
    /// The way of a request about the lock with this key.
    pub(super) fn route(&self, lock: &str) -> Route<'_> {
        match self {
            Servers::One(pair) => Route::Straight(pair),
            Servers::Cluster(cluster) => Route::BySlot(cluster.route(lock)),
        }
    }

    /// What two locks must share to be in one request.
    pub(super) fn group(&self, lock: &str) -> u16 {
        match self {
            Servers::One(_) => 0,
            Servers::Cluster(_) => slot_of(lock),
        }
    }

    /// Returns a number for the server that serves the lock with this key, as far as is known.
    pub(super) fn shard(&self, lock: &str) -> u64 {
        match self {
            Servers::One(_) => 0,
            Servers::Cluster(cluster) => cluster.shard(lock),
        }
    }

    pub(super) async fn all(&self) -> Result<Vec<Arc<Pair>>> {
        match self {
            Servers::One(pair) => Ok(vec![pair.clone()]),
            Servers::Cluster(cluster) => cluster.all().await,
        }
    }

    /// Returns when they can be used or could not be reached.
    pub(super) async fn first(&self, patience: Duration) -> Result<()> {
        match self {
            Servers::One(pair) => pair.first(patience).await,
            Servers::Cluster(cluster) => {
                let late = |_| Err(Error::unavailable("redis: the cluster does not answer"));
                tokio::time::timeout(patience, cluster.learn()).await.unwrap_or_else(late)
            }
        }
    }

    /// Whether messages come in, as far as is known.
    pub(super) fn hears(&self) -> bool {
        match self {
            Servers::One(pair) => pair.main.now().is_none_or(|session| session.hears),
            Servers::Cluster(_) => true,
        }
    }

    pub(super) fn close(&self) {
        match self {
            Servers::One(pair) => pair.close(),
            Servers::Cluster(cluster) => cluster.close(),
        }
    }
}

/// One request on its way.
pub(super) enum Route<'a> {
    Straight(&'a Arc<Pair>),
    BySlot(ClusterRoute<'a>),
}

impl Route<'_> {
    /// The connections to use, and whether the node must be told that it was asked for.
    pub(super) async fn next(&mut self) -> Result<(Arc<Pair>, bool)> {
        match self {
            Route::Straight(pair) => Ok((pair.clone(), false)),
            Route::BySlot(route) => route.next().await,
        }
    }

    /// Whether to send the request again after it failed.
    pub(super) async fn again(&mut self, error: &Error, follows_ask: bool) -> bool {
        match self {
            Route::Straight(_) => false,
            Route::BySlot(route) => route.again(error, follows_ask).await,
        }
    }
}
