//! The trait that every engine implements.

use std::future::Future;
use std::os::fd::OwnedFd;

use crate::contract::attachment::Attachment;
use crate::contract::capabilities::Capabilities;
use crate::contract::claim::{Claim, Claimed, ClaimedAll, Wake};
use crate::contract::grant::Grant;
use crate::contract::lease::{Lease, Release, Renewal};
use crate::contract::lock_info::LockInfo;
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::history::HistoryEntry;
use crate::types::key::Key;
use crate::types::token::{AttemptId, FencingToken};

/// An engine.
///
/// An `Err` of kind `Unknown` means that the request may have been carried out; any other kind that it was not. The two
/// never mix. No call waits for ever: an engine bounds each of its requests. Every future may be dropped at any await;
/// the request then counts as unknown, and the core withdraws it with [`release`](Backend::release).
pub trait Backend: Send + Sync + 'static {
    /// The engine's name in logs and metrics.
    fn name(&self) -> &'static str;

    /// What the engine can do.
    fn capabilities(&self) -> Capabilities;

    /// Joins the engine to a locker family.
    ///
    /// # Behaviour
    /// Called once, before any other call, from any thread.
    fn attach(&self, attachment: Attachment) {
        drop(attachment);
    }

    /// Returns once the engine can be used.
    ///
    /// # Behaviour
    /// Called when a locker is made from a URL or a configuration, so that a server that is not there is an error then
    /// and not at the first lock. Bounded by the engine's dial timeout: kind `Unavailable`, `Auth` or `Config`.
    fn ready(&self) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Asks for the lock.
    ///
    /// # Behaviour
    /// Free, and no live waiter before this claim: granted, with a token higher than all before. Ours by this attempt
    /// already: granted again with the **same** token and a fresh lease. Otherwise busy; with `claim.queue` the attempt
    /// has a place in the queue from then on, and claiming again keeps that place and shows that the waiter lives.
    /// What is not in the engine's own format is never touched. Nothing is left behind when `queue` is false and the
    /// answer is busy.
    ///
    /// When the lock is free for a claim depends on [`Claim::mode`], which is one that
    /// [`capabilities`](Backend::capabilities) allow:
    /// - `Exclusive`: nobody holds it.
    /// - `Shared`: whoever holds it shares it too. A reader behind a waiting writer waits; readers that stand in the
    ///   queue one behind the other enter together. Its token lies between those of the exclusive holds before it and
    ///   after it.
    /// - `Slot { of }`: fewer than `of` hold it. The grant says which slot it is: the lowest that is free. A claim that
    ///   does not [agree](crate::Mode::agrees_with) with those who hold or wait is refused, kind `InvalidInput`
    ///   ([`Mode::disagrees`](crate::Mode::disagrees)).
    /// - `Reentrant`: nobody holds it, or claims of the same owner in this mode do. Those that enter get the **token of
    ///   the first**, and pass by the queue: its head waits for them. Each has a lease of its own; the lock is free when
    ///   the last is released or over.
    fn claim(&self, claim: &Claim) -> impl Future<Output = Result<Claimed>> + Send;

    /// Asks for several locks in one step.
    ///
    /// # Behaviour
    /// Each of them is free, as for [`claim`](Backend::claim), or its claim's own already: all are granted. Otherwise
    /// busy, and nothing is changed: nobody ever sees some of them granted and others not, and nothing is queued. The
    /// claims are exclusive and about different locks. Kind `Unsupported` where these locks cannot be had in one step,
    /// as when they are on different servers.
    fn claim_all(&self, claims: &[Claim]) -> impl Future<Output = Result<ClaimedAll>> + Send {
        let _ = claims;
        async { Err(unsupported(self.name(), "take several locks in one step")) }
    }

    /// Waits until it makes sense to claim again.
    ///
    /// # Behaviour
    /// Called after [`claim`](Backend::claim) answered busy to a queued claim. A grant or a change that came after that
    /// answer, also before this call, ends the wait at once. It is a hint: the core claims again after
    /// [`Busy::poll_after`](crate::backend::Busy::poll_after) in any case, so an engine that cannot tell may wait for ever. Dropping it loses nothing: a
    /// grant that was on its way is found by the next claim.
    ///
    /// Called as well in the pause after a queued claim failed, for its place may still be there: then only a grant ends
    /// the pause.
    fn wait(&self, claim: &Claim) -> impl Future<Output = Wake> + Send {
        let _ = claim;
        std::future::pending()
    }

    /// Whether its calls must be made inside of a tokio runtime, for its sockets and timers. Calls from elsewhere are
    /// refused then, before they reach the engine.
    fn needs_runtime(&self) -> bool {
        false
    }

    /// Returns a number for the server that serves a lock, as far as is known now; where there is only one, 0.
    ///
    /// # Behaviour
    /// The core never puts locks with different numbers into one call of [`renew`](Backend::renew), and renews and
    /// releases those of each number beside the others: a server that does not answer delays only its own locks.
    fn shard(&self, key: &Key) -> u64 {
        let _ = key;
        0
    }

    /// Renews holds.
    ///
    /// # Behaviour
    /// One answer for each lease, in their order. Ours: kept for at least [`Claim::lease`] from [`Term::start`](crate::backend::Term::start) on; a
    /// renewal that arrives late never shortens a lease. Not ours, or gone: lost, and nothing was changed. An `Err` says
    /// nothing about the hold. Where leases are on several servers, one that does not answer delays the others' answers
    /// by the engine's request timeout at the most.
    fn renew(&self, leases: &[Lease]) -> impl Future<Output = Vec<Result<Renewal>>> + Send;

    /// Ends a hold, or gives up a place in the queue.
    ///
    /// # Behaviour
    /// Ours: released, and the next live waiter gets the lock or a wake-up, exactly one of them. Not ours: nothing but
    /// the attempt's own place in the queue is touched. A claim of the same attempt that arrives later on the same
    /// connection cannot be ruled out, so the core never claims again with an attempt that it has released, nor with one
    /// that the engine has: see [`Error::with_attempt_over`].
    fn release(&self, claim: &Claim) -> impl Future<Output = Result<Release>> + Send;

    /// Returns until when a request of a released attempt may still be carried out; `None` when none can.
    ///
    /// # Behaviour
    /// Called after a [`release`](Backend::release) of `claim` was answered. A claim or an adoption that was not answered may
    /// arrive after the release, and take the lock or a place in the queue for an attempt that is over. So the keeper
    /// repeats the release with growing pauses, for the last time at that moment. Closing waits for that, within bounds.
    fn late_until(&self, claim: &Claim) -> Option<Moment> {
        let _ = claim;
        None
    }

    /// Replaces what is stored about the holder: its record becomes `lease.claim.record`.
    ///
    /// # Behaviour
    /// Ours: answers `true`; lease, token, owner and mode stay as they are. Not ours: `false`, and nothing is changed.
    fn amend(&self, lease: &Lease) -> impl Future<Output = Result<bool>> + Send {
        let _ = lease;
        async { Err(unsupported(self.name(), "change what is known about a holder")) }
    }

    /// Takes over the hold that the attempt `from` has with `token`.
    ///
    /// # Behaviour
    /// If it has: the hold is `claim`'s from then on, in the same mode and with the same token and slot, a lease of its
    /// own and its record. Whoever still believes in `from` is told that the hold is not its any more, by a pushed loss
    /// or at its next renewal, and can neither renew nor release it. If `claim` has it already: the same answer again.
    /// Otherwise kind `NotHeld`, and nothing is changed.
    fn adopt(&self, from: AttemptId, token: FencingToken, claim: &Claim) -> impl Future<Output = Result<Grant>> + Send {
        let _ = (from, token, claim);
        async { Err(unsupported(self.name(), "take a hold over")) }
    }

    /// What a child process can inherit to keep the hold of `claim` alive when this process dies.
    ///
    /// # Behaviour
    /// `None` where there is no such thing. From this call on the lock is free only when every copy is closed.
    fn descriptor(&self, claim: &Claim) -> Result<Option<OwnedFd>> {
        let _ = claim;
        Ok(None)
    }

    /// The locks whose names begin with `prefix`, in the order of their names.
    fn list(&self, prefix: &str) -> impl Future<Output = Result<Vec<LockInfo>>> + Send {
        let _ = prefix;
        async { Err(unsupported(self.name(), "list locks")) }
    }

    /// One lock; `None` when nobody holds it or waits for it.
    fn get(&self, key: &Key) -> impl Future<Output = Result<Option<LockInfo>>> + Send {
        let _ = key;
        async { Err(unsupported(self.name(), "show a lock")) }
    }

    /// Ends somebody else's hold.
    ///
    /// # Behaviour
    /// Only holds with `token` at that moment; without any, kind `NotHeld` and nothing is changed. The next waiter
    /// follows as after a release. What is not ours: kind `Foreign`.
    fn force_release(&self, key: &Key, token: FencingToken, reason: &str) -> impl Future<Output = Result<()>> + Send {
        let _ = (key, token, reason);
        async { Err(unsupported(self.name(), "release a lock by force")) }
    }

    /// Adds entries to the histories of their locks.
    ///
    /// # Behaviour
    /// One answer for each entry, in their order. Each lock keeps its last `most` entries; more may stay for a while, at
    /// most four times as many and 128. Locks themselves are never touched, and a history is none: it is not listed. An
    /// entry may be written twice.
    fn write_history(
        &self,
        entries: &[(Key, HistoryEntry)],
        most: u32,
    ) -> impl Future<Output = Vec<Result<()>>> + Send {
        let _ = most;
        let refused = entries.iter().map(|_| Err(unsupported(self.name(), "keep a history"))).collect();
        async { refused }
    }

    /// The last `most` entries of a lock's history, in any order; none where nobody has written any.
    fn history(&self, key: &Key, most: u32) -> impl Future<Output = Result<Vec<HistoryEntry>>> + Send {
        let _ = (key, most);
        async { Err(unsupported(self.name(), "keep a history")) }
    }

    /// Closes connections and sessions. Called once, after the last release.
    ///
    /// # Behaviour
    /// What is still held is left to its lease: it was kept on purpose, or its release was not answered.
    fn close(&self) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }
}

fn unsupported(engine: &str, what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("the {engine} engine cannot {what}"))
}
