//! The keeper: one task, on a thread of its own, that looks after all holds of a locker family.
//!
//! It renews in batches, nearest deadline first; sees leases end; tells guards of their loss; and releases what dropped
//! guards and dropped attempts leave behind. Its own thread means that an application that blocks its runtime, or shuts
//! it down, does not lose its locks for that. This is the only file that spawns.

use std::collections::{BTreeSet, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

use crate::backend::{Attachment, Lease, Losses, Release, Renewal};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{EventKind, LossReason};
use crate::family::Core;
use crate::holds::{Chore, Hold};
use crate::key::Key;
use crate::token::AttemptId;

/// How many holds one renewal call carries.
const BATCH: usize = 256;
/// How many renewal calls are under way at once, so that one that hangs does not hold up the rest.
const RENEWALS_AT_ONCE: usize = 4;
/// How many releases are under way at once.
const CHORES_AT_ONCE: usize = 64;
/// How long one renewal or release may take before it counts as unanswered.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long closing waits for an engine that does not answer.
const CLOSE_GRACE: Duration = Duration::from_secs(5);

/// Starts the keeper of `core` and attaches the engine to it.
pub(crate) fn start(core: Arc<Core>) -> Result<()> {
    let failed = |e: std::io::Error| Error::new(ErrorKind::Backend, "cannot start the keeper").with_source(e);
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (losses, pushed) = Losses::channel();
    core.backend.attach(Attachment { losses, runtime: runtime.handle().clone(), clock: core.clock.clone() });
    let keeper = Keeper::new(core);
    let thread = std::thread::Builder::new().name("distlock-keeper".into());
    thread.spawn(move || keeper.run_on(&runtime, pushed)).map_err(failed)?;
    Ok(())
}

struct Keeper {
    core: Arc<Core>,
    /// Holds to renew, the nearest end first.
    ready: BTreeSet<(Moment, AttemptId)>,
    renewals: JoinSet<()>,
    chores: VecDeque<Chore>,
    releases: JoinSet<Option<Key>>,
    unconfirmed: Vec<Key>,
}

impl Keeper {
    fn new(core: Arc<Core>) -> Self {
        Keeper {
            core,
            ready: BTreeSet::new(),
            renewals: JoinSet::new(),
            chores: VecDeque::new(),
            releases: JoinSet::new(),
            unconfirmed: Vec::new(),
        }
    }

    fn run_on(mut self, runtime: &Runtime, pushed: UnboundedReceiver<(AttemptId, LossReason)>) {
        let core = self.core.clone();
        let end = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(self.run(pushed))));
        // Without a keeper nothing is renewed: whoever holds a lock must know, and close() must not wait for ever.
        if end.is_err() {
            tracing::error!(target: "distlock", "the keeper failed: every lock of this locker is lost");
            core.holds.close(core.clock.now());
        }
        let _ = core.closed.set(end.unwrap_or_default());
    }

    /// Looks after the holds until the family closes. Answers the locks whose release nobody confirmed.
    async fn run(&mut self, mut pushed: UnboundedReceiver<(AttemptId, LossReason)>) -> Vec<Key> {
        loop {
            if self.look() && self.core.holds.finish() {
                break;
            }
            let core = self.core.clone();
            tokio::select! {
                () = core.holds.wake.notified() => {}
                Some((attempt, reason)) = pushed.recv() => self.lose(attempt, reason),
                Some(_) = self.renewals.join_next() => {}
                Some(done) = self.releases.join_next() => self.unconfirmed.extend(done.ok().flatten()),
                () = core.clock.sleep_until(core.holds.plan()) => {}
            }
        }
        if !matches!(tokio::time::timeout(CLOSE_GRACE, self.core.backend.close()).await, Ok(Ok(()))) {
            tracing::warn!(target: "distlock", { lock.backend = self.core.reporter.backend }, "the engine did not close");
        }
        std::mem::take(&mut self.unconfirmed)
    }

    /// Does or starts all there is to do now. Answers whether the family is closed and nothing is under way.
    fn look(&mut self) -> bool {
        let now = self.core.clock.now();
        let work = self.core.holds.take_work(now);
        for hold in work.due {
            if hold.is_lost(now) {
                self.retire(&hold);
            } else {
                self.ready.insert((hold.end(), hold.claim.attempt));
            }
        }
        self.start_renewals(now);
        self.chores.extend(work.chores);
        self.start_releases();
        work.closed && self.chores.is_empty() && self.releases.is_empty()
    }

    fn lose(&self, attempt: AttemptId, reason: LossReason) {
        if let Some(hold) = self.core.holds.get(attempt) {
            hold.lose(reason, self.core.clock.now());
            self.retire(&hold);
        }
    }

    fn retire(&self, hold: &Hold) {
        retire(&self.core, hold);
    }

    fn start_renewals(&mut self, now: Moment) {
        while self.renewals.len() < RENEWALS_AT_ONCE && !self.ready.is_empty() {
            let mut batch = Vec::new();
            while batch.len() < BATCH
                && let Some((_, attempt)) = self.ready.pop_first()
            {
                batch.extend(self.core.holds.get(attempt));
            }
            if !batch.is_empty() {
                self.renewals.spawn(renew(self.core.clone(), batch, now));
            }
        }
    }

    fn start_releases(&mut self) {
        while self.releases.len() < CHORES_AT_ONCE
            && let Some(chore) = self.chores.pop_front()
        {
            self.releases.spawn(release(self.core.clone(), chore));
        }
    }
}

/// Takes a lost hold out of the table and tells observers, once.
fn retire(core: &Core, hold: &Hold) {
    if core.holds.remove(hold.claim.attempt).is_none() {
        return;
    }
    core.report_loss(hold);
    // No lease will end it, and its guard may have been forgotten.
    if !hold.has_lease() {
        core.release_lost(hold);
    }
}

async fn renew(core: Arc<Core>, batch: Vec<Arc<Hold>>, now: Moment) {
    let leases: Vec<Lease> = batch.iter().map(|hold| hold.lease()).collect();
    let end = batch.iter().map(|hold| hold.end()).min().unwrap_or(Moment::NEVER);
    // A quarter of what is left: enough tries remain when this one is never answered.
    let patience = (end.since(now) / 4).clamp(Duration::from_millis(20), CALL_TIMEOUT);
    let answers = tokio::time::timeout(patience, core.backend.renew(&leases)).await;
    let mut answers = answers.unwrap_or_default().into_iter();
    for hold in &batch {
        let unanswered = || Err(Error::unknown("the renewal was not answered"));
        settle(&core, hold, answers.next().unwrap_or_else(unanswered));
    }
}

/// Applies the answer to one hold's renewal.
fn settle(core: &Core, hold: &Hold, answer: Result<Renewal>) {
    let now = core.clock.now();
    match answer {
        Ok(Renewal::Renewed(term)) => {
            if let Some(margin) = hold.renewed(term, now) {
                core.report(hold, EventKind::Renewed { margin });
                core.holds.look_again(hold, None);
            }
        }
        Ok(Renewal::Lost(reason)) => hold.lose(reason, now),
        Err(error) => {
            let left = Some(hold.end()).filter(|end| *end != Moment::NEVER).map(|end| end.since(now));
            core.holds.look_again(hold, Some(now.after(retry_pause(hold.renewal_failed(), left))));
            core.report(hold, EventKind::RenewalFailed { error: &error.with_key(hold.key()), left });
        }
    }
    if hold.is_lost(now) {
        retire(core, hold);
    }
}

/// The first retry comes at once; then ever more often as the end comes near.
fn retry_pause(first: bool, left: Option<Duration>) -> Duration {
    const LONGEST: Duration = Duration::from_millis(250);
    match left {
        _ if first => Duration::ZERO,
        Some(left) => (left / 10).clamp(Duration::from_millis(1), LONGEST),
        None => LONGEST,
    }
}

/// Releases until the engine has answered or the lease is over anyway. Answers the lock if neither is sure.
async fn release(core: Arc<Core>, chore: Chore) -> Option<Key> {
    let Chore { claim, hold } = chore;
    let mut pause = Duration::from_millis(50);
    // A request of the attempt may still be on its way: what it would do is over one lease from now.
    let lease_over = core.clock.now().after(claim.ttl);
    loop {
        let answer = match tokio::time::timeout(CALL_TIMEOUT, core.backend.release(&claim)).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::unknown("the release was not answered")),
        };
        let error = match answer {
            Ok(outcome) => {
                report_end(&core, hold.as_deref(), Some(outcome));
                return None;
            }
            Err(error) => error,
        };
        let until =
            if core.holds.is_closed() { lease_over.min(core.clock.now().after(CLOSE_GRACE)) } else { lease_over };
        if !error.is_retryable() || core.clock.now().after(pause) >= until {
            tracing::warn!(target: "distlock", { lock.name = %claim.key, error = %error }, "lock left to its lease");
            report_end(&core, hold.as_deref(), None);
            return Some(claim.key);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

/// Tells observers how a hold ended; `None`: the engine never answered.
fn report_end(core: &Core, hold: Option<&Hold>, outcome: Option<Release>) {
    let Some(hold) = hold else { return };
    let now = core.clock.now();
    match outcome {
        Some(Release::Released) if hold.loss().is_none_or(|reason| *reason == LossReason::Closed) => {
            core.report(hold, EventKind::Released { held: now.since(hold.acquired) });
            return;
        }
        Some(Release::Released) => {}
        Some(Release::NotOurs) => hold.lose(LossReason::Revoked, now),
        None => hold.lose(LossReason::Expired, now),
    }
    core.report_loss(hold);
}
