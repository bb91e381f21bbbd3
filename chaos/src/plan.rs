//! The plan of faults, decided by the seed before the run begins.

use std::time::Duration;

use crate::engine::Engine;
use crate::fault::{Fault, Trouble};
use distlock_testkit::Dice;
use distlock_testkit::netns::{Loss, Side};

/// The number of workers.
pub(crate) const WORKERS: usize = 5;
/// The number of locks.
pub(crate) const LOCKS: usize = 3;
/// The number of groups of workers; each group has its own links.
pub(crate) const SIDES: usize = 2;

const LOSSES: [Loss; 3] = [Loss::Firewall, Loss::Blackhole, Loss::WrongNeighbour];
const SENDERS: [&[Side]; 3] = [&[Side::Client], &[Side::Server], &[Side::Client, Side::Server]];

/// A fault and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// When it begins, from the start of the run.
    pub at: Duration,
    /// How long it lasts.
    pub lasts: Duration,
    /// What it is.
    pub fault: Fault,
}

/// All faults of a run: three sequences that run concurrently.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Workers that are killed.
    pub kills: Vec<Step>,
    /// Workers that are stopped.
    pub pauses: Vec<Step>,
    /// The faults of servers and links.
    pub servers: Vec<Step>,
}

impl Plan {
    /// Returns the plan for a run of `time`. The same arguments give the same plan.
    #[must_use]
    pub fn new(engine: Engine, seed: u64, time: Duration) -> Plan {
        let mut dice = Dice::new(seed);
        Plan {
            kills: kills(&mut dice, time),
            pauses: pauses(&mut dice, engine, time),
            servers: servers(&mut dice, engine, time),
        }
    }
}

fn kills(dice: &mut Dice, time: Duration) -> Vec<Step> {
    sequence(time, Duration::from_millis(800), |_| {
        let step = (Fault::Kill { worker: dice.below(WORKERS) }, Duration::ZERO);
        (step, dice.millis(700..2500))
    })
}

fn pauses(dice: &mut Dice, engine: Engine, time: Duration) -> Vec<Step> {
    sequence(time, Duration::from_millis(400), |_| {
        let fault = Fault::Pause { worker: dice.below(WORKERS) };
        let lasts = engine.ttl() * u32::try_from(120 + dice.below(100)).unwrap_or(120) / 100;
        ((fault, lasts), dice.millis(200..900))
    })
}

fn servers(dice: &mut Dice, engine: Engine, time: Duration) -> Vec<Step> {
    let mut deck = Vec::new();
    sequence(time, engine.ttl() + Duration::from_millis(300), |_| {
        // Every kind occurs once before any kind repeats, so that a short run has many kinds.
        if deck.is_empty() {
            deck = kinds(engine);
            dice.shuffle(&mut deck);
        }
        let kind = deck.pop().unwrap_or(Kind::Cut);
        let step = step(dice, engine, kind);
        // Some intervals have no fault: only undisturbed waits can be judged for their order.
        let is_peace = dice.percent(15) || engine == Engine::Sentinel;
        let rest = if is_peace { dice.millis(4000..7000) } else { dice.millis(300..1500) };
        (step, rest)
    })
}

/// Builds consecutive steps with a pause after each, until the time is over.
fn sequence(
    time: Duration,
    first: Duration,
    mut next: impl FnMut(usize) -> ((Fault, Duration), Duration),
) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut at = first;
    while at < time {
        let ((fault, lasts), rest) = next(steps.len());
        if at + lasts > time {
            break;
        }
        steps.push(Step { at, lasts, fault });
        at += lasts + rest;
    }
    steps
}

/// A kind of fault, before its server, duration and size are chosen.
#[derive(Debug, Clone, Copy)]
enum Kind {
    NoReplies,
    NoRequests,
    Silence,
    LateRequests,
    Delay,
    Cut,
    CutAfter,
    Refused,
    Partition,
    Freeze,
    Restart,
    Forget,
    Flush,
    ClockForward,
    ClockBack,
    KillLeader,
    Promote,
    FreezeFollowers,
    HangMaster,
    RemoveFile,
    EmptyFile,
}

/// Returns the faults that an engine promises to survive; docs/guarantees.md lists those that it does not, which are
/// not injected.
fn kinds(engine: Engine) -> Vec<Kind> {
    use Kind::*;
    let links = [NoReplies, NoRequests, Silence, LateRequests, Delay, Cut, CutAfter, Refused, Partition];
    let servers: &[Kind] = match engine {
        // Masters announce the same ports to all clients, so only one network can exist.
        Engine::Cluster => {
            let links = links.into_iter().filter(|kind| !matches!(kind, Partition));
            return links.chain([HangMaster; 4]).collect();
        }
        // A clock that jumps forward ends leases early, which a single server does not promise to survive.
        Engine::Redis => &[Freeze, Restart, Forget, Flush, ClockBack],
        Engine::Redlock => &[Freeze, Restart, Forget, Flush, ClockBack, ClockForward],
        // A replica that has not got all commits is not promoted, and a clock that jumps forward ends leases early.
        Engine::Postgres => &[Freeze, Restart, ClockBack, Promote, Promote, FreezeFollowers],
        // In Debian's version, a leader that is frozen and thawed revokes live leases.
        Engine::Etcd => &[KillLeader, KillLeader, FreezeFollowers, FreezeFollowers],
        // A master that is frozen and thawed serves its clients until it is demoted; clients connect to the servers
        // directly.
        Engine::Sentinel => return vec![KillLeader],
        Engine::File => return vec![RemoveFile, EmptyFile],
    };
    links.iter().chain(servers).copied().collect()
}

fn step(dice: &mut Dice, engine: Engine, kind: Kind) -> (Fault, Duration) {
    let count = if matches!(engine, Engine::Redlock | Engine::Cluster | Engine::Etcd) { 3 } else { 1 };
    let server = dice.below(count);
    let side = dice.below(SIDES);
    let link = |trouble| Fault::Link { server, side, trouble };
    let ttl = usize::try_from(engine.ttl().as_millis()).unwrap_or(usize::MAX);
    let blink = dice.millis(50..400);
    let short_or_long = dice.millis(ttl / 4..ttl * 3 / 2);
    match kind {
        Kind::NoReplies => (link(Trouble::NoReplies), short_or_long),
        Kind::NoRequests => (link(Trouble::NoRequests), short_or_long),
        Kind::Silence => (link(Trouble::Silence), short_or_long),
        Kind::LateRequests => (link(Trouble::LateRequests), short_or_long),
        Kind::Delay => (link(Trouble::Delay(dice.millis(20..300))), short_or_long),
        Kind::Cut => (link(Trouble::Cut), Duration::ZERO),
        Kind::CutAfter => (link(Trouble::CutAfter(dice.below(400) as u64)), blink),
        Kind::Refused => (link(Trouble::Refused), blink),
        Kind::Partition => {
            let (how, from) = (LOSSES[dice.below(LOSSES.len())], SENDERS[dice.below(SENDERS.len())]);
            (Fault::Partition { how, from }, short_or_long)
        }
        Kind::Freeze => (Fault::Freeze { server }, short_or_long),
        Kind::Restart => (Fault::Restart { server }, blink),
        Kind::Forget => (Fault::Forget { server }, blink),
        Kind::Flush => (Fault::Flush { server }, Duration::ZERO),
        // Always the same server: a jump of a majority of clocks is outside the promise.
        Kind::ClockForward => (Fault::ClockForward { server: 0 }, Duration::from_millis(200)),
        Kind::ClockBack => {
            let by = dice.millis(200..1500);
            // After a loss of data, tokens rise by the clock, once it has reached its old time. No data loss is
            // injected before that.
            (Fault::ClockBack { server: 0, by }, by + Duration::from_millis(500))
        }
        Kind::KillLeader => (Fault::KillLeader, dice.millis(200..2000)),
        Kind::Promote => (Fault::Promote, blink),
        Kind::FreezeFollowers => {
            let most = if engine == Engine::Postgres { 1 } else { 2 };
            (Fault::FreezeFollowers { count: 1 + dice.below(most) }, short_or_long)
        }
        // From a fraction of a lease to two leases, so that waits and renewals both time out.
        Kind::HangMaster => (Fault::HangMaster { server }, dice.millis(ttl / 4..ttl * 2)),
        Kind::RemoveFile => (Fault::RemoveFile { lock: dice.below(LOCKS) }, Duration::ZERO),
        Kind::EmptyFile => (Fault::EmptyFile { lock: dice.below(LOCKS) }, Duration::ZERO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_seed_is_a_plan() {
        for (_, engine) in Engine::ALL {
            assert_eq!(Plan::new(engine, 7, MINUTE), Plan::new(engine, 7, MINUTE));
            assert_ne!(Plan::new(engine, 7, MINUTE), Plan::new(engine, 8, MINUTE));
        }
    }

    #[test]
    fn every_kind_occurs_and_all_faults_end_in_time() {
        for (_, engine) in Engine::ALL {
            let plan = Plan::new(engine, 1, MINUTE);
            let steps: Vec<&Step> = [&plan.kills, &plan.pauses, &plan.servers].into_iter().flatten().collect();
            assert!(steps.iter().all(|step| step.at + step.lasts <= MINUTE));
            let mut seen: Vec<&str> = steps.iter().map(|step| step.fault.kind()).collect();
            seen.sort_unstable();
            seen.dedup();
            let kinds = kinds(engine);
            let mut wanted: Vec<&str> =
                kinds.iter().map(|kind| step(&mut Dice::new(1), engine, *kind).0.kind()).collect();
            wanted.extend(["worker killed", "worker stopped for longer than its lease"]);
            wanted.sort_unstable();
            wanted.dedup();
            assert_eq!(seen, wanted, "{engine:?}");
        }
    }

    #[test]
    fn only_one_clock_of_three_jumps_and_it_recovers_before_a_data_loss() {
        let plan = Plan::new(Engine::Redlock, 3, MINUTE * 10);
        for step in &plan.servers {
            match step.fault {
                Fault::ClockForward { server } => assert_eq!(server, 0),
                Fault::ClockBack { server, by } => {
                    assert_eq!(server, 0);
                    assert!(step.lasts > by);
                }
                _ => {}
            }
        }
    }
}
