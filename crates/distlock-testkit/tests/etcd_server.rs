//! The kit's etcd servers support what the fault tests need.

use std::path::Path;
use std::time::Duration;

use distlock_testkit::servers::{Certs, Data, EtcdCluster, EtcdServer, EtcdVersion, eventually};

#[test]
fn a_server_keeps_its_data_over_a_restart_unless_configured_otherwise() {
    let mut server = EtcdServer::start();
    let etcdctl = server.etcdctl();
    let (port, pid) = (server.port(), server.pid());
    etcdctl.run(&["put", "k", "v"]);
    server.kill9();
    assert!(!server.is_healthy());
    server.restart(Data::Kept);
    assert_eq!(etcdctl.run(&["get", "k", "--print-value-only"]), "v");
    server.restart(Data::Lost);
    assert_eq!(etcdctl.run(&["get", "k", "--print-value-only"]), "");
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    let pid = server.pid();
    drop(server);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn both_versions_run() {
    for (version, number) in [(EtcdVersion::V3_4, "3.4."), (EtcdVersion::V3_5, "3.5.")] {
        let server = EtcdServer::options().version(version).start();
        let status = server.etcdctl().run(&["endpoint", "status"]);
        assert!(status.contains(number), "{status}");
        assert_eq!(server.url(), format!("etcd://127.0.0.1:{}/", server.port()));
    }
}

#[test]
fn authentication_requires_the_password() {
    let mut server = EtcdServer::options().auth("s3cret").auth_token_ttl(1).start();
    assert_eq!(server.etcdctl().run(&["put", "k", "v"]), "OK");
    let mut stranger = std::process::Command::new("etcdctl");
    let output = stranger.arg(format!("--endpoints={}", server.endpoint())).args(["put", "k", "w"]).output().unwrap();
    assert!(!output.status.success());
    server.restart(Data::Lost);
    assert!(server.etcdctl().run(&["user", "list"]).contains("root"));
    assert!(server.url().starts_with("etcd://root:s3cret@"));
}

#[test]
fn mutual_tls_requires_a_certificate() {
    let certs = Certs::new();
    let server = EtcdServer::options().mutual_tls(&certs).start();
    assert_eq!(server.etcdctl().run(&["put", "k", "v"]), "OK");
    let mut stranger = std::process::Command::new("etcdctl");
    stranger.arg(format!("--endpoints={}", server.endpoint())).arg("--cacert").arg(certs.ca());
    let output = stranger.args(["--dial-timeout=1s", "--command-timeout=2s", "put", "k", "w"]).output().unwrap();
    assert!(!output.status.success());
    assert!(server.url().starts_with("etcds://"));
}

#[test]
fn a_full_server_raises_the_alarm() {
    let server = EtcdServer::options().quota_bytes(1 << 16).start();
    let value = "x".repeat(10_000);
    let refused = eventually("the quota", || server.etcdctl().try_run(&["put", "k", &value]).err());
    assert!(refused.contains("database space exceeded"), "{refused}");
    assert!(server.etcdctl().run(&["alarm", "list"]).contains("NOSPACE"));
}

#[test]
fn a_cluster_elects_another_leader_when_its_own_is_killed_or_frozen() {
    let timing = (Duration::from_millis(50), Duration::from_millis(500));
    let mut cluster = EtcdServer::options().timing(timing.0, timing.1).start_cluster();
    assert_eq!(cluster.endpoints().len(), 3);
    let first = cluster.leader();
    cluster.members_mut()[first].kill9();
    let second = cluster.leader();
    assert_ne!(first, second);
    cluster.members_mut()[first].restart(Data::Kept);
    cluster.members()[second].stop();
    let third = cluster.leader();
    assert_ne!(second, third);
    assert_eq!(cluster.members()[third].etcdctl().run(&["put", "k", "v"]), "OK");
    cluster.members()[second].cont();
    eventually("the thawed member to follow", || (!cluster.members_mut()[second].is_leader()).then_some(()));
    assert_eq!(cluster.leader(), third);
}

#[test]
fn without_a_majority_nothing_is_written() {
    let mut cluster = EtcdCluster::start();
    let (leader, followers) = (cluster.leader(), cluster.followers());
    followers.iter().for_each(|at| cluster.members()[*at].stop());
    let etcdctl = cluster.members()[leader].etcdctl();
    let refused = etcdctl.try_run(&["--command-timeout=1s", "put", "k", "v"]).unwrap_err();
    assert!(refused.contains("deadline") || refused.contains("timed out"), "{refused}");
    followers.iter().for_each(|at| cluster.members()[*at].cont());
    eventually("a majority", || etcdctl.try_run(&["put", "k", "v"]).ok());
}
