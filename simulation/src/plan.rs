//! The plan of faults of a world, decided by a seed.

use std::fmt;
use std::time::Duration;

use distlock_testkit::Dice;

/// How long after a fault a waiter may legitimately lose its place.
pub(crate) const SETTLES: Duration = Duration::from_secs(2);

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    /// The client whose network or machine is affected; `None` means a server.
    pub(crate) client: Option<usize>,
    /// The affected server, or the server at the other end of the network; `None` means all servers.
    pub(crate) server: Option<usize>,
}

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Messages from a client are lost.
    LosesRequests,
    /// Messages to a client are lost.
    LosesReplies,
    /// Messages in both directions are lost.
    CutOff,
    /// Messages in both directions are held, and then delivered late.
    HeldUp,
    /// Every message takes up to this long.
    Slow(Duration),
    /// A process dies and is restarted.
    Crash,
    /// A client's machine dies and is restarted: its peers do not see its connections close.
    PowerLoss,
    /// A server dies and is restarted without its data.
    DataLoss,
    /// A server's clock jumps forward and stays so.
    ClockLeap(Duration),
    /// The process of a crowd dies, and its connections are closed.
    CrowdDies,
    /// The machine of a crowd dies: its peers do not see its connections close.
    CrowdVanishes,
}

impl Fault {
    /// Returns whether both affect the same machine, or the same part of the network.
    fn meets(&self, other: &Fault) -> bool {
        let same_server = self.server == other.server;
        match (self.client, other.client) {
            (None, None) => same_server,
            (Some(one), Some(two)) => one == two && (same_server || self.server.is_none() || other.server.is_none()),
            _ => false,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { kind, client, server } = self;
        let number = |number: &Option<usize>| number.map_or("all".into(), |number| number.to_string());
        write!(
            f,
            "{kind:?} of client {} and server {}",
            client.map_or("none".into(), |client| client.to_string()),
            number(server)
        )
    }
}

/// A fault and its time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(crate) fault: Fault,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

/// The machines of a world, and the faults that are allowed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scene {
    pub(crate) clients: usize,
    pub(crate) servers: usize,
    pub(crate) time: Duration,
    /// The server that may lose its data, if any: a simultaneous data loss of a majority is a documented limit.
    pub(crate) forgets: Option<usize>,
}

/// Returns the faults of one world. No two concurrent faults affect the same machine or the same part of the network.
pub(crate) fn plan(dice: &mut Dice, scene: Scene) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut from = dice.millis(100..1500);
    while from < scene.time {
        let fault = draw(dice, scene);
        // Some faults end before they are noticed, some outlast every lease.
        let longest = if dice.percent(50) { 600 } else { 4000 };
        let to = (from + dice.millis(50..longest)).min(scene.time);
        if !steps.iter().any(|step| step.fault.meets(&fault) && step.to >= from) {
            steps.push(Step { fault, from, to });
        }
        from += dice.millis(50..2500);
    }
    steps
}

/// Returns jumps of one clock, always the same: a majority of clocks must keep time.
pub(crate) fn leaps(dice: &mut Dice, scene: Scene) -> Vec<Step> {
    let server = Some(dice.below(scene.servers));
    let mut from = dice.millis(500..6000);
    let mut steps = Vec::new();
    while from < scene.time {
        let kind = Kind::ClockLeap(dice.millis(500..10_000));
        steps.push(Step { fault: Fault { kind, client: None, server }, from, to: from });
        from += dice.millis(500..6000);
    }
    steps
}

/// Returns restarts of one server after the other, each without its data. A lease that all servers have is restored on
/// one server before the next restart. The first restart comes when a lock can be on all servers.
pub(crate) fn rolling(dice: &mut Dice, scene: Scene) -> Vec<Step> {
    let (first, mut from) = (dice.below(scene.servers), Duration::from_millis(6000) + dice.millis(0..800));
    let mut steps = Vec::new();
    while from + Duration::from_secs(1) < scene.time {
        let server = Some((first + steps.len()) % scene.servers);
        let to = from + dice.millis(50..300);
        steps.push(Step { fault: Fault { kind: Kind::DataLoss, client: None, server }, from, to });
        from = to + dice.millis(2200..2600);
    }
    steps
}

fn draw(dice: &mut Dice, scene: Scene) -> Fault {
    let (client, server) = (Some(dice.below(scene.clients)), Some(dice.below(scene.servers)));
    let is_all = dice.percent(50);
    let is_lost = scene.forgets.is_some() && dice.percent(50) && scene.forgets == server;
    let on_link = |kind| Fault { kind, client, server: server.filter(|_| !is_all) };
    match dice.below(100) {
        0..15 => on_link(Kind::LosesRequests),
        15..30 => on_link(Kind::LosesReplies),
        30..45 => on_link(Kind::CutOff),
        45..60 => on_link(Kind::HeldUp),
        60..75 => on_link(Kind::Slow(dice.millis(100..2500))),
        75..81 => Fault { kind: Kind::Crash, client, server: None },
        81..86 => Fault { kind: Kind::PowerLoss, client, server: None },
        _ => Fault { kind: if is_lost { Kind::DataLoss } else { Kind::Crash }, client: None, server },
    }
}
