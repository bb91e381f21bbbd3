//! One world: servers, clients, a network between them, and faults.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Once;
use std::time::Duration;

use distlock::AttemptId;
use distlock_testkit::Dice;
use turmoil::{Builder, Sim};

use crate::broken::Broken;
use crate::client::{self, Duty};
use crate::crowd::{self, Crowd};
use crate::engine::Engine;
use crate::judge::{Finding, judge};
use crate::plan::{Fault, Kind, SETTLES, Scene, Step, leaps, plan, rolling};
use crate::server::{self, Machine};
use crate::timeline::{Timeline, Trouble};

const CLIENTS: usize = 3;
/// Approximately the clocks' time at the start.
const EPOCH_US: u64 = 1_700_000_000_000_000;
/// How long all clients may take to be served after the last fault: eight retries of a claim take 20 s at most.
const SERVE_LIMIT: Duration = Duration::from_secs(60);
/// How long state other than fences may remain after the last client has exited: more than the longest heartbeat of a
/// waiter.
const KEPT: Duration = Duration::from_secs(35);
/// Two clocks may differ by one part in a thousand, so each may be off by a little less than half of that.
const MOST_DRIFT_PPM: usize = 450;

/// Returns whether waiters with different leases share the queues of a world. Such a world has no faults, so that
/// every wait is judged for its order. Decided by separate random numbers, so that the other worlds do not change.
fn is_mixed(order: &Order) -> bool {
    order.engine.is_fair() && Dice::new(order.seed ^ 0x3a11).percent(20)
}

/// The parameters of a world.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// The engine of the locks.
    pub engine: Engine,
    /// The seed that decides everything in the world.
    pub seed: u64,
    /// For how long faults occur.
    pub time: Duration,
    /// The deliberate defect, if any.
    pub broken: Option<Broken>,
}

impl Order {
    /// Returns whether the only faults are rolling restarts of all servers without their data, while the first client
    /// keeps a lock and all others request it. Without a quorum a single restart loses the lock.
    pub(crate) fn rolls(&self) -> bool {
        match self.broken {
            None => self.engine == Engine::Redlock && self.seed.is_multiple_of(3),
            broken => broken == Some(Broken::NeverHeals),
        }
    }
}

/// The outcome of a world.
#[derive(Debug)]
pub struct Outcome {
    /// Every broken rule.
    pub findings: Vec<Finding>,
    /// All events, with the true time in seconds.
    pub log: Vec<String>,
    /// The numbers of requests, grants, waits judged for their order, and stale writes.
    pub figures: [usize; 4],
    /// The number of faults.
    pub faults: usize,
}

/// Runs a world.
#[must_use]
pub fn run(order: &Order) -> Outcome {
    // Only the first connection of a process asks the server for the hashes of the scripts. These runs do that, so that
    // all later worlds are alike.
    static KNOWN: Once = Once::new();
    KNOWN.call_once(|| {
        for (engine, has_guard) in [(Engine::Redis, false), (Engine::Redis, true), (Engine::Redlock, true)] {
            World::new(&Order { engine, seed: 0, time: Duration::ZERO, broken: None }, has_guard).run();
        }
    });
    let has_guard = match order.broken {
        Some(Broken::LosesDataUnguarded | Broken::LeapsUnguarded) => false,
        Some(Broken::CountsFromOne) => true,
        _ if order.rolls() => true,
        _ => Dice::new(order.seed).percent(50),
    };
    World::new(order, has_guard).run()
}

struct World<'a> {
    sim: Sim<'a>,
    timeline: Timeline,
    machines: Vec<Rc<Machine>>,
    is_healed: Rc<Cell<bool>>,
    steps: Vec<Step>,
    order: Order,
    /// The latency of a message without faults: at least, and at most.
    tick: Duration,
    latency: Duration,
}

impl World<'_> {
    fn new(order: &Order, has_guard: bool) -> Self {
        let Order { engine, seed, broken, time } = *order;
        let mut dice = Dice::new(seed);
        AttemptId::seed(Some(seed));
        let tick = dice.millis(6..16);
        let latency = tick + dice.millis(5..50);
        let mut sim = network(seed, tick, latency);
        let (timeline, is_healed) = (Timeline::default(), Rc::new(Cell::new(false)));
        let machines = (0..engine.servers()).map(|number| {
            let epoch_us = EPOCH_US + dice.below(1_000_000_000) as u64;
            Rc::new(Machine::new(number, epoch_us, drift(&mut dice), timeline.clone(), broken))
        });
        let machines: Vec<_> = machines.collect();
        for (number, machine) in machines.iter().enumerate() {
            let machine = machine.clone();
            sim.host(server::name(number), move || server::serve(machine.clone()));
        }
        let rolls = order.rolls();
        let ttl = if rolls { dice.millis(900..1500) } else { dice.millis(600..3000) };
        let is_mixed = is_mixed(order);
        for number in 0..CLIENTS {
            let drift = if broken == Some(Broken::SlowClocks) { -0.3 } else { drift(&mut dice) };
            let clock = (Duration::from_micros(EPOCH_US + dice.below(1_000_000_000) as u64), drift);
            let (timeline, is_healed, lives) = (timeline.clone(), is_healed.clone(), Rc::default());
            let duty = Duty {
                number,
                engine,
                seed,
                ttl,
                is_mixed,
                has_guard,
                rolls,
                clock,
                timeline,
                is_healed,
                lives,
                broken,
            };
            sim.host(client_name(number), move || client::work(duty.clone()));
        }
        let may_forget = has_guard || broken == Some(Broken::LosesDataUnguarded);
        let forgets = may_forget.then_some(seed as usize % engine.servers());
        let scene = Scene { clients: CLIENTS, servers: engine.servers(), time, forgets };
        let mut steps = if rolls { rolling(&mut dice, scene) } else { plan(&mut dice, scene) };
        if !rolls && engine == Engine::Redlock && (has_guard || broken == Some(Broken::LeapsUnguarded)) {
            steps.extend(leaps(&mut dice, scene));
        }
        // Longer, because several heartbeats must pass.
        let order = Order { time: if is_mixed { time * 4 } else { time }, ..*order };
        if is_mixed {
            steps.clear();
        }
        if let Some(crowd) = Crowd::draw(engine, has_guard, seed, time) {
            sim.host(crowd::HOST, move || crowd.wait());
            steps.push(crowd.step());
        }
        World { sim, timeline, machines, is_healed, steps, order, tick, latency }
    }

    fn run(mut self) -> Outcome {
        let steps = self.steps.clone();
        let mut times: Vec<(Duration, bool, &Step)> = Vec::new();
        times.extend(steps.iter().map(|step| (step.from, true, step)));
        times.extend(steps.iter().filter(|step| step.to > step.from).map(|step| (step.to, false, step)));
        times.sort_by_key(|(at, begins, _)| (*at, *begins));
        let mut failed = None;
        for (at, begins, step) in times {
            failed = failed.or_else(|| self.until(at));
            self.timeline.note_at(at, format_args!("{}: {}", if begins { "begins" } else { "is over" }, step.fault));
            if begins { self.begin(step) } else { self.end(step.fault) }
        }
        failed = failed.or_else(|| self.until(self.order.time));
        self.is_healed.set(true);
        self.timeline.note_at(self.sim.elapsed(), format_args!("all is healed"));
        let latest = self.sim.elapsed() + SERVE_LIMIT;
        while failed.is_none() && self.sim.elapsed() < latest && self.is_any_client_running() {
            failed = self.step();
        }
        let late = self.sim.elapsed() + KEPT;
        let kept: Vec<String> = self.machines.iter().flat_map(|machine| machine.kept(late)).collect();
        let findings = judge(&self.timeline, failed, &kept);
        let (log, figures, faults) = (self.timeline.lines(), self.timeline.figures(), self.steps.len());
        // Dropped only now: machines that are being torn down still request ids.
        drop(self);
        AttemptId::seed(None);
        Outcome { findings, log, figures, faults }
    }

    fn until(&mut self, moment: Duration) -> Option<String> {
        let mut failed = None;
        while failed.is_none() && self.sim.elapsed() < moment {
            failed = self.step();
        }
        failed
    }

    fn step(&mut self) -> Option<String> {
        self.sim.step().err().map(|error| error.to_string())
    }

    fn is_any_client_running(&mut self) -> bool {
        (0..CLIENTS).any(|number| self.sim.is_host_running(client_name(number)))
    }

    fn begin(&mut self, step: &Step) {
        let Step { fault: Fault { kind, client, server }, from, to } = *step;
        if matches!(kind, Kind::CrowdDies | Kind::CrowdVanishes) {
            // Not counted as trouble of other clients: all of them keep their places.
            return self.crash(crowd::HOST, kind == Kind::CrowdVanishes);
        }
        self.timeline.is_troubled(Trouble { client, from, to: to + SETTLES });
        match client {
            None => self.strike_server(server.unwrap_or_default(), kind),
            Some(client) if matches!(kind, Kind::Crash | Kind::PowerLoss) => self.crash_client(client, kind),
            Some(client) => {
                let name = client_name(client);
                for server in self.servers(server) {
                    match kind {
                        Kind::LosesRequests => self.sim.partition_oneway(name.as_str(), server),
                        Kind::LosesReplies => self.sim.partition_oneway(server, name.as_str()),
                        Kind::CutOff => self.sim.partition(name.as_str(), server),
                        Kind::HeldUp => self.sim.hold(name.as_str(), server),
                        Kind::Slow(most) => self.sim.set_link_max_message_latency(name.as_str(), server, most),
                        Kind::Crash | Kind::PowerLoss | Kind::DataLoss | Kind::ClockLeap(_) => {}
                        Kind::CrowdDies | Kind::CrowdVanishes => {}
                    }
                }
            }
        }
    }

    fn strike_server(&mut self, server: usize, kind: Kind) {
        if let Kind::ClockLeap(by) = kind {
            return self.machines[server].leap(by);
        }
        self.sim.crash(server::name(server));
        if kind == Kind::DataLoss {
            self.machines[server].wipe();
        }
    }

    fn crash_client(&mut self, client: usize, kind: Kind) {
        self.timeline.is_killed(client, self.sim.elapsed());
        self.crash(&client_name(client), kind == Kind::PowerLoss);
    }

    fn crash(&mut self, name: &str, is_silent: bool) {
        for server in self.servers(None) {
            if is_silent {
                self.sim.partition(name, server.as_str());
            }
            // A runtime drops its tasks in an order that the seed does not decide, so all their last messages get the
            // same latency.
            self.sim.set_link_latency(name, server, self.tick);
        }
        self.sim.crash(name);
        for server in self.servers(None) {
            self.sim.set_link_max_message_latency(name, server, self.latency);
        }
    }

    fn end(&mut self, fault: Fault) {
        let Some(client) = fault.client else {
            return self.sim.bounce(server::name(fault.server.unwrap_or_default()));
        };
        let name = client_name(client);
        for server in self.servers(fault.server) {
            match fault.kind {
                Kind::HeldUp => self.sim.release(name.as_str(), server),
                Kind::Slow(_) => self.sim.set_link_max_message_latency(name.as_str(), server, self.latency),
                _ => self.sim.repair(name.as_str(), server),
            }
        }
        if matches!(fault.kind, Kind::Crash | Kind::PowerLoss) {
            self.sim.bounce(name);
        }
    }

    /// Returns the name of one server, or of all.
    fn servers(&self, which: Option<usize>) -> Vec<String> {
        let all = 0..self.machines.len();
        all.filter(|number| which.is_none_or(|which| which == *number)).map(server::name).collect()
    }
}

fn network<'a>(seed: u64, tick: Duration, latency: Duration) -> Sim<'a> {
    Builder::new()
        .rng_seed(seed)
        .tick_duration(tick)
        // Machines run one after the other within a tick: a message must not arrive in the tick in which it was sent.
        .min_message_latency(tick)
        .max_message_latency(latency)
        .tcp_capacity(1024)
        .enable_random_order()
        .build()
}

fn client_name(number: usize) -> String {
    format!("client{number}")
}

fn drift(dice: &mut Dice) -> f64 {
    (dice.below(2 * MOST_DRIFT_PPM) as f64 - MOST_DRIFT_PPM as f64) / 1e6
}
