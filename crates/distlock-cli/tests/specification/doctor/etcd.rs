//! etcd. Doctor rightly warns about the version of the test servers: that finding is always there.

use std::time::Duration;

use distlock_testkit::servers::{EtcdCluster, EtcdServer, eventually};

use super::{Examined, examine};

/// Returns all findings except the version.
fn examine_older(url: &str) -> Examined {
    examine(url).without("version")
}

#[test]
fn a_good_cluster_and_one_with_members_down() {
    let mut cluster = EtcdCluster::start();
    examine(&cluster.url()).expect_only("version", "warning", "version 3.");
    examine_older(&cluster.url()).expect_silence();
    let one = format!("etcd://{}/", cluster.addresses()[0]);
    examine_older(&one).expect_only("endpoints", "warning", "one endpoint of 3 members");
    let (leader, followers) = (cluster.leader(), cluster.followers());
    cluster.members_mut()[followers[0]].kill9();
    examine_older(&cluster.url()).expect_only("reach", "warning", "refused");
    cluster.members_mut()[leader].kill9();
    let last = &mut cluster.members_mut()[followers[1]];
    eventually("an orphan", || (!last.has_leader()).then_some(()));
    examine_older(&cluster.url()).expect_among("reach", "unsafe", "no leader");
}

#[test]
fn one_member_and_endpoints_of_two_clusters() {
    let (one, other) = (EtcdServer::start(), EtcdServer::start());
    examine_older(&one.url()).expect_only("members", "warning", "one member");
    let both = format!("etcd://{},{}/", one.address(), other.address());
    examine_older(&both).expect_among("one-cluster", "unsafe", "2 different clusters");
}

#[test]
fn a_full_cluster() {
    let server = EtcdServer::options().quota_bytes(200 << 10).start();
    let (etcdctl, value) = (server.etcdctl(), "x".repeat(50 << 10));
    eventually("a full server", || etcdctl.try_run(&["put", "much", &value]).err());
    let examined = examine_older(&server.url());
    examined.expect_among("alarm", "unsafe", "NOSPACE");
    examined.expect_among("leases", "unsafe", "no lease");
}

#[test]
fn elections_that_take_too_long() {
    let server = EtcdServer::options().timing(Duration::from_secs(1), Duration::from_secs(10)).start();
    examine_older(&server.url()).expect_among("leases", "warning", "is granted");
}

#[test]
fn a_reachable_server_without_authentication() {
    // No client can reach this address: it is announced, and no server listens there.
    let server = EtcdServer::options().flag("--advertise-client-urls=http://192.0.2.1:2379").start();
    examine_older(&server.url()).expect_among("auth", "warning", "192.0.2.1:2379");
}

#[test]
fn a_user_without_write_permission_on_the_prefix() {
    let server = EtcdServer::options().auth("secret").start();
    let etcdctl = server.etcdctl();
    etcdctl.run(&["user", "add", "locker:secret"]);
    etcdctl.run(&["role", "add", "locks"]);
    etcdctl.run(&["role", "grant-permission", "locks", "readwrite", "locks/", "--prefix=true"]);
    etcdctl.run(&["user", "grant-role", "locker", "locks"]);
    let url = |user: &str, prefix: &str| format!("etcd://{user}@{}/{prefix}", server.address());
    examine_older(&url("locker:secret", "locks/")).expect_only("members", "warning", "one member");
    examine_older(&url("locker:secret", "others/")).expect_among("rights", "unsafe", "permission denied");
    let wrong = examine(&url("locker:wrong", "locks/"));
    wrong.expect_only("reach", "unsafe", "");
    assert!(wrong.findings[0]["fix"].as_str().unwrap().contains("password"), "{:?}", wrong.findings);
}
