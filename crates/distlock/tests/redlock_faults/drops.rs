//! Futures, guards, runtimes and processes that end early.

use std::future::IntoFuture;

use distlock::Locker;
use distlock_testkit::child::{Child, Outcome};
use distlock_testkit::poll_times;
use distlock_testkit::proxy::Door;
use tokio::time::timeout;

use crate::bench::{Bench, NODE_TIMEOUT, TEST_LIMIT, TTL, check_on_3_and_5, eventually, ms, now, sleep, unlock};

#[tokio::test]
async fn f07_acquire_future_dropped() {
    check_on_3_and_5(async |bench| {
        let all = bench.all();
        let (locker, other) = (bench.behind(&all).await, bench.direct().await);
        bench.each(&all, |proxy| proxy.delay(ms(5)));
        // Dropped at once, with the requests in flight, and with unread replies.
        for (polls, pause) in (0..4).flat_map(|polls| [0, 7, 30].map(|pause| (polls, ms(pause)))) {
            let mut request = Box::pin(locker.lock("a").ttl(TEST_LIMIT * 2).into_future());
            let granted = poll_times(polls, &mut request).await;
            sleep(pause).await;
            drop((granted, request));
            // The lease of an attempt that was not withdrawn would outlast this.
            unlock(other.lock("a").wait(TEST_LIMIT).await.expect("the dropped attempt is withdrawn")).await;
        }
        bench.expect_nothing_left(&all).await;
    })
    .await;
}

#[tokio::test]
async fn f08_dropped_between_the_grant_and_the_guard() {
    check_on_3_and_5(async |bench| {
        let all = bench.all();
        let (locker, other) = (bench.behind(&all).await, bench.direct().await);
        bench.each(&all, |proxy| proxy.delay(ms(10)));
        // Around the round trip of 20 ms, so that some are dropped with votes in flight or just received.
        for wait in 17..27 {
            drop(timeout(ms(wait), locker.lock("a").ttl(TEST_LIMIT * 2).into_future()).await);
            unlock(other.lock("a").wait(TEST_LIMIT).await.expect("withdrawn")).await;
        }
        bench.expect_nothing_left(&all).await;
    })
    .await;
}

#[tokio::test]
async fn a_first_claim_that_is_not_polled_delays_no_other() {
    check_on_3_and_5(async |bench| {
        let engine = bench.engine(&[]).build().expect("an engine");
        let locker = Locker::builder().default_ttl(TEST_LIMIT).build(engine).expect("a locker");
        // The nodes are connected, and asked nothing that a claim asks.
        locker.inspect().list("").await.expect("connected");
        let mut first = Box::pin(locker.lock("a").into_future());
        assert!(poll_times(1, &mut first).await.is_none(), "it waits for replies");
        unlock(locker.clone().lock("b").wait(TEST_LIMIT).await.expect("granted")).await;
        unlock(first.await.expect("granted")).await;
    })
    .await;
}

#[tokio::test]
async fn closing_waits_for_releases_of_slightly_late_nodes() {
    check_on_3_and_5(async |bench| {
        let slow = bench.minority();
        let locker = bench.behind(&slow).await;
        let guard = locker.lock("a").ttl(TEST_LIMIT * 2).await.expect("granted");
        bench.each(&slow, |proxy| proxy.delay(ms(50)));
        let began = now();
        unlock(guard).await;
        locker.close().await.expect("closed");
        // A node that exceeds its timeout is not waited for.
        let is_late = now().since(began) >= NODE_TIMEOUT;
        let left = bench.keys(&slow);
        assert!(left.is_empty() || is_late, "left behind: {left:?}");
    })
    .await;
}

/// A node that is down for good costs a closing locker little: its lease frees what it may have.
#[tokio::test]
async fn closing_does_not_wait_for_a_node_that_is_down() {
    check_on_3_and_5(async |bench| {
        let down = bench.minority();
        let locker = bench.behind(&down).await;
        let guard = locker.lock("a").ttl(TEST_LIMIT * 2).await.expect("granted");
        bench.each(&down, |proxy| {
            proxy.door(Door::Refuse);
            proxy.cut();
        });
        unlock(guard).await;
        let began = now();
        locker.close().await.expect("closed");
        let took = now().since(began);
        assert!(took < ms(3_000), "{took:?}; giving up takes 5 s");
    })
    .await;
}

#[test]
fn f10_locks_survive_the_end_of_their_runtime() {
    for count in [3, 5] {
        let bench = Bench::start(count);
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let guard = {
            let ends = runtime();
            ends.block_on(async { bench.direct().await.lock("a").await.expect("granted") })
        };
        // Whole leases pass while no runtime of ours runs: there is no task that could await anything.
        std::thread::sleep(TTL * 2);
        guard.check().expect("renewed by the keeper");
        // Outside of any runtime.
        drop(guard);
        runtime().block_on(bench.expect_nothing_left(&bench.all()));
    }
}

#[tokio::test]
async fn f11_a_panic_inside_releases() {
    check_on_3_and_5(async |bench| {
        let locker = bench.direct().await;
        let held = locker.lock("a").ttl(TEST_LIMIT * 2).await.expect("granted");
        let panics = tokio::spawn(async move {
            let _held = held;
            std::panic::resume_unwind(Box::new("as it happens"));
        });
        assert!(panics.await.expect_err("it panics").is_panic());
        bench.expect_nothing_left(&bench.all()).await;
        unlock(locker.lock("a").wait(TEST_LIMIT).await.expect("free")).await;
    })
    .await;
}

#[tokio::test]
async fn f12_a_killed_holder_blocks_until_its_lease_ends_and_no_longer() {
    check_on_3_and_5(async |bench| {
        let mut child = Child::start();
        child.connect(&bench.nodes.url());
        let deadline = child.lock("a", TTL).deadline();
        let locker = bench.direct().await;
        let waiter = tokio::spawn(locker.lock("a").into_future());
        eventually("it waits", || bench.nodes[0].command(&["ZCARD", "{a}:q"]).int() == 1).await;
        child.kill9();
        let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
        assert!(now() > deadline, "two holders");
        let late = now().since(deadline);
        assert!(late < TTL + ms(600), "{late:?} after the last renewal's deadline at the earliest");
        unlock(next).await;
    })
    .await;
}

#[tokio::test]
async fn f13_a_fork_cannot_use_or_release_its_parents_locks() {
    check_on_3_and_5(async |bench| {
        let mut child = Child::start();
        child.connect(&bench.nodes.url());
        assert!(child.lock("a", TTL).token() > 0);
        eventually("every node has it", || bench.all().into_iter().all(|at| bench.has(at, "a"))).await;
        let before = bench.values("a");
        let seen = child.fork("a").outcome;
        assert_eq!(seen, Outcome::State("Lost Closed Closed Closed Closed".into()));
        // The fork has dropped its guard and its locker, and has ended with all its connections.
        sleep(TTL * 2).await;
        assert_eq!(bench.values("a"), before, "the same hold on every node");
        assert_eq!(child.state("a").outcome, Outcome::State("Held".into()), "renewed over the same connections");
        assert_eq!(child.unlock("a").outcome, Outcome::Done);
        bench.expect_nothing_left(&bench.all()).await;
    })
    .await;
}
