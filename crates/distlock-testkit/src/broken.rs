//! Engines with one deliberate defect each. The suite must detect every one of them.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock::backend::memory::Memory;
use distlock::backend::{
    Attachment, Backend, Busy, Capabilities, Claim, Claimed, ClaimedAll, Grant, Lease, LockInfo, LockTicks, Release,
    Renewal, Term, TickNotes, Wake,
};
use distlock::{AttemptId, Clock, FencingToken, HistoryEntry, Key, Mode, OwnerId, Record, Result, Tick, TickNote};

use crate::setup::{MemorySetup, Setup};

/// A deliberate defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// Reports a release without releasing.
    NeverReleases,
    /// Releases the current hold even if another owner asks.
    IgnoresTheOwner,
    /// Reports a renewal although the hold has ended.
    RenewsAfterLoss,
    /// Grants the same token twice.
    RepeatsTokens,
    /// Grants every claim.
    GrantsEveryClaim,
    /// Treats a repeated claim as another grant.
    CountsARepeatTwice,
    /// Counts the lease from the reply instead of from the request.
    StartsTheLeaseLate,
    /// Does not renew at all.
    NeverRenews,
    /// Serves the newest waiter first.
    ForgetsTheQueue,
    /// Wakes a waiter again and again.
    WakesTheHerd,
    /// Keeps the queue place of a waiter that gave up.
    KeepsDeadWaiters,
    /// Hangs after the first claim.
    Hangs,
    /// Lists nothing.
    HidesLocks,
    /// Force-releases any hold without comparing its token.
    ForcesWithoutLooking,
    /// Lets writers share the lock like readers.
    SharesWithWriters,
    /// Lets new readers overtake a waiting writer.
    StarvesWriters,
    /// Has one slot more than the semaphore allows.
    OversellsSlots,
    /// Treats all owners as the same owner.
    LetsAnyOwnerEnter,
    /// Gives each re-entry of an owner a new token.
    CountsEntriesAsGrants,
    /// Grants a lock at once after a loss, without its delay.
    ForgetsTheDelay,
    /// Reports an adoption and leaves the hold with its old client.
    AdoptsNothing,
    /// Reports a changed label and keeps the old one.
    KeepsTheLabel,
    /// Claims several locks one by one, although it declares `claim_all`.
    TakesSomeOfSeveral,
    /// Grants a repeated `claim_all` anew each time.
    CountsSeveralTwice,
    /// Counts the permits of a smaller size by a larger one that was granted before.
    LargestSizeWins,
    /// Counts the permits of a larger size by a smaller one that was granted before.
    SmallestSizeWins,
    /// Adds a slot to a semaphore that is resized.
    OversellsResized,
    /// Refuses other sizes also to claims that resize.
    NeverResizes,
    /// Lets all claims resize, whether they say so or not.
    ResizesUnasked,
    /// Never trims a history.
    NeverForgets,
    /// Writes the note of a tick for a client that does not hold the lock.
    NotesForAnyone,
    /// Reports that a tick is noted as done, and notes nothing.
    ForgetsDoneTicks,
    /// Reports that a start is noted, and notes nothing.
    ForgetsStarts,
    /// Keeps the notes of ticks for ever.
    NeverForgetsTicks,
}

/// A memory engine with one flaw.
pub struct Broken {
    engine: Memory,
    flaw: Flaw,
    /// The claim that was granted last, shared by all clients of one set-up.
    last: Arc<Mutex<Option<Claim>>>,
    hung: AtomicBool,
    forged: AtomicU64,
    /// The number of waits so far, of all clients.
    waits: Arc<AtomicU64>,
    clock: Clock,
}

impl Broken {
    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn forge(&self, claim: &Claim) -> Claimed {
        let number = self.forged.fetch_add(1, Ordering::SeqCst) + 1_000_000;
        let term = Some(Term { start: self.clock.now(), ttl: claim.ttl });
        Claimed::Granted(Grant::new(FencingToken::new(number), term))
    }

    fn twist_claim(&self, claim: &mut Claim) {
        let mut record = Record::clone(&claim.record);
        let record = match (self.flaw, record.mode) {
            (Flaw::SharesWithWriters, Mode::Exclusive) => record.with_mode(Mode::Shared),
            (Flaw::StarvesWriters, Mode::Exclusive) => {
                claim.queue = false;
                record
            }
            (Flaw::OversellsSlots, Mode::Slot { of }) => record.with_mode(Mode::Slot { of: of + 1 }),
            (Flaw::LargestSizeWins, Mode::Slot { of }) => {
                record.with_mode(Mode::Slot { of: self.last_size().map_or(of, |last| last.max(of)) })
            }
            (Flaw::SmallestSizeWins, Mode::Slot { of }) => {
                record.with_mode(Mode::Slot { of: self.last_size().map_or(of, |last| last.min(of)) })
            }
            (Flaw::OversellsResized, Mode::Slot { of }) if record.resizes => {
                record.with_mode(Mode::Slot { of: of + 1 })
            }
            (Flaw::NeverResizes, _) => record.with_resizes(false),
            (Flaw::ResizesUnasked, _) => record.with_resizes(true),
            (Flaw::LetsAnyOwnerEnter, Mode::Reentrant) => {
                record.owner = anybody();
                record
            }
            (Flaw::CountsEntriesAsGrants, Mode::Reentrant) => record.with_mode(Mode::Shared),
            (Flaw::ForgetsTheDelay, _) => {
                claim.delay = Duration::ZERO;
                record
            }
            _ => return,
        };
        claim.record = Arc::new(record);
    }

    /// Returns the size of the permit that was granted last.
    fn last_size(&self) -> Option<u32> {
        match self.last.lock().unwrap().as_ref()?.mode() {
            Mode::Slot { of } => Some(of),
            _ => None,
        }
    }

    fn twist(&self, grant: Grant) -> Grant {
        let late = |term: Term| Term { start: term.start.after(term.ttl), ..term };
        match self.flaw {
            Flaw::RepeatsTokens => Grant { token: FencingToken::new(7), ..grant },
            Flaw::StartsTheLeaseLate => Grant { term: grant.term.map(late), ..grant },
            _ => grant,
        }
    }
}

impl Backend for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn attach(&self, attachment: Attachment) {
        // An engine that forges renewals must not report losses either.
        if !self.is(Flaw::RenewsAfterLoss) {
            self.engine.attach(attachment);
        }
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        if self.is(Flaw::Hangs) && self.hung.swap(true, Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if self.is(Flaw::GrantsEveryClaim) {
            return Ok(self.forge(claim));
        }
        // Without a queue place the order of the claims is arbitrary.
        let mut asked = claim.clone();
        asked.queue &= !self.is(Flaw::ForgetsTheQueue);
        self.twist_claim(&mut asked);
        match self.engine.claim(&asked).await? {
            Claimed::Granted(_) if self.is(Flaw::CountsARepeatTwice) => Ok(self.forge(claim)),
            Claimed::Granted(grant) => {
                *self.last.lock().unwrap() = Some(claim.clone());
                Ok(Claimed::Granted(self.twist(grant)))
            }
            Claimed::Busy(busy) if self.is(Flaw::ForgetsTheQueue) => {
                // The wake-ups must decide which waiter claims first, not the polls behind them.
                Ok(Claimed::Busy(Busy { poll_after: Some(Duration::from_secs(10)), ..busy }))
            }
            busy => Ok(busy),
        }
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        match self.flaw {
            Flaw::TakesSomeOfSeveral => {
                let mut grants = Vec::new();
                for claim in claims {
                    match self.engine.claim(claim).await? {
                        Claimed::Granted(grant) => grants.push(grant),
                        Claimed::Busy(busy) => {
                            for claim in &claims[..grants.len()] {
                                self.engine.release(claim).await?;
                            }
                            return Ok(ClaimedAll::Busy(claim.key.clone(), busy.holder));
                        }
                    }
                    // Long enough for another client to see the partial hold.
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                Ok(ClaimedAll::Granted(grants))
            }
            Flaw::CountsSeveralTwice => {
                for claim in claims {
                    self.engine.release(claim).await?;
                }
                self.engine.claim_all(claims).await
            }
            _ => self.engine.claim_all(claims).await,
        }
    }

    async fn wait(&self, claim: &Claim) -> Wake {
        match self.flaw {
            Flaw::ForgetsTheQueue => {
                // A later waiter claims sooner.
                let impatience = self.waits.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(600_u64.saturating_sub(impatience * 100).max(5))).await;
                Wake::Retry
            }
            Flaw::WakesTheHerd => {
                tokio::task::yield_now().await;
                Wake::Retry
            }
            _ => match self.engine.wait(claim).await {
                Wake::Granted(grant) => Wake::Granted(self.twist(grant)),
                Wake::Retry => Wake::Retry,
            },
        }
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let start = self.clock.now();
        let mut renewals = match self.flaw {
            Flaw::NeverRenews => Vec::new(),
            Flaw::ForgetsTheDelay => {
                let mut leases = leases.to_vec();
                leases.iter_mut().for_each(|lease| lease.claim.delay = Duration::ZERO);
                self.engine.renew(&leases).await
            }
            _ => self.engine.renew(leases).await,
        };
        if matches!(self.flaw, Flaw::NeverRenews | Flaw::RenewsAfterLoss | Flaw::GrantsEveryClaim) {
            renewals.clear();
            let forged = |lease: &Lease| Ok(Renewal::Renewed(Some(Term { start, ttl: lease.claim.ttl })));
            renewals.extend(leases.iter().map(forged));
        }
        if self.is(Flaw::StartsTheLeaseLate) {
            for renewal in renewals.iter_mut().flatten() {
                if let Renewal::Renewed(Some(term)) = renewal {
                    term.start = term.start.after(term.ttl);
                }
            }
        }
        renewals
    }

    async fn release(&self, claim: &Claim) -> Result<Release> {
        let last = self.last.lock().unwrap().clone();
        match self.flaw {
            Flaw::NeverReleases => Ok(Release::Released),
            Flaw::IgnoresTheOwner => {
                self.engine.release(claim).await?;
                match last.filter(|last| last.key == claim.key) {
                    Some(holder) => self.engine.release(&holder).await,
                    None => Ok(Release::Released),
                }
            }
            Flaw::KeepsDeadWaiters if last.is_none_or(|last| last.attempt != claim.attempt) => Ok(Release::NotOurs),
            _ => self.engine.release(claim).await,
        }
    }

    async fn amend(&self, lease: &Lease) -> Result<bool> {
        if self.is(Flaw::KeepsTheLabel) { Ok(true) } else { self.engine.amend(lease).await }
    }

    async fn adopt(&self, from: AttemptId, token: FencingToken, claim: &Claim) -> Result<Grant> {
        if self.is(Flaw::AdoptsNothing) {
            return Ok(Grant::new(token, Some(Term { start: self.clock.now(), ttl: claim.ttl })));
        }
        self.engine.adopt(from, token, claim).await
    }

    async fn write_history(&self, entries: &[(Key, HistoryEntry)], most: u32) -> Vec<Result<()>> {
        self.engine.write_history(entries, if self.is(Flaw::NeverForgets) { u32::MAX } else { most }).await
    }

    async fn history(&self, key: &Key, most: u32) -> Result<Vec<HistoryEntry>> {
        self.engine.history(key, most).await
    }

    async fn ticks(&self, key: &Key, tick: Option<&Tick>) -> Result<TickNotes> {
        self.engine.ticks(key, tick).await
    }

    async fn note_tick(&self, claim: &Claim, note: &TickNote) -> Result<bool> {
        let last = self.last.lock().unwrap().clone();
        match self.flaw {
            Flaw::NotesForAnyone => match last.filter(|last| last.key == claim.key) {
                Some(holder) => self.engine.note_tick(&holder, note).await.map(|_| true),
                None => Ok(true),
            },
            Flaw::ForgetsDoneTicks if note.is_done() => Ok(true),
            Flaw::ForgetsStarts if !note.is_done() => Ok(true),
            Flaw::NeverForgetsTicks => {
                let mut note = note.clone();
                note.forget_ms = u64::MAX;
                self.engine.note_tick(claim, &note).await
            }
            _ => self.engine.note_tick(claim, note).await,
        }
    }

    async fn list_ticks(&self, prefix: &str) -> Result<Vec<LockTicks>> {
        self.engine.list_ticks(prefix).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        if self.is(Flaw::HidesLocks) { Ok(Vec::new()) } else { self.engine.list(prefix).await }
    }

    async fn get(&self, key: &Key) -> Result<Option<LockInfo>> {
        if self.is(Flaw::HidesLocks) { Ok(None) } else { self.engine.get(key).await }
    }

    async fn force_release(&self, key: &Key, token: FencingToken, reason: &str) -> Result<()> {
        let holder = self.engine.get(key).await?.and_then(|lock| lock.holder()?.token);
        let token = holder.filter(|_| self.is(Flaw::ForcesWithoutLooking)).unwrap_or(token);
        self.engine.force_release(key, token, reason).await
    }
}

fn anybody() -> OwnerId {
    OwnerId::new("anybody").expect("a good owner")
}

/// Names a [`Flaw`] as a type, for [`BrokenSetup`].
pub trait Flawed: Send + Sync + 'static {
    /// The flaw.
    const FLAW: Flaw;
}

/// The memory engine with one flaw.
pub struct BrokenSetup<F> {
    sound: MemorySetup,
    last: Arc<Mutex<Option<Claim>>>,
    waits: Arc<AtomicU64>,
    flaw: PhantomData<F>,
}

impl<F: Flawed> Setup for BrokenSetup<F> {
    type Engine = Broken;

    async fn start() -> Self {
        BrokenSetup {
            sound: MemorySetup::start().await,
            last: Arc::default(),
            waits: Arc::default(),
            flaw: PhantomData,
        }
    }

    async fn client(&self) -> Broken {
        Broken {
            engine: self.sound.client().await,
            flaw: F::FLAW,
            last: self.last.clone(),
            hung: AtomicBool::new(false),
            forged: AtomicU64::new(0),
            waits: self.waits.clone(),
            clock: Clock::system(),
        }
    }

    fn ttl(&self) -> Duration {
        match F::FLAW {
            // These flaws show only until the lease ends, so the lease must outlast any stall of the machine.
            Flaw::NeverReleases | Flaw::StartsTheLeaseLate | Flaw::ForgetsTheDelay => Duration::from_secs(3),
            _ => Duration::from_millis(300),
        }
    }

    async fn leftovers(&self) -> Vec<String> {
        self.sound.leftovers().await
    }
}
