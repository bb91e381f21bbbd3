//! The kit's networks lose the packets that they are configured to lose.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use distlock_testkit::child::{Child, Outcome};
use distlock_testkit::netns::{Loss, Network, Side};
use distlock_testkit::proxy::{Door, Proxy};
use distlock_testkit::servers::{RedisServer, Reply, RespClient, eventually};

distlock_testkit::child!();

const LOSSES: [Loss; 3] = [Loss::Firewall, Loss::Blackhole, Loss::WrongNeighbour];

/// Long compared with a round trip of microseconds; a later packet was lost and retransmitted.
const NOTHING_COMES: Duration = Duration::from_millis(200);

fn ok() -> Reply {
    Reply::Simple("OK".into())
}

fn world() -> (Network, RedisServer, RespClient) {
    let network = Network::new();
    let server = RedisServer::options().namespace(network.side(Side::Server)).start();
    let mut client = network.side(Side::Client).run(|| RespClient::tcp(server.address())).unwrap();
    assert_eq!(client.command(&["SET", "k", "first"]).unwrap(), ok());
    (network, server, client)
}

fn expect_silence(client: &mut RespClient) {
    client.set_timeout(NOTHING_COMES);
    assert_eq!(client.receive().unwrap_err().kind(), ErrorKind::WouldBlock);
    client.set_timeout(Duration::from_secs(20));
}

#[test]
fn replies_are_lost_one_way_and_arrive_after_healing_needs_root() {
    for loss in LOSSES {
        let (network, server, mut client) = world();
        network.lose(Side::Server, loss);
        client.send(&["SET", "k", "second"]).unwrap();
        let is_set = || (server.command(&["GET", "k"]).text() == "second").then_some(());
        eventually(format_args!("{loss:?} to let requests through"), is_set);
        expect_silence(&mut client);
        network.heal();
        assert_eq!(client.receive().unwrap(), ok(), "{loss:?}");
    }
}

#[test]
fn requests_are_lost_one_way_and_arrive_after_healing_needs_root() {
    for loss in LOSSES {
        let (network, server, mut client) = world();
        network.lose(Side::Client, loss);
        // A blackhole may return an error to the sender; the kernel retransmits all the same.
        let _ = client.send(&["SET", "k", "second"]);
        expect_silence(&mut client);
        assert_eq!(server.command(&["GET", "k"]).text(), "first", "{loss:?}");
        network.heal();
        assert_eq!(client.receive().unwrap(), ok(), "{loss:?}");
        assert_eq!(server.command(&["GET", "k"]).text(), "second", "{loss:?}");
    }
}

#[test]
fn a_proxy_in_a_network_reaches_a_server_outside_needs_root() {
    let (network, server) = (Arc::new(Network::new()), RedisServer::start());
    let proxy = Proxy::start_in(&network, server.address());
    let dial = || network.side(Side::Client).run(|| RespClient::tcp(proxy.address()));
    let mut client = dial().unwrap();
    assert_eq!(client.command(&["SET", "k", "first"]).unwrap(), ok());
    network.lose(Side::Client, Loss::Firewall);
    client.send(&["SET", "k", "second"]).unwrap();
    expect_silence(&mut client);
    assert_eq!(server.command(&["GET", "k"]).text(), "first");
    network.heal();
    assert_eq!(client.receive().unwrap(), ok());
    proxy.door(Door::Refuse);
    assert_eq!(dial().unwrap_err().kind(), ErrorKind::ConnectionRefused);
    proxy.door(Door::Open);
    assert_eq!(dial().unwrap().command(&["GET", "k"]).unwrap().text(), "second");
}

#[test]
fn a_child_runs_inside_and_nothing_outside_is_reached_needs_root() {
    let (network, server, _client) = world();
    let mut child = Child::start_in(network.side(Side::Client));
    child.connect("mem://");
    assert!(matches!(child.lock("k", Duration::from_secs(1)).outcome, Outcome::Taken { .. }));
    let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
    let (inside, ours, servers) = (of(&child.pid().to_string()), of("self"), of(&server.pid().to_string()));
    assert!(inside != ours && inside != servers && servers != ours);
}

#[test]
fn a_network_leaves_nothing_behind_needs_root() {
    let network = Network::new();
    let names = [Side::Client, Side::Server].map(|side| network.side(side).name().to_owned());
    let is_there = |name: &String| std::path::Path::new("/run/netns").join(name).exists();
    assert!(names.iter().all(is_there));
    drop(network);
    assert!(!names.iter().any(is_there));
}
