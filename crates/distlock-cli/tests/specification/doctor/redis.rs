//! Redis: one server, sentinels, a cluster.

use std::time::Duration;

use distlock_testkit::clock_shim::{ClockShim, ShiftedClock};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{RedisCluster, RedisOptions, RedisServer, SERVICE, SentinelSetup, eventually};

use super::{examine, examine_with_latency};
use crate::machine::Machine;

/// Options of a server without findings.
fn good() -> RedisOptions {
    RedisServer::options().persistent().config("maxmemory 100mb")
}

/// The permissions that docs/backends/redis.md lists.
const RIGHTS: &str = "resetchannels ~app:* ~{app:* &distlock:wake:* -@all +hello +auth +ping +select +role +time \
                      +subscribe +scan +eval +evalsha +get +getrange +setrange +set +del +exists +type +pttl +pexpire \
                      +zadd +zrem +zrange +zrank +zcard +zscore +hset +hget +hmget +hgetall +hdel +publish";

#[test]
fn a_good_server_has_no_findings_and_is_unchanged() {
    let server = good().start();
    examine(&server.url()).expect_silence();
    assert_eq!(server.command(&["DBSIZE"]).int(), 0, "nothing is left behind");
    let text = Machine::new().run(&["doctor", &server.url()]).stdout;
    assert!(text.lines().count() == 1 && text.contains("0 unsafe, 0 warning, 0 note"), "{text}");
    let unsaved = RedisServer::start();
    examine(&format!("{}?restart_guard=on", unsaved.url())).expect_silence();
}

#[test]
fn a_held_lock_is_not_changed() {
    let server = good().start();
    let machine = Machine::with_server(server.url());
    let _holder = machine.hold("distlock-doctor");
    let before = machine.show("distlock-doctor")["holder"]["token"].clone();
    examine(&server.url()).expect_silence();
    assert_eq!(machine.show("distlock-doctor")["holder"]["token"], before);
}

#[test]
fn a_server_that_evicts_locks() {
    let server = good().config("maxmemory-policy allkeys-lru").start();
    examine(&server.url()).expect_only("eviction", "unsafe", "allkeys-lru");
}

#[test]
fn a_server_without_persistence() {
    let server = good().config("appendonly no").start();
    examine(&server.url()).expect_only("persistence", "warning", "nothing is kept");
    server.command(&["CONFIG", "SET", "save", "3600 1"]);
    examine(&server.url()).expect_only("persistence", "warning", "snapshots only");
}

#[test]
fn a_server_that_syncs_late() {
    let server = good().config("appendfsync everysec").start();
    examine(&server.url()).expect_only("persistence", "warning", "everysec");
}

#[test]
fn a_server_with_a_failing_disk() {
    let server = good().config("dbfilename taken").start();
    std::fs::create_dir(server.directory().join("taken")).unwrap();
    server.command(&["BGSAVE"]);
    let failed = |status: &String| status == "err";
    eventually("a failed save", || server.info("persistence", "rdb_last_bgsave_status").filter(failed));
    examine(&server.url()).expect_among("disk", "unsafe", "failed");
}

#[test]
fn a_replica_and_a_master_that_does_not_wait_for_it() {
    let master = good().start();
    let replica = good().replica_of(master.address()).start();
    replica.expect_in_sync();
    examine(&replica.url()).expect_among("role", "unsafe", &master.address().to_string());
    examine(&master.url()).expect_only("replicas", "warning", "1 replicas, min-replicas-to-write 0");
    master.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    eventually("a replica that counts", || {
        master.info("replication", "min_slaves_good_slaves").filter(|good| good == "1")
    });
    examine(&master.url()).expect_silence();
}

#[test]
fn a_master_with_disconnected_replicas() {
    let server = good().config("min-replicas-to-write 1").start();
    let examined = examine(&server.url());
    examined.expect_among("replicas", "unsafe", "0 replicas keep up, 1 must");
    examined.expect_among("writes", "unsafe", "NOREPLICAS");
}

#[test]
fn missing_permissions() {
    let server = good()
        .user("whole", "secret", RIGHTS)
        .user("unordered", "secret", &RIGHTS.replace("+zadd ", ""))
        .user("elsewhere", "secret", &RIGHTS.replace("~app:*", "~other:*"))
        .user("mute", "secret", &RIGHTS.replace("&distlock:wake:* ", ""))
        .user("blind", "secret", &RIGHTS.replace("+scan ", ""))
        .start();
    let url = |user: &str| format!("{}?prefix=app:", server.url_of(user, "secret"));
    let whole = examine(&url("whole"));
    let is_note = |severity: &str, check: &str| severity == "note" && (check == "info" || check == "config");
    assert!(whole.troubles().iter().all(|(check, severity)| is_note(severity, check)), "{:?}", whole.troubles());
    assert_eq!(whole.code, 0, "what may not be asked is no failure");
    examine(&url("unordered")).expect_among("rights", "unsafe", "ZADD");
    examine(&url("elsewhere")).expect_among("rights", "unsafe", "EVAL (NOPERM");
    let mute = examine(&url("mute"));
    mute.expect_among("wakes", "warning", "PUBLISH");
    mute.expect_among("wakes", "warning", "SUBSCRIBE");
    examine(&url("blind")).expect_among("extras", "warning", "SCAN");
}

#[test]
fn permissions_that_only_a_history_needs() {
    let with = |more: &str| format!("{RIGHTS} {more}");
    let server = good()
        .user("whole", "secret", &with("+xadd +xrevrange"))
        .user("writer", "secret", &with("+xadd"))
        .user("reader", "secret", &with("+xrevrange"))
        .user("neither", "secret", RIGHTS)
        .start();
    let url = |user: &str, more: &str| format!("{}?prefix=app:{more}", server.url_of(user, "secret"));
    let told = |examined: &super::Examined| examined.troubles().iter().any(|(check, _)| *check == "history");
    let without = examine(&url("neither", ""));
    assert!(!told(&without) && without.code == 0, "no history is asked for: {:?}", without.troubles());
    let whole = examine(&url("whole", "&history=100"));
    assert!(!told(&whole) && whole.code == 0, "{:?}", whole.troubles());
    examine(&url("neither", "&history=100")).expect_among("history", "warning", "refused: XREVRANGE, XADD");
    let one = |user: &str, missing: &str| {
        let examined = examine(&url(user, "&history=100"));
        examined.expect_among("history", "warning", missing);
        assert_eq!(examined.code, 1, "{:?}", examined.troubles());
        let found = examined.findings.iter().find(|finding| finding["check"] == "history").unwrap();
        assert_eq!(found["found"], format!("refused: {missing}"), "only that");
    };
    one("writer", "XREVRANGE");
    one("reader", "XADD");
    assert_eq!(server.command(&["DBSIZE"]).int(), 0, "nothing is left behind");
}

#[test]
fn a_reachable_server_without_a_password() {
    // The machine does not have this address: the server skips it and listens only on loopback.
    let server = good().config("bind 127.0.0.1 -192.0.2.1").start();
    examine(&server.url()).expect_only("password", "unsafe", "192.0.2.1");
    let guarded = good().config("bind 127.0.0.1 -192.0.2.1").password("secret").start();
    examine(&guarded.url()).expect_silence();
}

#[test]
fn a_wrong_clock() {
    let shim = ClockShim::new();
    let server = good().clock(&shim).start();
    shim.forward(ShiftedClock::Wall, Duration::from_secs(60));
    examine(&server.url()).expect_only("clock", "warning", "s ahead of ours");
    shim.reset();
    shim.back(ShiftedClock::Wall, Duration::from_secs(60));
    examine(&server.url()).expect_only("clock", "warning", "s behind ours");
}

#[test]
fn a_server_with_high_latency() {
    let server = good().start();
    let proxy = Proxy::start(server.address());
    proxy.delay(Duration::from_millis(60));
    let url = format!("redis://{}/?ttl=1s", proxy.address());
    examine_with_latency(&url).expect_only("latency", "warning", "leases last 1s");
}

#[test]
fn a_server_near_its_connection_limit() {
    let server = good().config("maxclients 10").start();
    examine(&server.url()).expect_only("connections", "warning", "of 10");
}

#[test]
fn an_unreachable_server_and_one_that_refuses_the_password() {
    let mut server = good().password("secret").start();
    let wrong = server.url().replace("secret", "hunter2");
    let examined = examine(&wrong);
    examined.expect_only("reach", "unsafe", "");
    assert!(examined.findings[0]["fix"].as_str().unwrap().contains("password"), "{:?}", examined.findings);
    assert!(!examined.findings[0].to_string().contains("hunter2"));
    server.kill9();
    examine(&server.url()).expect_only("reach", "unsafe", "cannot reach");
}

#[test]
fn sentinels() {
    let mut setup = SentinelSetup::with(&good().config("min-replicas-to-write 1"));
    examine(&setup.url()).expect_silence();
    examine(&format!("{}?ttl=1s", setup.url())).expect_only("failover", "warning", "leases last 1s");
    let all = setup.url();
    let (hosts, _) = all.strip_prefix("redis+sentinel://").unwrap().rsplit_once('/').unwrap();
    let two = hosts.split(',').take(2).collect::<Vec<_>>().join(",");
    examine(&format!("redis+sentinel://{two}/{SERVICE}")).expect_among("sentinels", "warning", "2 sentinels are named");
    let stranger = examine(&format!("redis+sentinel://{hosts}/other"));
    stranger.expect_among("service", "unsafe", "does not know");
    stranger.expect_among("master", "unsafe", "");
    setup.sentinels()[0].command(&["SENTINEL", "SET", SERVICE, "quorum", "1"]);
    examine(&setup.url()).expect_only("quorum", "warning", "quorum 1 of 3");
    setup.sentinels()[0].command(&["SENTINEL", "SET", SERVICE, "quorum", "5"]);
    examine(&setup.url()).expect_only("quorum", "warning", "quorum 5 of 3");
    setup.sentinels()[0].command(&["SENTINEL", "SET", SERVICE, "quorum", "2"]);
    setup.sentinels_mut()[2].kill9();
    examine(&setup.url()).expect_only("reach", "warning", "cannot reach");
}

#[test]
fn a_good_cluster() {
    let cluster = RedisCluster::with_replicas(&good().config("min-replicas-to-write 1"));
    examine(&cluster.url()).expect_silence();
    assert!(cluster.nodes().iter().all(|node| node.command(&["DBSIZE"]).int() == 0), "nothing is left behind");
}

#[test]
fn a_cluster_without_replicas_and_then_without_a_slot() {
    let cluster = RedisCluster::with(&good());
    examine(&cluster.url()).expect_only("replicas", "warning", "no replica");
    for node in cluster.nodes() {
        node.command(&["CLUSTER", "DELSLOTS", "7"]);
    }
    examine(&cluster.url()).expect_among("slots", "unsafe", "no node serves 1 of 16384");
}
