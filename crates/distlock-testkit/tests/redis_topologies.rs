//! The kit's Sentinel and Cluster set-ups support what the fault tests need.

use distlock_testkit::servers::{
    Data, RedisCluster, RedisServer, Reply, RespClient, SERVICE, SentinelSetup, eventually,
};

fn ok() -> Reply {
    Reply::Simple("OK".into())
}

#[test]
fn sentinels_name_another_master_after_a_failover_or_a_crash() {
    let mut setup = SentinelSetup::start();
    assert!(setup.url().starts_with("redis+sentinel://127.0.0.1:") && setup.url().ends_with(SERVICE));
    assert_eq!(setup.master(), Some(0));
    let second = setup.failover();
    assert_ne!(second, 0);
    assert_eq!(setup.servers()[second].command(&["SET", "k", "v"]), ok());
    setup.servers_mut()[second].kill9();
    let third = setup.expect_master_other_than(second);
    assert_eq!(setup.servers()[third].command(&["SET", "k", "w"]), ok());
    setup.servers_mut()[second].restart(Data::Kept);
    eventually("exactly one server that takes writes", || is_one_master(&setup).then_some(()));
}

/// Returns whether the server that the sentinels name accepts writes, and the others refuse them as replicas.
///
/// Sentinels disconnect all clients of a server that they demote, and while it loads the new master's data it refuses
/// everything with LOADING: no reply and a different reply are both ordinary.
fn is_one_master(setup: &SentinelSetup) -> bool {
    let Some(master) = setup.master() else { return false };
    setup.servers().iter().enumerate().all(|(at, server)| {
        let reply = server.try_command(&["SET", "k", "x"]);
        let is_refused = |reply: &Reply| reply.error().is_some_and(|error| error.starts_with("READONLY"));
        reply.is_ok_and(|reply| if at == master { reply == ok() } else { is_refused(&reply) })
    })
}

#[test]
fn a_restarted_sentinel_remembers() {
    let mut setup = SentinelSetup::with(&RedisServer::options().password("pw"));
    let new = setup.failover();
    setup.sentinels_mut().iter_mut().for_each(|sentinel| sentinel.restart(Data::Kept));
    assert_eq!(eventually("sentinels that agree", || setup.master()), new);
}

#[test]
fn a_slot_moves_with_its_keys() {
    let cluster = RedisCluster::start();
    let slot = cluster.slot("k");
    let old = cluster.owner(slot);
    let new = (old + 1) % 3;
    assert_eq!(cluster.nodes()[old].command(&["SET", "k", "v", "PX", "60000"]), ok());
    let moved = cluster.nodes()[new].command(&["GET", "k"]);
    assert!(moved.error().unwrap().starts_with(&format!("MOVED {slot}")), "{moved}");
    cluster.move_slot(slot, new);
    assert_eq!(cluster.owner(slot), new);
    assert_eq!(cluster.nodes()[new].command(&["GET", "k"]).text(), "v");
    assert!(cluster.nodes()[old].command(&["GET", "k"]).error().unwrap().starts_with("MOVED"));
}

#[test]
fn half_a_move_replies_ask() {
    let cluster = RedisCluster::with(&RedisServer::options().password("pw"));
    let slot = cluster.slot("k");
    let old = cluster.owner(slot);
    let new = (old + 2) % 3;
    cluster.begin_move(slot, new);
    let ask = cluster.nodes()[old].command(&["SET", "k", "v"]);
    assert!(ask.error().unwrap().starts_with(&format!("ASK {slot}")), "{ask}");
    let mut client = cluster.nodes()[new].client().unwrap();
    assert_eq!(client.command(&["ASKING"]).unwrap(), ok());
    assert_eq!(client.command(&["SET", "k", "v"]).unwrap(), ok());
    cluster.end_move(slot, old, new);
    assert_eq!(cluster.nodes()[new].command(&["GET", "k"]).text(), "v");
}

#[test]
fn a_cluster_without_a_majority_refuses() {
    let mut cluster = RedisCluster::start();
    let slot = cluster.slot("k");
    let (owner, nodes) = (cluster.owner(slot), cluster.nodes_mut());
    (0..3).filter(|at| *at != owner).for_each(|at| nodes[at].kill9());
    let mut client = RespClient::tcp(nodes[owner].address()).unwrap();
    let refused = eventually("CLUSTERDOWN", || client.command(&["SET", "k", "v"]).unwrap().error().map(str::to_owned));
    assert!(refused.starts_with("CLUSTERDOWN"), "{refused}");
    (0..3).filter(|at| *at != owner).for_each(|at| nodes[at].restart(Data::Kept));
    eventually("the cluster to be whole again", || (client.command(&["SET", "k", "v"]).unwrap() == ok()).then_some(()));
}
