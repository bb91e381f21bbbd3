//! The keeper: one task, on its own thread, that looks after all holds of a locker family.
//!
//! It renews holds in batches, the nearest deadline first, one server per batch. It notices leases that end, tells guards
//! of losses, and releases what dropped guards and dropped futures leave behind. Because it has its own thread, an
//! application that blocks its runtime or shuts it down keeps its locks.

use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{Id, JoinSet};
use tokio::time::timeout;

use crate::contract::{Attachment, Lease, Losses, Release, Renewal};
use crate::core::family::{Core, Family};
use crate::core::history::KeyedEntry;
use crate::core::hold::Hold;
use crate::core::holds::Due;
use crate::core::pending_release::PendingRelease;
use crate::core::release;
use crate::core::shards::Shards;
use crate::types::activity::Tracker;
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::{EventKind, LossReason};
use crate::types::key::Key;
use crate::types::span::Span;
use crate::types::sync::{mpsc, thread};
use crate::types::token::AttemptId;

/// How long a renewal call counts against its server's limit of concurrent calls. A slower call goes on without counting,
/// so that it does not delay other calls.
const RENEWAL_CALL_LIMIT: Duration = Duration::from_millis(100);
/// How long to wait for a late reply to a renewal: it counts if it arrives before the lease ends.
const LATE_REPLY_LIMIT: Duration = Duration::from_secs(60);
/// How long one release, or closing the engine, may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long one write of histories may take; when closing, [`CALL_TIMEOUT`].
const HISTORY_TIMEOUT: Duration = Duration::from_secs(10);

type Pushed = UnboundedReceiver<(AttemptId, LossReason)>;

/// Starts a family: the keeper of `core`, with the engine attached to it.
pub(crate) fn start(core: Core) -> Result<Arc<Family>> {
    let core = Arc::new(core);
    keep(&core)?;
    Ok(Family::of(core))
}

fn keep(core: &Arc<Core>) -> Result<()> {
    #[cfg(feature = "simulation")]
    if core.clock.is_of_runtime() {
        start_here(core);
        return Ok(());
    }
    let failed = |e: std::io::Error| Error::new(ErrorKind::Backend, "cannot start the keeper").with_source(e);
    let (give, given) = mpsc::channel::<(Runtime, Pushed, Tracker)>();
    let keeps = core.clone();
    // The thread starts before the runtime exists and drops it: a runtime must not be dropped inside another one.
    let run = move || {
        if let Ok((runtime, pushed, tracker)) = given.recv() {
            run_on(&runtime, &keeps, pushed, tracker);
        }
    };
    thread::Builder::new().name("distlock-keeper".into()).spawn(run).map_err(failed)?;
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (losses, pushed) = Losses::channel();
    let (handle, caller_runtime, clock) = (runtime.handle().clone(), Handle::try_current().ok(), core.clock.clone());
    #[cfg(feature = "blocking")]
    core.waits.begin_on(handle.clone());
    core.backend.attach(Attachment { losses, keeper_runtime: handle, caller_runtime, clock, drift: core.drift });
    let _ = give.send((runtime, pushed, core.clock.tracker()));
    Ok(())
}

/// Starts the keeper as a task of this runtime, whose time is the family's.
#[cfg(feature = "simulation")]
fn start_here(core: &Arc<Core>) {
    let (losses, pushed) = Losses::channel();
    let (handle, clock) = (Handle::current(), core.clock.clone());
    core.backend.attach(Attachment {
        losses,
        keeper_runtime: handle.clone(),
        caller_runtime: Some(handle),
        clock,
        drift: core.drift,
    });
    let keeps = core.clone();
    tokio::spawn(async move {
        let unconfirmed = Keeper::new(keeps.clone()).run(pushed).await;
        let _ = keeps.closed.set(unconfirmed);
    });
}

fn run_on(runtime: &Runtime, core: &Arc<Core>, pushed: Pushed, tracker: Tracker) {
    let mut keeper = Keeper::new(core.clone());
    let end = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(tracker.run(pin!(keeper.run(pushed))))));
    // Without a keeper nothing is renewed: guards and waiters must be told, and close() must return.
    let unconfirmed = end.unwrap_or_else(|_| {
        tracing::error!(target: "distlock", "the keeper failed: every lock of this locker is lost");
        let now = core.clock.now();
        let _ = core.closing.set(());
        core.holds.close(now).iter().for_each(|hold| core.report_loss(hold));
        let left = core.holds.take_work(now).releases;
        core.holds.finish(Moment::NEVER);
        left.into_iter().filter_map(|release| leave_to_its_lease(core, About::of(&release))).collect()
    });
    let _ = core.closed.set(unconfirmed);
    drop(tracker);
    // A timer of a runtime that is gone would panic in the thread that waits for it.
    #[cfg(feature = "blocking")]
    runtime.block_on(core.waits.end());
}

struct Keeper {
    core: Arc<Core>,
    /// Renewals and releases to start.
    shards: Shards,
    renewals: JoinSet<()>,
    /// Releases that are not due yet: they failed, or a claim may arrive after them.
    later: BTreeMap<(Moment, AttemptId), PendingRelease>,
    releases: JoinSet<Released>,
    /// The write of histories in flight, if there is one.
    writing: JoinSet<()>,
    /// The lock and hold of each task in `releases`, for tasks that panic or do not end.
    releasing: HashMap<Id, About>,
    /// Locks whose release was not confirmed before the family closed.
    unconfirmed: Vec<Key>,
}

/// The lock and hold that a release ends.
struct About {
    key: Key,
    /// The hold whose end is not reported yet.
    hold: Option<Arc<Hold>>,
    is_confirmed: bool,
}

impl About {
    fn of(release: &PendingRelease) -> About {
        let PendingRelease { claim, hold, is_confirmed, .. } = release;
        About { key: claim.key.clone(), hold: hold.clone(), is_confirmed: *is_confirmed }
    }
}

/// The outcome of one try of a release.
enum Released {
    Answered,
    /// To be tried again.
    Again(PendingRelease),
    /// Never to be tried again.
    GivenUp(Key),
}

impl Keeper {
    fn new(core: Arc<Core>) -> Self {
        Keeper {
            core,
            shards: Shards::default(),
            renewals: JoinSet::new(),
            later: BTreeMap::new(),
            releases: JoinSet::new(),
            writing: JoinSet::new(),
            releasing: HashMap::new(),
            unconfirmed: Vec::new(),
        }
    }

    /// Looks after the holds until the family closes. Returns the locks whose release was not confirmed.
    async fn run(&mut self, mut pushed: Pushed) -> Vec<Key> {
        let core = self.core.clone();
        loop {
            let now = core.clock.now();
            let closed_by = self.look(now);
            if closed_by.is_some_and(|by| self.is_idle() || now >= by) && core.holds.finish(now) {
                break;
            }
            let retry = self.later.keys().next().map_or(Moment::NEVER, |(at, _)| *at);
            let next = core.holds.plan().min(retry).min(closed_by.unwrap_or(Moment::NEVER)).min(self.next_writing());
            tokio::select! {
                // Losses first. They cannot starve the other branches: each iteration starts everything that is due.
                biased;
                Some((attempt, reason)) = pushed.recv() => {
                    if let Some(hold) = core.holds.lose(attempt, reason, core.clock.now()) {
                        retire(&core, &hold);
                    }
                }
                Some(_) = self.renewals.join_next() => {}
                Some(_) = self.writing.join_next() => {}
                Some(done) = self.releases.join_next_with_id() => match done {
                    Ok((id, released)) => self.released(id, released),
                    Err(panicked) => self.abandon(panicked.id()),
                },
                () = core.holds.wake.notified() => {}
                () = core.clock.sleep_until(next) => {}
            }
        }
        let _ = timeout(CALL_TIMEOUT, self.write_the_rest()).await;
        if !matches!(timeout(CALL_TIMEOUT, core.backend.close()).await, Ok(Ok(()))) {
            tracing::warn!(target: "distlock", { lock.backend = core.reporter.backend }, "the engine did not close");
        }
        self.leave_undone().await;
        std::mem::take(&mut self.unconfirmed)
    }

    /// Starts everything that is due. If the family is closed, returns when to give up on the rest.
    fn look(&mut self, now: Moment) -> Option<Moment> {
        let work = self.core.holds.take_work(now);
        for due in work.due {
            match due {
                Due::Lost(hold) => retire(&self.core, &hold),
                Due::Renewal { hold, end, unanswered } => {
                    if unanswered > 0 {
                        report_failure(&self.core, &hold, &Error::unknown("the renewal was not answered in time"));
                    }
                    let shard = self.core.backend.shard(hold.key());
                    self.shards.renew(shard, end, hold.claim.attempt, unanswered);
                }
            }
        }
        self.start_renewals();
        work.releases.into_iter().for_each(|release| self.add_release(release, now));
        while let Some(due) = self.later.first_entry().filter(|release| release.key().0 <= now) {
            let release = due.remove();
            self.add_release(release, now);
        }
        self.start_releases(now);
        self.shards.forget_idle();
        self.start_writing(now);
        work.closed_by
    }

    fn is_idle(&self) -> bool {
        !self.shards.has_releases() && self.later.is_empty() && self.releases.is_empty()
    }

    fn add_release(&mut self, release: PendingRelease, now: Moment) {
        if release.due > now {
            self.later.insert((release.due, release.claim.attempt), release);
        } else {
            self.shards.add_release(self.core.backend.shard(&release.claim.key), release);
        }
    }

    fn start_renewals(&mut self) {
        while let Some((attempts, slot)) = self.shards.next_batch() {
            let batch = self.core.holds.get_all(&attempts);
            if !batch.is_empty() {
                let (core, tracker) = (self.core.clone(), self.core.clock.tracker());
                self.renewals.spawn(async move { tracker.run(pin!(renew(core, batch, slot))).await });
            }
        }
    }

    fn start_releases(&mut self, now: Moment) {
        while let Some((pending, slot)) = self.shards.next_release() {
            if pending.is_over(now) {
                report_end(&self.core, pending.hold.as_deref(), Some(&LossReason::Expired));
                continue;
            }
            let about = About::of(&pending);
            let (core, tracker) = (self.core.clone(), self.core.clock.tracker());
            let task = self.releases.spawn(async move { tracker.run(pin!(release(core, pending, slot))).await });
            self.releasing.insert(task.id(), about);
        }
    }

    fn start_writing(&mut self, now: Moment) {
        let Some(history) = self.core.history.as_ref().filter(|_| self.writing.is_empty()) else { return };
        let batch = history.take(now);
        if !batch.is_empty() {
            let (core, tracker) = (self.core.clone(), self.core.clock.tracker());
            self.writing.spawn(async move { tracker.run(pin!(write(core, batch))).await });
        }
    }

    /// Returns when to write histories next; never while a write is in flight, whose end wakes the loop.
    fn next_writing(&self) -> Moment {
        let history = self.core.history.as_ref().filter(|_| self.writing.is_empty());
        history.map_or(Moment::NEVER, |history| history.due())
    }

    /// Writes the histories that are left when the family closes.
    async fn write_the_rest(&mut self) {
        while self.writing.join_next().await.is_some() {}
        let Some(history) = &self.core.history else { return };
        loop {
            let batch = history.take(Moment::NEVER);
            if batch.is_empty() {
                return;
            }
            self.core.backend.write_history(&batch, history.most).await;
        }
    }

    fn released(&mut self, id: Id, released: Released) {
        self.releasing.remove(&id);
        match released {
            Released::Answered => {}
            Released::GivenUp(key) if self.core.holds.is_closed() => self.unconfirmed.push(key),
            Released::GivenUp(_) => {}
            Released::Again(release) => {
                self.later.insert((release.due, release.claim.attempt), release);
            }
        }
    }

    /// Gives up a release whose task did not end.
    fn abandon(&mut self, task: Id) {
        if let Some(about) = self.releasing.remove(&task) {
            self.unconfirmed.extend(leave_to_its_lease(&self.core, about));
        }
    }

    /// Reports the releases that were not confirmed when the time for closing is over. Their leases end them.
    async fn leave_undone(&mut self) {
        while let Ok(Some(done)) = timeout(Duration::ZERO, self.releases.join_next_with_id()).await {
            match done {
                Ok((id, released)) => self.released(id, released),
                Err(panicked) => self.abandon(panicked.id()),
            }
        }
        // Aborts the rest, so that none of them reports a second end.
        self.releases = JoinSet::new();
        for task in self.releasing.keys().copied().collect::<Vec<_>>() {
            self.abandon(task);
        }
        for release in self.shards.take_releases().chain(std::mem::take(&mut self.later).into_values()) {
            self.unconfirmed.extend(leave_to_its_lease(&self.core, About::of(&release)));
        }
    }
}

/// Reports the end of a hold whose release is not confirmed before the family ends. Returns its lock, unless an earlier
/// release of it was confirmed.
fn leave_to_its_lease(core: &Core, about: About) -> Option<Key> {
    report_end(core, about.hold.as_deref(), Some(&LossReason::Closed));
    (!about.is_confirmed).then_some(about.key)
}

/// Removes a lost hold from the table, reports the loss and releases what the engine may still keep. Does nothing if the
/// hold was removed before.
pub(crate) fn retire(core: &Core, hold: &Arc<Hold>) {
    if core.holds.get(hold.claim.attempt).is_none() {
        return;
    }
    let is_parked = hold.is_parked();
    if !is_parked {
        // Reported before it is removed: the owner's next acquisition finds it in the table and reports it first.
        core.report_loss(hold);
    }
    if core.holds.remove(hold.claim.attempt).is_none() {
        return;
    }
    let now = core.clock.now();
    // The owner of a parked hold has unlocked it before: this is its release.
    let release = if is_parked { Some(PendingRelease::end(hold, now)) } else { PendingRelease::leave(hold, now) };
    if let Some(release) = release.or_else(|| core.release_of_gone(hold, now)) {
        core.holds.hand_over(release);
    }
}

async fn renew(core: Arc<Core>, batch: Vec<Arc<Hold>>, slot: OwnedSemaphorePermit) {
    let leases: Vec<Lease> = batch.iter().map(|hold| hold.lease()).collect();
    let span = Span::renew(core.reporter.backend, leases.len());
    let mut call = pin!(span.around(core.backend.renew(&leases)));
    let outcomes = match core.clock.timeout(RENEWAL_CALL_LIMIT, call.as_mut()).await {
        Some(outcomes) => outcomes,
        None => {
            // Frees the place for other calls; the reply still counts if it arrives in time.
            drop(slot);
            core.holds.wake.notify_one();
            let Some(outcomes) = core.clock.timeout(LATE_REPLY_LIMIT, call).await else { return };
            outcomes
        }
    };
    apply_renewals(&core, &batch, outcomes);
}

/// Applies the outcomes of a renewal call.
fn apply_renewals(core: &Core, batch: &[Arc<Hold>], outcomes: Vec<Result<Renewal>>) {
    let (now, mut outcomes, mut renewed) = (core.clock.now(), outcomes.into_iter(), Vec::with_capacity(batch.len()));
    for hold in batch {
        let missing = || Err(Error::new(ErrorKind::Backend, "the engine returned no outcome for this lock"));
        match outcomes.next().unwrap_or_else(missing) {
            Ok(Renewal::Renewed(term)) => match hold.keeper_renewed(term, now) {
                Some((margin, look)) => renewed.push((hold, margin, look)),
                None => retire(core, hold),
            },
            Ok(Renewal::Lost(reason)) => {
                hold.lose(reason, now);
                retire(core, hold);
            }
            Err(error) => renewal_failed(core, hold, &error, now),
        }
    }
    core.holds.look_again_at(renewed.iter().map(|(hold, _, look)| (hold.claim.attempt, *look)));
    for (hold, margin, _) in renewed {
        core.report_later(hold, EventKind::Renewed { margin });
    }
}

fn renewal_failed(core: &Core, hold: &Arc<Hold>, error: &Error, now: Moment) {
    hold.answered();
    let failures = report_failure(core, hold, error);
    let pause = retry_pause(failures, hold.left(now));
    core.holds.look_again(hold, Some(now.after_about(pause)), now);
    if hold.is_lost(now) {
        retire(core, hold);
    }
}

/// Counts and reports a failed renewal. Returns how many have failed in a row.
fn report_failure(core: &Core, hold: &Hold, error: &Error) -> u32 {
    let failures = hold.renewal_failed();
    let left = hold.left(core.clock.now());
    core.report_later(hold, EventKind::RenewalFailed { error, left, failures });
    failures
}

/// The first retry follows at once; later ones are more frequent the nearer the deadline is.
fn retry_pause(failures: u32, left: Option<Duration>) -> Duration {
    const LONGEST: Duration = Duration::from_millis(250);
    match left {
        _ if failures == 1 => Duration::ZERO,
        Some(left) => (left / 10).clamp(Duration::from_millis(1), LONGEST),
        None => LONGEST,
    }
}

/// Tries a release once.
async fn release(core: Arc<Core>, pending: PendingRelease, _slot: OwnedSemaphorePermit) -> Released {
    let unanswered = || Err(Error::unknown("the release was not answered"));
    let sent = core.clock.now();
    let answer = core.clock.timeout(CALL_TIMEOUT, pin!(release::send(&core, &pending.claim, sent))).await;
    match answer.unwrap_or_else(unanswered) {
        Ok((outcome, late_until)) => {
            if let Some(until) = late_until.filter(|until| !is_left_to_its_lease(&core, &pending, *until)) {
                core.holds.hand_over(pending.repeat(until, core.clock.now()));
            }
            // After a release without a reply, "not ours" means that it was carried out.
            let lost = outcome == Release::NotOurs && !pending.unanswered;
            report_end(&core, pending.hold.as_deref(), lost.then_some(&LossReason::Revoked));
            Released::Answered
        }
        Err(error)
            if pending.is_confirmed && (error.kind() == ErrorKind::Closed || core.clock.now() >= pending.until) =>
        {
            tracing::debug!(target: "distlock", %error, "a claim that may arrive late was not released again");
            Released::Answered
        }
        Err(error) if error.is_retryable() || pending.is_confirmed => {
            Released::Again(pending.retry(&error, core.clock.now()))
        }
        Err(error) => {
            tracing::warn!(target: "distlock", { lock.name = %pending.claim.key, error = %error }, "lock left to its lease");
            report_end(&core, pending.hold.as_deref(), Some(&LossReason::Expired));
            Released::GivenUp(pending.claim.key)
        }
    }
}

/// Returns whether a release that must be repeated until `until` is not repeated any more because the family closes: it was
/// repeated several times, and would have to be for longer than closing takes. Some server of the engine is away.
fn is_left_to_its_lease(core: &Core, pending: &PendingRelease, until: Moment) -> bool {
    core.holds.is_closed() && pending.was_repeated_often() && until.since(core.clock.now()) > CALL_TIMEOUT
}

/// Writes a batch of histories.
async fn write(core: Arc<Core>, batch: Vec<KeyedEntry>) {
    let Some(history) = &core.history else { return };
    let unanswered = || batch.iter().map(|_| Err(Error::unknown("the history was not answered"))).collect();
    let call = core.backend.write_history(&batch, history.most);
    let answers = core.clock.timeout(HISTORY_TIMEOUT, pin!(call)).await.unwrap_or_else(unanswered);
    history.written(batch, answers, core.clock.now());
}

/// Reports the end of a hold that its owner left before it was lost: `lost` says how it was lost since, `None` that it was
/// released.
fn report_end(core: &Core, hold: Option<&Hold>, lost: Option<&LossReason>) {
    let Some(hold) = hold else { return };
    let held = core.clock.now().since(hold.acquired);
    match (lost, hold.loss()) {
        (None, _) => core.report_later(hold, EventKind::Released { held }),
        // The reason that the guards were given when the locker was closed.
        (Some(_), Some(reason @ LossReason::Closed)) | (Some(reason), _) => {
            core.report_later(hold, EventKind::Lost { reason, held });
        }
    }
}
