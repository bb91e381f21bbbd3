//! A cluster of three etcd servers.

use std::time::Duration;

use distlock_testkit::servers::{Data, EtcdCluster, EtcdServer};

use super::Arena;
use crate::fault::Fault;
use crate::links::Links;

/// Long enough that a leader which a busy machine does not schedule for a second is not mistaken for a frozen one.
const HEARTBEAT: Duration = Duration::from_millis(200);
const ELECTION: Duration = Duration::from_secs(2);

/// The cluster, the links to its members, and the members that are down or frozen.
pub(crate) struct Etcd {
    cluster: EtcdCluster,
    links: Links,
    away: Vec<usize>,
}

impl Etcd {
    pub(crate) fn start() -> Etcd {
        let cluster = EtcdServer::options().timing(HEARTBEAT, ELECTION).start_cluster();
        let links = Links::to(cluster.addresses());
        Etcd { cluster, links, away: Vec::new() }
    }
}

impl Arena for Etcd {
    fn url(&self, worker: usize) -> String {
        format!("etcd://{}/", self.links.addresses(worker))
    }

    fn namespace(&self, worker: usize) -> Option<String> {
        self.links.namespace(worker)
    }

    fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::Link { server, side, trouble } => self.links.begin(server, side, trouble),
            Fault::Partition { how, from } => self.links.part(how, from),
            Fault::KillLeader => {
                let leader = self.cluster.leader();
                self.cluster.members_mut()[leader].kill9();
                self.away = vec![leader];
            }
            Fault::FreezeFollowers { count } => {
                self.away = self.cluster.followers();
                self.away.truncate(count);
                self.away.iter().for_each(|member| self.cluster.members()[*member].stop());
            }
            other => unreachable!("{other:?} does not apply to etcd"),
        }
    }

    fn end(&mut self, fault: Fault) {
        match fault {
            Fault::Link { server, side, .. } => self.links.end(server, side),
            Fault::Partition { .. } => self.links.heal(),
            Fault::KillLeader => {
                for member in self.away.drain(..) {
                    self.cluster.members_mut()[member].restart(Data::Kept);
                }
            }
            _ => self.away.drain(..).for_each(|member| self.cluster.members()[member].cont()),
        }
    }

    fn leftovers(&mut self) -> Vec<String> {
        let keys = self.cluster.etcdctl().run(&["get", "--prefix", "--keys-only", ""]);
        // Notes of ticks must stay.
        keys.lines().filter(|key| !key.is_empty() && !key.contains("{}ticks/")).map(str::to_owned).collect()
    }
}
