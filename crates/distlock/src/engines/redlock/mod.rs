//! Locks on a majority of independent Redis nodes, with fencing tokens that rise.
//!
//! The token is a ballot: a node votes for a claim only with a higher ballot than any it has voted for, so two grants
//! never share one. See `docs/backends/redlock.md`.

mod claim;
mod config;
mod doctor;
mod engine;
mod error;
mod heal;
mod inspect;
pub(crate) mod open;
mod options;
mod protocol;
mod quarantine;
mod release;
mod renew;
mod state;
mod ticks;
mod wait;
mod wire;

use std::time::Duration;

pub use self::config::RedlockBuilder;
pub use self::engine::Redlock;
use crate::contract::{
    Attachment, Backend, Capabilities, Claim, Claimed, Lease, LockInfo, LockTicks, Release, Renewal, Scope, TickNotes,
    Wake,
};
use crate::engines::redis::node::Lane;
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::history::HistoryEntry;
use crate::types::key::Key;
use crate::types::tick::{Tick, TickNote};
use crate::types::token::FencingToken;

/// How much longer than one attempt to connect a new engine waits for a majority.
const READY_MARGIN: Duration = Duration::from_secs(1);

impl Backend for Redlock {
    fn name(&self) -> &'static str {
        "redlock"
    }

    fn needs_runtime(&self) -> bool {
        true
    }

    fn capabilities(&self) -> Capabilities {
        let wakes = !self.if_attached().is_some_and(|engine| engine.is_without_notifications());
        let all = Capabilities::new(Scope::Cluster);
        Capabilities { fair: false, leases: true, wakes, inspects: true, breaks: true, ticks: true, ..all }
    }

    fn attach(&self, attachment: Attachment) {
        self.start(&attachment);
    }

    async fn ready(&self) -> Result<()> {
        let (nodes, limit) = (&self.attached().nodes, self.options.dial_timeout + READY_MARGIN);
        nodes.await_quorum(Lane::Main, limit).await?;
        nodes.await_quorum(Lane::Reserved, limit).await
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        claim::claim(self.attached(), claim).await
    }

    async fn wait(&self, claim: &Claim) -> Wake {
        wait::wait(&self.attached().nodes, claim.attempt).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        renew::renew(self.attached(), leases).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release> {
        release::release(self.attached(), claim).await
    }

    fn late_until(&self, claim: &Claim) -> Option<Moment> {
        self.attached().attempts.late_until(claim.attempt)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        inspect::list(&self.attached().nodes, prefix).await
    }

    async fn get(&self, key: &Key) -> Result<Option<LockInfo>> {
        inspect::get(&self.attached().nodes, key).await
    }

    async fn force_release(&self, key: &Key, token: FencingToken, _reason: &str) -> Result<()> {
        inspect::force_release(self.attached(), key, token).await
    }

    async fn history(&self, _key: &Key, _most: u32) -> Result<Vec<HistoryEntry>> {
        let message = "the redlock engine cannot keep a history: none of its servers sees every hold";
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    async fn ticks(&self, key: &Key, tick: Option<&Tick>) -> Result<TickNotes> {
        ticks::read(&self.attached().nodes, key, tick).await
    }

    async fn note_tick(&self, claim: &Claim, note: &TickNote) -> Result<bool> {
        ticks::write(&self.attached().nodes, claim, note).await
    }

    async fn list_ticks(&self, prefix: &str) -> Result<Vec<LockTicks>> {
        ticks::list(&self.attached().nodes, prefix).await
    }

    async fn close(&self) -> Result<()> {
        if let Some(engine) = self.if_attached() {
            engine.nodes.close().await;
        }
        Ok(())
    }
}
