//! Nodes that lack a lock and have seen higher ballots of contenders since: the holder's renewal restores the lock
//! there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use distlock::{ErrorKind, HoldState, LockGuard, Locker};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::Data;
use tokio::task::JoinSet;

use crate::bench::{Bench, TEST_LIMIT, TTL, check_on_3_and_5, eventually, ms, now, sleep, unlock};

/// Returns the last ballot that a node knows of the lock `a`.
fn ballot(bench: &Bench, node: usize) -> u64 {
    bench.nodes[node].command(&["GET", "{a}:f"]).to_string().parse().expect("a ballot")
}

/// Returns whether a node keeps the lock `a` for this holder.
fn keeps(bench: &Bench, node: usize, guard: &LockGuard) -> bool {
    let value = bench.nodes[node].command(&["GET", "a"]).to_string();
    value.split(' ').nth(1) == Some(guard.fencing_token().to_string().as_str())
}

/// Returns a hold that every node has and that is renewed only by the test.
async fn hold(bench: &Bench, locker: &Locker) -> LockGuard {
    let guard = locker.lock("a").ttl(TEST_LIMIT * 3).watchdog(false).await.expect("granted");
    eventually("every node has it", || bench.all().into_iter().all(|at| bench.has(at, "a"))).await;
    guard
}

/// Renews the hold until the nodes `few` keep it again: contenders may come in between.
async fn expect_healed(bench: &Bench, few: &[usize], guard: &LockGuard) {
    let before: Vec<_> = few.iter().map(|at| ballot(bench, *at)).collect();
    assert!(before.iter().all(|last| *last > guard.fencing_token().get()), "no contender was there: {before:?}");
    guard.extend(TEST_LIMIT * 3).await.expect("a majority renews it");
    eventually("they have it again", || few.iter().all(|at| keeps(bench, *at, guard))).await;
    let after: Vec<_> = few.iter().map(|at| ballot(bench, *at)).collect();
    assert!(after.iter().zip(&before).all(|(after, before)| after >= before), "a ballot fell: {before:?}, {after:?}");
}

#[tokio::test]
async fn f75_a_node_with_a_contenders_withdrawn_vote_is_healed() {
    check_on_3_and_5(async |bench| {
        let few = bench.minority();
        let (locker, other) = (bench.direct().await, bench.direct().await);
        let guard = hold(&bench, &locker).await;
        few.iter().for_each(|at| drop(bench.nodes[*at].command(&["DEL", "a"])));
        assert!(other.try_lock("a").await.expect("no failure").is_none(), "the others refuse it");
        eventually("its votes are taken back", || few.iter().all(|at| !bench.has(*at, "a"))).await;
        expect_healed(&bench, &few, &guard).await;
        let token = guard.fencing_token();
        unlock(guard).await;
        bench.expect_nothing_left(&bench.all()).await;
        let next = other.lock("a").wait(TEST_LIMIT).await.expect("granted");
        assert!(next.fencing_token() > token);
        unlock(next).await;
    })
    .await;
}

#[tokio::test]
async fn f75_nodes_of_a_cancelled_waiter_are_healed_one_after_the_other() {
    check_on_3_and_5(async |bench| {
        let (locker, other) = (bench.direct().await, bench.direct().await);
        let guard = hold(&bench, &locker).await;
        let waited = other.lock("a").wait(ms(300)).await;
        assert_eq!(waited.expect_err("it is held").kind(), ErrorKind::Timeout);
        let token = guard.fencing_token().get();
        eventually("it has left every node", || bench.all().into_iter().all(|at| ballot(&bench, at) > token)).await;
        for at in bench.all() {
            bench.nodes[at].command(&["DEL", "a"]);
            expect_healed(&bench, &[at], &guard).await;
        }
        unlock(guard).await;
        bench.expect_nothing_left(&bench.all()).await;
    })
    .await;
}

/// Requests the lock repeatedly, each time for a moment only: without waiting, and with giving up. Counts its
/// requests.
async fn contend(locker: Locker, turns: Arc<AtomicUsize>) {
    loop {
        // An error of a node in quarantine does not matter here; a second holder does.
        if let Ok(Some(second)) = locker.try_lock("a").await {
            panic!("two holders: {second:?}");
        }
        if let Ok(second) = locker.lock("a").wait(ms(20)).await {
            panic!("two holders: {second:?}");
        }
        turns.fetch_add(1, Ordering::Relaxed);
        sleep(ms(10)).await;
    }
}

#[tokio::test]
async fn f75_a_contended_lock_survives_rolling_restarts_of_all_nodes() {
    check_on_3_and_5(async |mut bench| {
        let locker = bench.direct().await;
        let guard = locker.lock("a").ttl(TTL * 2).await.expect("granted");
        let (mut contenders, turns) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
        for _ in 0..2 {
            contenders.spawn(contend(bench.direct().await, turns.clone()));
        }
        for at in bench.all() {
            eventually("all nodes have it", || bench.all().into_iter().all(|node| keeps(&bench, node, &guard))).await;
            bench.nodes[at].restart(Data::Lost);
            let before = turns.load(Ordering::Relaxed);
            eventually("others ask for it", || turns.load(Ordering::Relaxed) >= before + 4).await;
            eventually("the node has it again", || keeps(&bench, at, &guard)).await;
            guard.check().unwrap_or_else(|error| panic!("lost after the restart of node {at}: {error}"));
        }
        assert_ne!(guard.state(), HoldState::Lost);
        assert!(contenders.try_join_next().is_none(), "a contender ended");
        contenders.shutdown().await;
        unlock(guard).await;
        let next = locker.lock("a").wait(TEST_LIMIT).await.expect("granted");
        unlock(next).await;
    })
    .await;
}

#[tokio::test]
async fn f75_a_node_with_a_force_released_hold_is_not_healed() {
    let bench = Bench::start(5);
    let others = [1, 2, 3, 4];
    let (locker, contender, operator) = (bench.behind(&[0]).await, bench.direct().await, bench.behind(&others).await);
    let guard = hold(&bench, &locker).await;
    let waited = contender.lock("a").wait(ms(300)).await;
    assert_eq!(waited.expect_err("it is held").kind(), ErrorKind::Timeout);
    let token = guard.fencing_token();
    eventually("it has left every node", || bench.all().into_iter().all(|at| ballot(&bench, at) > token.get())).await;
    // The operator reaches one node, which cannot notify the holder. The operator learns that one node is not enough.
    bench.each(&[0], Proxy::drop_replies);
    bench.each(&others, Proxy::hold_requests);
    let error = operator.inspect().force_release("a", token, "test").await.expect_err("one of five");
    assert!(matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable), "{error}");
    assert!(!bench.has(0, "a"), "it was ended there");
    bench.each(&[0], Proxy::pass);
    let (calls, until) = (bench.nodes[0].calls("evalsha"), now().after(TEST_LIMIT));
    while bench.nodes[0].calls("evalsha") < calls + 6 {
        assert!(now() < until, "the node is not asked");
        guard.extend(TEST_LIMIT * 3).await.expect("a majority renews it");
        assert!(!bench.has(0, "a"), "what was ended by force was set again");
        sleep(ms(20)).await;
    }
    assert!(!bench.has(0, "a"), "what was ended by force was set again");
    // The forced release reaches the other nodes after all, and ends the hold there, too.
    bench.each(&others, Proxy::pass);
    let until = now().after(TEST_LIMIT);
    while !guard.is_lost() {
        assert!(now() < until, "it is still held");
        let _ = operator.inspect().force_release("a", token, "test").await;
        let _ = guard.extend(TEST_LIMIT * 3).await;
    }
    bench.expect_nothing_left(&bench.all()).await;
}
