//! Configurations that cannot work, and those that must.

use distlock::{Config, ErrorKind, Locker};
use distlock_testkit::servers::{Certs, PostgresServer};

use crate::bench::{Bench, set_up};

#[tokio::test]
async fn a_database_without_the_schema_names_the_fix_before_anything_is_locked() {
    let server = PostgresServer::start();
    let error = Locker::connect(&server.url()).await.expect_err("no schema");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("distlock setup"), "{error}");
    let config = Config::from_url(&server.url()).expect("a URL");
    assert!(distlock::set_up(&config).await.expect("made"));
    assert!(distlock::set_up(&config).await.expect("made again"));
    Locker::connect(&server.url()).await.expect("ready");
    // A newer schema, and an older one.
    for (version, part) in [(99, "too new"), (0, "too old")] {
        server.sql(&format!(
            "CREATE OR REPLACE FUNCTION distlock.version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT {version}'"
        ));
        let error = Locker::connect(&server.url()).await.expect_err(part);
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains(part), "{error}");
        if version > 3 {
            let error = distlock::set_up(&config).await.expect_err("it would be made older");
            assert!(error.kind() == ErrorKind::Config && error.to_string().contains("newer"), "{error}");
            assert_eq!(server.sql("SELECT distlock.version()"), "99");
        }
    }
    assert!(distlock::set_up(&config).await.expect("brought up to date"));
    Locker::connect(&server.url()).await.expect("ready again");
}

#[tokio::test]
async fn users_databases_and_rights_that_are_missing_are_named() {
    let bench = Bench::start().await;
    let at = bench.server.address();
    bench.server.sql("CREATE USER nobody_special");
    let cases = [
        (format!("postgres://postgres@{at}/nowhere"), ErrorKind::Config, "create the database"),
        (format!("postgres://stranger@{at}/postgres"), ErrorKind::Auth, "stranger"),
        (format!("postgres://nobody_special@{at}/postgres"), ErrorKind::Auth, "USAGE"),
        ("postgres://postgres@127.0.0.1:1/postgres".into(), ErrorKind::Unavailable, "127.0.0.1:1"),
    ];
    for (url, kind, part) in cases {
        let error = Locker::connect(&url).await.expect_err(&url);
        assert!(error.kind() == kind && error.to_string().contains(part), "{url}: {error:?}");
    }
    let error =
        Locker::connect(&format!("postgres://postgres@{at}/postgres?colour=blue")).await.expect_err("an option");
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("colour"), "{error}");
}

#[tokio::test]
async fn a_socket_a_second_host_and_a_schema_that_needs_quotes_are_understood() {
    let bench = Bench::start().await;
    let at = bench.server.address();
    let guard =
        Locker::connect(&bench.server.unix_url()).await.expect("by the socket").lock("a").await.expect("granted");
    guard.unlock().await.expect("released");
    let several = format!("postgresql://postgres@127.0.0.1:1,{at}/postgres?target_session_attrs=read-write");
    Locker::connect(&several).await.expect("the second is the primary");
    let quoted = format!("postgres://postgres@{at}/postgres?schema=a%22b'c");
    distlock::set_up(&Config::from_url(&quoted).expect("a URL")).await.expect("made");
    let guard = Locker::connect(&quoted).await.expect("connected").lock("a").await.expect("granted");
    assert_eq!(bench.server.sql("SELECT count(*) FROM \"a\"\"b'c\".locks WHERE mode = 'x'"), "1");
    guard.unlock().await.expect("released");
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn a_server_with_tls_and_passwords_is_used_and_a_stranger_is_not() {
    let certs = Certs::new();
    let server = PostgresServer::options().tls(&certs).password("s3cret").start();
    set_up(&server).await;
    let mut config = Config::from_url(&server.url()).expect("a URL");
    let trusted = |ca: &Certs| Some(ca.ca());
    config.tls_ca = trusted(&certs);
    let guard = Locker::from_config(&config).await.expect("connected").lock("a").await.expect("granted");
    guard.unlock().await.expect("released");
    let strangers = Certs::new();
    config.tls_ca = trusted(&strangers);
    let error = Locker::from_config(&config).await.expect_err("another authority");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    config.tls_ca = trusted(&certs);
    config.url = Some(server.url().replace("s3cret", "wrong"));
    let error = Locker::from_config(&config).await.expect_err("a wrong password");
    assert!(error.kind() == ErrorKind::Auth && !error.to_string().contains("wrong"), "{error}");
    config.url = Some(server.url().replace(":s3cret", "").replace("?sslmode=verify-full", "?sslmode=disable"));
    config.tls_ca = None;
    let error = Locker::from_config(&config).await.expect_err("neither encrypted nor with a password");
    assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
}
