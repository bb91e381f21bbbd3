//! [`Backend`] with its futures boxed.

use std::fmt;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;

use crate::contract::attachment::Attachment;
use crate::contract::backend::Backend;
use crate::contract::capabilities::Capabilities;
use crate::contract::claim::{Claim, Claimed, ClaimedAll, Wake};
use crate::contract::grant::Grant;
use crate::contract::lease::{Lease, Release, Renewal};
use crate::contract::lock_info::LockInfo;
use crate::contract::ticks::{LockTicks, TickNotes};
use crate::types::clock::{Clock, Moment};
use crate::types::error::Result;
use crate::types::history::HistoryEntry;
use crate::types::key::Key;
use crate::types::meter::operation;
use crate::types::tick::{Tick, TickNote};
use crate::types::token::{AttemptId, FencingToken};

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// [`Backend`] with its futures boxed, so that a locker needs no type parameter.
pub(crate) trait DynBackend: Send + Sync + 'static {
    fn name(&self) -> &'static str;
    fn capabilities(&self) -> Capabilities;
    fn clock(&self) -> Option<Clock>;
    fn attach(&self, attachment: Attachment);
    fn ready(&self) -> BoxFuture<'_, Result<()>>;
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed>>;
    fn claim_all<'a>(&'a self, claims: &'a [Claim]) -> BoxFuture<'a, Result<ClaimedAll>>;
    fn wait<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Wake>;
    fn needs_runtime(&self) -> bool;
    fn shard(&self, key: &Key) -> u64;
    fn renew<'a>(&'a self, leases: &'a [Lease]) -> BoxFuture<'a, Vec<Result<Renewal>>>;
    fn release<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Release>>;
    fn late_until(&self, claim: &Claim) -> Option<Moment>;
    fn amend<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<bool>>;
    fn adopt<'a>(&'a self, from: AttemptId, token: FencingToken, claim: &'a Claim) -> BoxFuture<'a, Result<Grant>>;
    fn descriptor(&self, claim: &Claim) -> Result<Option<OwnedFd>>;
    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<LockInfo>>>;
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<LockInfo>>>;
    fn force_release<'a>(&'a self, key: &'a Key, token: FencingToken, reason: &'a str) -> BoxFuture<'a, Result<()>>;
    fn write_history<'a>(&'a self, entries: &'a [(Key, HistoryEntry)], most: u32) -> BoxFuture<'a, Vec<Result<()>>>;
    fn history<'a>(&'a self, key: &'a Key, most: u32) -> BoxFuture<'a, Result<Vec<HistoryEntry>>>;
    fn ticks<'a>(&'a self, key: &'a Key, tick: Option<&'a Tick>) -> BoxFuture<'a, Result<TickNotes>>;
    fn note_tick<'a>(&'a self, claim: &'a Claim, note: &'a TickNote) -> BoxFuture<'a, Result<bool>>;
    fn list_ticks<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<LockTicks>>>;
    fn close(&self) -> BoxFuture<'_, Result<()>>;
}

impl<B: Backend> DynBackend for B {
    fn name(&self) -> &'static str {
        Backend::name(self)
    }
    fn capabilities(&self) -> Capabilities {
        Backend::capabilities(self)
    }
    fn clock(&self) -> Option<Clock> {
        Backend::clock(self)
    }
    fn attach(&self, attachment: Attachment) {
        Backend::attach(self, attachment);
    }
    fn ready(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(operation(Backend::name(self), "ready", Backend::ready(self)))
    }
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed>> {
        Box::pin(operation(Backend::name(self), "claim", Backend::claim(self, claim)))
    }
    fn claim_all<'a>(&'a self, claims: &'a [Claim]) -> BoxFuture<'a, Result<ClaimedAll>> {
        Box::pin(operation(Backend::name(self), "claim_all", Backend::claim_all(self, claims)))
    }
    fn wait<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Wake> {
        Box::pin(Backend::wait(self, claim))
    }
    fn needs_runtime(&self) -> bool {
        Backend::needs_runtime(self)
    }
    fn shard(&self, key: &Key) -> u64 {
        Backend::shard(self, key)
    }
    fn renew<'a>(&'a self, leases: &'a [Lease]) -> BoxFuture<'a, Vec<Result<Renewal>>> {
        Box::pin(operation(Backend::name(self), "renew", Backend::renew(self, leases)))
    }
    fn release<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Release>> {
        Box::pin(operation(Backend::name(self), "release", Backend::release(self, claim)))
    }
    fn late_until(&self, claim: &Claim) -> Option<Moment> {
        Backend::late_until(self, claim)
    }
    fn amend<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<bool>> {
        Box::pin(operation(Backend::name(self), "amend", Backend::amend(self, lease)))
    }
    fn adopt<'a>(&'a self, from: AttemptId, token: FencingToken, claim: &'a Claim) -> BoxFuture<'a, Result<Grant>> {
        Box::pin(operation(Backend::name(self), "adopt", Backend::adopt(self, from, token, claim)))
    }
    fn descriptor(&self, claim: &Claim) -> Result<Option<OwnedFd>> {
        Backend::descriptor(self, claim)
    }
    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<LockInfo>>> {
        Box::pin(operation(Backend::name(self), "list", Backend::list(self, prefix)))
    }
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<LockInfo>>> {
        Box::pin(operation(Backend::name(self), "get", Backend::get(self, key)))
    }
    fn force_release<'a>(&'a self, key: &'a Key, token: FencingToken, reason: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(operation(Backend::name(self), "force_release", Backend::force_release(self, key, token, reason)))
    }
    fn write_history<'a>(&'a self, entries: &'a [(Key, HistoryEntry)], most: u32) -> BoxFuture<'a, Vec<Result<()>>> {
        Box::pin(operation(Backend::name(self), "write_history", Backend::write_history(self, entries, most)))
    }
    fn history<'a>(&'a self, key: &'a Key, most: u32) -> BoxFuture<'a, Result<Vec<HistoryEntry>>> {
        Box::pin(operation(Backend::name(self), "history", Backend::history(self, key, most)))
    }
    fn ticks<'a>(&'a self, key: &'a Key, tick: Option<&'a Tick>) -> BoxFuture<'a, Result<TickNotes>> {
        Box::pin(operation(Backend::name(self), "ticks", Backend::ticks(self, key, tick)))
    }
    fn note_tick<'a>(&'a self, claim: &'a Claim, note: &'a TickNote) -> BoxFuture<'a, Result<bool>> {
        Box::pin(operation(Backend::name(self), "note_tick", Backend::note_tick(self, claim, note)))
    }
    fn list_ticks<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<LockTicks>>> {
        Box::pin(operation(Backend::name(self), "list_ticks", Backend::list_ticks(self, prefix)))
    }
    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(Backend::close(self))
    }
}

impl fmt::Debug for dyn DynBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
