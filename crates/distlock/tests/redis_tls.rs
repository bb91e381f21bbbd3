//! TLS connections to Redis, with and without a client certificate.

#![cfg(all(feature = "redis", feature = "tls"))]

use std::time::Duration;

use distlock::backend::redis::Redis;
use distlock::{Config, ErrorKind, Locker};
use distlock_testkit::servers::{Certs, RedisCluster, RedisOptions, RedisServer, SentinelSetup};

fn encrypted(certs: &Certs) -> RedisOptions {
    RedisServer::options().tls(certs).password("hunter2")
}

fn config(server: &RedisServer, change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::from_url(&server.url()).unwrap();
    config.dial_timeout = Some(Duration::from_secs(5));
    change(&mut config);
    config
}

async fn lock_once(config: &Config) -> distlock::Result<()> {
    let locker = Locker::from_config(config).await?;
    locker.lock("a").await?.unlock().await
}

#[tokio::test]
async fn a_trusted_server_certificate_is_accepted() {
    let certs = Certs::new();
    let server = encrypted(&certs).start();
    lock_once(&config(&server, |config| config.tls_ca = Some(certs.ca()))).await.expect("locked");
    let mut old_protocol = config(&server, |config| config.tls_ca = Some(certs.ca()));
    old_protocol.url = Some(format!("{}?protocol=2", server.url()).replace("rediss://", "valkeys://"));
    let twice = lock_once(&old_protocol).await;
    assert!(twice.is_ok(), "with two encrypted connections: {twice:?}");
}

#[tokio::test]
async fn an_untrusted_server_is_refused_without_leaking_secrets() {
    let (certs, others) = (Certs::new(), Certs::new());
    let server = encrypted(&certs).start();
    let error = lock_once(&config(&server, |config| config.tls_ca = Some(others.ca()))).await.expect_err("not trusted");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused_unless_that_name_is_configured() {
    let certs = Certs::new();
    let server = RedisServer::options().tls(&certs).start();
    let builder = || Redis::tcp("127.0.0.1", server.port()).tls(Some(std::fs::read(certs.ca()).unwrap()));
    let wrong = Locker::new(builder().tls_server_name("db.example").build().unwrap()).unwrap();
    let error = wrong.try_lock("a").await.expect_err("another name");
    assert!(error.to_string().contains("certificate"), "{error}");
    let right = Locker::new(builder().tls_server_name("localhost").build().unwrap()).unwrap();
    assert!(right.try_lock("a").await.expect("no failure").is_some());
}

#[tokio::test]
async fn a_server_can_require_a_client_certificate() {
    let certs = Certs::new();
    let server = encrypted(&certs).config("tls-auth-clients yes").start();
    let ours = |config: &mut Config| {
        config.tls_ca = Some(certs.ca());
        config.tls_cert = Some(certs.client_cert());
        config.tls_key = Some(certs.client_key());
    };
    lock_once(&config(&server, ours)).await.expect("locked");
    let error = lock_once(&config(&server, |config| config.tls_ca = Some(certs.ca()))).await.expect_err("refused");
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Auth), "{error:?}");
}

#[tokio::test]
async fn errors_name_unusable_files_without_their_contents() {
    let certs = Certs::new();
    let server = encrypted(&certs).start();
    let missing = lock_once(&config(&server, |config| config.tls_ca = Some("/nowhere/ca.pem".into()))).await;
    let swapped = lock_once(&config(&server, |config| {
        config.tls_ca = Some(certs.ca());
        config.tls_cert = Some(certs.client_key());
        config.tls_key = Some(certs.client_key());
    }))
    .await;
    let empty = lock_once(&config(&server, |config| config.tls_ca = Some(certs.server_key()))).await;
    let secret = std::fs::read_to_string(certs.client_key()).unwrap();
    let secret = secret.lines().nth(1).expect("a line of the key");
    for (outcome, field) in [(missing, "tls_ca"), (swapped, "tls_cert"), (empty, "tls_ca")] {
        let error = outcome.expect_err("cannot be used");
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.to_string().contains(field), "{error}");
        assert!(!format!("{error} {error:?}").contains(secret));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_and_their_master_use_tls() {
    let certs = Certs::new();
    let setup = SentinelSetup::with(&RedisServer::options().tls(&certs));
    let mut trusting = Config::from_url(&setup.url()).unwrap();
    assert!(setup.url().starts_with("rediss+sentinel://"), "{}", setup.url());
    trusting.tls_ca = Some(certs.ca());
    lock_once(&trusting).await.expect("locked");
    assert_eq!(setup.servers()[0].command(&["EXISTS", "{distlock}:f"]).int(), 1, "on another server");
    let others = Certs::new();
    trusting.tls_ca = Some(others.ca());
    let error = lock_once(&trusting).await.expect_err("not trusted");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_of_a_cluster_use_tls() {
    let certs = Certs::new();
    let cluster = RedisCluster::with(&RedisServer::options().tls(&certs));
    let mut trusting = Config::from_url(&cluster.url()).unwrap();
    assert!(cluster.url().starts_with("rediss+cluster://"), "{}", cluster.url());
    trusting.tls_ca = Some(certs.ca());
    let locker = Locker::from_config(&trusting).await.expect("connected");
    let mut guards = Vec::new();
    for name in ["a", "b", "c", "d", "e", "f"] {
        guards.push(locker.lock(name).await.expect("locked"));
    }
    let used = cluster.nodes().iter().filter(|node| node.command(&["DBSIZE"]).int() > 0).count();
    assert!(used > 1, "the locks are all on one node");
    let others = Certs::new();
    trusting.tls_ca = Some(others.ca());
    let error = lock_once(&trusting).await.expect_err("not trusted");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
