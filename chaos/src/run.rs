//! One run: servers, workers, faults, and the verdict.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use distlock::{Clock, Moment};
use distlock_testkit::servers::{Directory, poll_until};

use crate::arena::{self, Arena};
use crate::broken::Broken;
use crate::engine::Engine;
use crate::fault::Fault;
use crate::judge::{Finding, judge, judge_ends, judge_losses, judge_ticks};
use crate::plan::{LOCKS, Plan, Step, WORKERS};
use crate::pulse;
use crate::resource::Resource;
use crate::tally::{Outcome, Tally};
use crate::timeline::{Injected, Timeline};
use crate::worker::Duty;
use crate::workers::{Position, Workers};

/// The parameters of a run.
#[derive(Debug, Clone)]
pub struct Order {
    /// The engine.
    pub engine: Engine,
    /// The seed of the plan of faults.
    pub seed: u64,
    /// For how long faults are injected.
    pub time: Duration,
    /// How long all workers may take to be served, and all state to disappear, after the last fault.
    pub serve_limit: Duration,
    /// The defect of the workers, if any.
    pub broken: Option<Broken>,
    /// The program whose command `worker` runs a worker.
    pub program: PathBuf,
    /// Where the journals of a run with findings are kept.
    pub keep: Option<PathBuf>,
}

/// Executes a run.
///
/// # Panics
/// When a server cannot be started, or does not come back.
#[must_use]
pub fn run(order: &Order) -> Outcome {
    let engine = order.engine;
    let mut plan = Plan::new(engine, order.seed, order.time);
    let directory = Directory::new();
    let socket = directory.path().join("resource.sock");
    let opens_fence = order.broken == Some(Broken::OpensFence);
    let resource = Resource::serve(&socket, opens_fence).expect("a unix socket");
    let mut arena = arena::of(engine);
    let finish = directory.path().join("finish");
    let duty = |worker| Duty {
        url: arena.url(worker),
        ttl: engine.ttl(),
        seed: 0,
        journal: PathBuf::new(),
        socket: socket.clone(),
        finish: finish.clone(),
        broken: order.broken,
        keeps: engine.has_keepers(),
        lingers: engine.has_long_holds(),
    };
    let position = |worker| Position { duty: duty(worker), namespace: arena.namespace(worker) };
    let positions: Vec<Position> = (0..WORKERS).map(position).collect();
    if positions.iter().all(|position| position.namespace.is_none()) {
        plan.servers.retain(|step| !matches!(step.fault, Fault::Partition { .. }));
    }
    let mut workers = Workers::start(order.program.clone(), directory.path().to_owned(), positions);

    let (injected, stalls) = inflict(&plan, order.time, &mut workers, arena.as_mut());
    let healed = Clock::system().now();
    fs::write(&finish, "").expect("a directory that can be written");
    let odd = workers.finish(order.serve_limit);
    let left = left_behind(arena.as_mut(), engine.ttl() + order.serve_limit);

    let timeline = Timeline::read(&workers.lives, injected, stalls);
    let writes = resource.writes();
    let mut findings: Vec<Finding> = judge(&timeline, &writes, engine.is_fair()).into_iter().collect();
    let server_of: Vec<_> = (0..LOCKS).map(|lock| arena.server_of(lock)).collect();
    findings.extend(judge_losses(&timeline, &server_of, engine.ttl()));
    let ticks = timeline.ticks(engine);
    findings.extend(judge_ticks(&timeline, &ticks));
    findings.extend(judge_ends(&timeline, &ticks, &odd));
    findings.extend((!left.is_empty()).then_some(Finding::LeftBehind { names: left }));
    if let Some(keep) = order.keep.as_ref().filter(|_| !findings.is_empty()) {
        keep_journals(directory.path(), keep);
    }
    let tally = Tally::of(&timeline, &writes, resource.overwritten(), engine.is_fair(), healed).with_ticks(&ticks);
    Outcome { tally, findings }
}

/// Executes the plan; returns the injected faults and the stalls of this process.
fn inflict(
    plan: &Plan,
    time: Duration,
    workers: &mut Workers,
    arena: &mut dyn Arena,
) -> (Vec<Injected>, Vec<(Moment, Moment)>) {
    let stage = Stage { start: Instant::now(), time, clock: Clock::system(), injected: Mutex::default() };
    let (workers, is_over) = (Mutex::new(workers), AtomicBool::new(false));
    let stalls = thread::scope(|scope| {
        // A guard, because a server that does not come back panics here, and the pulse thread must still end.
        let over = Over(&is_over);
        let pulse = scope.spawn(|| watch_pulse(&is_over));
        let kills = scope.spawn(|| {
            stage.play(&plan.kills, |step| {
                if let Fault::Kill { worker } = step.fault {
                    lock(&workers).kill(worker);
                }
            });
        });
        let pauses = scope.spawn(|| {
            stage.play(&plan.pauses, |step| {
                let Fault::Pause { worker } = step.fault else { return };
                let Some(life) = lock(&workers).stop(worker) else { return };
                thread::sleep(step.lasts);
                lock(&workers).go_on(worker, life);
            });
        });
        stage.play(&plan.servers, |step| {
            arena.begin(step.fault);
            thread::sleep(step.lasts);
            arena.end(step.fault);
        });
        kills.join().expect("workers can be killed");
        pauses.join().expect("workers can be stopped");
        stage.sleep_until(stage.time);
        drop(over);
        pulse.join().expect("a clock can be read")
    });
    (stage.injected.into_inner().unwrap_or_else(PoisonError::into_inner), stalls)
}

/// The time line of a run.
struct Stage {
    start: Instant,
    time: Duration,
    clock: Clock,
    injected: Mutex<Vec<Injected>>,
}

impl Stage {
    /// Executes steps at their times, or as soon as the previous one is over. Steps that no longer fit into the run on
    /// a slow machine are left out.
    fn play(&self, steps: &[Step], mut act: impl FnMut(&Step)) {
        for step in steps {
            self.sleep_until(step.at);
            if self.start.elapsed() >= self.time {
                return;
            }
            let from = self.clock.now();
            act(step);
            lock(&self.injected).push(Injected { fault: step.fault, from, to: self.clock.now() });
        }
    }

    fn sleep_until(&self, at: Duration) {
        thread::sleep(at.saturating_sub(self.start.elapsed()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the flag when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn watch_pulse(is_over: &AtomicBool) -> Vec<(Moment, Moment)> {
    let (clock, mut stalls) = (Clock::system(), Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        stalls.extend(pulse::beat(&clock));
    }
    stalls
}

/// Returns the state that remains when every lease must have ended.
fn left_behind(arena: &mut dyn Arena, serve_limit: Duration) -> Vec<String> {
    let mut left = Vec::new();
    poll_until(serve_limit, || {
        left = arena.leftovers();
        left.is_empty().then_some(())
    });
    left
}

fn keep_journals(from: &Path, to: &Path) {
    let _ = fs::create_dir_all(to);
    let names = fs::read_dir(from).into_iter().flatten().flatten().map(|entry| entry.file_name());
    for name in names.filter(|name| name.to_string_lossy().starts_with("journal-")) {
        let _ = fs::copy(from.join(&name), to.join(&name));
    }
}

/// Formats a run for people.
pub fn describe(order: &Order, outcome: &Outcome) -> String {
    let (engine, seed, seconds) = (order.engine.name(), order.seed, order.time.as_secs());
    let mut text = format!("chaos {engine}, {seconds} s, seed {seed}\n{}", outcome.tally);
    for finding in &outcome.findings {
        text += &format!("BROKEN: {finding}\n");
    }
    text += &match outcome.findings.len() {
        0 => "no promise was broken\n".to_owned(),
        count => format!("{count} broken; again: cargo xtask chaos {engine} --seconds {seconds} --seed {seed}\n"),
    };
    text
}
