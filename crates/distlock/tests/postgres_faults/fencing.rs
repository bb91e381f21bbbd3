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

#[tokio::test]
async fn f82_the_check_is_the_same_in_read_uncommitted() {
    let bench = Bench::start().await;
    let (locker, renewing) = (bench.direct().await, bench.session().await);
    let token = lease(&locker, "a", TEST_LIMIT).await;
    let attempt = bench.server.sql("SELECT attempt FROM distlock.locks WHERE name = 'a'");
    renewing.batch_execute("BEGIN").await.expect("begun");
    let renew = "SELECT o_renewed FROM distlock.renew('{a}', $1::text[], '{60000}')";
    renewing.execute(renew, &[&[attempt].as_slice()]).await.expect("renewed");
    // The server reads committed rows alone there: the row must be read once more, and not locked like a row of a snapshot.
    for level in ["READ COMMITTED", "READ UNCOMMITTED"] {
        let session = bench.session().await;
        session.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}")).await.expect("begun");
        let checked = timeout(TEST_LIMIT, hold(&session, "a", token)).await;
        assert!(matches!(checked, Ok(Ok(()))), "{level}: {checked:?}");
        session.batch_execute("COMMIT").await.expect("ended");
    }
    renewing.batch_execute("COMMIT").await.expect("ended");
}

#[tokio::test]
async fn f82_a_hold_that_is_broken_is_granted_to_no_other_while_a_transaction_relies_on_it() {
    let bench = Bench::start().await;
    let (locker, session) = (bench.direct().await, bench.session().await);
    let (guard, reader) = (locker.lock("x").await, locker.read("s").await);
    for guard in [guard.expect("granted"), reader.expect("granted")] {
        let (name, token) = (guard.key().as_str().to_owned(), guard.fencing_token());
        session.batch_execute("BEGIN").await.expect("begun");
        hold(&session, &name, token.get()).await.expect("the hold is live");
        let other = bench.direct().await;
        let next = tokio::spawn({
            let request = other.lock(&*name).ttl(TEST_LIMIT);
            request.into_future()
        });
        bench.until_waiting(1).await;
        locker.inspect().force_release(&*name, token, "a test").await.expect("broken");
        timeout(TEST_LIMIT, guard.lost()).await.expect("told");
        assert!(hold(&bench.session().await, &name, token.get()).await.is_err(), "{name}: a new transaction");
        assert!(!next.is_finished(), "{name}: granted while a transaction relies on the lock");
        session.batch_execute("COMMIT").await.expect("ended");
        let next = timeout(TEST_LIMIT, next).await.expect("in time").expect("no panic").expect("granted");
        assert!(next.fencing_token() > token);
        next.unlock().await.expect("released");
    }
}

/// Relies on the hold in a transaction that writes its token, from another session than the lock's.
async fn write(session: &Client, token: u64) -> bool {
    session.batch_execute("BEGIN").await.expect("begun");
    let is_held = hold(session, "a", token).await.is_ok();
    if is_held {
        session.execute("INSERT INTO writes (token) VALUES ($1)", &[&(token as i64)]).await.expect("written");
    }
    session.batch_execute(if is_held { "COMMIT" } else { "ROLLBACK" }).await.expect("ended");
    is_held
}

/// Takes the lock and writes, again and again; each time the hold ends at some moment of the transaction. Returns how many writes
/// were made and how many were refused.
async fn race(bench: &Bench, rounds: u64, breaks: bool) -> (u64, u64) {
    let (locker, session) = (bench.direct().await, bench.session().await);
    let (mut made, mut refused) = (0, 0);
    for round in 0..rounds {
        let guard = locker.lock("a").await.expect("granted");
        let (token, inspect) = (guard.fencing_token(), locker.inspect());
        let ending = async {
            sleep(Duration::from_micros(round * 97 % 2000)).await;
            if breaks {
                drop(inspect.force_release("a", token, "a test").await);
            }
            drop(guard.unlock().await);
        };
        let (is_made, ()) = tokio::join!(write(&session, token.get()), ending);
        made += u64::from(is_made);
        refused += u64::from(!is_made);
    }
    (made, refused)
}

#[tokio::test(flavor = "multi_thread")]
async fn f82_writes_come_in_the_order_of_tokens_whenever_holds_end() {
    const ROUNDS: u64 = 150;
    let bench = Bench::start().await;
    bench.server.sql("CREATE TABLE writes (at bigserial, token bigint)");
    let (one, other, third) =
        tokio::join!(race(&bench, ROUNDS, false), race(&bench, ROUNDS, true), race(&bench, ROUNDS, false));
    let (made, refused) = (one.0 + other.0 + third.0, one.1 + other.1 + third.1);
    assert!(made > 0 && refused > 0, "{made} writes were made and {refused} refused: nothing raced");
    let overtaken =
        "SELECT count(*) FROM (SELECT token, max(token) OVER (ORDER BY at) AS most FROM writes) w WHERE token < most";
    assert_eq!(bench.rows(overtaken), ["0"], "a write of an earlier holder came after that of a later one");
    assert_eq!(bench.rows("SELECT count(*) FROM writes"), [made.to_string()]);
}
