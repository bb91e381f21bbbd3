//! A server whose clock is set.

use std::future::IntoFuture;

use distlock_testkit::clock_shim::{ClockShim, ShiftedClock};
use distlock_testkit::servers::PostgresServer;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, TTL, ms, now};

#[tokio::test]
async fn f18_waiters_follow_a_forward_leap_of_the_databases_clock_and_tokens_rise() {
    let shim = ClockShim::new();
    let bench = Bench::of(&PostgresServer::options().clock(&shim)).await;
    let locker = bench.direct().await;
    let guard = locker.lock("a").ttl(TEST_LIMIT * 5).await.expect("granted");
    let other = bench.direct().await;
    let waiter = tokio::spawn(other.lock("a").ttl(TEST_LIMIT * 5).into_future());
    bench.until_waiting(1).await;
    let leapt = now();
    shim.forward(ShiftedClock::Wall, TEST_LIMIT * 50);
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    assert!(now().since(leapt) < ms(5000), "the leap was not noticed");
    assert!(next.fencing_token() > guard.fencing_token());
    timeout(TEST_LIMIT * 5, guard.lost()).await.expect("its renewal finds another holder");
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn f19_exclusion_holds_and_tokens_rise_when_the_databases_clock_goes_back() {
    let shim = ClockShim::new();
    let bench = Bench::of(&PostgresServer::options().clock(&shim)).await;
    let locker = bench.direct().await;
    let first = locker.lock("a").ttl(TTL).await.expect("granted");
    shim.back(ShiftedClock::Wall, TEST_LIMIT * 50);
    assert!(bench.direct().await.try_lock("a").await.expect("no failure").is_none(), "two holders");
    let before = first.fencing_token();
    first.unlock().await.expect("released");
    let next = locker.lock("a").await.expect("granted");
    assert!(next.fencing_token() > before);
    next.unlock().await.expect("released");
}
