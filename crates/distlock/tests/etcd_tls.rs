//! TLS connections to etcd, with and without a client certificate.

#![cfg(all(feature = "etcd", feature = "tls"))]

use std::time::Duration;

use distlock::{Config, ErrorKind, Locker};
use distlock_testkit::servers::{Certs, EtcdServer};

fn config(server: &EtcdServer, change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::from_url(&server.url()).unwrap();
    config.dial_timeout = Some(Duration::from_secs(3));
    change(&mut config);
    config
}

async fn lock_once(config: &Config) -> distlock::Result<()> {
    let locker = Locker::from_config(config).await?;
    locker.lock("a").await?.unlock().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trusted_server_certificate_is_accepted() {
    let certs = Certs::new();
    let server = EtcdServer::options().tls(&certs).start();
    let locked = lock_once(&config(&server, |config| config.tls_ca = Some(certs.ca()))).await;
    assert!(locked.is_ok(), "{locked:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_untrusted_server_certificate_is_refused() {
    let (certs, others) = (Certs::new(), Certs::new());
    let server = EtcdServer::options().tls(&certs).start();
    let error = lock_once(&config(&server, |config| config.tls_ca = Some(others.ca()))).await.expect_err("not trusted");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().to_lowercase().contains("certificate"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_can_require_a_client_certificate() {
    let certs = Certs::new();
    let server = EtcdServer::options().mutual_tls(&certs).start();
    let ours = |config: &mut Config| {
        config.tls_ca = Some(certs.ca());
        config.tls_cert = Some(certs.client_cert());
        config.tls_key = Some(certs.client_key());
    };
    lock_once(&config(&server, ours)).await.expect("locked");
    let error = lock_once(&config(&server, |config| config.tls_ca = Some(certs.ca()))).await.expect_err("refused");
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Auth), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_names_a_missing_file() {
    let server = EtcdServer::options().tls(&Certs::new()).start();
    let error = lock_once(&config(&server, |config| config.tls_ca = Some("/nowhere/ca.pem".into()))).await;
    let error = error.expect_err("no such file");
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("tls_ca"), "{error}");
}
