//! Nodes without their data: restarted empty, flushed, or new.

use distlock::backend::redlock::RedlockBuilder;
use distlock::{ErrorKind, HoldState, Locker};
use distlock_testkit::proxy::{Door, Proxy};
use distlock_testkit::servers::{Data, RedisServer};

use crate::bench::{Bench, TEST_LIMIT, TTL, locker_of, ms, now, sleep, unlock};

/// Makes one node of the holder's majority lose its data.
fn forget(bench: &mut Bench, how: &str) {
    match how {
        "restart" => bench.nodes[1].restart(Data::Lost),
        _ => drop(bench.nodes[1].command(&["FLUSHALL"])),
    }
}

/// A client holds the lock on a bare majority of `count` nodes; then node 1, which is one of them, loses its data.
/// Returns whether the next grant came only when that hold was over.
async fn a_majority_forgets(count: usize, how: &str, guarded: fn(RedlockBuilder) -> RedlockBuilder) -> bool {
    let mut bench = Bench::start(count);
    let few = bench.minority();
    let holder = locker_of(guarded(bench.engine(&few))).await;
    bench.each(&few, |proxy| proxy.door(Door::Refuse));
    bench.each(&few, Proxy::cut);
    let other = locker_of(guarded(bench.engine(&[]))).await;
    let guard = holder.lock("a").ttl(TTL * 2).watchdog(false).await.expect("a majority");
    assert!(few.iter().all(|at| !bench.has(*at, "a")), "the holder cannot reach it");
    let deadline = guard.deadline().expect("a lease");
    forget(&mut bench, how);
    let next = other.lock("a").wait(TEST_LIMIT).await.expect("granted in the end");
    let is_exclusive = now() > deadline && guard.is_lost();
    assert!(next.fencing_token() > guard.fencing_token());
    unlock(next).await;
    is_exclusive
}

#[tokio::test]
async fn f46_a_node_restarted_empty_does_not_vote_while_older_leases_last() {
    for count in [3, 5] {
        assert!(a_majority_forgets(count, "restart", |engine| engine).await, "two holders on {count} nodes");
    }
}

#[tokio::test]
async fn f46_a_flushed_node_does_not_vote_while_older_leases_last() {
    for count in [3, 5] {
        assert!(a_majority_forgets(count, "flush", |engine| engine).await, "two holders on {count} nodes");
    }
}

#[tokio::test]
async fn f46_without_the_guard_a_node_without_its_data_causes_two_holders() {
    for count in [3, 5] {
        let is_exclusive = a_majority_forgets(count, "flush", RedlockBuilder::without_restart_guard).await;
        assert!(!is_exclusive, "the guard does nothing");
    }
}

#[tokio::test]
async fn f46_an_empty_node_learns_the_longest_lease_from_the_others() {
    let bench = Bench::start(3);
    let (holder, other) = (bench.direct().await, bench.direct().await);
    let long = holder.lock("long").ttl(TTL * 4).watchdog(false).await.expect("granted");
    let deadline = long.deadline().expect("a lease");
    bench.nodes[2].command(&["FLUSHALL"]);
    // Its own lease is short, and must not be taken for the longest one.
    while now() < deadline.before(TTL / 2) {
        let guard = other.lock("short").wait(TEST_LIMIT).await.expect("two of three vote");
        assert!(!bench.has(2, "short"), "it voted before the long lease was over");
        unlock(guard).await;
        sleep(ms(100)).await;
    }
    let until = now().after(TEST_LIMIT);
    loop {
        let guard = other.lock("short").wait(TEST_LIMIT).await.expect("granted");
        let votes = bench.has(2, "short");
        unlock(guard).await;
        if votes {
            break;
        }
        assert!(now() < until, "it never votes again");
        sleep(ms(20)).await;
    }
}

#[tokio::test]
async fn f46_new_nodes_wait_for_one_lease_before_their_first_grant() {
    let bench = Bench::with(vec![RedisServer::options(); 3]);
    let locker = Locker::connect(&bench.nodes.url()).await.expect("connected");
    let asked = now();
    let error = locker.try_lock("a").ttl(TTL).await.expect_err("no node votes yet");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("quarantined"), "{error}");
    let guard = locker.lock("a").ttl(TTL).wait(TEST_LIMIT).await.expect("then it is granted");
    let waited = now().since(asked);
    assert!(waited >= TTL && waited < TTL + ms(6000), "{waited:?}");
    unlock(guard).await;
}

#[tokio::test]
async fn f46_when_all_nodes_lose_their_data_the_next_holder_waits_and_tokens_rise() {
    let bench = Bench::start(3);
    let all = bench.all();
    let locker = bench.behind(&all).await;
    let guard = locker.lock("a").watchdog(false).await.expect("granted");
    // The holder cannot reach them, either.
    bench.each(&all, |proxy| proxy.door(Door::Refuse));
    bench.each(&all, Proxy::cut);
    all.iter().for_each(|at| drop(bench.nodes[*at].command(&["FLUSHALL"])));
    // A process that knows of no ballot, either.
    let other = Locker::connect(&bench.nodes.url()).await.expect("connected");
    let next = other.lock("a").ttl(TTL).wait(TEST_LIMIT).await.expect("granted in the end");
    assert!(guard.is_lost(), "two holders");
    assert!(next.fencing_token() > guard.fencing_token(), "tokens rise though every ballot was lost");
    unlock(next).await;
}

#[tokio::test]
async fn f46_when_all_nodes_lose_their_data_a_renewal_restores_the_lock() {
    let bench = Bench::start(3);
    let (locker, other) = (bench.direct().await, bench.direct().await);
    let guard = locker.lock("a").await.expect("granted");
    bench.all().into_iter().for_each(|at| drop(bench.nodes[at].command(&["FLUSHALL"])));
    let until = now().after(TTL * 2);
    while now() < until {
        let second = other.try_lock("a").await;
        assert!(!second.is_ok_and(|second| second.is_some()), "two holders; the first is {:?}", guard.state());
        sleep(ms(20)).await;
    }
    assert_eq!(guard.state(), HoldState::Held);
    assert!(bench.all().into_iter().all(|at| bench.has(at, "a")), "every node has it again");
    unlock(guard).await;
}
