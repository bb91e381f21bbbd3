//! Schemas of earlier versions, with the SQL that made them.

use std::future::IntoFuture;

use distlock::{ErrorKind, Locker, OnceOutcome};
use distlock_testkit::servers::PostgresServer;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, set_up};

/// What `distlock setup --print` printed for version 1.
const VERSION_1: &str = include_str!("schema_1.sql");

/// The functions, views, rules, tables, indexes and rights of the schema, one in each line.
const CATALOGUE: &str = "\
    SELECT concat_ws(' ', 'function', oid::regprocedure, pg_get_function_result(oid), provolatile, prosecdef, proconfig, proacl, md5(prosrc)) \
        FROM pg_proc WHERE pronamespace = 'distlock'::regnamespace \
    UNION ALL SELECT concat_ws(' ', 'relation', relname, relkind, relacl, reloptions) \
        FROM pg_class WHERE relnamespace = 'distlock'::regnamespace \
    UNION ALL SELECT concat_ws(' ', 'index', indexdef) FROM pg_indexes WHERE schemaname = 'distlock' \
    UNION ALL SELECT concat_ws(' ', 'rule', definition) FROM pg_rules WHERE schemaname = 'distlock' \
    UNION ALL SELECT concat_ws(' ', 'column', attrelid::regclass, attname, format_type(atttypid, atttypmod), attnotnull) \
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid \
        WHERE relnamespace = 'distlock'::regnamespace AND attnum > 0 AND NOT attisdropped \
    ORDER BY 1";

/// Returns a record as a client of version 1 wrote it.
fn record(mode: &str) -> String {
    let mode = match mode {
        "x" => "",
        "s" => r#""mode":"shared","#,
        _ => r#""mode":{"slot":{"of":2}},"#,
    };
    format!(r#"{{"owner":"old","host":"h","pid":7,"user":"u",{mode}"since_ms":1763000000000}}"#)
}

/// Claims as a client of version 1 did: one lock by itself, or several in one statement. A lease lasts ten minutes.
fn claim_as_version_1(server: &PostgresServer, name: &str, attempt: &str, mode: &str, beat_ms: u32) -> String {
    let (far, record) = ("9e15::bigint", record(mode));
    server.sql(&match mode {
        "x" => format!("SELECT distlock.claim_one(NULL, {far}, '{name}', '{attempt}', 'x', 600000, 0, {beat_ms}, '{record}')"),
        mode => format!(
            "SELECT o_outcome FROM distlock.claim(NULL, {far}, '{{{name}}}', '{{{attempt}}}', '{{{mode}}}', '{{600000}}', '{{0}}', \
             '{{{beat_ms}}}', ARRAY['{record}'])"
        ),
    })
}

fn token_of(server: &PostgresServer, name: &str) -> u64 {
    server.sql(&format!("SELECT token FROM distlock.locks WHERE name = '{name}'")).parse().expect("a token")
}

#[tokio::test]
async fn a_schema_of_version_1_is_too_old_and_is_brought_up_to_date_under_its_holds() {
    let server = PostgresServer::start();
    server.sql(VERSION_1);
    server.sql("CREATE USER app; GRANT USAGE ON SCHEMA distlock TO app");
    let names = ["exclusive", "shared", "slots", "free"];
    let modes = ["x", "s", "p2", "x"];
    for ((name, mode), attempt) in names.iter().zip(modes).zip(["a1", "a2", "a3", "a4"]) {
        claim_as_version_1(&server, name, attempt, mode, 0);
    }
    claim_as_version_1(&server, "exclusive", "w1", "x", 600_000);
    server.sql("SELECT distlock.release_one(NULL, 'free', 'a4')");
    // Granted by a clock that was an hour ahead.
    server.sql("UPDATE distlock.locks SET token = token + 3600000000 WHERE name = 'free'");
    let tokens = names.map(|name| token_of(&server, name));

    let error = Locker::connect(&server.url()).await.expect_err("an old schema");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    for part in ["too old", "version 1, and 3 is needed", "distlock setup"] {
        assert!(format!("{error}").contains(part), "{error}");
    }
    set_up(&server).await;
    set_up(&server).await;
    let fresh = Bench::start().await;
    let lines = |text: String| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        lines(server.sql(CATALOGUE)),
        lines(fresh.server.sql(CATALOGUE)),
        "an upgrade makes what a new schema has"
    );
    assert_eq!(names.map(|name| token_of(&server, name)), tokens);

    let locker =
        Locker::connect(&server.url().replace("postgres@", "app@")).await.expect("up to date, with the old rights");
    let held = locker.inspect().get("exclusive").await.expect("shown").expect("held");
    let holder = held.holder().expect("a holder");
    assert_eq!(holder.token.map(|token| token.get()), Some(tokens[0]));
    assert_eq!(holder.record.as_ref().map(|record| record.owner.as_str().to_owned()).as_deref(), Some("old"));
    assert_eq!(held.waiters.len(), 1, "its waiter has its place");
    assert!(locker.try_lock("exclusive").await.expect("no failure").is_none(), "two holders");
    assert!(locker.try_lock("shared").await.expect("no failure").is_none(), "a writer beside a reader");
    server.sql(&format!("SELECT distlock.hold('exclusive', {}), distlock.hold('shared', {})", tokens[0], tokens[1]));
    let reader = locker.read("shared").wait(TEST_LIMIT).await.expect("beside the old reader");
    let slot = locker.semaphore("slots", 2).acquire().wait(TEST_LIMIT).await.expect("beside the old holder");
    let renewed = "SELECT string_agg(o_renewed::text, ' ') FROM distlock.renew('{exclusive,shared}', '{a1,a2}', '{600000,600000}')";
    assert_eq!(server.sql(renewed), "true true", "the old client's renewals go on");

    // The old waiter is not overtaken; it goes, and the new one is next.
    let released = "SELECT string_agg(o_released::text, ' ') FROM distlock.release(NULL, '{exclusive,shared,slots}', '{a1,a2,a3}')";
    assert_eq!(server.sql(released), "true true true", "so do its releases");
    assert!(locker.try_lock("exclusive").await.expect("no failure").is_none(), "it overtakes the old waiter");
    assert_eq!(server.sql("SELECT o_released FROM distlock.release(NULL, '{exclusive}', '{w1}')"), "f");
    reader.unlock().await.expect("released");
    slot.unlock().await.expect("released");
    for (name, token) in names.iter().zip(tokens) {
        let next = timeout(TEST_LIMIT, locker.lock(*name).into_future()).await.expect("in time").expect("granted");
        assert!(next.fencing_token().get() > token, "{name}: tokens rise");
        next.unlock().await.expect("released");
    }
    let once = locker.once("free").tick("1").await.expect("an outcome");
    let OnceOutcome::Run(run) = once else { panic!("{once:?}") };
    run.done().await.expect("notes are kept");
}
