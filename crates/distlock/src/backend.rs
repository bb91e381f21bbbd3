//! The contract between the core and an engine.
//!
//! The core decides when to ask; an engine carries one request to where the locks live and says exactly what became of
//! it. Everything an engine does is repeatable: each request carries the attempt's random id, and the same request
//! twice does what it does once.

#[cfg(feature = "etcd")]
pub mod etcd;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redlock;

use std::fmt;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::clock::{Clock, DEFAULT_DRIFT, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::event::LossReason;
use crate::history::HistoryEntry;
use crate::key::Key;
use crate::meter::operation;
use crate::mode::Mode;
use crate::owner::{Holder, Record};
use crate::token::{AttemptId, FencingToken};

pub mod file;

/// For how long at least an engine may keep the place of a waiter that gives no sign of life, however short its lease is.
pub(crate) const SHORTEST_HEARTBEAT: Duration = Duration::from_secs(3);

/// One attempt to take a lock.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Claim {
    /// The lock.
    pub key: Key,
    /// Names this attempt, and the hold it may become.
    pub attempt: AttemptId,
    /// The lease that is asked for.
    pub ttl: Duration,
    /// For how long after a lease has run out nobody is granted the lock: the engine keeps it for
    /// [`lease`](Claim::lease), while its holder counts on `ttl` alone.
    pub delay: Duration,
    /// Whether to take a place in the queue when the lock is not free.
    pub queue: bool,
    /// What others may read about the one who asks.
    pub record: Arc<Record>,
}

impl Claim {
    /// A claim with a fresh attempt id.
    #[must_use]
    pub fn new(key: Key, ttl: Duration, queue: bool, record: Arc<Record>) -> Self {
        Claim { key, attempt: AttemptId::random(), ttl, delay: Duration::ZERO, queue, record }
    }

    /// How long the engine keeps the lock when it hears nothing more: the lease and the delay after it.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.ttl.saturating_add(self.delay)
    }

    /// Who may hold the lock beside this claim.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.record.mode
    }
}

/// What became of a [`Claim`].
#[derive(Debug)]
pub enum Claimed {
    /// The lock is ours.
    Granted(Grant),
    /// Somebody else has it, or is before us in the queue.
    Busy(Busy),
}

/// What became of several claims at once.
#[derive(Debug)]
pub enum ClaimedAll {
    /// All locks are ours; in the order of the claims.
    Granted(Vec<Grant>),
    /// Somebody else has this one, or waits for it; none was granted.
    Busy(Key, Option<Holder>),
}

/// The lock is ours.
#[derive(Debug, Clone, Copy)]
pub struct Grant {
    /// Higher than every token granted before for this lock.
    pub token: FencingToken,
    /// The lease; `None` when the engine frees the lock only when its holder is gone.
    pub term: Option<Term>,
    /// Which slot of a semaphore it is, from 0 on.
    pub slot: Option<u32>,
}

impl Grant {
    /// A grant that is not of a semaphore.
    #[must_use]
    pub fn new(token: FencingToken, term: Option<Term>) -> Self {
        Grant { token, term, slot: None }
    }
}

/// A lease as the local clock sees it.
#[derive(Debug, Clone, Copy)]
pub struct Term {
    /// The local clock just **before** the request that began or renewed the lease was written.
    pub start: Moment,
    /// Its length, as the engine granted it, without the claim's delay.
    pub ttl: Duration,
}

/// The lock is not ours.
#[derive(Debug, Clone, Default)]
pub struct Busy {
    /// Who has it, where that is known.
    pub holder: Option<Holder>,
    /// When to claim again at the latest; `None`: after the caller's retry interval.
    pub poll_after: Option<Duration>,
}

/// Why a wait ended.
#[derive(Debug)]
pub enum Wake {
    /// The lock was handed to the waiting claim.
    Granted(Grant),
    /// Something changed: claim again.
    Retry,
}

/// A hold to renew.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Lease {
    /// The claim that was granted, with the lease that is asked for now.
    pub claim: Claim,
    /// The token it was granted with.
    pub token: FencingToken,
}

impl Lease {
    /// The hold that `claim` became.
    #[must_use]
    pub fn new(claim: Claim, token: FencingToken) -> Self {
        Lease { claim, token }
    }
}

/// What became of a renewal.
#[derive(Debug, Clone)]
pub enum Renewal {
    /// The lease was renewed; `None`: it needs no renewing.
    Renewed(Option<Term>),
    /// The hold is not ours any more.
    Lost(LossReason),
}

/// What became of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// It was ours and now is not.
    Released,
    /// It was not ours. A place in the queue, if there was one, is given up.
    NotOurs,
}

/// A lock as the engine sees it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock.
    pub key: Key,
    /// Who has it, the one that got it first first; empty when it is free and somebody is about to get it.
    pub holders: Vec<Holder>,
    /// Who waits for it, the next one first.
    pub waiters: Vec<Arc<Record>>,
}

impl LockInfo {
    /// What is known about `key`.
    #[must_use]
    pub fn new(key: Key, holders: impl IntoIterator<Item = Holder>, waiters: Vec<Arc<Record>>) -> Self {
        LockInfo { key, holders: holders.into_iter().collect(), waiters }
    }

    /// Who has it; of several, the one that got it first.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        self.holders.first()
    }
}

/// How far a lock reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// The tasks and threads of one process.
    Process,
    /// The processes of one machine.
    Host,
    /// Every machine that reaches the same servers.
    Cluster,
}

/// What an engine can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// How far its locks reach.
    pub scope: Scope,
    /// Waiters are served in the order in which they came.
    pub fair: bool,
    /// A hold ends by itself when it is not renewed.
    pub leases: bool,
    /// A waiter is told when it is its turn, not only by polling.
    pub wakes: bool,
    /// Holders and waiters can be listed.
    pub inspects: bool,
    /// A hold can be ended by somebody else.
    pub breaks: bool,
    /// Locks can be shared by readers: [`Mode::Shared`].
    pub shares: bool,
    /// There are semaphores: [`Mode::Slot`].
    pub slots: bool,
    /// An owner can enter its lock again from another process: [`Mode::Reentrant`].
    pub reenters: bool,
    /// A lock can be kept for a while after its lease has run out: [`Claim::delay`].
    pub delays: bool,
    /// What is stored about a holder can be changed: [`Backend::amend`].
    pub amends: bool,
    /// A hold can be taken over by who knows its attempt id: [`Backend::adopt`].
    pub adopts: bool,
    /// Several locks can be taken in one step: [`Backend::claim_all`].
    pub gathers: bool,
    /// What happens to locks can be kept with them: [`Backend::write_history`].
    pub history: bool,
}

impl Capabilities {
    /// Locks of this reach, and nothing more.
    #[must_use]
    pub fn new(scope: Scope) -> Self {
        Capabilities {
            scope,
            fair: false,
            leases: false,
            wakes: false,
            inspects: false,
            breaks: false,
            shares: false,
            slots: false,
            reenters: false,
            delays: false,
            amends: false,
            adopts: false,
            gathers: false,
            history: false,
        }
    }

    /// Whether locks can be asked for in `mode`.
    #[must_use]
    pub fn allows(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => true,
            Mode::Shared => self.shares,
            Mode::Reentrant => self.reenters,
            Mode::Slot { .. } => self.slots,
        }
    }
}

/// Where an engine says that a hold is gone before anybody asked: a watch saw it, or the server said so.
#[derive(Debug, Clone)]
pub struct Losses(mpsc::UnboundedSender<(AttemptId, LossReason)>);

impl Losses {
    // Unbounded, yet never longer than the holds: an engine tells each loss once.
    pub(crate) fn channel() -> (Losses, mpsc::UnboundedReceiver<(AttemptId, LossReason)>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Losses(sender), receiver)
    }

    /// The hold of `attempt` is gone.
    pub fn push(&self, attempt: AttemptId, reason: LossReason) {
        // Without a keeper there is no guard left to tell.
        let _ = self.0.send((attempt, reason));
    }
}

/// What an engine gets from the locker family that it serves.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Attachment {
    /// Takes losses that the engine learns of by itself.
    pub losses: Losses,
    /// The keeper's runtime: for what must go on while the application blocks its own, or has shut it down.
    pub runtime: Handle,
    /// The runtime in which the locker was made, if it was in one. Whatever is closer to the callers runs faster there,
    /// but it may block or end at any time.
    pub home: Option<Handle>,
    /// The family's clock, which [`Term::start`] is read from.
    pub clock: Clock,
    /// How much the rates of this clock and the server's may differ.
    pub drift: f64,
}

impl Attachment {
    /// For an engine that is used without a locker, as in its own tests: nobody hears of pushed losses.
    #[must_use]
    pub fn standalone(runtime: &Handle) -> Self {
        let (losses, _) = Losses::channel();
        Attachment { losses, runtime: runtime.clone(), home: None, clock: Clock::system(), drift: DEFAULT_DRIFT }
    }
}

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
    ///   does not [agree](Mode::agrees_with) with those who hold or wait is refused, kind `InvalidInput`
    ///   ([`Mode::disagrees`]).
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
    /// [`Busy::poll_after`] in any case, so an engine that cannot tell may wait for ever. Dropping it loses nothing: a
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
    /// One answer for each lease, in their order. Ours: kept for at least [`Claim::lease`] from [`Term::start`] on; a
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

pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// [`Backend`] with its futures boxed, so that a locker needs no type parameter.
pub(crate) trait DynBackend: Send + Sync + 'static {
    fn name(&self) -> &'static str;
    fn capabilities(&self) -> Capabilities;
    fn attach(&self, attachment: Attachment);
    fn ready(&self) -> BoxFuture<'_, Result<()>>;
    fn claim<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Claimed>>;
    fn claim_all<'a>(&'a self, claims: &'a [Claim]) -> BoxFuture<'a, Result<ClaimedAll>>;
    fn wait<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Wake>;
    fn needs_runtime(&self) -> bool;
    fn shard(&self, key: &Key) -> u64;
    fn renew<'a>(&'a self, leases: &'a [Lease]) -> BoxFuture<'a, Vec<Result<Renewal>>>;
    fn release<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Release>>;
    fn amend<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<bool>>;
    fn adopt<'a>(&'a self, from: AttemptId, token: FencingToken, claim: &'a Claim) -> BoxFuture<'a, Result<Grant>>;
    fn descriptor(&self, claim: &Claim) -> Result<Option<OwnedFd>>;
    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Vec<LockInfo>>>;
    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<LockInfo>>>;
    fn force_release<'a>(&'a self, key: &'a Key, token: FencingToken, reason: &'a str) -> BoxFuture<'a, Result<()>>;
    fn write_history<'a>(&'a self, entries: &'a [(Key, HistoryEntry)], most: u32) -> BoxFuture<'a, Vec<Result<()>>>;
    fn history<'a>(&'a self, key: &'a Key, most: u32) -> BoxFuture<'a, Result<Vec<HistoryEntry>>>;
    fn close(&self) -> BoxFuture<'_, Result<()>>;
}

impl<B: Backend> DynBackend for B {
    fn name(&self) -> &'static str {
        Backend::name(self)
    }
    fn capabilities(&self) -> Capabilities {
        Backend::capabilities(self)
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
    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(Backend::close(self))
    }
}

impl fmt::Debug for dyn DynBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
