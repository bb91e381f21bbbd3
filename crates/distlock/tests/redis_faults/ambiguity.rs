//! Lost replies, late requests, dropped futures.

use std::future::IntoFuture;

use distlock::{ErrorKind, HoldState, LossReason};
use distlock_testkit::poll_times;
use distlock_testkit::proxy::Direction;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, TTL, ms, now, sleep};

#[tokio::test]
async fn f01_a_claim_with_a_lost_reply_is_unknown_and_found_again() {
    let bench = Bench::start();
    let locker = bench.behind_proxy().await;
    bench.proxy.drop_replies();
    let waiting = tokio::spawn(locker.lock("a").ttl(TEST_LIMIT).into_future());
    while bench.keys().is_empty() {
        sleep(ms(5)).await;
    }
    let stored = bench.command("GET a").text();
    bench.proxy.pass();
    let guard = timeout(TEST_LIMIT, waiting).await.expect("in time").expect("no panic").expect("granted");
    assert!(stored.contains(&format!(" {} ", guard.fencing_token())), "another grant than the first: {stored}");
    guard.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f01_an_unsettled_try_returns_unknown_and_leaves_nothing() {
    let bench = Bench::start();
    let locker = bench.behind_proxy().await;
    bench.proxy.drop_replies();
    // A lease that would outlast the test: only a withdrawal ends it in time.
    let error = locker.try_lock("a").ttl(TEST_LIMIT * 2).await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    bench.proxy.pass();
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f02_a_grant_after_its_deadline_is_not_believed() {
    let bench = Bench::start();
    let locker = bench.behind_proxy().await;
    bench.proxy.delay(ms(120));
    let error = locker.lock("a").ttl(ms(200)).await.expect_err("every grant is late");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    bench.proxy.pass();
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f03_only_an_answered_renewal_moves_the_deadline() {
    let bench = Bench::start();
    let locker = bench.behind_proxy().await;
    let guard = locker.lock("a").await.expect("granted");
    bench.proxy.drop_replies();
    let (deadline, renewals) = (guard.deadline().expect("a lease"), bench.server.calls("pexpire"));
    let reason = timeout(TEST_LIMIT, guard.lost()).await.expect("notified");
    assert_eq!(reason, LossReason::Expired);
    assert_eq!(guard.deadline(), Some(deadline), "the renewals arrived, but no reply came back");
    assert!(bench.server.calls("pexpire") > renewals, "no renewal arrived");
    assert!(now() >= deadline && now().since(deadline) < ms(500));
}

#[tokio::test]
async fn f03_a_renewal_counts_from_when_it_was_sent() {
    let bench = Bench::start();
    let locker = bench.behind_proxy().await;
    let guard = locker.lock("a").watchdog(false).ttl(TEST_LIMIT).await.expect("granted");
    bench.proxy.delay(ms(150));
    guard.extend(TEST_LIMIT * 2).await.expect("extended");
    // On any machine: the renewal was sent at least as long ago as the proxy delayed it.
    let latest = now().after(TEST_LIMIT * 2).before(ms(300));
    assert!(guard.deadline().expect("a lease") <= latest, "it counts from its answer");
    bench.proxy.pass();
    guard.unlock().await.expect("released");
}

#[tokio::test]
async fn f03_a_failed_renewal_is_retried_in_time() {
    let bench = Bench::start();
    let locker = bench.behind_proxy().await;
    // A long lease: a busy machine needs its time to notice the dead connection and open another one.
    let guard = locker.lock("a").ttl(TTL * 6).await.expect("granted");
    bench.proxy.drop_replies();
    while guard.state() == HoldState::Held {
        sleep(ms(5)).await;
    }
    bench.proxy.pass();
    while guard.state() == HoldState::AtRisk {
        sleep(ms(5)).await;
    }
    assert_eq!(guard.state(), HoldState::Held, "renewed on a new connection");
    // The other connection may just be found dead: then the release is unknown, and continues in the background.
    drop(guard.unlock().await);
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f04_a_release_with_a_lost_reply_is_unknown_and_executed() {
    let bench = Bench::start();
    let locker = bench.behind_proxy().await;
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    bench.proxy.drop_replies();
    let error = guard.unlock().await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    let other = bench.direct().await;
    let next = other.try_lock("a").ttl(TEST_LIMIT).await.expect("no failure").expect("it was released");
    let held = bench.command("GET a").text();
    bench.proxy.pass();
    // Closing gives up after five seconds, which a busy machine may need for another connection.
    while locker.lock("b").await.is_err() {
        sleep(ms(5)).await;
    }
    locker.close().await.expect("the release is repeated until it is confirmed");
    assert_eq!(bench.command("GET a").text(), held, "the repeated release does not end the next hold");
    next.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f06_a_connection_cut_at_every_byte_of_a_reply_grants_once() {
    let bench = Bench::start();
    let writes = || bench.server.calls("set");
    let before = writes();
    bench.direct().await;
    let writes_of_a_grant = writes() - before;
    let mut last = 0;
    for bytes in [0, 1, 7, 20, 40] {
        let locker = bench.behind_proxy().await;
        let before = writes();
        bench.proxy.cut_after(Direction::Replies, bytes);
        // A lease that outlasts the wait: a claim retried with another id would wait for itself in vain.
        let guard = locker.lock("a").ttl(TEST_LIMIT * 2).wait(TEST_LIMIT).await.expect("granted after a repeat");
        assert_eq!(writes() - before, writes_of_a_grant, "granted twice");
        let token = guard.fencing_token().get();
        assert_eq!(bench.command("GET {distlock}:f").int(), i64::try_from(token).unwrap(), "not the last grant");
        assert!(token > last);
        last = token;
        guard.unlock().await.expect("released");
        bench.proxy.pass();
    }
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f07_acquire_future_dropped() {
    let bench = Bench::start();
    let (locker, other) = (bench.behind_proxy().await, bench.direct().await);
    bench.proxy.delay(ms(5));
    // Dropped at once, with the request in flight, and with an unread reply.
    for (polls, pause) in (0..4).flat_map(|polls| [0, 7, 30].map(|pause| (polls, ms(pause)))) {
        let mut request = Box::pin(locker.lock("a").ttl(TEST_LIMIT).into_future());
        let granted = poll_times(polls, &mut request).await;
        sleep(pause).await;
        drop((granted, request));
        let asked = now();
        let guard = other.lock("a").wait(TEST_LIMIT).await.expect("the dropped attempt is withdrawn");
        assert!(now().since(asked) < TEST_LIMIT / 4);
        guard.unlock().await.expect("released");
    }
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f08_dropped_between_the_grant_and_the_guard() {
    let bench = Bench::start();
    let (locker, other) = (bench.behind_proxy().await, bench.direct().await);
    bench.proxy.delay(ms(10));
    // Around the round trip of 20 ms, so that some are dropped with the reply in flight or just received.
    for wait in 15..27 {
        drop(timeout(ms(wait), locker.lock("a").ttl(TEST_LIMIT).into_future()).await);
        // Shorter than the lease of an attempt that was not withdrawn.
        other.lock("a").wait(TEST_LIMIT / 2).await.expect("withdrawn").unlock().await.expect("released");
    }
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f09_a_cancelled_waiter_stalls_no_other_waiter() {
    let bench = Bench::start();
    let (holder, quitter, other) = (bench.direct().await, bench.direct().await, bench.direct().await);
    let mut stalls = Vec::new();
    for wait in 0..10 {
        let guard = holder.lock("a").ttl(TEST_LIMIT).await.expect("granted");
        // Some give up well before the release, some during it, some after it.
        let quits = tokio::spawn(timeout(ms(8 + 2 * wait), quitter.lock("a").into_future()));
        let stays = tokio::spawn(other.lock("a").wait(TEST_LIMIT).into_future());
        sleep(ms(20)).await;
        guard.unlock().await.expect("released");
        let released = now();
        drop(quits.await.expect("no panic"));
        let next = stays.await.expect("no panic").expect("granted");
        stalls.push(now().since(released));
        next.unlock().await.expect("released");
    }
    // A lock handed to a waiter that has gone is blocked for its first lease of a second. A busy machine may be as
    // slow at times, but not nearly always.
    assert!(stalls.iter().filter(|stall| **stall > ms(900)).count() < 3, "stalled for {stalls:?}");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f09_a_cancelled_waiter_at_the_head_passes_the_lock_on() {
    let bench = Bench::start();
    let (holder, quitter, other) = (bench.direct().await, bench.direct().await, bench.direct().await);
    let _guard = holder.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let mut waiters = Vec::new();
    for (place, locker) in [quitter, other].into_iter().enumerate() {
        waiters.push(tokio::spawn(locker.lock("a").ttl(TEST_LIMIT).into_future()));
        while bench.command("ZCARD {a}:q").int() <= i64::try_from(place).unwrap() {
            sleep(ms(5)).await;
        }
    }
    // Free, without a message: the first waiter is at the head, and leaves without having claimed.
    bench.command("DEL a");
    let freed = now();
    waiters.remove(0).abort();
    let next = timeout(TEST_LIMIT, waiters.remove(0)).await.expect("in time").expect("no panic").expect("granted");
    // By polling it would notice only after a third of its heartbeat of 20 s.
    assert!(now().since(freed) < ms(4000), "after {:?}", now().since(freed));
    next.unlock().await.expect("released");
}

#[test]
fn f10_locks_survive_the_end_of_their_runtime() {
    let bench = Bench::start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let guard = runtime.block_on(async { bench.direct().await.lock("a").await.expect("granted") });
    drop(runtime);
    std::thread::sleep(TTL * 2);
    guard.check().expect("renewed by the keeper");
    drop(guard);
    let until = now().after(TEST_LIMIT);
    while !bench.keys().is_empty() {
        assert!(now() < until, "not released");
        std::thread::sleep(ms(10));
    }
}

#[tokio::test]
async fn f14_a_claim_that_arrives_after_its_time_limit_is_refused() {
    let bench = Bench::start();
    let locker = bench.behind_proxy().await;
    let writes = || bench.server.calls("set");
    let before = writes();
    bench.proxy.hold_requests();
    let error = locker.lock("a").ttl(TEST_LIMIT).wait(ms(200)).await.expect_err("no answer");
    assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Unknown), "{error}");
    locker.close().await.expect_err("the withdrawal is not confirmed");
    sleep(ms(1500)).await;
    let evals = bench.server.calls("evalsha");
    bench.proxy.pass();
    while bench.server.calls("evalsha") == evals {
        sleep(ms(5)).await;
    }
    sleep(ms(300)).await;
    // Not only by the keys: a withdrawal behind it would have removed them again.
    assert_eq!(writes(), before, "an abandoned claim was executed");
    assert_eq!(bench.keys(), [""; 0]);
}
