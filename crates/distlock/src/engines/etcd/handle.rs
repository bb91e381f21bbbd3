//! What a user of the engine has in hands.

use std::sync::Arc;

use super::engine::Engine;
use crate::types::key::Key;
use crate::types::token::FencingToken;

/// Locks in an etcd cluster. Made by [`Etcd::builder`], or by a URL like `etcd://h1,h2,h3`.
#[derive(Debug)]
pub struct Etcd {
    pub(super) engine: Arc<Engine>,
}

/// The condition that a lock is still held, for a transaction of the application's own: etcd then refuses a late
/// transaction, whatever the holder believes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtcdCompare {
    /// The key of the hold.
    pub key: Vec<u8>,
    /// What its create revision must be equal to.
    pub create_revision: i64,
}

/// Looks into an engine that a locker has taken.
#[derive(Debug, Clone)]
pub struct EtcdHandle {
    engine: Arc<Engine>,
}

impl Etcd {
    /// A handle that stays when a locker has taken the engine.
    #[must_use]
    pub fn handle(&self) -> EtcdHandle {
        EtcdHandle { engine: self.engine.clone() }
    }
}

impl EtcdHandle {
    /// The condition that this client's hold of `key` with `token` is still there; `None` when it is known not to be.
    #[must_use]
    pub fn compare(&self, key: &Key, token: FencingToken) -> Option<EtcdCompare> {
        let create_revision = i64::try_from(token.get()).ok()?;
        let key = self.engine.key_of(key, create_revision)?;
        Some(EtcdCompare { key, create_revision })
    }

    /// How many requests this client has sent. Messages of the watch stream are not counted.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.engine.client.sent()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.engine.tasks.stop();
    }
}
