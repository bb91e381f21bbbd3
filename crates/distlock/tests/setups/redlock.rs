//! Sets of independent Redis nodes, each a set-up of the conformance suite.

use std::time::Duration;

use distlock::backend::redis::Redis;
use distlock::backend::redlock::Redlock;
use distlock_testkit::Setup;
use distlock_testkit::servers::RedlockNodes;

/// `ALIVE` nodes of `ALL`: the others are down from the start.
pub(crate) struct Nodes<const ALL: usize, const ALIVE: usize> {
    nodes: RedlockNodes,
}

impl<const ALL: usize, const ALIVE: usize> Setup for Nodes<ALL, ALIVE> {
    type Engine = Redlock;

    async fn start() -> Self {
        let mut nodes = RedlockNodes::start(ALL);
        nodes.settle();
        (ALIVE..ALL).for_each(|dead| nodes[dead].kill9());
        Nodes { nodes }
    }

    async fn client(&self) -> Redlock {
        Redlock::of(self.nodes.ports().map(|port| Redis::tcp("127.0.0.1", port))).build().expect("an engine")
    }

    /// A node may take a fifth of it to reply, and this machine runs many nodes.
    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    async fn leftovers(&self) -> Vec<String> {
        (0..ALIVE).flat_map(|at| self.nodes.keys(at).into_iter().map(move |key| format!("node {at}: {key}"))).collect()
    }
}
