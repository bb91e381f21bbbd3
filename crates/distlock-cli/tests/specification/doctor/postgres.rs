//! PostgreSQL.

use std::time::Duration;

use distlock_testkit::clock_shim::{ClockShim, ShiftedClock};
use distlock_testkit::servers::{PgBouncer, PostgresOptions, PostgresServer, eventually};

use super::{Examined, examine};
use crate::machine::Machine;

/// A server without findings.
fn good() -> PostgresOptions {
    PostgresServer::options().durable().set("idle_in_transaction_session_timeout=60s")
}

fn start(options: &PostgresOptions) -> PostgresServer {
    let server = options.start();
    assert_eq!(Machine::with_server(server.url()).code(&["setup"]), 0);
    server
}

/// Asserts that there is one finding, which is a note: the exit code is 0.
#[track_caller]
fn expect_note(examined: &Examined, check: &str, words: &str) {
    assert_eq!((examined.troubles(), examined.code), (vec![(check, "note")], 0), "{:#?}", examined.findings);
    assert!(examined.findings[0]["found"].as_str().unwrap().contains(words), "{:#?}", examined.findings);
}

#[test]
fn a_good_server_and_settings_that_are_not() {
    let server = start(&good());
    let url = server.url();
    examine(&url).expect_silence();
    let with = |setting: &str| {
        server.sql(&format!("ALTER ROLE postgres SET {setting}"));
        let examined = examine(&url);
        server.sql("ALTER ROLE postgres RESET ALL");
        examined
    };
    with("synchronous_commit = off").expect_only("durability", "unsafe", "synchronous_commit is off");
    expect_note(&with("idle_in_transaction_session_timeout = 0"), "idle", "without limit");
    examine(&url).expect_silence();
    let unsafe_one = start(&PostgresServer::options().set("idle_in_transaction_session_timeout=60s"));
    examine(&unsafe_one.url()).expect_only("fsync", "unsafe", "fsync is off");
}

#[test]
fn a_schema_a_right_and_a_server_that_are_missing() {
    let server = good().start();
    let examined = examine(&server.url());
    examined.expect_only("reach", "unsafe", "distlock");
    assert!(examined.findings[0]["fix"].as_str().unwrap().contains("distlock setup"), "{:?}", examined.findings);
    assert_eq!(Machine::with_server(server.url()).code(&["setup"]), 0);
    server.sql("CREATE USER app; GRANT USAGE ON SCHEMA distlock TO app");
    let app = format!("postgres://app@{}/postgres", server.address());
    examine(&app).expect_silence();
    server.sql(
        "REVOKE EXECUTE ON FUNCTION distlock.claim FROM PUBLIC; REVOKE UPDATE ON distlock.lean_release FROM PUBLIC",
    );
    examine(&app).expect_only("rights", "unsafe", "claim, lean_release");
    server.sql("REVOKE USAGE ON SCHEMA distlock FROM app");
    examine(&app).expect_only("reach", "unsafe", "permission denied");
    examine("postgres://postgres@127.0.0.1:1/postgres").expect_only("reach", "unsafe", "127.0.0.1:1");
    server.sql("CREATE OR REPLACE FUNCTION distlock.version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 99'");
    let newer = examine(&server.url());
    newer.expect_only("reach", "unsafe", "too new");
    assert!(newer.findings[0]["fix"].as_str().unwrap().contains("newer version of distlock"), "{:?}", newer.findings);
}

#[test]
fn few_connections_a_pooler_and_another_clock() {
    let shim = ClockShim::new();
    let server = start(&good().set("max_connections=12").clock(&shim));
    examine(&server.url()).expect_only("connections", "warning", "connections are left");
    shim.forward(ShiftedClock::Wall, Duration::from_secs(60));
    examine(&server.url()).without("connections").expect_among("clock", "warning", "60.");
    let server = start(&good());
    let bouncer = PgBouncer::start(&server, 2);
    let pooled = format!("postgres://postgres@{}/postgres", bouncer.address());
    expect_note(&examine(&pooled), "pooler", "pooler");
}

#[test]
fn replicas_that_are_asynchronous_or_missing() {
    let primary = start(&good());
    primary.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    primary.sql("ALTER ROLE postgres SET synchronous_commit = local");
    primary.sql("SELECT pg_reload_conf()");
    eventually("the setting", || (primary.sql("SHOW synchronous_standby_names") == "nobody").then_some(()));
    examine(&primary.url()).expect_silence();
    primary.sql("ALTER ROLE postgres RESET ALL");
    examine(&primary.url()).expect_only("replicas", "warning", "names none that is connected");
    primary.sql("ALTER SYSTEM RESET synchronous_standby_names");
    primary.sql("SELECT pg_reload_conf()");
    let _replica = good().replica_of(&primary).start();
    eventually("the replica", || (primary.sql("SELECT count(*) FROM pg_stat_replication") == "1").then_some(()));
    expect_note(&examine(&primary.url()), "replicas", "none of them synchronous");
}

#[test]
fn a_table_that_a_forgotten_transaction_keeps_from_shrinking() {
    let server = start(&good());
    server.sql("INSERT INTO distlock.locks (name, used_on, record) SELECT i::text, current_date, repeat('x', 900) FROM generate_series(1, 20000) i");
    server.sql("DELETE FROM distlock.locks WHERE name <> '1'");
    server.sql("ANALYZE distlock.locks");
    examine(&server.url()).expect_only("bloat", "warning", "locks in");
}
