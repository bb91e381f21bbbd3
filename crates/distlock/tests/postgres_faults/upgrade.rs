//! Schemas of earlier versions, with the SQL that made them.

use std::future::IntoFuture;

use distlock::{ErrorKind, Locker, OnceOutcome};
use distlock_testkit::servers::PostgresServer;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, extend, now, set_up};

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

/// Gives the schema another version, as a later version of this program would.
fn pretend(server: &PostgresServer, version: u32, compatible_from: u32) {
    let function = |name: &str, number| {
        format!(
            "CREATE OR REPLACE FUNCTION distlock.{name}() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT {number}'"
        )
    };
    server.sql(&format!("{}; {}", function("version", version), function("compatible_from", compatible_from)));
}

#[tokio::test]
async fn a_newer_schema_is_used_if_it_is_compatible_with_this_version() {
    let bench = Bench::start().await;
    let current: u32 = bench.server.sql("SELECT distlock.version()").parse().expect("a version");
    assert_eq!(bench.server.sql("SELECT distlock.compatible_from() <= distlock.version()"), "t");
    for (version, compatible_from) in [(current + 1, current), (current + 1, current - 1)] {
        pretend(&bench.server, version, compatible_from);
        let locker = Locker::connect(&bench.server.url()).await.expect("compatible");
        locker.lock("a").await.expect("granted").unlock().await.expect("released");
    }
    let refused = async |version: u32| {
        let error = Locker::connect(&bench.server.url()).await.expect_err("not compatible");
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        for part in ["too new", &format!("version {version}, and {current} is needed"), "newer version of distlock"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    };
    for (version, compatible_from) in [(current + 2, current), (current + 1, current + 1)] {
        pretend(&bench.server, version, compatible_from);
        refused(version).await;
    }
    bench.server.sql("DROP FUNCTION distlock.compatible_from()");
    refused(current + 1).await;
}

#[tokio::test]
async fn a_set_up_under_holds_and_waiters_costs_none_of_them() {
    let bench = Bench::start().await;
    let locker = Locker::connect(&bench.server.url()).await.expect("connected");
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let reader = locker.read("r").ttl(TEST_LIMIT).await.expect("granted");
    let waiter = tokio::spawn(locker.lock("a").as_new_owner().ttl(TEST_LIMIT).into_future());
    bench.until_waiting(1).await;
    let current: u32 = bench.server.sql("SELECT distlock.version()").parse().expect("a version");
    for version in [current, current + 1] {
        set_up(&bench.server).await;
        pretend(&bench.server, version, current);
        // Sessions are opened anew, with the other version.
        bench.server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'distlock'");
        extend(&guard).await;
        extend(&reader).await;
        assert_eq!(bench.server.sql("SELECT count(*) FROM distlock.waiters"), "1", "it has its place");
    }
    guard.unlock().await.expect("released");
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    next.unlock().await.expect("released");
    reader.unlock().await.expect("released");
}

#[tokio::test]
async fn a_set_up_waits_for_a_claim_and_a_claim_never_waits_for_its_end() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    let session = bench.session().await;
    // As far as a claim has come when its statement is parsed: it has the view, and not yet the table behind it.
    session.batch_execute("BEGIN; LOCK TABLE distlock.lean_claim IN ROW EXCLUSIVE MODE").await.expect("locked");
    let engine = bench.builder(bench.server.port()).build().expect("an engine");
    let setting_up = tokio::spawn(async move {
        let until = now().after(TEST_LIMIT);
        // It gives up after two seconds, and a busy machine may take longer for the steps of this test.
        while let Err(error) = engine.setup().await {
            assert!(error.kind() == ErrorKind::Unavailable && now() < until, "{error}");
        }
    });
    let waits_without_the_table = "SELECT concat( \
         count(*) FILTER (WHERE NOT granted AND relation = 'distlock.lean_claim'::regclass), ' ', \
         count(*) FILTER (WHERE relation = 'distlock.locks'::regclass AND mode = 'ShareLock')) FROM pg_locks";
    bench.until(waits_without_the_table, "1 0").await;
    let claim = "UPDATE distlock.lean_claim SET name = 'warm', attempt = 'a', lease_ms = 0, not_after = 9e15::bigint, record = '{}' \
                 RETURNING token";
    let row = timeout(TEST_LIMIT, session.query_typed_one(claim, &[])).await;
    row.expect("the claim and the set-up wait for each other").expect("taken");
    session.batch_execute("ROLLBACK").await.expect("ended");
    setting_up.await.expect("made");
    locker.lock("warm").await.expect("granted").unlock().await.expect("released");
}
