//! A Redis Cluster.

use super::polling::eventually;
use super::port::Port;
use super::redis::RedisServer;
use super::redis_options::{CONTROL_PASSWORD, CONTROL_USER, RedisOptions};
use super::reply::Reply;

/// The number of hash slots of a cluster.
pub const SLOTS: u16 = 16_384;

/// A node that is silent for this long is considered dead.
const NODE_TIMEOUT_MS: u32 = 1000;

/// Three masters that share the hash slots, and their replicas if any. Dropping it kills them.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    /// They serve no slot until their master dies.
    replicas: Vec<RedisServer>,
    /// The ports on which the nodes talk to each other.
    buses: Vec<Port>,
}

impl RedisCluster {
    /// Starts three masters and waits until all agree that the cluster is whole.
    #[track_caller]
    pub fn start() -> RedisCluster {
        RedisCluster::with(&RedisServer::options())
    }

    /// Like [`start`](Self::start), with options for the nodes.
    #[track_caller]
    pub fn with(options: &RedisOptions) -> RedisCluster {
        let buses: Vec<Port> = (0..3).map(|_| Port::free()).collect();
        let nodes = buses.iter().map(|bus| node(options.clone(), bus)).collect();
        let cluster = RedisCluster { nodes, replicas: Vec::new(), buses };
        cluster.share_slots();
        cluster.introduce();
        cluster.expect_whole();
        cluster
    }

    /// Like [`with`](Self::with), and each master has a replica that is in sync.
    #[track_caller]
    pub fn with_replicas(options: &RedisOptions) -> RedisCluster {
        let mut cluster = RedisCluster::with(options);
        for at in 0..cluster.nodes.len() {
            let (bus, id) = (Port::free(), cluster.id(at));
            let replica = node(options.clone(), &bus);
            cluster.meet(&replica, &bus);
            eventually("a replica to know its master", || {
                replica.command(&["CLUSTER", "REPLICATE", &id]).error().is_none().then_some(())
            });
            cluster.replicas.push(replica);
            cluster.buses.push(bus);
        }
        for node in &cluster.nodes {
            let follows = |info: &String| info.contains("state=online");
            eventually("a replica that keeps up", || node.info("replication", "slave0").filter(follows));
        }
        cluster
    }

    /// The URL that names all nodes.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| node.address().to_string()).collect();
        let password = self.nodes[0].password().map(|password| format!(":{password}@")).unwrap_or_default();
        let scheme = if self.nodes[0].is_encrypted() { "rediss+cluster" } else { "redis+cluster" };
        format!("{scheme}://{password}{}/", hosts.join(","))
    }

    /// The nodes.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The nodes, to kill and restart.
    pub fn nodes_mut(&mut self) -> &mut [RedisServer] {
        &mut self.nodes
    }

    /// Returns the hash slot of a key.
    #[track_caller]
    pub fn slot(&self, key: &str) -> u16 {
        let slot = self.nodes[0].command(&["CLUSTER", "KEYSLOT", key]).int();
        u16::try_from(slot).expect("a slot")
    }

    /// Returns the index of the node that says it serves `slot`.
    #[track_caller]
    pub fn owner(&self, slot: u16) -> usize {
        let owns = |at: &usize| owns(&self.nodes[*at], slot);
        eventually("the owner of a slot", || (0..self.nodes.len()).find(owns))
    }

    /// Moves a slot with its keys to another node, as resharding does; returns when every node knows.
    #[track_caller]
    pub fn move_slot(&self, slot: u16, to: usize) {
        let from = self.owner(slot);
        self.begin_move(slot, to);
        self.move_keys(slot, from, to);
        self.end_move(slot, from, to);
    }

    /// Returns whether the servers can move a slot in one step.
    #[track_caller]
    pub fn moves_atomically(&self) -> bool {
        self.atomic_move(0, 0).is_some()
    }

    /// Moves a slot in one step: the old owner serves it until the new one has all of it. Returns when every node knows.
    #[track_caller]
    pub fn move_slot_atomically(&self, slot: u16, to: usize) {
        let from = self.owner(slot);
        let (at, command) = self.atomic_move(slot, to).expect("servers that can do it");
        let node = &self.nodes[if at == MoveEnd::Old { from } else { to }];
        // A node refuses it while it is still busy with an earlier one.
        eventually("the start of a migration", || {
            let reply = node.command(&command);
            (!matches!(reply, Reply::Error(_))).then_some(())
        });
        self.expect_owner(slot, &self.id(to));
    }

    /// Returns the command of the servers for it, and the node that it is sent to; `None` when they have none.
    fn atomic_move(&self, slot: u16, to: usize) -> Option<(MoveEnd, Vec<String>)> {
        let has = |name: &str| {
            let info = self.nodes[0].command(&["COMMAND", "INFO", name]);
            info.array().iter().any(|info| matches!(info, Reply::Array(parts) if !parts.is_empty()))
        };
        let (slot, words) = (slot.to_string(), |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect());
        if has("cluster|migrateslots") {
            let line = ["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &slot, &slot, "NODE", &self.id(to)];
            Some((MoveEnd::Old, words(&line)))
        } else if has("cluster|migration") {
            Some((MoveEnd::New, words(&["CLUSTER", "MIGRATION", "IMPORT", &slot, &slot])))
        } else {
            None
        }
    }

    /// The first step of a move: from now on the old owner replies ASK for keys that it does not have.
    #[track_caller]
    pub fn begin_move(&self, slot: u16, to: usize) {
        let from = self.owner(slot);
        let (slot, ids) = (slot.to_string(), [from, to].map(|at| self.id(at)));
        expect_ok(&self.nodes[to].command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[0]]));
        expect_ok(&self.nodes[from].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[1]]));
    }

    /// The second step of a move: the keys.
    #[track_caller]
    pub fn move_keys(&self, slot: u16, from: usize, to: usize) {
        let (slot, address) = (slot.to_string(), self.nodes[to].address());
        let (host, port) = (address.ip().to_string(), address.port().to_string());
        loop {
            let keys = self.nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
            if keys.array().is_empty() {
                return;
            }
            let mut migrate = vec!["MIGRATE", &host, &port, "", "0", "5000"];
            migrate.extend(["AUTH2", CONTROL_USER, CONTROL_PASSWORD, "KEYS"]);
            let keys: Vec<String> = keys.array().iter().map(Reply::text).collect();
            migrate.extend(keys.iter().map(String::as_str));
            let reply = self.nodes[from].command(&migrate);
            // A key that expired or was deleted in the meantime can no longer be moved.
            assert!(matches!(reply.to_string().as_str(), "OK" | "NOKEY"), "{reply:?}");
        }
    }

    /// The last step of a move: the new owner takes the slot; returns when every node knows.
    #[track_caller]
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        let (number, id) = (slot.to_string(), self.id(to));
        // The new owner first: otherwise no node would own the slot if something fails in between.
        for at in [to, from] {
            expect_ok(&self.nodes[at].command(&["CLUSTER", "SETSLOT", &number, "NODE", &id]));
        }
        self.expect_owner(slot, &id);
    }

    #[track_caller]
    fn expect_owner(&self, slot: u16, id: &str) {
        let knows = |node: &RedisServer| owner_id(node, slot).is_some_and(|owner| owner == id);
        eventually("all nodes to know a slot's new owner", || self.nodes.iter().all(knows).then_some(()));
    }

    /// Waits until every node that answers reports a complete cluster.
    #[track_caller]
    pub fn expect_whole(&self) {
        let is_whole = |node: &RedisServer| {
            let info = node.try_command(&["CLUSTER", "INFO"]).ok()?.to_string();
            Some(info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3"))
        };
        let all = || self.nodes.iter().filter_map(is_whole).all(|whole| whole).then_some(());
        eventually("a whole cluster", all);
    }

    fn id(&self, at: usize) -> String {
        self.nodes[at].command(&["CLUSTER", "MYID"]).text()
    }

    fn share_slots(&self) {
        let count = u16::try_from(self.nodes.len()).expect("few nodes");
        for (number, node) in (0..count).zip(&self.nodes) {
            let first = |number: u16| u32::from(SLOTS) * u32::from(number) / u32::from(count);
            let (from, to) = (first(number).to_string(), (first(number + 1) - 1).to_string());
            expect_ok(&node.command(&["CLUSTER", "ADDSLOTSRANGE", &from, &to]));
            // Without distinct epochs the nodes would first have to resolve a conflict about them.
            expect_ok(&node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]));
        }
    }

    fn introduce(&self) {
        for (node, bus) in self.nodes.iter().zip(&self.buses).skip(1) {
            self.meet(node, bus);
        }
    }

    fn meet(&self, node: &RedisServer, bus: &Port) {
        let address = node.address();
        let (host, port, bus) = (address.ip().to_string(), address.port().to_string(), bus.number().to_string());
        expect_ok(&self.nodes[0].command(&["CLUSTER", "MEET", &host, &port, &bus]));
    }
}

/// The node of a move that is told to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MoveEnd {
    Old,
    New,
}

fn node(options: RedisOptions, bus: &Port) -> RedisServer {
    let is_encrypted = options.tls.is_some();
    options
        .config(if is_encrypted { "tls-cluster yes" } else { "tls-cluster no" })
        .config("cluster-enabled yes")
        // By default the bus port is ten thousand above the server's port, which may be taken or out of range.
        .config(format!("cluster-port {}", bus.number()))
        .config(format!("cluster-node-timeout {NODE_TIMEOUT_MS}"))
        .config("cluster-config-file nodes.conf")
        .start()
}

fn owns(node: &RedisServer, slot: u16) -> bool {
    let id = node.try_command(&["CLUSTER", "MYID"]).map(|id| id.text());
    id.is_ok_and(|id| owner_id(node, slot) == Some(id))
}

/// Returns the id of the owner of a slot, as one node reports it.
fn owner_id(node: &RedisServer, slot: u16) -> Option<String> {
    let shards = node.try_command(&["CLUSTER", "SLOTS"]).ok()?;
    let slot = i64::from(slot);
    let range = shards.array().iter().find(|range| {
        let range = range.array();
        (range[0].int()..=range[1].int()).contains(&slot)
    })?;
    Some(range.array()[2].array()[2].text())
}

#[track_caller]
fn expect_ok(reply: &Reply) {
    assert_eq!(*reply, Reply::Simple("OK".into()));
}
