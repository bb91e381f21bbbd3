//! The keeper: one task, on a thread of its own, that looks after all holds of a locker family.
//!
//! It renews in batches, nearest deadline first, each of one server; sees leases end; tells guards of their loss; and releases what dropped
//! guards and dropped attempts leave behind. Its own thread means that an application that blocks its runtime, or shuts
//! it down, does not lose its locks for that. This is the only file that spawns.

use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{Id, JoinSet};
use tokio::time::timeout;

use crate::contract::{Attachment, Lease, Losses, Release, Renewal};
use crate::core::family::Core;
use crate::core::history::KeyedEntry;
use crate::core::hold::Hold;
use crate::core::holds::{Chore, Due};
use crate::core::shards::Shards;
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::{EventKind, LossReason};
use crate::types::key::Key;
use crate::types::span::Span;
use crate::types::sync::{mpsc, thread};
use crate::types::token::AttemptId;

/// How long a renewal call keeps its place among those that are begun at once: one that is slower than that is waited for
/// beside the rest, so that it holds up no other.
const SLOT_PATIENCE: Duration = Duration::from_millis(100);
/// How long a late renewal call is kept: an answer counts whenever it comes before the lease ends.
const LATEST_ANSWER: Duration = Duration::from_secs(60);
/// How long one release, or closing the engine, may take before it counts as unanswered.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long adding to the histories of locks may take; when closing, [`CALL_TIMEOUT`].
const WRITING_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest pause between two tries of a release.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

type Pushed = UnboundedReceiver<(AttemptId, LossReason)>;

/// Starts the keeper of `core` and attaches the engine to it.
pub(crate) fn start(core: &Arc<Core>) -> Result<()> {
    #[cfg(feature = "simulation")]
    if core.clock.is_of_runtime() {
        start_here(core);
        return Ok(());
    }
    let failed = |e: std::io::Error| Error::new(ErrorKind::Backend, "cannot start the keeper").with_source(e);
    let (give, given) = mpsc::channel::<(Runtime, Pushed)>();
    let keeps = core.clone();
    // The thread is there first, to drop the runtime in: where a locker is made, that may not be allowed.
    let run = move || {
        if let Ok((runtime, pushed)) = given.recv() {
            run_on(&runtime, &keeps, pushed);
        }
    };
    thread::Builder::new().name("distlock-keeper".into()).spawn(run).map_err(failed)?;
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (losses, pushed) = Losses::channel();
    let (handle, caller_runtime, clock) = (runtime.handle().clone(), Handle::try_current().ok(), core.clock.clone());
    core.backend.attach(Attachment { losses, keeper_runtime: handle, caller_runtime, clock, drift: core.drift });
    let _ = give.send((runtime, pushed));
    Ok(())
}

/// Starts it as a task of this runtime: the only place where the family's time passes.
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

fn run_on(runtime: &Runtime, core: &Arc<Core>, pushed: Pushed) {
    let mut keeper = Keeper::new(core.clone());
    let end = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(keeper.run(pushed))));
    // Without a keeper nothing is renewed: whoever holds or waits must know, and close() must not wait for ever.
    let unconfirmed = end.unwrap_or_else(|_| {
        tracing::error!(target: "distlock", "the keeper failed: every lock of this locker is lost");
        let now = core.clock.now();
        let _ = core.closing.set(());
        core.holds.close(now).iter().for_each(|hold| core.report_loss(hold));
        let left = core.holds.take_work(now).chores;
        core.holds.finish(Moment::NEVER);
        left.into_iter().map(|chore| leave_to_its_lease(core, chore.claim.key, chore.hold.as_deref())).collect()
    });
    let _ = core.closed.set(unconfirmed);
}

struct Keeper {
    core: Arc<Core>,
    /// What is to be begun.
    shards: Shards,
    renewals: JoinSet<()>,
    /// Chores that failed, by when to try them again.
    later: BTreeMap<(Moment, AttemptId), Chore>,
    releases: JoinSet<Released>,
    /// The call that adds to the histories of locks, if there is one under way.
    writing: JoinSet<()>,
    /// What `releases` are about: the lock, and the hold whose end is not reported yet.
    releasing: HashMap<Id, (Key, Option<Arc<Hold>>)>,
    /// Locks whose release nobody confirmed before the family had to close.
    unconfirmed: Vec<Key>,
}

/// What became of a release.
enum Released {
    Answered,
    /// To be tried again.
    Again(Chore),
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

    /// Looks after the holds until the family closes. Answers the locks whose release nobody confirmed.
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
                // Losses first. None can starve the others: whatever is due is begun on each way round.
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

    /// Does or starts all there is to do now. Answers by when to be done if the family is closed.
    fn look(&mut self, now: Moment) -> Option<Moment> {
        let work = self.core.holds.take_work(now);
        for due in work.due {
            match due {
                Due::Lost(hold) => retire(&self.core, &hold),
                Due::Renewal(hold, unanswered) => {
                    if unanswered > 0 {
                        report_failure(&self.core, &hold, &Error::unknown("the renewal was not answered in time"));
                    }
                    let shard = self.core.backend.shard(hold.key());
                    self.shards.renew(shard, hold.end(), hold.claim.attempt, unanswered);
                }
            }
        }
        self.start_renewals();
        work.chores.into_iter().for_each(|chore| self.add_chore(chore));
        while let Some(due) = self.later.first_entry().filter(|chore| chore.key().0 <= now) {
            let chore = due.remove();
            self.add_chore(chore);
        }
        self.start_releases(now);
        self.shards.forget_idle();
        self.start_writing(now);
        work.closed_by
    }

    fn is_idle(&self) -> bool {
        !self.shards.has_chores() && self.later.is_empty() && self.releases.is_empty()
    }

    fn add_chore(&mut self, chore: Chore) {
        self.shards.add_chore(self.core.backend.shard(&chore.claim.key), chore);
    }

    fn start_renewals(&mut self) {
        while let Some((attempts, slot)) = self.shards.next_batch() {
            let batch: Vec<_> = attempts.into_iter().filter_map(|attempt| self.core.holds.get(attempt)).collect();
            if !batch.is_empty() {
                self.renewals.spawn(renew(self.core.clone(), batch, slot));
            }
        }
    }

    fn start_releases(&mut self, now: Moment) {
        while let Some((chore, slot)) = self.shards.next_chore() {
            if chore.until <= now {
                report_end(&self.core, chore.hold.as_deref(), Some(&LossReason::Expired));
                continue;
            }
            let about = (chore.claim.key.clone(), chore.hold.clone());
            let task = self.releases.spawn(release(self.core.clone(), chore, slot));
            self.releasing.insert(task.id(), about);
        }
    }

    fn start_writing(&mut self, now: Moment) {
        let Some(history) = self.core.history.as_ref().filter(|_| self.writing.is_empty()) else { return };
        let batch = history.take(now);
        if !batch.is_empty() {
            self.writing.spawn(write(self.core.clone(), batch));
        }
    }

    /// When to write next; while a call is under way, its end tells.
    fn next_writing(&self) -> Moment {
        let history = self.core.history.as_ref().filter(|_| self.writing.is_empty());
        history.map_or(Moment::NEVER, |history| history.due())
    }

    /// The family is closed: what has happened is written now or never.
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
            Released::Again(chore) => {
                let at = self.core.clock.now().after(chore.pause);
                self.later.insert((at, chore.claim.attempt), chore);
            }
        }
    }

    /// Gives up a release that never ended.
    fn abandon(&mut self, task: Id) {
        if let Some((key, hold)) = self.releasing.remove(&task) {
            self.unconfirmed.push(leave_to_its_lease(&self.core, key, hold.as_deref()));
        }
    }

    /// The time for closing is over: what is not done is left to the leases, and reported.
    async fn leave_undone(&mut self) {
        while let Ok(Some(done)) = timeout(Duration::ZERO, self.releases.join_next_with_id()).await {
            match done {
                Ok((id, released)) => self.released(id, released),
                Err(panicked) => self.abandon(panicked.id()),
            }
        }
        // Those that go on are aborted, so that none reports another end.
        self.releases = JoinSet::new();
        for task in self.releasing.keys().copied().collect::<Vec<_>>() {
            self.abandon(task);
        }
        for chore in self.shards.take_chores().chain(std::mem::take(&mut self.later).into_values()) {
            self.unconfirmed.push(leave_to_its_lease(&self.core, chore.claim.key, chore.hold.as_deref()));
        }
    }
}

/// Reports the end of a hold whose release is not confirmed before the family ends. Returns its lock.
fn leave_to_its_lease(core: &Core, key: Key, hold: Option<&Hold>) -> Key {
    report_end(core, hold, Some(&LossReason::Closed));
    key
}

/// Takes a lost hold out of the table, tells observers, and ends what the engine may still keep of it; once.
pub(crate) fn retire(core: &Core, hold: &Arc<Hold>) {
    if core.holds.get(hold.claim.attempt).is_none() {
        return;
    }
    let is_parked = hold.is_parked();
    if !is_parked {
        // While it is in the table: the next acquisition of the same owner finds it there, and reports it first.
        core.report_loss(hold);
    }
    if core.holds.remove(hold.claim.attempt).is_none() {
        return;
    }
    let now = core.clock.now();
    // A parked one was left by its owner long ago: this is its release.
    let chore = if is_parked { Some(Chore::end(hold, now)) } else { Chore::leave(hold, now) };
    if let Some(chore) = chore {
        core.holds.hand_over(chore);
    }
}

async fn renew(core: Arc<Core>, batch: Vec<Arc<Hold>>, slot: OwnedSemaphorePermit) {
    let leases: Vec<Lease> = batch.iter().map(|hold| hold.lease()).collect();
    let span = Span::renew(core.reporter.backend, leases.len());
    let mut call = std::pin::pin!(span.around(core.backend.renew(&leases)));
    let answers = match timeout(SLOT_PATIENCE, &mut call).await {
        Ok(answers) => answers,
        Err(_) => {
            // Others need the place; yet this answer may still come in time.
            drop(slot);
            core.holds.wake.notify_one();
            let Ok(answers) = timeout(LATEST_ANSWER, call).await else { return };
            answers
        }
    };
    let mut answers = answers.into_iter();
    for hold in &batch {
        let missing = || Err(Error::new(ErrorKind::Backend, "the engine gave no answer for this lock"));
        settle(&core, hold, answers.next().unwrap_or_else(missing));
    }
}

/// Applies the answer to one hold's renewal.
fn settle(core: &Core, hold: &Arc<Hold>, answer: Result<Renewal>) {
    let now = core.clock.now();
    hold.answered();
    match answer {
        Ok(Renewal::Renewed(term)) => {
            let margin = hold.left(now);
            if hold.renewed(term, now) {
                core.holds.look_again(hold, None, now);
                core.report_later(hold, EventKind::Renewed { margin });
            }
        }
        Ok(Renewal::Lost(reason)) => hold.lose(reason, now),
        Err(error) => {
            let failures = report_failure(core, hold, &error);
            core.holds.look_again(hold, Some(now.after(retry_pause(failures, hold.left(now)))), now);
        }
    }
    if hold.is_lost(now) {
        retire(core, hold);
    }
}

/// Counts and tells that a renewal failed. Answers how many have in a row.
fn report_failure(core: &Core, hold: &Hold, error: &Error) -> u32 {
    let failures = hold.renewal_failed();
    let left = hold.left(core.clock.now());
    core.report_later(hold, EventKind::RenewalFailed { error, left, failures });
    failures
}

/// The first retry comes at once; then ever more often as the end comes near.
fn retry_pause(failures: u32, left: Option<Duration>) -> Duration {
    const LONGEST: Duration = Duration::from_millis(250);
    match left {
        _ if failures == 1 => Duration::ZERO,
        Some(left) => (left / 10).clamp(Duration::from_millis(1), LONGEST),
        None => LONGEST,
    }
}

/// Tries a release once.
async fn release(core: Arc<Core>, mut chore: Chore, _slot: OwnedSemaphorePermit) -> Released {
    let unanswered = |_| Err(Error::unknown("the release was not answered"));
    match timeout(CALL_TIMEOUT, core.backend.release(&chore.claim)).await.unwrap_or_else(unanswered) {
        Ok(outcome) => {
            // After a release that was not answered, "not ours" means that it was carried out.
            let lost = outcome == Release::NotOurs && !chore.unanswered;
            report_end(&core, chore.hold.as_deref(), lost.then_some(&LossReason::Revoked));
            Released::Answered
        }
        Err(error) if error.is_retryable() => {
            chore.unanswered |= error.may_be_applied();
            let again = Chore { pause: (chore.pause * 2).min(LONGEST_PAUSE), ..chore };
            Released::Again(again)
        }
        Err(error) => {
            tracing::warn!(target: "distlock", { lock.name = %chore.claim.key, error = %error }, "lock left to its lease");
            report_end(&core, chore.hold.as_deref(), Some(&LossReason::Expired));
            Released::GivenUp(chore.claim.key)
        }
    }
}

/// Adds to the histories of locks.
async fn write(core: Arc<Core>, batch: Vec<KeyedEntry>) {
    let Some(history) = &core.history else { return };
    let call = core.backend.write_history(&batch, history.most);
    let unanswered = |_| batch.iter().map(|_| Err(Error::unknown("the history was not answered"))).collect();
    let answers = timeout(WRITING_TIMEOUT, call).await.unwrap_or_else(unanswered);
    history.written(batch, answers, core.clock.now());
}

/// Tells observers how a hold ended that was not lost when its owner left it: it was released, or `lost` meanwhile.
fn report_end(core: &Core, hold: Option<&Hold>, lost: Option<&LossReason>) {
    let Some(hold) = hold else { return };
    let held = core.clock.now().since(hold.acquired);
    match (lost, hold.loss()) {
        (None, _) => core.report_later(hold, EventKind::Released { held }),
        // What its guards were told when the locker was closed.
        (Some(_), Some(reason @ LossReason::Closed)) | (Some(reason), _) => {
            core.report_later(hold, EventKind::Lost { reason, held });
        }
    }
}
