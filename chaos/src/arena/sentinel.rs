//! A Redis master with replicas, and sentinels that promote a replica when the master dies.

use distlock_testkit::servers::{Data, RedisServer, SentinelSetup, eventually};

use super::Arena;
use crate::fault::Fault;

/// The servers, and the index of the one that was killed.
pub(crate) struct Sentinel {
    setup: SentinelSetup,
    dead: usize,
}

impl Sentinel {
    pub(crate) fn start() -> Sentinel {
        Sentinel { setup: SentinelSetup::with(&RedisServer::options().persistent()), dead: 0 }
    }
}

impl Arena for Sentinel {
    fn url(&self, _worker: usize) -> String {
        format!("{}?restart_guard=on", self.setup.url())
    }

    fn begin(&mut self, fault: Fault) {
        assert_eq!(fault, Fault::KillLeader);
        self.dead = eventually("a master", || self.setup.master());
        self.setup.servers_mut()[self.dead].kill9();
    }

    fn end(&mut self, _fault: Fault) {
        // Only then: a master that is back before it was replaced continues until the sentinels demote it.
        self.setup.expect_master_other_than(self.dead);
        let server = &mut self.setup.servers_mut()[self.dead];
        server.restart(Data::Kept);
        // A server that is demoted disconnects its clients, including this one.
        eventually("the old master to follow the new one", || {
            let replication = server.try_command(&["INFO", "replication"]).ok()?.to_string();
            replication.contains("master_link_status:up").then_some(())
        });
    }

    fn leftovers(&mut self) -> Vec<String> {
        let master = eventually("a master", || self.setup.master());
        let keys = self.setup.servers()[master].command(&["KEYS", "*"]);
        let keys = keys.array().iter().map(ToString::to_string);
        keys.filter(|key| ![":f", ":g", ":t"].iter().any(|suffix| key.ends_with(suffix))).collect()
    }
}
