//! Processes that die or stop.

use std::future::IntoFuture;

use distlock::Mode;
use distlock_testkit::child::Child;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, TTL, blocking, ms, now, sleep};

fn child_of(bench: &Bench) -> Child {
    let mut child = Child::start();
    child.connect(&bench.server.url());
    child
}

/// Kills a holder whose lock another process waits for. Returns how many microseconds after the end of its lease that one is
/// granted the lock.
async fn late_us_after_a_kill(bench: &Bench) -> u64 {
    let mut child = child_of(bench);
    let deadline = child.lock("a", TTL).deadline();
    let locker = bench.direct().await;
    let waiter = tokio::spawn(locker.lock("a").into_future());
    bench.until_waiting(1).await;
    child.kill9();
    let ends = bench.server.sql("SELECT distlock._us(expires) FROM distlock.locks WHERE name = 'a'");
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    assert!(now() > deadline, "two holders");
    // Its token is the server's clock at the grant.
    let late_us = next.fencing_token().get() - ends.parse::<u64>().expect("a time");
    next.unlock().await.expect("released");
    late_us
}

#[tokio::test]
async fn f12_the_first_waiter_follows_a_killed_holder_at_the_end_of_its_lease() {
    let bench = Bench::start().await;
    let mut all = Vec::new();
    // A busy machine may be late at times; a waiter that polls is late nearly always.
    for _ in 0..5 {
        all.push(late_us_after_a_kill(&bench).await);
        if all.last() < Some(&50_000) {
            return;
        }
    }
    panic!("{all:?} µs after the end of the lease");
}

#[tokio::test]
async fn f12_waiters_of_killed_processes_are_passed_over_at_once() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let mut children: Vec<Child> = (0..3).map(|_| child_of(&bench)).collect();
    for (count, child) in (1..).zip(&mut children) {
        child.send(format_args!("lock a {}", TEST_LIMIT.as_millis()));
        bench.until_waiting(count).await;
    }
    let other = bench.direct().await;
    let waiter = tokio::spawn(other.lock("a").into_future());
    bench.until_waiting(4).await;
    children.iter_mut().for_each(|child| child.kill9());
    // The sessions that their messages would go to end with them.
    bench.until("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'", "1").await;
    let released = now();
    guard.unlock().await.expect("released");
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    // One would take a second.
    assert!(now().since(released) < ms(1000), "a first lease was spent on a dead process");
    next.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f15_a_stopped_process_costs_the_next_waiter_one_first_lease() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let mut child = child_of(&bench);
    child.send(format_args!("lock a {}", TEST_LIMIT.as_millis()));
    bench.until_waiting(1).await;
    // A process takes no place before it listens: it would cost the next waiter its heartbeat.
    child.stop();
    let other = bench.direct().await;
    let waiter = tokio::spawn(other.lock("a").into_future());
    bench.until_waiting(2).await;
    let released = now();
    guard.unlock().await.expect("released");
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    let waited = now().since(released);
    assert!(waited > ms(900) && waited < ms(3000), "{waited:?}");
    child.cont();
    // What it was handed over is over, and it says so itself: it waits again.
    bench.until_waiting(1).await;
    next.check().expect("it took nothing from the next holder");
    let token = next.fencing_token().get();
    next.unlock().await.expect("released");
    let answer = blocking(move || child.receive()).await;
    assert!(answer.token() > token, "{answer:?}");
}

#[tokio::test]
async fn f72_a_waiter_with_a_short_lease_costs_one_with_a_long_lease_no_place() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let (short, long) = (bench.direct().await, bench.direct().await);
    let first = tokio::spawn(short.lock("a").ttl(ms(300)).into_future());
    bench.until_waiting(1).await;
    let second = tokio::spawn(long.lock("a").ttl(TEST_LIMIT).into_future());
    bench.until_waiting(2).await;
    // Longer than the heartbeat of the first.
    sleep(ms(3500)).await;
    guard.unlock().await.expect("released");
    let first = timeout(TEST_LIMIT, first).await.expect("in time").expect("no panic").expect("granted");
    assert!(!second.is_finished(), "it was overtaken");
    first.unlock().await.expect("released");
    let second = timeout(TEST_LIMIT, second).await.expect("in time").expect("no panic").expect("granted");
    assert_eq!(second.mode(), Mode::Exclusive);
    second.unlock().await.expect("released");
}
