//! Redlock: misconfigurations that need several servers.

use std::time::Duration;

use distlock_testkit::clock_shim::{ClockShim, ShiftedClock};
use distlock_testkit::servers::{RedisServer, RedlockNodes};

use super::examine;

#[test]
fn good_nodes_and_then_nodes_down() {
    let mut nodes = RedlockNodes::start(3);
    examine(&nodes.url()).expect_silence();
    examine(&format!("{}?restart_guard=off", nodes.url())).expect_only("persistence", "unsafe", "nothing is kept");
    nodes[2].kill9();
    examine(&nodes.url()).expect_only("reach", "warning", "cannot reach");
    nodes[1].kill9();
    examine(&nodes.url()).expect_among("quorum", "unsafe", "1 of 3 answer, 2 must");
}

#[test]
fn the_same_server_under_two_names() {
    let nodes = RedlockNodes::start(2);
    let url = format!("{},localhost:{}", nodes.url(), nodes[0].port());
    examine(&url).expect_only("independence", "unsafe", "are the same server");
}

#[test]
fn nodes_that_replicate_each_other() {
    let nodes = RedlockNodes::start(2);
    let replica = RedisServer::options().replica_of(nodes[0].address()).start();
    replica.expect_in_sync();
    let url = format!("{},{}", nodes.url(), replica.address());
    examine(&url).expect_among("role", "unsafe", &nodes[0].address().to_string());
}

#[test]
fn nodes_whose_clocks_differ() {
    let shim = ClockShim::new();
    let plain = RedisServer::options();
    let nodes = RedlockNodes::with(vec![plain.clone(), plain.clone(), plain.clock(&shim)]);
    shim.forward(ShiftedClock::Wall, Duration::from_secs(30));
    examine(&nodes.url()).expect_among("clocks", "warning", "s apart");
}
