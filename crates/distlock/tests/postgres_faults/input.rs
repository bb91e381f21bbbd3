//! Configurations that cannot work, and those that must.

use std::future::IntoFuture;

use distlock::{Config, ErrorKind, Locker};
use distlock_testkit::servers::{Certs, PostgresServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::bench::{Bench, ms, set_up, sleep};

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
async fn the_right_to_use_the_schema_is_enough_where_functions_are_not_everybodys() {
    let server = PostgresServer::start();
    server.sql("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC");
    set_up(&server).await;
    server.sql("CREATE USER app; GRANT USAGE ON SCHEMA distlock TO app");
    let locker = Locker::connect(&server.url().replace("postgres@", "app@")).await.expect("ready");
    let guard = locker.lock("a").await.expect("granted");
    let token = guard.fencing_token();
    server.sql(&format!("SET ROLE app; SELECT distlock.hold('a', {token})"));
    let waiter = tokio::spawn(locker.lock("a").as_new_owner().into_future());
    while server.sql("SELECT count(*) FROM distlock.waiters WHERE distlock._listens(channel)") != "1" {
        sleep(ms(10)).await;
    }
    guard.unlock().await.expect("released");
    let next = waiter.await.expect("no panic").expect("granted");
    assert!(locker.inspect().get("a").await.expect("shown").is_some());
    next.unlock().await.expect("released");
    assert!(server.try_sql("SET ROLE app; SELECT distlock._open('a')").is_err(), "no function of ours alone");
    // Set up again, it restores what was taken away.
    server.sql("REVOKE EXECUTE ON FUNCTION distlock.claim FROM PUBLIC");
    set_up(&server).await;
    locker.lock("b").await.expect("granted").unlock().await.expect("released");
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
    // With the name that stands in the schema's files.
    let quoted = quoted.replace("a%22b", "a%22distlock%22b");
    distlock::set_up(&Config::from_url(&quoted).expect("a URL")).await.expect("made");
    let locker = Locker::connect(&quoted).await.expect("connected");
    let guard = locker.lock("a").await.expect("granted");
    let waiter = tokio::spawn(locker.lock("a").as_new_owner().into_future());
    bench.until("SELECT count(*) FROM \"a\"\"distlock\"\"b'c\".waiters", "1").await;
    guard.unlock().await.expect("handed over");
    waiter.await.expect("no panic").expect("granted").unlock().await.expect("released");
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

#[tokio::test]
async fn a_url_that_cannot_work_names_the_option() {
    let cases = [
        ("postgres://db/shop?sslmode=prefer", "sslmode"),
        ("postgres://db/shop?sslmode=verify-ca", "verify-full"),
        ("postgress://db/shop?sslmode=disable", "contradicts"),
        ("postgres://ann@/shop?host=/run/postgresql&sslmode=require", "socket"),
        ("postgres://ann@/shop?host=run/postgresql", "directory of a socket"),
        ("postgres://db/shop?host=/run/postgresql", "a host besides"),
        ("postgres://ann@/shop?host=/run/postgresql&port=0", "port"),
        ("postgres://db/shop?port=5433", "host:port"),
        ("postgres://db/shop?target_session_attrs=any", "target_session_attrs"),
        ("postgres://ann@one,bob@two/shop", "credentials"),
        ("postgres://db/shop?schema=", "schema"),
        ("postgres://db/shop?schema=pg_locks", "schema"),
        ("postgres://db/shop?schema=a%24%24b", "schema"),
        ("postgres:///shop", "host"),
    ];
    for (url, part) in cases {
        let error = Locker::connect(url).await.expect_err(url);
        assert!(error.kind() == ErrorKind::Config && error.to_string().contains(part), "{url}: {error}");
    }
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn a_server_without_tls_is_not_spoken_to_in_the_clear() {
    let (bench, certs) = (Bench::start().await, Certs::new());
    for mode in ["require", "verify-full"] {
        let mut config = Config::from_url(&format!("{}?sslmode={mode}", bench.server.url())).expect("a URL");
        config.tls_ca = Some(certs.ca());
        let error = Locker::from_config(&config).await.expect_err(mode);
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("does not offer TLS"), "{error}");
    }
}

/// Writes a message of the server's: its letter, its length, its body.
fn message(letter: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).expect("short").to_be_bytes();
    [&[letter], &length[..], body].concat()
}

/// Speaks as a server of version 11: it does not know a setting of our sessions, and then replies to one question.
async fn old_server(listener: tokio::net::TcpListener) {
    let refusal =
        message(b'E', b"SFATAL\0VFATAL\0C42704\0Munrecognized configuration parameter \"plan_cache_mode\"\0\0");
    let ready = message(b'Z', b"I");
    let welcome = [message(b'R', &[0; 4]), ready.clone()].concat();
    let column = |type_id: u32, size: i16| {
        [b"c\0", &[0; 6][..], &type_id.to_be_bytes(), &size.to_be_bytes(), &[255; 4], &[0, 1]].concat()
    };
    let columns = [&[0, 4][..], &column(25, -1), &column(16, 1), &column(23, 4), &column(25, -1)].concat();
    let row =
        [&[0, 4, 255, 255, 255, 255, 0, 0, 0, 1, 0, 0, 0, 0, 4][..], &110_022_i32.to_be_bytes(), &[0, 0, 0, 1], b"x"]
            .concat();
    let reply = [
        message(b'1', b""),
        message(b'2', b""),
        message(b'T', &columns),
        message(b'D', &row),
        message(b'C', b"SELECT 1\0"),
        ready,
    ]
    .concat();
    let mut bytes = [0; 4096];
    // Until the test ends.
    while let Ok((mut stream, _)) = listener.accept().await {
        let length = stream.read(&mut bytes).await.expect("a start");
        if String::from_utf8_lossy(&bytes[..length]).contains("plan_cache_mode") {
            stream.write_all(&refusal).await.expect("refused");
            continue;
        }
        stream.write_all(&welcome).await.expect("welcome");
        while stream.read(&mut bytes).await.is_ok_and(|length| length > 0) {
            if stream.write_all(&reply).await.is_err() {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_server_before_13_is_refused_by_its_version() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let at = listener.local_addr().expect("an address");
    let server = tokio::spawn(old_server(listener));
    let error = Locker::connect(&format!("postgres://ann@{at}/shop")).await.expect_err("too old");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("is version 11, and at least 13 is needed"), "{error}");
    server.abort();
}
