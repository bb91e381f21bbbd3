//! Independent Redis servers: one, or three for a quorum.

use std::time::Duration;

use distlock_testkit::clock_shim::{ClockShim, ShiftedClock};
use distlock_testkit::servers::{Data, RedisServer, RedlockNodes};

use super::Arena;
use crate::fault::Fault;
use crate::links::Links;

/// Longer than any lease.
const LEAP: Duration = Duration::from_secs(10);

/// The servers, the links to them, and the clock of the first.
pub(crate) struct Redis {
    servers: RedlockNodes,
    count: usize,
    links: Links,
    clock: ClockShim,
}

impl Redis {
    pub(crate) fn alone() -> Redis {
        Redis::of(1)
    }

    pub(crate) fn quorum() -> Redis {
        Redis::of(3)
    }

    fn of(count: usize) -> Redis {
        let clock = ClockShim::new();
        // A server that must keep its data has to write them to disk before it replies.
        let mut options = vec![RedisServer::options().persistent(); count];
        options[0] = options[0].clone().clock(&clock);
        let servers = RedlockNodes::with(options);
        let links = Links::to((0..count).map(|at| servers[at].address()));
        Redis { servers, count, links, clock }
    }
}

impl Arena for Redis {
    fn url(&self, worker: usize) -> String {
        // On a single server the restart guard makes a loss of data harmless; Redlock always has it.
        let scheme = if self.count == 1 { "redis" } else { "redlock" };
        format!("{scheme}://{}/?restart_guard=on", self.links.addresses(worker))
    }

    fn namespace(&self, worker: usize) -> Option<String> {
        self.links.namespace(worker)
    }

    fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::Link { server, side, trouble } => self.links.begin(server, side, trouble),
            Fault::Partition { how, from } => self.links.part(how, from),
            Fault::Freeze { server } => self.servers[server].stop(),
            Fault::Restart { server } | Fault::Forget { server } => self.servers[server].kill9(),
            Fault::Flush { server } => {
                self.servers[server].command(&["FLUSHALL"]);
            }
            Fault::ClockForward { .. } => self.clock.forward(ShiftedClock::Wall, LEAP),
            Fault::ClockBack { by, .. } => self.clock.back(ShiftedClock::Wall, by),
            other => unreachable!("{other:?} does not apply to Redis"),
        }
    }

    fn end(&mut self, fault: Fault) {
        match fault {
            Fault::Link { server, side, .. } => self.links.end(server, side),
            Fault::Partition { .. } => self.links.heal(),
            Fault::Freeze { server } => self.servers[server].cont(),
            Fault::Restart { server } => self.servers[server].restart(Data::Kept),
            Fault::Forget { server } => self.servers[server].restart(Data::Lost),
            // The clock stays as it was set: correcting it would be another jump.
            _ => {}
        }
    }

    fn leftovers(&mut self) -> Vec<String> {
        // The key of the restart guard and the notes of ticks stay, too.
        let keys = (0..self.count).flat_map(|at| self.servers.keys(at));
        keys.filter(|key| !key.ends_with(":g") && !key.ends_with(":t")).collect()
    }
}
