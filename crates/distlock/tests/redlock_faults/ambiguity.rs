//! Replies that are lost, requests that come late, waits that are given up.

use std::future::IntoFuture;

use distlock::{ErrorKind, HoldState};
use tokio::time::timeout;

use crate::bench::{Bench, PATIENCE, TTL, eventually, ms, now, sleep, unlock};

#[tokio::test]
async fn f01_a_claim_whose_replies_are_lost_is_unknown_and_leaves_nothing() {
    let bench = Bench::start(3);
    let locker = bench.behind(&[0, 1, 2]).await;
    bench.proxies.iter().for_each(|proxy| proxy.drop_replies());
    let error = locker.try_lock("a").ttl(PATIENCE).await.expect_err("no answer");
    assert!(error.may_be_applied(), "{error}");
    bench.proxies.iter().for_each(|proxy| proxy.pass());
    bench.expect_nothing_left(&[0, 1, 2]).await;
    let guard = locker.lock("a").wait(PATIENCE).await.expect("granted");
    unlock(guard).await;
}

#[tokio::test]
async fn f01_a_reply_that_one_node_loses_costs_nothing() {
    let bench = Bench::start(3);
    let locker = bench.behind(&[1]).await;
    bench.proxies[1].drop_replies();
    let asked = now();
    let guard = locker.lock("a").ttl(PATIENCE).await.expect("granted by the others");
    assert!(now().since(asked) < ms(500), "{:?}", now().since(asked));
    unlock(guard).await;
    bench.proxies[1].pass();
    bench.expect_nothing_left(&[0, 1, 2]).await;
}

#[tokio::test]
async fn f03_a_renewal_that_a_majority_loses_keeps_the_old_deadline_until_one_is_answered() {
    let bench = Bench::start(3);
    let locker = bench.behind(&[1, 2]).await;
    let guard = locker.lock("a").ttl(TTL * 6).await.expect("granted");
    bench.proxies[1].drop_replies();
    bench.proxies[2].drop_replies();
    eventually("the holder is at risk", || guard.state() != HoldState::Held).await;
    let deadline = guard.deadline();
    assert_eq!(guard.state(), HoldState::AtRisk);
    let extended = timeout(ms(700), guard.extend(TTL * 6)).await;
    assert!(!matches!(extended, Ok(Ok(()))), "one answer is no majority");
    assert_eq!(guard.deadline(), deadline);
    bench.proxies[1].pass();
    eventually("a majority renews it again", || guard.deadline() > deadline).await;
    assert_eq!(guard.state(), HoldState::Held);
    unlock(guard).await;
}

#[tokio::test]
async fn f04_a_release_whose_replies_are_lost_is_unknown_and_was_carried_out() {
    let bench = Bench::start(3);
    let (locker, other) = (bench.behind(&[1, 2]).await, bench.direct().await);
    let guard = locker.lock("a").ttl(PATIENCE).await.expect("granted");
    bench.proxies[1].drop_replies();
    bench.proxies[2].drop_replies();
    let error = guard.unlock().await.expect_err("one answer is no majority");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    let next = other.lock("a").wait(PATIENCE / 2).await.expect("long before the lease ends");
    bench.proxies[1].pass();
    bench.proxies[2].pass();
    sleep(ms(500)).await;
    next.check().expect("the repeated release took nothing from the next holder");
    unlock(next).await;
    bench.expect_nothing_left(&[0, 1, 2]).await;
}

#[tokio::test]
async fn f09_a_waiter_that_gives_up_when_it_is_told_stalls_nobody() {
    let bench = Bench::start(3);
    let (holder, quitter, other) = (bench.direct().await, bench.direct().await, bench.direct().await);
    // So long a lease that nobody looks by itself in the meantime.
    let long = PATIENCE * 3;
    for round in 0..8 {
        let guard = holder.lock("a").ttl(long).wait(PATIENCE).await.expect("granted");
        let waits = |count: i64| bench.nodes[0].command(&["ZCARD", "{a}:q"]).int() >= count;
        let first = tokio::spawn(quitter.lock("a").ttl(long).into_future());
        eventually("the first waits", || waits(1)).await;
        let second = tokio::spawn(other.lock("a").ttl(long).into_future());
        eventually("the second waits", || waits(2)).await;
        let releasing = tokio::spawn(guard.unlock());
        sleep(ms(round)).await;
        first.abort();
        drop(first.await);
        releasing.await.expect("no panic").expect("released");
        let released = now();
        let next = timeout(PATIENCE, second).await.expect("in time").expect("no panic").expect("granted");
        assert!(now().since(released) < ms(3000), "round {round}: stalled for {:?}", now().since(released));
        unlock(next).await;
    }
    bench.expect_nothing_left(&[0, 1, 2]).await;
}

#[tokio::test]
async fn f14_a_claim_that_arrives_after_its_release_is_refused() {
    let bench = Bench::start(3);
    let locker = bench.behind(&[2]).await;
    bench.proxies[2].hold_requests();
    let guard = locker.lock("a").ttl(PATIENCE).await.expect("granted by the others");
    unlock(guard).await;
    // Longer than the connection is kept: what is released later goes another way than the claim.
    sleep(ms(1500)).await;
    assert!(!bench.has(2, "a"));
    bench.proxies[2].pass();
    let seen = now().after(ms(1500));
    while now() < seen {
        assert!(!bench.has(0, "a") && !bench.has(1, "a"));
        sleep(ms(20)).await;
    }
    bench.expect_nothing_left(&[0, 1, 2]).await;
}

#[tokio::test]
async fn f14_a_renewal_that_arrives_after_the_release_never_brings_the_lock_back() {
    let bench = Bench::start(3);
    let (locker, operator) = (bench.behind(&[2]).await, bench.direct().await);
    let guard = locker.lock("a").ttl(TTL).await.expect("granted");
    bench.proxies[2].hold_requests();
    // Renewals go on by the other two, and lie in the proxy of the third.
    sleep(TTL).await;
    assert_eq!(guard.state(), HoldState::Held);
    let token = guard.fencing_token();
    operator.inspect().force_release("a", token, "test").await.expect("ended everywhere, past the proxy");
    assert_eq!(bench.keys(&[0, 1, 2]), [""; 0]);
    bench.proxies[2].pass();
    let seen = now().after(ms(1500));
    while now() < seen {
        assert_eq!(bench.keys(&[0, 1, 2]), [""; 0], "a late renewal set it again");
        sleep(ms(10)).await;
    }
    assert!(guard.is_lost());
}
