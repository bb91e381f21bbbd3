//! An engine behind a trait object.

use std::future::Future;
use std::pin::Pin;

use distlock::backend::{Backend, Claim, Claimed, ClaimedAll, Grant, Release, TickNotes};
use distlock::{AttemptId, FencingToken, HistoryEntry, Key, Result, Tick, TickNote};

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The methods of [`Backend`] that the cases call directly.
pub(crate) trait AnyEngine: Send + Sync {
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed>>;
    fn claim_all<'a>(&'a self, claims: &'a [Claim]) -> BoxFuture<'a, Result<ClaimedAll>>;
    fn release<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Release>>;
    fn adopt<'a>(&'a self, from: AttemptId, token: FencingToken, claim: &'a Claim) -> BoxFuture<'a, Result<Grant>>;
    fn write_history<'a>(&'a self, entries: &'a [(Key, HistoryEntry)], most: u32) -> BoxFuture<'a, Vec<Result<()>>>;
    fn ticks<'a>(&'a self, key: &'a Key, tick: Option<&'a Tick>) -> BoxFuture<'a, Result<TickNotes>>;
    fn note_tick<'a>(&'a self, claim: &'a Claim, note: &'a TickNote) -> BoxFuture<'a, Result<bool>>;
}

impl<B: Backend> AnyEngine for B {
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed>> {
        Box::pin(Backend::claim(self, claim))
    }

    fn claim_all<'a>(&'a self, claims: &'a [Claim]) -> BoxFuture<'a, Result<ClaimedAll>> {
        Box::pin(Backend::claim_all(self, claims))
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Release>> {
        Box::pin(Backend::release(self, claim))
    }

    fn adopt<'a>(&'a self, from: AttemptId, token: FencingToken, claim: &'a Claim) -> BoxFuture<'a, Result<Grant>> {
        Box::pin(Backend::adopt(self, from, token, claim))
    }

    fn write_history<'a>(&'a self, entries: &'a [(Key, HistoryEntry)], most: u32) -> BoxFuture<'a, Vec<Result<()>>> {
        Box::pin(Backend::write_history(self, entries, most))
    }

    fn ticks<'a>(&'a self, key: &'a Key, tick: Option<&'a Tick>) -> BoxFuture<'a, Result<TickNotes>> {
        Box::pin(Backend::ticks(self, key, tick))
    }

    fn note_tick<'a>(&'a self, claim: &'a Claim, note: &'a TickNote) -> BoxFuture<'a, Result<bool>> {
        Box::pin(Backend::note_tick(self, claim, note))
    }
}
