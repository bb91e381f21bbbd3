//! Locks in this process: the reference implementation of the contract, and what users test with.
//!
//! A [`Store`] is the server, a [`Memory`] one client of it. A store that is made in code is its maker's alone; the URL
//! `mem://` names one store of the process, and `mem://name` one for each name ([`Store::named`]). A test can move the
//! store's clock by hand and script faults into its replies, so that it sees in microseconds what a network does once a
//! month.
//!
//! ```
//! use distlock::backend::memory::{Fault, Memory, Operation, Store};
//! use distlock::{ErrorKind, Locker};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
//! let store = Store::new();
//! let locker = Locker::new(Memory::on(&store))?;
//! let guard = locker.lock("invoice:42").await?;
//!
//! store.script(Operation::Release, Fault::LoseReply);
//! let outcome = guard.unlock().await;
//! assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unknown);
//! # Ok(()) }
//! ```

mod client;
mod faults;
mod history;
pub(crate) mod open;
mod state;
mod store;
mod ticks;

pub use self::client::Memory;
pub use self::faults::{Fault, Operation};
use self::state::LockTable;
pub use self::store::{EndedHolds, Store};
use crate::contract::{
    Attachment, Backend, Capabilities, Claim, Claimed, ClaimedAll, Grant, Lease, LockInfo, LockTicks, Release, Renewal,
    Scope, TickNotes, Wake,
};
use crate::types::clock::Clock;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::LossReason;
use crate::types::history::{HistoryEntry, answer_all};
use crate::types::key::Key;
use crate::types::tick::{Tick, TickNote};
use crate::types::token::{AttemptId, FencingToken};

impl Backend for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn capabilities(&self) -> Capabilities {
        let all = Capabilities::new(Scope::Process);
        let all = Capabilities { fair: true, leases: true, wakes: true, inspects: true, breaks: true, ..all };
        let all = Capabilities { shares: true, slots: true, reenters: true, ..all };
        Capabilities { delays: true, amends: true, adopts: true, claim_all: true, history: true, ticks: true, ..all }
    }

    fn clock(&self) -> Option<Clock> {
        Some(self.store.clock().clone())
    }

    fn attach(&self, attachment: Attachment) {
        let _ = self.attachment.set(attachment);
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        let sender = self.sender();
        self.request(Operation::Claim, |locks, now| locks.claim(claim, sender, now)).await
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        let sender = self.sender();
        self.request(Operation::Claim, |locks, now| Ok(locks.claim_all(claims, &sender, now))).await
    }

    async fn wait(&self, claim: &Claim) -> Wake {
        let Some(notification) = self.store.locks(|locks, _| locks.notification(claim)) else { return Wake::Retry };
        notification.notified().await;
        let received = self.now();
        self.store.locks(|locks, now| {
            locks.take_handover(claim, received, self.drift(), now).map_or(Wake::Retry, Wake::Granted)
        })
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let start = self.now();
        let renew_all =
            |locks: &mut LockTable, now| leases.iter().map(|lease| locks.renew(lease, start, now)).collect();
        match self.request(Operation::Renew, |locks, now| Ok(renew_all(locks, now))).await {
            Ok(renewals) => Vec::into_iter(renewals).map(Ok).collect(),
            Err(error) => leases.iter().map(|_| Err(Error::new(error.kind(), error.to_string()))).collect(),
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Release> {
        self.request(Operation::Release, |locks, now| Ok(locks.release(claim, now))).await
    }

    async fn amend(&self, lease: &Lease) -> Result<bool> {
        self.request(Operation::Renew, |locks, now| Ok(locks.amend(&lease.claim, now))).await
    }

    async fn adopt(&self, from: AttemptId, token: FencingToken, claim: &Claim) -> Result<Grant> {
        let sender = self.sender();
        self.request(Operation::Claim, |locks, now| match locks.adopt(from, token, claim, &sender, now) {
            Some((grant, before)) => {
                before.inspect(|losses| losses.push(from, LossReason::Adopted));
                Ok(grant)
            }
            None => Err(Error::new(ErrorKind::NotHeld, format!("no owner holds it with token {token}"))),
        })
        .await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.request(Operation::Inspect, |locks, now| Ok(locks.list(prefix, now))).await
    }

    async fn get(&self, key: &Key) -> Result<Option<LockInfo>> {
        self.request(Operation::Inspect, |locks, now| Ok(locks.get(key, now))).await
    }

    async fn force_release(&self, key: &Key, token: FencingToken, _reason: &str) -> Result<()> {
        self.request(Operation::ForceRelease, |locks, now| {
            let broken = locks.force_release(key, token, now);
            if broken.is_empty() {
                return Err(Error::new(ErrorKind::NotHeld, format!("no owner holds it with token {token}")));
            }
            for (losses, attempt) in broken {
                losses.inspect(|losses| losses.push(attempt, LossReason::Broken));
            }
            Ok(())
        })
        .await
    }

    async fn write_history(&self, entries: &[(Key, HistoryEntry)], most: u32) -> Vec<Result<()>> {
        let add_all = |_: &mut LockTable, _| {
            let mut histories = self.store.histories();
            entries.iter().for_each(|(key, entry)| histories.add(key, entry.clone(), most as usize));
            Ok(())
        };
        answer_all(&self.request(Operation::WriteHistory, add_all).await, entries.len())
    }

    async fn history(&self, key: &Key, most: u32) -> Result<Vec<HistoryEntry>> {
        self.request(Operation::Inspect, |_, _| Ok(self.store.histories().last(key, most as usize))).await
    }

    async fn ticks(&self, key: &Key, tick: Option<&Tick>) -> Result<TickNotes> {
        self.request(Operation::Inspect, |_, _| {
            let now_ms = self.store.wall_ms();
            Ok(TickNotes::at(now_ms, self.store.ticks().find(key, tick, now_ms)))
        })
        .await
    }

    async fn note_tick(&self, claim: &Claim, note: &TickNote) -> Result<bool> {
        self.request(Operation::NoteTick, |locks, now| {
            let is_holder = locks.is_holder(claim, now);
            self.store.ticks().note(&claim.key, note, is_holder, self.store.wall_ms())
        })
        .await
    }

    async fn list_ticks(&self, prefix: &str) -> Result<Vec<LockTicks>> {
        self.request(Operation::Inspect, |_, _| Ok(self.store.ticks().list(prefix, self.store.wall_ms()))).await
    }
}
