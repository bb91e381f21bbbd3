//! Clocks that leap, extensions that fall apart, holders that are killed.

use std::future::IntoFuture;

use distlock::{HoldState, LossReason};
use distlock_testkit::child::Child;
use distlock_testkit::clock_shim::{ClockShim, ShiftedClock};
use distlock_testkit::servers::RedisServer;
use tokio::time::timeout;

use crate::bench::{Bench, PATIENCE, TTL, ms, now, sleep, unlock};

#[tokio::test]
async fn f47_acks_of_different_rounds_never_make_a_majority() {
    let bench = Bench::start(3);
    let locker = bench.behind(&[0, 1, 2]).await;
    let guard = locker.lock("a").ttl(TTL * 2).watchdog(false).await.expect("granted");
    let deadline = guard.deadline().expect("a lease");
    let (mut node, mut acked) = (0, 0);
    while !guard.is_lost() {
        // One node at a time answers, and it has answered before: over two rounds that would be a majority.
        for (at, proxy) in bench.proxies.iter().enumerate() {
            if at == node { proxy.pass() } else { proxy.drop_replies() }
        }
        match timeout(ms(900), guard.extend(TTL * 2)).await {
            Ok(Ok(())) => panic!("extended by one node a round"),
            Ok(Err(error)) => {
                acked += usize::from(error.to_string().contains("renewed;") || error.to_string().contains(": renewed"));
            }
            Err(_) => {}
        }
        assert_eq!(guard.deadline(), Some(deadline), "only a majority of one round moves it");
        node = (node + 1) % 3;
    }
    assert!(acked > 0, "no node ever acknowledged: the test tests nothing");
    assert_eq!(guard.lost().await, LossReason::Expired);
}

/// Three nodes, some of which have a clock that can be moved.
fn with_clocks(moved: usize) -> (Bench, ClockShim) {
    let shim = ClockShim::new();
    let options =
        (0..3).map(|at| if at < moved { RedisServer::options().clock(&shim) } else { RedisServer::options() });
    let bench = Bench::with(options.collect());
    bench.nodes.settle();
    (bench, shim)
}

#[tokio::test]
async fn f48_a_clock_that_leaps_on_one_node_costs_one_vote_and_no_lock() {
    let (bench, shim) = with_clocks(1);
    let (locker, other) = (bench.direct().await, bench.direct().await);
    let guard = locker.lock("a").await.expect("granted");
    shim.forward(ShiftedClock::Wall, PATIENCE * 3);
    let until = now().after(TTL * 2);
    while now() < until {
        assert!(other.try_lock("a").await.expect("no failure").is_none(), "two holders");
        sleep(ms(20)).await;
    }
    assert_eq!(guard.state(), HoldState::Held, "the others renew it");
    unlock(guard).await;
    let next = other.lock("a").wait(PATIENCE).await.expect("granted");
    unlock(next).await;
}

#[tokio::test]
async fn f48_a_clock_that_goes_back_on_one_node_costs_nothing() {
    let (bench, shim) = with_clocks(1);
    let (locker, other) = (bench.direct().await, bench.direct().await);
    let guard = locker.lock("a").await.expect("granted");
    let token = guard.fencing_token();
    shim.back(ShiftedClock::Wall, PATIENCE * 3);
    sleep(TTL).await;
    assert_eq!(guard.state(), HoldState::Held);
    assert!(other.try_lock("a").await.expect("no failure").is_none());
    unlock(guard).await;
    let next = other.lock("a").wait(PATIENCE).await.expect("granted");
    assert!(next.fencing_token() > token);
    unlock(next).await;
}

#[tokio::test]
async fn f48_clocks_that_leap_on_a_majority_break_exclusion_and_the_token_still_rises() {
    let (bench, shim) = with_clocks(2);
    let (locker, other) = (bench.direct().await, bench.direct().await);
    let guard = locker.lock("a").ttl(PATIENCE).watchdog(false).await.expect("granted");
    shim.forward(ShiftedClock::Wall, PATIENCE * 3);
    let next = other.lock("a").wait(PATIENCE).await.expect("two nodes have let it expire");
    assert!(!guard.is_lost(), "the documented limit: two believe that they have it");
    assert!(next.fencing_token() > guard.fencing_token(), "and the resource knows better");
    guard.extend(PATIENCE).await.expect_err("not ours any more");
    assert_eq!(timeout(PATIENCE, guard.lost()).await.expect("told by the next renewal"), LossReason::Revoked);
    next.check().expect("the newer one is not disturbed");
    unlock(next).await;
}

#[tokio::test]
async fn f12_a_killed_holder_blocks_until_its_lease_ends_and_no_longer() {
    let bench = Bench::start(3);
    let mut child = Child::start();
    child.connect(&bench.nodes.url());
    let deadline = child.lock("a", TTL).deadline();
    let locker = bench.direct().await;
    let waiter = tokio::spawn(locker.lock("a").into_future());
    sleep(ms(100)).await;
    child.kill9();
    let next = timeout(PATIENCE, waiter).await.expect("in time").expect("no panic").expect("granted");
    assert!(now() > deadline, "two holders");
    let late = now().since(deadline);
    assert!(late < TTL + ms(600), "{late:?} after the last renewal's deadline at the earliest");
    unlock(next).await;
}
