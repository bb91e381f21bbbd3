//! What goes wrong in a world, and when: a seed decides.

use std::fmt;
use std::time::Duration;

use distlock_testkit::Dice;

/// How long after a fault a waiter may lose its place without anybody's fault.
pub(crate) const SETTLES: Duration = Duration::from_secs(2);

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    /// Whose network or machine it is; `None`: a server's.
    pub(crate) client: Option<usize>,
    /// Which server, or the network to which; `None`: to all.
    pub(crate) server: Option<usize>,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What a client sends is lost.
    LosesRequests,
    /// What a client is sent is lost.
    LosesReplies,
    /// Nothing arrives either way.
    CutOff,
    /// Nothing arrives either way, until all of it arrives late.
    HeldUp,
    /// Every message takes up to so long.
    Slow(Duration),
    /// A process dies and is started again.
    Crash,
    /// A client's machine dies and is started again: its peers are not told that its connections are closed.
    PowerLoss,
    /// A server dies and is started again without its data.
    DataLoss,
    /// A server's clock is set forward, and stays so.
    ClockLeap(Duration),
    /// The process of a crowd dies, and its connections are closed.
    CrowdDies,
    /// The machine of a crowd dies: its peers are not told that its connections are closed.
    CrowdVanishes,
}

impl Fault {
    /// Whether both are about the same machine, or the same part of a network.
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

/// The machines of a world, and what may be done to them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scene {
    pub(crate) clients: usize,
    pub(crate) servers: usize,
    pub(crate) time: Duration,
    /// Which server may lose its data, if one may: a majority that forgets at once is a limit that the pages state.
    pub(crate) forgets: Option<usize>,
}

/// The faults of one world. No two at the same time are about the same machine or the same part of the network.
pub(crate) fn plan(dice: &mut Dice, scene: Scene) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut from = dice.millis(100..1500);
    while from < scene.time {
        let fault = draw(dice, scene);
        // Some are over before anybody has noticed, some outlast every lease.
        let longest = if dice.percent(50) { 600 } else { 4000 };
        let to = (from + dice.millis(50..longest)).min(scene.time);
        if !steps.iter().any(|step| step.fault.meets(&fault) && step.to >= from) {
            steps.push(Step { fault, from, to });
        }
        from += dice.millis(50..2500);
    }
    steps
}

/// Leaps of one clock, always the same: a majority of clocks must keep time.
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

/// Restarts of one server after the other, each without its data. A lease that every server has is healed on one before the
/// next one's turn. The first is when a lock can be had and is on all of them.
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
