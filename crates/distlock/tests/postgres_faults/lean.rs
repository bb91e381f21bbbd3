//! The short way of locks that are free and have no queue.

use std::future::IntoFuture;

use distlock::{ErrorKind, Locker};
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT};

/// Takes and releases the lock once, so that the next claim goes the short way.
async fn know(locker: &Locker, name: &str) -> u64 {
    let guard = locker.lock(name).ttl(TEST_LIMIT).await.expect("granted");
    let token = guard.fencing_token().get();
    guard.unlock().await.expect("released");
    token
}

#[tokio::test]
async fn a_lock_that_is_known_and_free_is_taken_and_released_without_the_functions() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    let first = know(&locker, "a").await;
    bench.server.sql("DROP FUNCTION distlock.claim, distlock.release");
    let second = know(&locker, "a").await;
    assert!(second > first, "tokens rise");
    let error = locker.try_lock("b").await.expect_err("a new name needs a row");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
}

#[tokio::test]
async fn f82_the_short_way_does_not_pass_a_transaction_that_relies_on_the_lock() {
    let bench = Bench::start().await;
    let (locker, session) = (bench.direct().await, bench.session().await);
    know(&locker, "a").await;
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let token = i64::try_from(guard.fencing_token().get()).expect("a token");
    session.batch_execute("BEGIN").await.expect("begun");
    session.execute("SELECT distlock.hold('a', $1)", &[&token]).await.expect("the hold is live");
    guard.extend(TEST_LIMIT).await.expect("renewals go on");
    guard.unlock().await.expect("releases go on");
    let lean = "UPDATE distlock.lean_claim SET name = 'a', attempt = 'x', lease_ms = 1000, not_after = 9e15::bigint, \
                record = '{}' RETURNING token";
    assert_eq!(bench.server.sql(lean), "", "granted while a transaction relies on the last hold");
    let next = tokio::spawn(locker.lock("a").ttl(TEST_LIMIT).into_future());
    bench.until_waiting(1).await;
    assert!(!next.is_finished());
    session.batch_execute("COMMIT").await.expect("ended");
    let next = timeout(TEST_LIMIT, next).await.expect("in time").expect("no panic").expect("granted");
    next.unlock().await.expect("released");
    // A transaction that has ended costs the short way once at most.
    know(&locker, "a").await;
    assert_eq!(bench.rows(lean).len(), 1, "it is free");
}

#[tokio::test]
async fn f01_a_short_claim_whose_commit_was_not_heard_of_is_found_again() {
    let bench = Bench::start().await;
    let locker = bench.behind_proxy().await;
    know(&locker, "a").await;
    bench.proxy.drop_replies();
    let waiting = tokio::spawn(locker.lock("a").ttl(TEST_LIMIT).into_future());
    bench.until("SELECT count(*) FROM distlock.locks WHERE name = 'a' AND mode = 'x'", "1").await;
    let stored = bench.server.sql("SELECT token FROM distlock.locks WHERE name = 'a'");
    bench.proxy.pass();
    let guard = timeout(TEST_LIMIT, waiting).await.expect("in time").expect("no panic").expect("granted");
    assert_eq!(guard.fencing_token().to_string(), stored, "another grant than the first");
    guard.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f04_a_short_release_whose_commit_was_not_heard_of_is_released() {
    let bench = Bench::start().await;
    let locker = bench.behind_proxy().await;
    know(&locker, "a").await;
    let guard = locker.lock("a").ttl(TEST_LIMIT * 10).await.expect("granted");
    let token = guard.fencing_token();
    bench.proxy.drop_replies();
    let releasing = tokio::spawn(guard.unlock());
    bench.until("SELECT count(*) FROM distlock.locks WHERE name = 'a' AND mode IS NULL", "1").await;
    bench.proxy.pass();
    drop(releasing.await.expect("no panic"));
    let next = timeout(TEST_LIMIT, locker.lock("a").into_future()).await.expect("in time").expect("granted");
    assert!(next.fencing_token() > token, "the release freed it, and not the end of the lease");
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn f14_the_short_way_refuses_what_is_late_held_queued_or_by_a_token_from_the_future() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    know(&locker, "a").await;
    let claim = |not_after: &str| {
        bench.server.sql(&format!(
            "UPDATE distlock.lean_claim SET name = 'a', attempt = 'x', lease_ms = 60000, not_after = {not_after}, record = '{{}}' \
             RETURNING token"
        ))
    };
    // A number, and not an expression: the statement would read the clock again for it.
    let now: u64 = bench.server.sql("SELECT distlock._us(clock_timestamp())").parse().expect("a number");
    let soon = &(now + 600_000_000).to_string();
    assert_eq!(claim(&now.to_string()), "", "late");
    assert_eq!(claim("NULL"), "", "no time at all");
    bench.server.sql("UPDATE distlock.locks SET queued = true WHERE name = 'a'");
    assert_eq!(claim(soon), "", "it overtakes waiters");
    bench.server.sql("UPDATE distlock.locks SET queued = false, token = 9223372036854775807 WHERE name = 'a'");
    assert_eq!(claim(soon), "", "a token that does not rise");
    bench.server.sql("UPDATE distlock.locks SET token = 1 WHERE name = 'a'");
    assert_ne!(claim(soon), "", "free");
    assert_eq!(claim(soon), "", "held");
    let release = |attempt: &str| {
        bench
            .server
            .sql(&format!("UPDATE distlock.lean_release SET name = 'a', attempt = '{attempt}' RETURNING is_released"))
    };
    assert_eq!(release("y"), "", "another attempt's");
    assert_eq!(release("x"), "t");
    assert_eq!(release("x"), "", "once");
}

#[tokio::test]
async fn the_least_rights_do_not_read_or_change_what_the_short_way_does_not() {
    let bench = Bench::start().await;
    bench.server.sql("CREATE USER app; GRANT USAGE ON SCHEMA distlock TO app");
    let locker = Locker::connect(&format!("postgres://app@{}/postgres", bench.server.address())).await.expect("ready");
    know(&locker, "a").await;
    know(&locker, "a").await;
    for refused in [
        "SELECT token FROM distlock.locks",
        "UPDATE distlock.locks SET token = 1",
        "DELETE FROM distlock.lean_claim",
        "INSERT INTO distlock.lean_release (name) VALUES ('a')",
    ] {
        assert!(bench.server.try_sql(&format!("SET ROLE app; {refused}")).is_err(), "{refused}");
    }
    bench.server.sql("SET ROLE app; UPDATE distlock.lean_claim SET token = 7");
    assert!(
        bench.server.sql("SELECT token FROM distlock.locks WHERE name = 'a'").len() == 16,
        "the token is not the caller's"
    );
}
