//! What a user of the engine has in hands.

use std::sync::Arc;

use super::engine::Engine;
use crate::types::key::Key;
use crate::types::token::FencingToken;

/// The etcd engine; made by [`Etcd::builder`], or by a URL like `etcd://h1,h2,h3`.
///
/// ```no_run
/// use distlock::{Locker, backend::etcd::Etcd};
///
/// # async fn f() -> distlock::Result<()> {
/// let engine = Etcd::builder(["h1:2379", "h2:2379", "h3:2379"]).prefix("locks/").build()?;
/// let handle = engine.handle(); // before the locker takes the engine
/// let locker = Locker::new(engine)?;
///
/// let guard = locker.lock("invoice:42").await?;
/// let held = handle.compare(guard.key(), guard.fencing_token());
/// // In a transaction of your own client: if create_revision(held.key) == held.create_revision, then put …
/// # drop(held);
/// # guard.unlock().await }
/// ```
#[derive(Debug)]
pub struct Etcd {
    pub(super) engine: Arc<Engine>,
}

/// The condition that a lock is still held, for a transaction of the application's own client; made by
/// [`EtcdHandle::compare`]. etcd then refuses a late transaction, whatever the holder believes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtcdCompare {
    /// The key of the hold.
    pub key: Vec<u8>,
    /// The create revision that this key must have.
    pub create_revision: i64,
}

/// Gives access to an engine that a locker has taken; made by [`Etcd::handle`].
#[derive(Debug, Clone)]
pub struct EtcdHandle {
    engine: Arc<Engine>,
}

impl Etcd {
    /// Returns a handle that stays usable when a locker has taken the engine.
    #[must_use]
    pub fn handle(&self) -> EtcdHandle {
        EtcdHandle { engine: self.engine.clone() }
    }
}

impl EtcdHandle {
    /// Returns the condition that this client's hold of `key` with `token` exists; `None` if the client knows that it has
    /// ended.
    #[must_use]
    pub fn compare(&self, key: &Key, token: FencingToken) -> Option<EtcdCompare> {
        let create_revision = i64::try_from(token.get()).ok()?;
        let key = self.engine.key_of(key, create_revision)?;
        Some(EtcdCompare { key, create_revision })
    }

    /// Returns how many requests this client has sent. Messages of the watch stream are not counted.
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
