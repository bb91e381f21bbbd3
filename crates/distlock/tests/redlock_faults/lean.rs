//! The scripts of the common case: what they leave to the full script, and what they leave behind.

use std::future::IntoFuture;

use distlock::{ErrorKind, LossReason};
use distlock_testkit::proxy::Proxy;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, TTL, check_on_3_and_5, eventually, ms, now, sleep, unlock};

/// Returns the last ballot of the lock `a` on each node.
fn ballots(bench: &Bench) -> Vec<String> {
    bench.all().into_iter().map(|at| bench.nodes[at].command(&["GET", "{a}:f"]).to_string()).collect()
}

#[tokio::test]
async fn only_the_release_of_a_renewed_hold_leaves_a_tombstone() {
    check_on_3_and_5(async |bench| {
        let locker = bench.direct().await;
        for is_renewed in [false, true] {
            let guard = locker.lock("a").ttl(TEST_LIMIT).watchdog(false).await.expect("granted");
            eventually("every node has it", || bench.all().into_iter().all(|at| bench.has(at, "a"))).await;
            if is_renewed {
                guard.extend(TEST_LIMIT).await.expect("renewed");
            }
            let token = guard.fencing_token().get();
            unlock(guard).await;
            bench.expect_nothing_left(&bench.all()).await;
            let last = if is_renewed { token + 1 } else { token };
            assert_eq!(ballots(&bench), vec![last.to_string(); bench.all().len()], "renewed: {is_renewed}");
        }
        for at in bench.all() {
            let left = bench.nodes[at].command(&["PTTL", "{a}:f"]).int();
            assert!(left > 6 * 24 * 60 * 60 * 1000, "the ballot is kept for a week: {left} ms");
        }
    })
    .await;
}

#[tokio::test]
async fn a_claim_leaves_a_foreign_fence_as_it_is() {
    let bench = Bench::start(3);
    let locker = bench.direct().await;
    let node = &bench.nodes[2];
    let fences: [&[&str]; 4] = [
        &["SET", "{a}:f", "not a number, no", "PX", "600000"],
        &["SET", "{a}:f", "9999999999999999", "PX", "600000"],
        &["SET", "{a}:f", "-", "PX", "600000"],
        &["RPUSH", "{a}:f", "x"],
    ];
    for fence in fences {
        node.command(&["DEL", "{a}:f"]);
        node.command(fence);
        let read = || {
            let value = node.command(&["DUMP", "{a}:f"]).to_string();
            (value, node.command(&["PTTL", "{a}:f"]).int() > 0)
        };
        let before = read();
        let guard = locker.lock("a").await.expect("the other nodes grant it");
        assert!(!bench.has(2, "a"), "{fence:?}: it voted");
        assert_eq!(read(), before, "{fence:?}");
        unlock(guard).await;
    }
}

#[tokio::test]
async fn an_old_ballot_is_raised_and_kept_for_another_week() {
    let bench = Bench::start(3);
    let locker = bench.direct().await;
    let all = bench.all();
    all.iter().for_each(|at| drop(bench.nodes[*at].command(&["SET", "{a}:f", "1700000000000000", "PX", "60000"])));
    let guard = locker.lock("a").await.expect("granted");
    eventually("every node has it", || all.iter().all(|at| bench.has(*at, "a"))).await;
    assert_eq!(ballots(&bench), vec![guard.fencing_token().to_string(); 3]);
    assert!(all.iter().all(|at| bench.nodes[*at].command(&["PTTL", "{a}:f"]).int() > 60_000));
    unlock(guard).await;
}

#[tokio::test]
async fn f48_a_quarantine_is_noticed_by_clients_that_know_the_node() {
    let bench = Bench::start(3);
    let locker = bench.direct().await;
    unlock(locker.lock("a").ttl(TEST_LIMIT).await.expect("granted")).await;
    for at in bench.majority() {
        let note = bench.nodes[at].command(&["GET", "{}:f"]).to_string();
        let mut fields: Vec<_> = note.split(' ').collect();
        fields[3] = "9000000000000000";
        bench.nodes[at].command(&["SET", "{}:f", &fields.join(" ")]);
    }
    let error = locker.try_lock("a").await.expect_err("a majority does not vote");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("quarantine"), "{error}");
    bench.expect_nothing_left(&bench.all()).await;
}

#[tokio::test]
async fn a_waiter_that_the_holder_does_not_know_of_is_notified() {
    check_on_3_and_5(async |bench| {
        let (holder, waiter) = (bench.direct().await, bench.direct().await);
        // A lease so long that the waiter does not poll in the meantime.
        let guard = holder.lock("a").ttl(TEST_LIMIT * 3).watchdog(false).await.expect("granted");
        eventually("every node has it", || bench.all().into_iter().all(|at| bench.has(at, "a"))).await;
        let waiting = tokio::spawn(waiter.lock("a").ttl(TEST_LIMIT * 3).into_future());
        let is_queued = |at| bench.nodes[at].command(&["ZCARD", "{a}:q"]).int() == 1;
        eventually("it waits", || bench.all().into_iter().all(is_queued)).await;
        let released = now();
        unlock(guard).await;
        let next = timeout(TEST_LIMIT, waiting).await.expect("in time").expect("no panic").expect("granted");
        assert!(now().since(released) < ms(3000), "not notified: {:?}", now().since(released));
        unlock(next).await;
        bench.expect_nothing_left(&bench.all()).await;
    })
    .await;
}

#[tokio::test]
async fn a_release_is_repeated_on_the_nodes_that_have_not_confirmed_it_and_on_no_others() {
    check_on_3_and_5(async |bench| {
        let (few, most) = (bench.minority(), bench.all().len() - bench.minority().len());
        let locker = bench.behind(&few).await;
        let guard = locker.lock("a").ttl(TEST_LIMIT * 2).watchdog(false).await.expect("granted");
        eventually("every node has it", || bench.all().into_iter().all(|at| bench.has(at, "a"))).await;
        bench.each(&few, Proxy::hold_requests);
        unlock(guard).await;
        let calls =
            || (0..most).map(|at| bench.nodes[at].calls("evalsha") + bench.nodes[at].calls("eval")).sum::<u64>();
        let before = calls();
        sleep(ms(1500)).await;
        assert_eq!(calls(), before, "a node that has confirmed the release gets it again");
        assert!(few.iter().all(|at| bench.has(*at, "a")));
        // What was held in the proxies is lost with their connections.
        bench.each(&few, Proxy::cut);
        bench.each(&few, Proxy::pass);
        bench.expect_nothing_left(&bench.all()).await;
    })
    .await;
}

/// Takes a lock away, as if other claims had been granted and released on a majority.
fn revoke(bench: &Bench) {
    for at in bench.majority() {
        bench.nodes[at].command(&["SET", "{a}:f:f", "9000000000000000", "PX", "600000"]);
        bench.nodes[at].command(&["SET", "{a}:f", "9000000000000000", "PX", "600000"]);
        bench.nodes[at].command(&["DEL", "a"]);
    }
}

/// The guard of a lost hold goes before the keeper looks at it again.
#[tokio::test]
async fn what_a_minority_keeps_is_released_when_the_guard_goes_first() {
    check_on_3_and_5(async |bench| {
        let locker = bench.direct().await;
        let guard = locker.lock("a").ttl(TEST_LIMIT * 3).watchdog(false).await.expect("granted");
        eventually("every node has it", || bench.all().into_iter().all(|at| bench.has(at, "a"))).await;
        revoke(&bench);
        let error = guard.extend(TEST_LIMIT * 3).await.expect_err("lost");
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        drop(guard);
        bench.expect_nothing_left(&bench.all()).await;
    })
    .await;
}

#[tokio::test]
async fn what_a_minority_keeps_of_a_lost_hold_is_released() {
    check_on_3_and_5(async |bench| {
        let locker = bench.direct().await;
        let guard = locker.lock("a").ttl(TTL * 5).await.expect("granted");
        eventually("every node has it", || bench.all().into_iter().all(|at| bench.has(at, "a"))).await;
        revoke(&bench);
        let reason = timeout(TEST_LIMIT, guard.lost()).await.expect("notified");
        assert_eq!(reason, LossReason::Revoked);
        let told = now();
        bench.expect_nothing_left(&bench.all()).await;
        assert!(now().since(told) < TTL * 2, "left to its lease: {:?}", now().since(told));
    })
    .await;
}

/// A node that serves reads and refuses writes has not released anything.
#[tokio::test]
async fn a_refused_deletion_is_no_release() {
    check_on_3_and_5(async |bench| {
        let locker = bench.direct().await;
        let guard = locker.lock("a").ttl(TTL * 5).await.expect("granted");
        eventually("every node has it", || bench.all().into_iter().all(|at| bench.has(at, "a"))).await;
        let set = |replicas: &str| {
            for at in bench.all() {
                bench.nodes[at].command(&["CONFIG", "SET", "min-replicas-to-write", replicas]);
            }
        };
        set("1");
        let error = guard.unlock().await.expect_err("no node has deleted it");
        assert!(error.is_retryable(), "{error}");
        assert!(bench.all().into_iter().all(|at| bench.has(at, "a")), "{error}");
        set("0");
        bench.expect_nothing_left(&bench.all()).await;
    })
    .await;
}
