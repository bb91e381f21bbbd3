//! A transaction that relies on a lock.

use std::future::IntoFuture;
use std::time::Duration;

use distlock::Locker;
use tokio::time::timeout;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::bench::{Bench, TEST_LIMIT, TTL, ms, sleep};

async fn hold(session: &Client, name: &str, token: u64) -> Result<(), tokio_postgres::Error> {
    let token = i64::try_from(token).expect("a token");
    session.execute("SELECT distlock.hold($1, $2)", &[&name, &token]).await.map(drop)
}

/// Takes a lock that is never renewed.
async fn lease(locker: &Locker, name: &str, ttl: Duration) -> u64 {
    let guard = locker.lock(name).ttl(ttl).watchdog(false).await.expect("granted");
    let token = guard.fencing_token().get();
    // As a process that stands still: neither renewed nor released.
    std::mem::forget(guard);
    token
}

#[tokio::test]
async fn f82_the_next_grant_waits_for_a_transaction_that_relies_on_the_lock() {
    let bench = Bench::start().await;
    bench.server.sql("CREATE TABLE writes (at bigserial, who text)");
    let locker = bench.direct().await;
    let session = bench.session().await;
    let token = lease(&locker, "a", TTL).await;
    session.batch_execute("BEGIN").await.expect("begun");
    hold(&session, "a", token).await.expect("the hold is live");
    let other = bench.direct().await;
    let next = tokio::spawn(other.lock("a").into_future());
    // Between its check and its write, the holder pauses for longer than its lease.
    sleep(TTL * 2).await;
    assert!(!next.is_finished(), "granted while a transaction relies on the lock");
    session.batch_execute("INSERT INTO writes (who) VALUES ('first'); COMMIT").await.expect("its write is in time");
    let next = timeout(TEST_LIMIT, next).await.expect("in time").expect("no panic").expect("granted");
    session.batch_execute("BEGIN").await.expect("begun");
    hold(&session, "a", next.fencing_token().get()).await.expect("the hold is live");
    session.batch_execute("INSERT INTO writes (who) VALUES ('second'); COMMIT").await.expect("written");
    assert_eq!(bench.rows("SELECT who FROM writes ORDER BY at"), ["first", "second"]);
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn f82_a_transaction_fails_whose_lock_is_another_owners() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    let session = bench.session().await;
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let token = lease(&locker, "a", ms(100)).await;
        session.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; SELECT 1")).await.expect("begun");
        // The holder pauses before its check.
        let next = bench.direct().await.lock("a").await.expect("the lease is over");
        let error = hold(&session, "a", token).await.expect_err("it relies on an old token");
        let code = error.code().expect("a refusal of the server").code().to_owned();
        assert!(["DL001", "40001"].contains(&code.as_str()), "{level}: {error}");
        session.batch_execute("ROLLBACK").await.expect("ended");
        assert!(hold(&session, "a", next.fencing_token().get()).await.is_ok(), "{level}: the next holder's");
        next.unlock().await.expect("released");
        assert!(hold(&session, "a", token).await.is_err() && hold(&session, "nowhere", 1).await.is_err());
    }
}

#[tokio::test]
async fn f82_a_stale_snapshot_never_passes_the_check() {
    let bench = Bench::start().await;
    let (locker, session) = (bench.direct().await, bench.session().await);
    let token = lease(&locker, "a", ms(200)).await;
    // The snapshot is from when the token's hold was live.
    session
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM distlock.locks")
        .await
        .expect("begun");
    let next = bench.direct().await.lock("a").await.expect("the lease is over");
    let error = hold(&session, "a", token).await.expect_err("it sees the past");
    assert!(
        error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) || error.to_string().contains("not held"),
        "{error}"
    );
    session.batch_execute("ROLLBACK").await.expect("ended");
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn f82_a_hold_is_renewed_while_a_transaction_relies_on_it() {
    let bench = Bench::start().await;
    let (locker, session) = (bench.direct().await, bench.session().await);
    for level in ["READ COMMITTED", "SERIALIZABLE"] {
        let guard = locker.lock("a").await.expect("granted");
        // A renewal between the snapshot and the check is a conflict there, and the check is repeated.
        timeout(TEST_LIMIT, async {
            loop {
                session.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}")).await.expect("begun");
                match hold(&session, "a", guard.fencing_token().get()).await {
                    Ok(()) => return,
                    Err(error) => assert_eq!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE), "{error}"),
                }
                session.batch_execute("ROLLBACK").await.expect("ended");
            }
        })
        .await
        .expect("the check passes");
        sleep(TTL * 2).await;
        guard.check().unwrap_or_else(|error| panic!("{level}: {error}"));
        // Released before the transaction ends: the lock is free, and granted when it has ended.
        guard.unlock().await.expect("released");
        let other = bench.direct().await;
        assert!(other.try_lock("a").await.expect("no failure").is_none(), "{level}: granted too early");
        session.batch_execute("COMMIT").await.expect("ended");
        other.lock("a").wait(TEST_LIMIT).await.expect("granted").unlock().await.expect("released");
    }
}

#[tokio::test]
async fn f82_a_slot_is_not_granted_again_while_a_transaction_relies_on_it() {
    let bench = Bench::start().await;
    let (locker, session) = (bench.direct().await, bench.session().await);
    let pool = locker.semaphore("pool", 2);
    let permit = pool.acquire().ttl(ms(300)).watchdog(false).await.expect("granted");
    session.batch_execute("BEGIN").await.expect("begun");
    hold(&session, "pool", permit.fencing_token().get()).await.expect("the hold is live");
    std::mem::forget(permit);
    let others = bench.direct().await.semaphore("pool", 2);
    let second =
        timeout(TEST_LIMIT, others.acquire().into_future()).await.expect("in time").expect("the other slot is free");
    sleep(ms(500)).await;
    assert!(others.try_acquire().await.expect("no failure").is_none(), "the first slot was granted again");
    session.batch_execute("COMMIT").await.expect("ended");
    let third = timeout(TEST_LIMIT, others.acquire().into_future()).await.expect("in time").expect("granted");
    third.unlock().await.expect("released");
    second.unlock().await.expect("released");
}

#[tokio::test]
async fn f82_the_recipe_of_the_fencing_page_refuses_a_stale_holder() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fencing.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let recipe =
        page.split("```sql\n").filter_map(|rest| rest.split("\n```").next()).find(|sql| sql.contains("distlock.hold"));
    let recipe = |token: u64, balance: u32| {
        let text = recipe.expect("a recipe").replace(":token", &token.to_string());
        text.replace(":balance", &balance.to_string()).replace(":id", "7")
    };
    let bench = Bench::start().await;
    bench.server.sql("CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT); INSERT INTO account VALUES (7, 0)");
    let (locker, session) = (bench.direct().await, bench.session().await);
    let stale = lease(&locker, "account:7", ms(100)).await;
    let guard = bench.direct().await.lock("account:7").await.expect("the lease is over");
    session.batch_execute(&recipe(guard.fencing_token().get(), 10)).await.expect("written");
    let error = session.batch_execute(&recipe(stale, 99)).await.expect_err("stale");
    assert_eq!(error.code().map(SqlState::code), Some("DL001"), "{error}");
    assert_eq!(bench.rows("SELECT balance FROM account"), ["10"]);
    guard.unlock().await.expect("released");
}

#[tokio::test]
async fn f82_the_handles_statement_relies_on_the_lock_with_its_prefix_and_schema() {
    let bench = Bench::start().await;
    let builder = || bench.builder(bench.server.port()).schema("Our \"locks\"").prefix("it's:");
    builder().build().expect("an engine").setup().await.expect("the schema is made");
    let engine = builder().build().expect("an engine");
    let (handle, mut session) = (engine.handle(), bench.session().await);
    let locker = Locker::new(engine).expect("a locker");
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let statement = handle.hold(guard.key(), guard.fencing_token());
    let transaction = session.transaction().await.expect("begun");
    transaction.execute(&statement.sql, &[&statement.name, &statement.token]).await.expect("the hold is live");
    guard.unlock().await.expect("released");
    assert!(locker.try_lock("a").await.expect("no failure").is_none(), "granted while a transaction relies on it");
    transaction.commit().await.expect("ended");
    let refused = session.execute(&statement.sql, &[&statement.name, &statement.token]).await;
    assert_eq!(refused.expect_err("released").code().map(SqlState::code), Some("DL001"));
    let next = locker.lock("a").await.expect("granted");
    next.unlock().await.expect("released");
}
