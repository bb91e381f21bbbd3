//! A client: a machine with a locker and tasks that take locks, write to the protected resource, and release.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use distlock::{Clock, Event, EventKind, LockGuard, Locker, Mode, Moment};
use distlock_testkit::Dice;

use crate::broken::Broken;
use crate::engine::Engine;
use crate::timeline::{Timeline, name, true_time};

/// The number of owners of each client.
const TASKS: usize = 2;
/// The number of permits of the semaphore, as half of the clients request it. The others request one more, as during a
/// rolling deploy.
pub(crate) const PERMITS: u32 = 2;
/// The number of locks: one exclusive, one for readers and writers, one semaphore. For an engine without those modes,
/// all are exclusive.
pub(crate) const LOCKS: usize = 3;

/// The lock that is kept during rolling restarts.
const KEPT: usize = 0;

/// The parameters of a client.
#[derive(Clone)]
pub(crate) struct Duty {
    pub(crate) number: usize,
    pub(crate) engine: Engine,
    pub(crate) seed: u64,
    pub(crate) ttl: Duration,
    /// Whether some requests have much longer leases.
    pub(crate) is_mixed: bool,
    pub(crate) has_guard: bool,
    /// The first task of the first client keeps a lock during rolling restarts, while all others request it.
    pub(crate) rolls: bool,
    /// The client's clock at the start of the simulation, and its rate error.
    pub(crate) clock: (Duration, f64),
    pub(crate) timeline: Timeline,
    /// Set when all faults have ended: every task takes each lock once more and exits.
    pub(crate) is_healed: Rc<Cell<bool>>,
    /// How often the client was started.
    pub(crate) lives: Rc<Cell<u64>>,
    pub(crate) broken: Option<Broken>,
}

/// Works until the world ends.
pub(crate) async fn work(duty: Duty) -> turmoil::Result {
    duty.lives.set(duty.lives.get() + 1);
    let (first, drift) = duty.clock;
    let first = first + true_time().mul_f64(1.0 + drift);
    let clock = Clock::of_runtime(Moment::from_nanos(u64::try_from(first.as_nanos())?), drift);
    let (told, is_fair) = (duty.timeline.clone(), duty.engine.is_fair());
    let observer = move |event: &Event<'_>| observe(&told, is_fair, event);
    let builder = Locker::builder().clock(clock.clone()).observer(observer);
    let locker = duty.engine.locker(builder, duty.has_guard)?;
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let number = (duty.number as u64) << 32 | duty.lives.get() << 8 | task as u64;
        let dice = Dice::new(duty.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let keeps = duty.rolls && duty.number == 0 && task == 0;
        let worker = Worker { duty: duty.clone(), locker: locker.clone(), clock: clock.clone(), dice, keeps };
        tasks.push(tokio::task::spawn_local(worker.run()));
    }
    for task in tasks {
        task.await?;
    }
    let closed = locker.close().await.map_or_else(|error| format!("{:?}", error.kind()), |()| "well".into());
    duty.timeline.note(format_args!("client {} closed: {closed}", duty.number));
    Ok(())
}

/// The name of a hold's owner is the number of its turn.
fn observe(timeline: &Timeline, is_fair: bool, event: &Event<'_>) {
    let Ok(turn) = event.owner.as_str().parse() else { return };
    match event.kind {
        EventKind::Waiting { .. } => timeline.waits(turn, is_fair),
        EventKind::Lost { reason, .. } => timeline.is_told(turn, &reason.to_string()),
        EventKind::Renewed { .. } => timeline.note(format_args!("turn {turn}: renewed")),
        EventKind::RenewalFailed { error, .. } => {
            timeline.note(format_args!("turn {turn}: not renewed: {:?}", error.kind()));
        }
        _ => {}
    }
}

struct Worker {
    duty: Duty,
    locker: Locker,
    clock: Clock,
    dice: Dice,
    keeps: bool,
}

impl Worker {
    async fn run(mut self) {
        if self.keeps {
            self.turn(KEPT, None).await;
        }
        while self.duty.rolls && !self.duty.timeline.is_kept() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        while !self.duty.is_healed.get() {
            let locks = if self.duty.is_mixed { 1 } else { LOCKS };
            let (lock, wait) = match self.duty.rolls {
                true => (KEPT, self.dice.millis(20..600)),
                false => (self.dice.below(locks), self.dice.millis(200..4000)),
            };
            self.turn(lock, Some(wait)).await;
            let rest = self.rest();
            tokio::time::sleep(rest).await;
        }
        for lock in 0..LOCKS {
            while !self.turn(lock, None).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// Requests a lock and uses it; returns whether it was granted. Without `wait` it waits without limit.
    async fn turn(&mut self, lock: usize, wait: Option<Duration>) -> bool {
        let able = self.locker.capabilities();
        let mode = match lock {
            1 if able.shares && self.dice.percent(60) => Mode::Shared,
            2 if able.slots => {
                Mode::Slot { of: if self.duty.number.is_multiple_of(2) { PERMITS } else { PERMITS + 1 } }
            }
            _ => Mode::Exclusive,
        };
        let turn = self.duty.timeline.asks(self.duty.number, lock, mode);
        match self.ask(turn, lock, mode, wait).await {
            Ok(guard) => {
                self.hold(turn, lock, guard).await;
                true
            }
            Err(how) => {
                self.duty.timeline.ends(turn, &how);
                false
            }
        }
    }

    async fn ask(&mut self, turn: usize, lock: usize, mode: Mode, wait: Option<Duration>) -> Result<LockGuard, String> {
        let name = name(lock);
        let request = match mode {
            Mode::Shared => self.locker.read(name.as_str()),
            Mode::Slot { of } => self.locker.semaphore(name.as_str(), of).or_resize().acquire(),
            _ => self.locker.lock(name.as_str()),
        };
        let is_long = self.is_long();
        // A long lease has a long heartbeat, in the same queue as the short ones; such a client also waits longer.
        let ttl = if is_long { self.dice.millis(12_000..30_000) } else { self.duty.ttl };
        let wait = wait.map(|wait| if is_long { wait * 4 } else { wait });
        let request = request.ttl(ttl).owner(turn.to_string().as_str());
        let failed = |error: distlock::Error| format!("not granted: {:?}", error.kind());
        let Some(wait) = wait else { return request.await.map_err(failed) };
        if self.dice.percent(15) {
            // Some waits are given up by dropping the future.
            let dropped = tokio::time::timeout(wait / 4, request).await;
            return dropped.map_err(|_| "gives up by dropping".to_owned())?.map_err(failed);
        }
        request.wait(wait).await.map_err(failed)
    }

    /// Returns whether this task requests long leases, in worlds with mixed leases.
    fn is_long(&self) -> bool {
        self.duty.is_mixed && self.duty.number == 0
    }

    /// Returns the pause until the next request. With mixed leases, tasks with long leases return at once, so that one
    /// of them waits most of the time, and the others stay out of the queue for longer than their own heartbeat.
    fn rest(&mut self) -> Duration {
        match self.duty.is_mixed {
            true if self.is_long() => self.dice.millis(0..500),
            true => self.dice.millis(0..12_000),
            false => self.dice.millis(0..100),
        }
    }

    async fn hold(&mut self, turn: usize, lock: usize, guard: LockGuard) {
        let timeline = self.duty.timeline.clone();
        let token = guard.fencing_token();
        timeline.is_granted(turn, token.get(), guard.slot(), self.deadline(&guard));
        if self.keeps && !timeline.is_kept() {
            timeline.keeps(turn);
            while !self.duty.is_healed.get() && !guard.is_lost() {
                timeline.is_good(turn, self.deadline(&guard));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        let is_hurried = self.duty.is_healed.get();
        let most = if self.is_long() { 200 } else { 12 };
        let mut left = if is_hurried { 1 } else { self.dice.below(most) };
        while left > 0 && !guard.is_lost() {
            timeline.is_good(turn, self.deadline(&guard));
            let work = self.dice.millis(1..150);
            tokio::time::sleep(work).await;
            left -= 1;
        }
        // The process may always stall here, between the last check and the write. Fencing exists for this case.
        let blind =
            if self.dice.percent(10) && !is_hurried { self.dice.millis(0..5000) } else { self.dice.millis(0..100) };
        tokio::time::sleep(blind).await;
        if guard.mode() == Mode::Exclusive {
            timeline.write(turn, lock, token, self.duty.broken == Some(Broken::OpenFence));
        }
        let lost_at = guard.is_lost().then(|| self.deadline(&guard));
        timeline.leaves(turn, lost_at);
        if self.dice.percent(20) {
            drop(guard);
            return timeline.ends(turn, "dropped");
        }
        let unlocked = guard.unlock().await;
        let how = unlocked.map_or_else(|error| format!("unlocked: {:?}", error.kind()), |()| "unlocked".into());
        timeline.ends(turn, &how);
    }

    /// Converts the deadline on the client's clock to true time.
    fn deadline(&self, guard: &LockGuard) -> Duration {
        let (deadline, now, rate) =
            (guard.deadline().unwrap_or(Moment::NEVER), self.clock.now(), 1.0 + self.duty.clock.1);
        let past = now.since(deadline).div_f64(rate);
        (true_time() + deadline.since(now).div_f64(rate)).saturating_sub(past)
    }
}
