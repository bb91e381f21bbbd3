//! Locks in an etcd cluster: strongly consistent, first come first served, and in one queue with Go's
//! `concurrency.Mutex` and `etcdctl lock`.
//!
//! Each attempt puts a key below the lock's name; the one that was made first holds the lock, and its create revision is
//! the fencing token. All locks of a locker family that ask for the same TTL hang on one lease.

mod adopt;
mod claim_all;
mod config;
mod doctor;
mod engine;
mod error;
mod history;
mod housekeeping;
mod inspect;
mod losses;
mod protocol;
mod reentry;
mod renew;
mod seen_revision;
mod shared_lease;
mod state;
mod wait;
mod wire;

use std::sync::Arc;

pub use self::config::EtcdBuilder;
use self::engine::Engine;
use crate::contract::{
    Attachment, Backend, Capabilities, Claim, Claimed, ClaimedAll, Grant, Lease, LockInfo, Release, Renewal, Scope,
    Wake,
};
use crate::types::error::Result;
use crate::types::history::{HistoryEntry, answer_all};
use crate::types::key::Key;
use crate::types::token::{AttemptId, FencingToken};

/// Locks in an etcd cluster. Made by [`Etcd::builder`], or by a URL like `etcd://h1,h2,h3`.
#[derive(Debug)]
pub struct Etcd {
    engine: Arc<Engine>,
}

/// The condition that a lock is still held, for a transaction of the application's own: etcd then refuses what comes
/// late, whatever the holder believes.
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
    /// A client of the servers at `endpoints`, each `host:port`. They are one cluster.
    pub fn builder<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> EtcdBuilder {
        EtcdBuilder::dial(endpoints)
    }

    /// A client over a channel that the application has made and looks after. It should not balance between servers:
    /// what one request has done must be there for the next.
    pub fn over(channel: tonic::transport::Channel) -> EtcdBuilder {
        EtcdBuilder::over(channel)
    }

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
        self.engine.compare(key, token)
    }

    /// How many requests this client has sent. Messages of the watch stream are not counted.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.engine.client.sent()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.engine.stop();
    }
}

impl Backend for Etcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn needs_runtime(&self) -> bool {
        true
    }

    fn capabilities(&self) -> Capabilities {
        let all = Capabilities::new(Scope::Cluster);
        Capabilities {
            fair: true,
            leases: true,
            wakes: true,
            inspects: true,
            breaks: true,
            shares: true,
            slots: true,
            reenters: true,
            delays: true,
            amends: true,
            adopts: true,
            claim_all: true,
            history: true,
            ..all
        }
    }

    fn attach(&self, attachment: Attachment) {
        self.engine.attach(attachment);
    }

    async fn ready(&self) -> Result<()> {
        self.engine.ready().await
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        self.engine.claim(claim).await
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        self.engine.claim_all(claims).await
    }

    async fn wait(&self, claim: &Claim) -> Wake {
        self.engine.wait(claim).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        self.engine.renew(leases).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release> {
        self.engine.release(claim).await
    }

    async fn amend(&self, lease: &Lease) -> Result<bool> {
        self.engine.amend(lease).await
    }

    async fn adopt(&self, from: AttemptId, token: FencingToken, claim: &Claim) -> Result<Grant> {
        self.engine.adopt(from, token, claim).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.engine.list(prefix).await
    }

    async fn get(&self, key: &Key) -> Result<Option<LockInfo>> {
        self.engine.get(key).await
    }

    async fn force_release(&self, key: &Key, token: FencingToken, reason: &str) -> Result<()> {
        self.engine.force_release(key, token, reason).await
    }

    async fn write_history(&self, entries: &[(Key, HistoryEntry)], most: u32) -> Vec<Result<()>> {
        answer_all(&self.engine.write_history(entries, most).await, entries.len())
    }

    async fn history(&self, key: &Key, most: u32) -> Result<Vec<HistoryEntry>> {
        self.engine.history(key, most).await
    }

    async fn close(&self) -> Result<()> {
        self.engine.close().await
    }
}
