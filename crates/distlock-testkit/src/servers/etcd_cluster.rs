//! A cluster of etcd servers.

use std::net::SocketAddr;

use super::etcd::{self, EtcdServer, PORT_TAKEN, Ports};
use super::etcd_options::EtcdOptions;
use super::etcdctl::Etcdctl;
use super::polling::eventually;

/// How often to choose ports: each failure means that another process took one between choosing and using it.
const ATTEMPTS: usize = 10;

/// A cluster of etcd servers. Dropping it kills them.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<EtcdServer>,
    options: EtcdOptions,
}

impl EtcdCluster {
    /// Starts a cluster of three with the defaults of [`EtcdOptions`].
    #[track_caller]
    pub fn start() -> EtcdCluster {
        EtcdServer::options().start_cluster()
    }

    #[track_caller]
    pub(super) fn launch(options: &EtcdOptions, count: usize) -> EtcdCluster {
        for _ in 0..ATTEMPTS {
            let members = members(options, count);
            let mut cluster = EtcdCluster { members, options: options.clone() };
            match cluster.members.iter_mut().try_for_each(EtcdServer::until_healthy) {
                Ok(()) => {
                    cluster.members[0].enable_auth();
                    return cluster;
                }
                Err(log) if log.contains(PORT_TAKEN) => {}
                Err(log) => panic!("etcd did not start:\n{log}"),
            }
        }
        panic!("etcd found no free ports {ATTEMPTS} times");
    }

    pub(super) fn into_members(self) -> Vec<EtcdServer> {
        self.members
    }

    /// The members.
    pub fn members(&self) -> &[EtcdServer] {
        &self.members
    }

    /// The members, to kill and restart.
    pub fn members_mut(&mut self) -> &mut [EtcdServer] {
        &mut self.members
    }

    /// The URL of the cluster; with authentication on, for `root`.
    pub fn url(&self) -> String {
        etcd::url(&self.options, &self.addresses())
    }

    /// Returns the addresses of the members.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.members.iter().map(EtcdServer::address).collect()
    }

    /// Returns the endpoints in the form of other etcd clients.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(EtcdServer::endpoint).collect()
    }

    /// Returns `etcdctl` for all members, with all rights.
    pub fn etcdctl(&self) -> Etcdctl {
        Etcdctl::new(&self.options, &self.endpoints())
    }

    /// Waits until the running members know a leader and exactly one of them reports itself as the leader; returns its
    /// index. Frozen and dead members are not asked.
    #[track_caller]
    pub fn leader(&mut self) -> usize {
        eventually("a leader", || {
            let running = |member: &mut EtcdServer| !member.is_running() || member.has_leader();
            let is_known = self.members.iter_mut().all(running);
            let leaders: Vec<usize> = (0..self.members.len()).filter(|at| self.members[*at].is_leader()).collect();
            match leaders[..] {
                [leader] if is_known => Some(leader),
                _ => None,
            }
        })
    }

    /// Returns the indices of the followers.
    #[track_caller]
    pub fn followers(&mut self) -> Vec<usize> {
        let leader = self.leader();
        (0..self.members.len()).filter(|at| *at != leader).collect()
    }
}

fn members(options: &EtcdOptions, count: usize) -> Vec<EtcdServer> {
    let ports: Vec<(String, Ports)> = (0..count).map(|number| (format!("etcd{number}"), Ports::free())).collect();
    let cluster: Vec<String> = ports.iter().map(|(name, ports)| ports.member(name)).collect();
    let cluster = cluster.join(",");
    ports.into_iter().map(|(name, ports)| EtcdServer::launch(options, &name, ports, &cluster)).collect()
}
