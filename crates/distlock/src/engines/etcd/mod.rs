//! Locks in an etcd cluster: strongly consistent, first come first served, and in one queue with Go's
//! `concurrency.Mutex` and `etcdctl lock`.
//!
//! Each attempt puts a key below the lock's name; the one that was made first holds the lock, and its create revision
//! is the fencing token. All locks of a locker family that ask for the same TTL hang on one lease.

mod adopt;
mod claim;
mod claim_all;
mod config;
mod doctor;
mod engine;
mod error;
mod handle;
mod history;
mod housekeeping;
mod inspect;
mod leases;
mod losses;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod model;
pub(crate) mod open;
mod protocol;
mod reentry;
mod release;
mod renew;
mod seen_revision;
mod shared_lease;
mod state;
mod ticks;
mod wait;
mod wire;

pub use self::config::EtcdBuilder;
pub use self::handle::{Etcd, EtcdCompare, EtcdHandle};
use crate::contract::{
    Attachment, Backend, Capabilities, Claim, Claimed, ClaimedAll, Grant, Lease, LockInfo, LockTicks, Release, Renewal,
    Scope, TickNotes, Wake,
};
use crate::types::clock::Moment;
use crate::types::error::Result;
use crate::types::history::{HistoryEntry, answer_all};
use crate::types::key::Key;
use crate::types::mode::Mode;
use crate::types::tick::{Tick, TickNote};
use crate::types::token::{AttemptId, FencingToken};

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
            ticks: true,
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
        match claim.mode() {
            // Boxed: a future has room for the largest of those that it may wait for, and is made for every claim.
            Mode::Reentrant => Box::pin(self.engine.claim_entry(claim)).await,
            _ => self.engine.claim(claim).await,
        }
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        self.engine.claim_all(claims).await
    }

    async fn wait(&self, claim: &Claim) -> Wake {
        match claim.mode() {
            Mode::Reentrant => self.engine.wait_entry(claim).await,
            _ => self.engine.wait(claim).await,
        }
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        self.engine.renew(leases).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release> {
        match claim.mode() {
            Mode::Reentrant => Box::pin(self.engine.release_entry(claim)).await,
            _ => self.engine.release(claim).await,
        }
    }

    fn late_until(&self, claim: &Claim) -> Option<Moment> {
        self.engine.attempts.get(claim.attempt)?.state().late_until()
    }

    async fn amend(&self, lease: &Lease) -> Result<bool> {
        self.engine.amend(lease).await
    }

    async fn adopt(&self, from: AttemptId, token: FencingToken, claim: &Claim) -> Result<Grant> {
        match claim.mode() {
            Mode::Reentrant => self.engine.adopt_entry(from, token, claim).await,
            _ => self.engine.adopt(from, token, claim).await,
        }
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

    async fn ticks(&self, key: &Key, tick: Option<&Tick>) -> Result<TickNotes> {
        self.engine.ticks(key, tick).await
    }

    async fn note_tick(&self, claim: &Claim, note: &TickNote) -> Result<bool> {
        self.engine.note_tick(claim, note).await
    }

    async fn list_ticks(&self, prefix: &str) -> Result<Vec<LockTicks>> {
        self.engine.list_ticks(prefix).await
    }

    async fn close(&self) -> Result<()> {
        self.engine.close().await
    }
}
