//! A Redis Cluster of three masters without replicas. Each master has one of the locks.

use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{RedisCluster, RedisServer, eventually};

use super::Arena;
use crate::fault::Fault;
use crate::links;
use crate::plan::LOCKS;
use crate::worker::name;

/// The masters, and a proxy in front of each. The masters announce the proxies' addresses to clients.
pub(crate) struct Cluster {
    masters: RedisCluster,
    proxies: Vec<Proxy>,
    /// The master of each lock.
    owners: Vec<usize>,
}

impl Cluster {
    pub(crate) fn start() -> Cluster {
        // The other masters serve their slots while one is considered dead.
        let masters = RedisCluster::with(&RedisServer::options().config("cluster-require-full-coverage no"));
        for lock in 0..LOCKS {
            let (slot, to) = (masters.slot(&name(lock)), lock % masters.nodes().len());
            if masters.owner(slot) != to {
                masters.move_slot(slot, to);
            }
        }
        let owners = (0..LOCKS).map(|lock| masters.owner(masters.slot(&name(lock)))).collect();
        let proxies: Vec<Proxy> = masters.nodes().iter().map(|node| Proxy::start(node.address())).collect();
        for (node, proxy) in masters.nodes().iter().zip(&proxies) {
            let said = node.command(&["CONFIG", "SET", "cluster-announce-port", &proxy.port().to_string()]);
            assert!(said.error().is_none(), "{said:?}");
        }
        let knows = |node: &RedisServer| {
            let slots = node.command(&["CLUSTER", "SLOTS"]);
            let ports: Vec<i64> = slots.array().iter().map(|range| range.array()[2].array()[1].int()).collect();
            ports.iter().all(|port| proxies.iter().any(|proxy| i64::from(proxy.port()) == *port))
        };
        eventually("all masters to know the proxies", || masters.nodes().iter().all(knows).then_some(()));
        Cluster { masters, proxies, owners }
    }
}

impl Arena for Cluster {
    fn url(&self, _worker: usize) -> String {
        let places: Vec<String> = self.proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        format!("redis+cluster://{}/", places.join(","))
    }

    fn server_of(&self, lock: usize) -> Option<usize> {
        self.owners.get(lock).copied()
    }

    fn begin(&mut self, fault: Fault) {
        match fault {
            // Masters announce the same ports to all clients, so the workers cannot be split into halves.
            Fault::Link { server, trouble, .. } => links::strike(&self.proxies[server], trouble),
            Fault::HangMaster { server } => self.masters.nodes()[server].stop(),
            other => unreachable!("{other:?} does not apply to a cluster"),
        }
    }

    fn end(&mut self, fault: Fault) {
        match fault {
            Fault::HangMaster { server } => self.masters.nodes()[server].cont(),
            Fault::Link { server, .. } => self.proxies[server].pass(),
            _ => {}
        }
    }

    fn leftovers(&mut self) -> Vec<String> {
        let keys = |node: &RedisServer| -> Vec<String> {
            node.command(&["KEYS", "*"]).array().iter().map(ToString::to_string).collect()
        };
        let all = self.masters.nodes().iter().flat_map(keys);
        all.filter(|key| ![":f", ":g", ":t"].iter().any(|suffix| key.ends_with(suffix))).collect()
    }
}
