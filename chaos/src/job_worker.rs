//! A worker's tasks that run jobs once per tick, where the engine has ticks.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distlock::{Clock, Error, Locker, OnceGuard, OnceOutcome, OnceRequest};
use distlock_testkit::Dice;

use crate::broken::Broken;
use crate::job::{JobStep, TickJob};
use crate::journal::{Journal, What};
use crate::worker::Duty;

/// How often a tick with a name begins.
const TICK: Duration = Duration::from_secs(1);
/// The length of a period: longer than a clock is set back by at once, since a note is kept for one more.
const PERIOD: Duration = Duration::from_secs(2);
/// How long the note of a name is kept: longer than a worker may take to be told.
const KEEP: Duration = Duration::from_secs(600);
/// The name of the tick that every worker asks for when all faults have ended.
const LAST: &str = "last";
/// What stands for a tick that is not known yet.
pub(crate) const NO_TICK: &str = "-";

/// One job of one worker.
pub(crate) struct JobWorker {
    job: TickJob,
    duty: Duty,
    locker: Locker,
    journal: Arc<Journal>,
    attempts: Arc<AtomicU64>,
    dice: Dice,
    clock: Clock,
}

impl JobWorker {
    pub(crate) fn new(
        job: TickJob,
        duty: &Duty,
        locker: &Locker,
        journal: &Arc<Journal>,
        attempts: &Arc<AtomicU64>,
    ) -> JobWorker {
        let (duty, locker) = (duty.clone(), locker.clone());
        let (journal, attempts) = (journal.clone(), attempts.clone());
        // Another sequence than those of the worker's other tasks.
        let seed = u64::MAX - duty.seed * TickJob::ALL.len() as u64 - job as u64;
        JobWorker { job, duty, locker, journal, attempts, dice: Dice::new(seed), clock: Clock::system() }
    }

    /// Goes on with the next tick when one is done, or no run is left of it, until the run is over. So every tick that a
    /// living worker has asked for is settled in the end.
    pub(crate) async fn run(mut self) {
        loop {
            let is_last = self.duty.finish.exists();
            let slot = self.clock.now().as_nanos() / nanos(TICK);
            let tick = if is_last { LAST.to_owned() } else { slot.to_string() };
            while !self.settles(&tick).await {
                let pause = self.dice.millis(5..60);
                tokio::time::sleep(pause).await;
            }
            if is_last {
                return;
            }
            let next = Duration::from_nanos((slot + 1) * nanos(TICK));
            let now = Duration::from_nanos(self.clock.now().as_nanos());
            tokio::time::sleep(next.saturating_sub(now)).await;
        }
    }

    /// Requests a run once; returns whether the tick is settled for this worker.
    async fn settles(&mut self, tick: &str) -> bool {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        let asked = if self.job == TickJob::Periodic { NO_TICK.to_owned() } else { format!("name:{tick}") };
        self.write(attempt, JobStep::Asks, &asked);
        match self.ask(tick).await {
            Some(Ok(OnceOutcome::Run(run))) => self.work(attempt, run).await,
            Some(Ok(OnceOutcome::Done { note, .. })) => {
                self.write(attempt, JobStep::ToldDone, &note.tick.to_string());
                true
            }
            Some(Ok(OnceOutcome::Exhausted { note, .. })) => {
                self.write(attempt, JobStep::Exhausted, &note.tick.to_string());
                true
            }
            // Another one runs, the request failed, or it was dropped.
            _ => {
                self.write(attempt, JobStep::InDoubt, &asked);
                false
            }
        }
    }

    /// Returns the outcome of a request; `None` if its future was dropped.
    async fn ask(&mut self, tick: &str) -> Option<Result<OnceOutcome, Error>> {
        let request = self.request(tick).ttl(self.duty.ttl).as_new_owner();
        let wait = self.dice.millis(200..2000);
        match self.dice.below(100) {
            0..15 => tokio::time::timeout(wait / 8, request.wait(wait).into_future()).await.ok(),
            15..40 => Some(request.await),
            _ => Some(request.wait(wait).await),
        }
    }

    fn request(&self, tick: &str) -> OnceRequest {
        let mut name = format!("job-{}", self.job);
        if self.duty.broken == Some(Broken::RepeatsTicks) {
            // Breaks the rule that a tick runs once: no other process knows this name.
            name += &format!("-{}", std::process::id());
        }
        let once = self.locker.once(name);
        match self.job {
            TickJob::Named => once.tick(tick).keep(KEEP),
            TickJob::AtMostOnce => once.tick(tick).keep(KEEP).attempts(1),
            TickJob::Periodic => once.every(PERIOD),
        }
    }

    /// Runs the job; returns whether it succeeded.
    async fn work(&mut self, attempt: u64, run: OnceGuard) -> bool {
        let tick = run.note().tick.to_string();
        self.write(attempt, JobStep::Runs, &tick);
        let work = self.dice.millis(1..40);
        tokio::time::sleep(work).await;
        if self.dice.percent(25) {
            self.write(attempt, JobStep::Failed, &tick);
            if self.dice.percent(50) {
                let _ = run.failed().await;
            }
            return false;
        }
        self.write(attempt, JobStep::Finishes, &tick);
        let done = match self.dice.percent(10) {
            // Some ends are given up by dropping the future.
            true => tokio::time::timeout(self.dice.millis(0..10), run.done()).await.ok(),
            false => Some(run.done().await),
        };
        let succeeded = matches!(done, Some(Ok(_)));
        self.write(attempt, if succeeded { JobStep::Succeeded } else { JobStep::InDoubt }, &tick);
        succeeded
    }

    fn write(&self, attempt: u64, step: JobStep, tick: &str) {
        let what = What::Job { job: self.job, step, tick: tick.to_owned() };
        self.journal.write(self.clock.now(), attempt, what);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
