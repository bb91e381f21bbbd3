//! A network partition between a master and its replica, with clients on both sides.

use std::time::Duration;

use distlock_testkit::child::{Child, Outcome};
use distlock_testkit::netns::{Loss, Network, Side};
use distlock_testkit::servers::{RedisServer, eventually};

use crate::bench::now;

const LEASE: Duration = Duration::from_secs(4);
const MOST_LAG: Duration = Duration::from_secs(2);

/// Not promised: an old master renews until it notices the partition. So for `min-replicas-max-lag` and a second (the
/// replicas' interval) more than the lease, its holder and the next holder on the other side may both believe. Their
/// tokens differ.
#[test]
fn f26_needs_root_an_old_master_cut_off_from_its_replicas_refuses_and_tokens_rise() {
    let network = Network::new();
    let (here, there) = (network.side(Side::Server), network.side(Side::Client));
    let master = RedisServer::options().namespace(here).start();
    let replica = RedisServer::options().namespace(there).replica_of(master.address()).start();
    replica.expect_in_sync();
    master.command(&["CONFIG", "SET", "min-replicas-max-lag", "2"]);
    master.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let mut old = Child::start_in(here);
    old.connect(&master.url());
    let token = old.lock("a", LEASE).token();
    assert_eq!(master.command(&["WAIT", "1", "20000"]).int(), 1, "the replica has the lock");

    network.lose(Side::Server, Loss::Firewall);
    network.lose(Side::Client, Loss::Firewall);
    let parted = now();
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    let mut new = Child::start_in(there);
    new.connect(&replica.url());
    new.send(format_args!("lock a {}", LEASE.as_millis()));

    // The old master serves its side only until it misses its replica.
    let refusal = eventually("a refusal", || match old.try_lock("b", LEASE).outcome {
        Outcome::Failed { kind, message } => Some((kind, message)),
        Outcome::Taken { .. } => {
            old.unlock("b");
            None
        }
        // Its release was just refused, and continues in the background.
        _ => None,
    });
    assert_eq!(refusal.0, "Unavailable", "{}", refusal.1);
    assert!(refusal.1.contains("NOREPLICAS"), "{}", refusal.1);
    let lost = old.lost("a");
    assert_eq!(lost.outcome, Outcome::Lost("Expired".into()), "renewals are refused as well");
    let believed = lost.ended.since(parted);
    // Three seconds for a machine that is busy otherwise.
    assert!(believed < LEASE + MOST_LAG + Duration::from_secs(1 + 3), "the old side believed for {believed:?}");
    let next = new.receive();
    assert!(next.token() > token, "{} after {token}", next.token());
    assert_eq!(new.unlock("a").outcome, Outcome::Done);
}
