//! Connections that a pool of the application lends.

use std::future::IntoFuture;
use std::sync::Arc;

use distlock::backend::postgres::{Postgres, PostgresBuilder};
use distlock::{ErrorKind, Locker};
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, extend, ms, now, sleep};
use crate::client_pool::ClientPool;

/// How many connections an engine keeps.
const KEPT: usize = 2;

fn pool_of(bench: &Bench, size: usize) -> Arc<ClientPool> {
    ClientPool::new(&format!("host=127.0.0.1 port={} user=postgres", bench.server.port()), size)
}

fn from_pool(pool: &Arc<ClientPool>) -> PostgresBuilder {
    let pool = pool.clone();
    let lend = move || {
        let pool = pool.clone();
        async move { pool.get().await }
    };
    Postgres::from_pool(lend, |lent| lent)
}

fn locker(builder: PostgresBuilder) -> Locker {
    let engine = builder.build().expect("an engine");
    Locker::builder().default_ttl(TEST_LIMIT).retry_interval(ms(20)).build(engine).expect("a locker")
}

async fn until_free(pool: &ClientPool, count: usize) {
    let until = now().after(TEST_LIMIT);
    while pool.free() != count {
        assert!(now() < until, "{} connections are free, not {count}", pool.free());
        sleep(ms(5)).await;
    }
}

#[test]
fn the_snippet_of_the_page_is_in_this_file() {
    let page = include_str!("../../../../docs/backends/postgres.md");
    let section = page.split("## A pool of the application").nth(1).expect("a section");
    let block = section.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a snippet");
    let lines = |text: &str| text.lines().map(|line| format!("{}\n", line.trim())).collect::<String>();
    assert!(lines(include_str!("pool.rs")).contains(&lines(block)), "not run:\n{block}");
}

#[tokio::test]
async fn f42_a_pool_lends_two_connections_and_gets_them_back_as_they_were() {
    let bench = Bench::start().await;
    let pool = pool_of(&bench, KEPT);
    let application = pool.clone();

    let lend = move || {
        let pool = pool.clone();
        async move { pool.get().await }
    };
    let engine = Postgres::from_pool(lend, |lent| lent).build().expect("an engine");
    let handle = engine.handle();
    let locker = Locker::new(engine).expect("a locker");
    let guard = locker.lock("invoice:42").await.expect("granted");

    assert!(!locker.capabilities().wakes, "no session listens");
    guard.extend(TEST_LIMIT).await.expect("extended");
    assert_eq!(application.free(), 0, "one for claims, one for renewals");
    let hold = handle.hold(guard.key(), guard.fencing_token());
    bench.session().await.execute(&hold.sql, &[&hold.name, &hold.token]).await.expect("held");
    let waiter = tokio::spawn(locker.lock("invoice:42").as_new_owner().into_future());
    bench.until_waiting(1).await;
    guard.unlock().await.expect("released");
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    next.unlock().await.expect("released");
    locker.close().await.expect("closed");
    until_free(&application, KEPT).await;

    let traces = "SELECT (SELECT count(*) FROM pg_prepared_statements) + (SELECT count(*) FROM pg_listening_channels()) \
         + (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) \
         + (SELECT count(*) FROM pg_settings WHERE source = 'session')";
    let [one, other] = [application.get().await.expect("lent"), application.get().await.expect("lent")];
    for client in [&one, &other] {
        let before: String = client.query_typed_one("SELECT now()::text", &[]).await.expect("asked").get(0);
        let row = client.query_typed_one(traces, &[]).await.expect("asked");
        assert_eq!(row.get::<_, i64>(0), 0, "something stayed in a session that others use");
        let after: String = client.query_typed_one("SELECT now()::text", &[]).await.expect("asked").get(0);
        assert_ne!(before, after, "it is in a transaction");
    }
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'distlock'";
    assert_eq!(bench.rows(count), ["0"], "no connection of the engine's own");
}

#[tokio::test]
async fn f37_an_empty_pool_is_unavailable_until_a_connection_is_back() {
    let bench = Bench::start().await;
    let pool = pool_of(&bench, KEPT);
    let taken = [pool.get().await.expect("lent"), pool.get().await.expect("lent")];
    let engine = from_pool(&pool).dial_timeout(ms(200)).build().expect("an engine");
    let impatient = Locker::new(engine).expect("a locker");
    let error = impatient.try_lock("a").await.expect_err("no connection");
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("pool"), "{error}");
    let locker = locker(from_pool(&pool));
    let waiter = tokio::spawn(locker.lock("a").into_future());
    drop(taken);
    let guard = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    guard.unlock().await.expect("released");
}

#[tokio::test]
async fn f42_connections_of_a_pool_that_break_are_given_back_for_others() {
    let bench = Bench::start().await;
    let pool = pool_of(&bench, KEPT);
    let locker = locker(from_pool(&pool));
    let guard = locker.lock("a").await.expect("granted");
    extend(&guard).await;
    for _ in 0..3 {
        bench.server.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
        );
        extend(&guard).await;
    }
    assert!(!guard.is_lost(), "another connection was borrowed in time");
    guard.unlock().await.expect("released");
    locker.close().await.expect("closed");
    until_free(&pool, KEPT).await;
}

#[tokio::test]
async fn f39_a_connection_without_a_reply_goes_back_when_that_has_come() {
    const LENT_AT_MOST: usize = 4;
    let bench = Bench::start().await;
    let pool = pool_of(&bench, 2 * LENT_AT_MOST);
    let locker = locker(from_pool(&pool));
    locker.lock("a").await.expect("granted").unlock().await.expect("released");
    let mut session = bench.session().await;
    let blocking = session.transaction().await.expect("a transaction");
    blocking.batch_execute("LOCK TABLE distlock.locks IN ACCESS EXCLUSIVE MODE").await.expect("locked");

    let until = now().after(TEST_LIMIT);
    loop {
        let error = locker.try_lock("a").await.expect_err("no reply");
        assert!(matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable), "{error}");
        if error.to_string().contains("do not reply") {
            break;
        }
        assert!(now() < until, "{error}");
    }
    assert_eq!(pool.free(), LENT_AT_MOST, "the engine has a few connections and no more");
    let mut taken = Vec::new();
    for _ in 0..LENT_AT_MOST {
        let client = pool.get().await.expect("lent");
        let asked = timeout(TEST_LIMIT, client.query_typed_one("SELECT 1", &[])).await;
        asked.expect("it waits for a statement of the engine").expect("a reply");
        taken.push(client);
    }
    blocking.rollback().await.expect("ended");
    let guard = timeout(TEST_LIMIT, locker.lock("a").into_future()).await.expect("in time").expect("granted");
    guard.unlock().await.expect("released");
    bench.expect_nothing_left().await;
    locker.close().await.expect("closed");
    drop(taken);
    until_free(&pool, 2 * LENT_AT_MOST).await;
}

#[tokio::test]
async fn a_connection_that_is_lent_in_a_transaction_is_refused() {
    let bench = Bench::start().await;
    let pool = pool_of(&bench, 1);
    pool.get().await.expect("lent").batch_execute("BEGIN").await.expect("begun");
    let error = locker(from_pool(&pool)).try_lock("a").await.expect_err("a claim that may never be committed");
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("transaction"), "{error}");
    let error = from_pool(&pool).build().expect("an engine").setup().await.expect_err("nor a schema");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    pool.get().await.expect("lent").batch_execute("ROLLBACK").await.expect("ended");
    assert_eq!(bench.rows("SELECT count(*) FROM distlock.locks"), ["0"]);
}

#[tokio::test]
async fn a_schema_is_made_over_a_pool_and_a_refusal_leaves_no_transaction() {
    let bench = Bench::start().await;
    bench.server.sql("DROP SCHEMA distlock CASCADE");
    let pool = pool_of(&bench, 1);
    let engine = from_pool(&pool).build().expect("an engine");
    engine.setup().await.expect("made");
    until_free(&pool, 1).await;
    assert_eq!(bench.rows("SELECT distlock.version() >= 3"), ["t"]);
    bench
        .server
        .sql("CREATE OR REPLACE FUNCTION distlock.version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 99'");
    let error = engine.setup().await.expect_err("the schema is newer");
    assert!(error.kind() == ErrorKind::Config && error.to_string().contains("newer"), "{error}");
    until_free(&pool, 1).await;
    let client = pool.get().await.expect("lent");
    let row = client.query_typed_one("SELECT distlock.version()", &[]).await.expect("no transaction has failed");
    assert_eq!(row.get::<_, i32>(0), 99, "nothing was changed");
}

#[tokio::test]
async fn with_a_server_to_listen_to_waiters_of_a_pool_get_messages() {
    let bench = Bench::start().await;
    let pool = pool_of(&bench, KEPT);
    let lend = {
        let pool = pool.clone();
        move || {
            let pool = pool.clone();
            async move { pool.get().await }
        }
    };
    let locker = locker(bench.builder(bench.server.port()).pool(lend, |lent| lent));
    assert!(locker.capabilities().wakes);
    let guard = locker.lock("a").await.expect("granted");
    let waiter = tokio::spawn(locker.lock("a").as_new_owner().into_future());
    bench.until("SELECT count(*) FROM distlock.waiters WHERE distlock._listens(channel)", "1").await;
    assert!(locker.capabilities().wakes, "still, with connections that are lent");
    guard.unlock().await.expect("released");
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    assert_eq!(bench.rows("SELECT count(*) FROM distlock.waiters"), ["0"]);
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn f28_a_claim_that_is_not_serialisable_was_not_carried_out() {
    let bench = Bench::start().await;
    let options = "options='-c default_transaction_isolation=serializable'";
    let address = format!("host=127.0.0.1 port={} user=postgres {options}", bench.server.port());
    let locker = locker(from_pool(&ClientPool::new(&address, KEPT)));
    locker.lock("a").await.expect("granted").unlock().await.expect("released");
    let mut session = bench.session().await;
    let until = now().after(TEST_LIMIT);
    // On a busy machine the reply may come too late to be heard.
    loop {
        let change = session.transaction().await.expect("a transaction");
        let changed = change.execute("UPDATE distlock.locks SET record = record WHERE name = 'a'", &[]).await;
        assert_eq!(changed.expect("changed"), 1);
        let claim = tokio::spawn(locker.try_lock("a").into_future());
        bench.until("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted", "t").await;
        change.commit().await.expect("committed");
        let error = claim.await.expect("no panic").expect_err("the row has changed since its transaction began");
        if error.kind() == ErrorKind::Unavailable && error.to_string().contains("40001") {
            break;
        }
        assert!(error.kind() == ErrorKind::Unknown && now() < until, "{error}");
    }
    bench.expect_nothing_left().await;
    locker.lock("a").await.expect("granted").unlock().await.expect("released");
}

#[test]
fn settings_of_connections_that_the_pool_opens_are_refused() {
    let lend = || async { Err::<Box<tokio_postgres::Client>, _>("never lent") };
    let builder = || Postgres::from_pool(lend, |lent| lent);
    builder().schema("locks").prefix("p:").build().expect("no such setting");
    for (builder, field) in [
        (builder().user("ann"), "username"),
        (builder().password("s3cret"), "username"),
        (builder().database("shop"), "username"),
        (builder().tls(None), "tls"),
    ] {
        let error = builder.build().expect_err(field);
        assert!(error.kind() == ErrorKind::Config && error.to_string().starts_with(field), "{error}");
    }
}
