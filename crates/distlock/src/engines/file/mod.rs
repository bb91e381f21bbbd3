//! Locks among the processes of this machine, by flock(2).
//!
//! Below the verbs, `protocol/` says what the files of a lock are called and what is in them, and `wire/` makes the
//! system calls.

mod claim;
mod config;
mod doctor;
mod error;
mod history;
mod hold;
mod inspect;
mod inspector;
mod lock_entries;
pub(crate) mod open;
mod protocol;
mod release;
mod renew;
mod state;
#[cfg(test)]
mod tests;
mod ticks;
mod wait;
mod waiters;
mod wire;

use std::os::fd::OwnedFd;

use crate::contract::{
    Attachment, Backend, Capabilities, Claim, Claimed, Lease, LockInfo, LockTicks, Release, Renewal, Scope, TickNotes,
    Wake,
};
use crate::types::error::Result;
use crate::types::history::HistoryEntry;
use crate::types::key::Key;
use crate::types::tick::{Tick, TickNote};
use crate::types::token::FencingToken;

pub use config::FileBackend;
pub(crate) use doctor::examine;
pub use protocol::lock_directory::default_dir;
pub use wire::mount::private_mount;

// No call waits in the middle of its work: file operations take microseconds, and a flock is never waited for. A claim
// that is tried again leaves nothing behind in between. So a dropped future leaves no half-done claim.
impl Backend for FileBackend {
    fn name(&self) -> &'static str {
        "file"
    }

    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::new(Scope::Host);
        (can.fair, can.wakes, can.inspects) = (true, true, true);
        (can.shares, can.slots, can.history, can.ticks) = (true, true, true, true);
        can
    }

    fn attach(&self, attachment: Attachment) {
        self.0.waiters.attach(&attachment.keeper_runtime);
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        claim::claim(&self.0, claim).await
    }

    async fn wait(&self, claim: &Claim) -> Wake {
        wait::wait(&self.0, claim).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        renew::renew(&self.0, leases)
    }

    async fn release(&self, claim: &Claim) -> Result<Release> {
        Ok(release::release(&self.0, claim))
    }

    fn descriptor(&self, claim: &Claim) -> Result<Option<OwnedFd>> {
        inspect::descriptor(&self.0, claim)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        inspect::list(&self.0, prefix).await
    }

    async fn get(&self, key: &Key) -> Result<Option<LockInfo>> {
        inspect::get(&self.0, key).await
    }

    async fn force_release(&self, key: &Key, token: FencingToken, _reason: &str) -> Result<()> {
        release::force_release(&self.0, key, token)
    }

    async fn write_history(&self, entries: &[(Key, HistoryEntry)], most: u32) -> Vec<Result<()>> {
        history::write(&self.0, entries, most).await
    }

    async fn history(&self, key: &Key, most: u32) -> Result<Vec<HistoryEntry>> {
        history::read(&self.0, key, most)
    }

    async fn ticks(&self, key: &Key, tick: Option<&Tick>) -> Result<TickNotes> {
        ticks::read(&self.0, key, tick)
    }

    async fn note_tick(&self, claim: &Claim, note: &TickNote) -> Result<bool> {
        ticks::write(&self.0, claim, note)
    }

    async fn list_ticks(&self, prefix: &str) -> Result<Vec<LockTicks>> {
        ticks::list(&self.0, prefix)
    }

    async fn close(&self) -> Result<()> {
        release::close(&self.0);
        Ok(())
    }
}
