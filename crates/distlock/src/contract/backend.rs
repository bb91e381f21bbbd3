//! The trait that every engine implements.

use std::future::Future;
use std::os::fd::OwnedFd;

use crate::contract::attachment::Attachment;
use crate::contract::capabilities::Capabilities;
use crate::contract::claim::{Claim, Claimed, ClaimedAll, Wake};
use crate::contract::grant::Grant;
use crate::contract::lease::{Lease, Release, Renewal};
use crate::contract::lock_info::LockInfo;
use crate::contract::ticks::{LockTicks, TickNotes};
use crate::types::clock::{Clock, Moment};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::history::HistoryEntry;
use crate::types::key::Key;
use crate::types::tick::{Tick, TickNote};
use crate::types::token::{AttemptId, FencingToken};

/// An engine.
///
/// An `Err` of kind `Unknown` means that the request may have been applied; any other kind means that it was not.
/// Every call returns in bounded time: an engine puts a timeout on each of its requests. Every future may be dropped
/// at any await. The request then counts as unknown, and the core withdraws it with [`release`](Backend::release).
pub trait Backend: Send + Sync + 'static {
    /// Returns the engine's name in logs and metrics.
    fn name(&self) -> &'static str;

    /// Returns what the engine can do.
    fn capabilities(&self) -> Capabilities;

    /// Returns the clock that the engine's leases run by, if that is not the machine's; `None` if it is.
    ///
    /// # Behaviour
    /// Called before [`attach`](Backend::attach). The locker has this clock too, unless its builder was given another.
    fn clock(&self) -> Option<Clock> {
        None
    }

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
    /// Called when a locker is made from a URL or a configuration, so that an unreachable server is an error at that
    /// point and not at the first lock. Returns within the engine's dial timeout, with kind `Unavailable`, `Auth` or
    /// `Config`.
    fn ready(&self) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }

    /// Claims the lock.
    ///
    /// # Behaviour
    /// If the lock is free and no live waiter is before this claim, it is granted with a token higher than all
    /// earlier ones. If this attempt holds it already, it is granted again with the **same** token and a fresh lease.
    /// Otherwise the claim is busy. With `claim.queue` the attempt then has a place in the queue; claiming again
    /// keeps that place and is the waiter's heartbeat. Without `claim.queue` a busy claim stores nothing. Data that
    /// is not in the engine's own format is never changed.
    ///
    /// Whether the lock is free for a claim depends on [`Claim::mode`]. The core sends only modes that
    /// [`capabilities`](Backend::capabilities) allow:
    /// - `Exclusive`: the lock has no holder.
    /// - `Shared`: all holders are shared. A reader behind a waiting writer waits; adjacent readers at the head of
    ///   the queue enter together. Its token lies between those of the exclusive holds before it and after it.
    /// - `Slot { of }`: the lock has fewer than `of` holders. The grant has the number of the lowest free slot. A
    ///   claim that does not [agree](crate::Mode::agrees_with) with the holders and waiters is refused with kind
    ///   `InvalidInput` ([`Mode::disagrees`](crate::Mode::disagrees)). Claims for different numbers agree if all of
    ///   them [resize](crate::Record::resizes): the number of each counts for itself alone. The refusal may
    ///   come as late as the claim's turn if only waiters do not agree with it.
    /// - `Reentrant`: the lock has no holder, or all holders are claims of the same owner in this mode. A re-entry
    ///   gets the **token of the first** claim and does not queue. Each claim has its own lease; the lock is free
    ///   when the last of them is released or expired.
    fn claim(&self, claim: &Claim) -> impl Future<Output = Result<Claimed>> + Send;

    /// Claims several locks in one step.
    ///
    /// # Behaviour
    /// If each lock is free, as for [`claim`](Backend::claim), or held by its claim's attempt already, all are
    /// granted. Otherwise the reply is busy and nothing is changed or queued: no client ever sees some of them
    /// granted and others not. The claims are exclusive and have different keys. Kind `Unsupported` if these locks
    /// cannot be granted in one step, for example because they are on different servers.
    fn claim_all(&self, claims: &[Claim]) -> impl Future<Output = Result<ClaimedAll>> + Send {
        let _ = claims;
        async { Err(unsupported(self.name(), "take several locks in one step")) }
    }

    /// Waits until the claim may succeed.
    ///
    /// # Behaviour
    /// Called after [`claim`](Backend::claim) returned busy for a queued claim. A grant or a change after that reply
    /// ends the wait at once, even if it came before this call. It is a hint: the core claims again after
    /// [`Busy::poll_after`](crate::backend::Busy::poll_after) in any case, so an engine without notifications may
    /// wait forever. Dropping the future loses nothing: the next claim returns a grant that was in flight.
    ///
    /// Also called in the pause after a queued claim failed, because its place may still exist. Then only a grant
    /// ends the pause.
    fn wait(&self, claim: &Claim) -> impl Future<Output = Wake> + Send {
        let _ = claim;
        std::future::pending()
    }

    /// Returns whether the engine's calls must be made inside a tokio runtime, for its sockets and timers. If so, the
    /// core refuses calls from outside a runtime before they reach the engine.
    fn needs_runtime(&self) -> bool {
        false
    }

    /// Returns the number of the server that stores a lock, as far as the engine knows; 0 if there is only one
    /// server.
    ///
    /// # Behaviour
    /// The core never puts locks with different numbers into one call of [`renew`](Backend::renew), and handles each
    /// number concurrently: a server that does not reply delays only its own locks.
    fn shard(&self, key: &Key) -> u64 {
        let _ = key;
        0
    }

    /// Renews holds.
    ///
    /// # Behaviour
    /// Returns one result per lease, in their order. A lease of a hold that exists is kept for at least
    /// [`Claim::lease`] from [`Term::start`](crate::backend::Term::start) on; a renewal that arrives late never
    /// shortens a lease. If the hold is gone or another attempt's, the result is `Lost` and nothing is changed. An
    /// `Err` says nothing about the hold. If leases are on several servers, a server that does not reply delays the
    /// results of the others by at most the engine's request timeout.
    fn renew(&self, leases: &[Lease]) -> impl Future<Output = Vec<Result<Renewal>>> + Send;

    /// Ends a hold, or withdraws a queued claim.
    ///
    /// # Behaviour
    /// If the attempt holds the lock, it is released, and exactly one live waiter, the next, gets the lock or a
    /// wake-up. If not, only the attempt's own place in the queue is removed. A claim of the same attempt may still
    /// arrive later, so the core never claims again with an attempt that it has released, nor with one that the
    /// engine has released: see [`Error::with_attempt_over`].
    fn release(&self, claim: &Claim) -> impl Future<Output = Result<Release>> + Send;

    /// Returns until when something of an attempt that is over may be left or arrive; `None` when nothing can.
    ///
    /// # Behaviour
    /// Called after a [`release`](Backend::release) of `claim` was answered. A claim or an adoption that was not answered may
    /// arrive after the release, and take the lock or a place in the queue for an attempt that is over; a server that was
    /// out of reach may still have the hold. So the keeper repeats the release with growing pauses, for the last time at
    /// that moment. Closing waits for that, within bounds.
    ///
    /// Also called after a claim was refused, and after a renewal said that a hold is gone: if it returns a moment, the
    /// core releases the attempt although the engine has said that it does not hold the lock.
    fn late_until(&self, claim: &Claim) -> Option<Moment> {
        let _ = claim;
        None
    }

    /// Replaces the stored record of a holder by `lease.claim.record`.
    ///
    /// # Behaviour
    /// Returns `true` if the attempt holds the lock; lease, token, owner and mode stay as they are. Otherwise returns
    /// `false` and changes nothing.
    fn amend(&self, lease: &Lease) -> impl Future<Output = Result<bool>> + Send {
        let _ = lease;
        async { Err(unsupported(self.name(), "change what is known about a holder")) }
    }

    /// Takes over the hold that the attempt `from` has with `token`.
    ///
    /// # Behaviour
    /// If `from` holds the lock with `token`, the hold becomes `claim`'s: same mode, token and slot, with `claim`'s
    /// lease and record. The client of `from` learns of it by a pushed loss or at its next renewal, and can neither
    /// renew nor release the hold. If `claim` has the hold already, the result is the same again. Otherwise kind
    /// `NotHeld`, and nothing is changed.
    fn adopt(&self, from: AttemptId, token: FencingToken, claim: &Claim) -> impl Future<Output = Result<Grant>> + Send {
        let _ = (from, token, claim);
        async { Err(unsupported(self.name(), "take a hold over")) }
    }

    /// Returns a descriptor that a child process can inherit to keep the hold of `claim` when this process dies.
    ///
    /// # Behaviour
    /// `None` if the engine has none. From this call on the lock is free only when every copy is closed.
    fn descriptor(&self, claim: &Claim) -> Result<Option<OwnedFd>> {
        let _ = claim;
        Ok(None)
    }

    /// Returns the locks whose names begin with `prefix`, in the order of their names.
    fn list(&self, prefix: &str) -> impl Future<Output = Result<Vec<LockInfo>>> + Send {
        let _ = prefix;
        async { Err(unsupported(self.name(), "list locks")) }
    }

    /// Returns one lock; `None` if it has neither holder nor waiter.
    fn get(&self, key: &Key) -> impl Future<Output = Result<Option<LockInfo>>> + Send {
        let _ = key;
        async { Err(unsupported(self.name(), "show a lock")) }
    }

    /// Ends another owner's hold.
    ///
    /// # Behaviour
    /// Ends only holds that have `token` at that moment; if there is none, kind `NotHeld` and nothing is changed. The
    /// next waiter follows as after a release. Kind `Foreign` if the data is not in the engine's own format.
    fn force_release(&self, key: &Key, token: FencingToken, reason: &str) -> impl Future<Output = Result<()>> + Send {
        let _ = (key, token, reason);
        async { Err(unsupported(self.name(), "release a lock by force")) }
    }

    /// Adds entries to the histories of their locks.
    ///
    /// # Behaviour
    /// Returns one result per entry, in their order. Each lock keeps its last `most` entries; for a while it may keep
    /// up to four times as many plus 128. Writing never changes a lock, and a history is not listed as a lock. An
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

    /// Returns the last `most` entries of a lock's history, in any order; empty if it has none.
    fn history(&self, key: &Key, most: u32) -> impl Future<Output = Result<Vec<HistoryEntry>>> + Send {
        let _ = (key, most);
        async { Err(unsupported(self.name(), "keep a history")) }
    }

    /// Returns the notes of a lock's ticks, or of one of them, and the time by the engine's clock.
    ///
    /// # Behaviour
    /// A note that was [written](Backend::note_tick) before this call is returned until its time to be forgotten.
    /// Notes are not locks: no listing of locks shows them, and a lock with notes alone is free.
    fn ticks(&self, key: &Key, tick: Option<&Tick>) -> impl Future<Output = Result<TickNotes>> + Send {
        let _ = (key, tick);
        async { Err(unsupported(self.name(), "keep notes of ticks")) }
    }

    /// Writes the note of a tick beside the lock that `claim` holds, in place of the tick's last one.
    ///
    /// # Behaviour
    /// Returns `true` if the note is stored: the attempt holds the lock at that moment, or exactly this note is stored
    /// already, by a request whose reply was lost. Otherwise returns `false` and changes nothing; also where the note
    /// [may not replace](crate::TickNote::may_replace) the stored one. The check and the write are one step: no
    /// other attempt is granted the lock in between. Kind `InvalidInput` if the lock has notes of
    /// [`MAX_TICKS`](crate::MAX_TICKS) other ticks that are not forgotten yet.
    fn note_tick(&self, claim: &Claim, note: &TickNote) -> impl Future<Output = Result<bool>> + Send {
        let _ = (claim, note);
        async { Err(unsupported(self.name(), "keep notes of ticks")) }
    }

    /// Returns the notes of all locks whose names begin with `prefix`, in the order of their names.
    fn list_ticks(&self, prefix: &str) -> impl Future<Output = Result<Vec<LockTicks>>> + Send {
        let _ = prefix;
        async { Err(unsupported(self.name(), "keep notes of ticks")) }
    }

    /// Closes all connections. Called once, after the last release.
    ///
    /// # Behaviour
    /// Remaining holds are left to their leases: they were kept on purpose, or their release had no reply.
    fn close(&self) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }
}

fn unsupported(engine: &str, what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("the {engine} engine cannot {what}"))
}
