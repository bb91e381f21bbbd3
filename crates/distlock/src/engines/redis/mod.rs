//! Locks in Redis or Valkey: FIFO, fenced, and handed from one holder to the next in one command.
//!
//! A lock is the key of its name, so that lockers of other libraries exclude us and are excluded. Its queue stands in
//! keys beside it. A release gives the lock to the next waiter in the same script, which tells that waiter's process by
//! a message. See `docs/backends/redis.md`.

mod adopt;
mod claim;
mod claim_all;
mod client;
mod config;
pub(in crate::engines) mod doctor;
mod error;
mod history;
mod inspect;
pub(in crate::engines) mod node;
pub(crate) mod open;
mod protocol;
mod release;
mod renew;
mod state;
pub(in crate::engines) mod ticks;
mod wait;
mod wire;

pub use self::client::Redis;
pub use self::config::RedisBuilder;
pub(in crate::engines) use self::protocol::script;
pub(in crate::engines) use self::protocol::time::heartbeat;
pub use self::wire::options::Protocol;
use crate::contract::{
    Attachment, Backend, Capabilities, Claim, Claimed, ClaimedAll, Grant, Lease, LockInfo, LockTicks, Release, Renewal,
    Scope, TickNotes, Wake,
};
use crate::types::clock::Moment;
use crate::types::error::Result;
use crate::types::history::HistoryEntry;
use crate::types::key::Key;
use crate::types::tick::{Tick, TickNote};
use crate::types::token::{AttemptId, FencingToken};

impl Backend for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn needs_runtime(&self) -> bool {
        true
    }

    fn capabilities(&self) -> Capabilities {
        let hears = self.attached().is_none_or(|client| client.servers.hears());
        let all = Capabilities::new(Scope::Cluster);
        let all = Capabilities { fair: true, leases: true, wakes: hears, inspects: true, breaks: true, ..all };
        let all = Capabilities { shares: true, slots: true, reenters: true, ..all };
        Capabilities { delays: true, amends: true, adopts: true, claim_all: true, history: true, ticks: true, ..all }
    }

    fn attach(&self, attachment: Attachment) {
        self.start(&attachment);
    }

    async fn ready(&self) -> Result<()> {
        self.client().ready().await
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        self.client().claim(claim).await
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        self.client().claim_all(claims).await
    }

    async fn wait(&self, claim: &Claim) -> Wake {
        self.client().wait(claim).await
    }

    fn shard(&self, key: &Key) -> u64 {
        self.attached().map_or(0, |client| client.shard(key))
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        self.client().renew(leases).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release> {
        self.client().release(claim).await
    }

    fn late_until(&self, claim: &Claim) -> Option<Moment> {
        self.attached().and_then(|client| client.late_claims.until(claim.attempt))
    }

    async fn amend(&self, lease: &Lease) -> Result<bool> {
        self.client().amend(&lease.claim).await
    }

    async fn adopt(&self, from: AttemptId, token: FencingToken, claim: &Claim) -> Result<Grant> {
        self.client().adopt(from, token, claim).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.client().list(prefix).await
    }

    async fn get(&self, key: &Key) -> Result<Option<LockInfo>> {
        self.client().get(key).await
    }

    async fn force_release(&self, key: &Key, token: FencingToken, _reason: &str) -> Result<()> {
        self.client().force_release(key, token).await
    }

    async fn write_history(&self, entries: &[(Key, HistoryEntry)], most: u32) -> Vec<Result<()>> {
        self.client().write_history(entries, most).await
    }

    async fn history(&self, key: &Key, most: u32) -> Result<Vec<HistoryEntry>> {
        self.client().history(key, most).await
    }

    async fn ticks(&self, key: &Key, tick: Option<&Tick>) -> Result<TickNotes> {
        self.client().ticks(key, tick).await
    }

    async fn note_tick(&self, claim: &Claim, note: &TickNote) -> Result<bool> {
        self.client().note_tick(claim, note).await
    }

    async fn list_ticks(&self, prefix: &str) -> Result<Vec<LockTicks>> {
        self.client().list_ticks(prefix).await
    }

    async fn close(&self) -> Result<()> {
        if let Some(client) = self.attached() {
            client.servers.close();
        }
        Ok(())
    }
}
