//! Waiting: for how long, in which order, and which waiter is woken.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use distlock::ErrorKind;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{expect_granted, expect_lock, spawn_request, spawn_waiter};
use crate::setup::{Client, World};

/// A waiter is granted the lock after its release, and not before.
pub async fn lock_waits_until_it_is_released(world: &World) {
    let (holder, other, key) = (world.client().await, world.client().await, world.key("wait"));
    let guard = holder.locker.lock(&key).await.expect("granted");
    let waiter = spawn_waiter(world, &other, &key).await;
    tokio::time::sleep(world.ttl() / 3).await;
    assert!(!waiter.is_finished(), "granted while another client holds it");
    let released = world.now();
    guard.unlock().await.expect("released");
    let next = expect_granted(world, waiter).await;
    assert!(world.now() > released);
    next.unlock().await.expect("released");
}

/// A bounded wait ends in time with an error that names the holder, and leaves no trace.
pub async fn a_timed_wait_ends_in_time_and_names_the_holder(world: &World) {
    let (holder, other, key) = (world.client().await, world.client().await, world.key("timed"));
    // Connected beforehand, so that the measured time covers the request alone.
    expect_lock(world, &other.locker, &world.key("before")).await.unlock().await.expect("released");
    let guard = holder.locker.lock(&key).owner("the-holder").label("month end").await.expect("granted");
    let (asked, wait) = (world.now(), Duration::from_millis(300));
    let error = other.locker.lock(&key).wait(wait).await.expect_err("it is taken");
    let waited = world.now().since(asked);
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(waited >= wait && waited < world.test_limit(), "waited {waited:?}");
    let text = error.to_string();
    for part in [key.as_str(), "owner the-holder", "month end", &format!("pid {}", std::process::id())] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    guard.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// A wait that times out names the holder at its end, not the holder at its start.
pub async fn a_timed_wait_names_the_holder_at_its_end(world: &World) {
    // A lease so long that no waiter polls in the meantime.
    let ttl = Duration::from_secs(60);
    // Doubled each time: a busy machine may not hand the lock over before the wait ends.
    for wait in [2, 4, 8, 16].map(Duration::from_secs) {
        let (first, second, third) = (world.client().await, world.client().await, world.client().await);
        let key = world.key("changed");
        let guard = first.locker.lock(&key).ttl(ttl).owner("the-first").await.expect("granted");
        let request = second.locker.lock(&key).ttl(ttl).owner("the-second").wait(world.test_limit());
        let next = spawn_request(&second, request).await;
        let waiter = spawn_request(&third, third.locker.lock(&key).ttl(ttl).wait(wait)).await;
        guard.unlock().await.expect("released");
        let held = world.now();
        let next = expect_granted(world, next).await;
        let is_early = !waiter.is_finished();
        let ended = timeout(world.test_limit() * 2, waiter).await.expect("in time").expect("the task did not panic");
        let error = ended.expect_err("it is taken");
        let held = world.now().since(held);
        let (lost, token) = (next.is_lost(), next.fencing_token());
        drop(next);
        if !is_early || lost {
            continue;
        }
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        let holder = error.holder().expect("it is known who has it");
        let owner = holder.record.as_ref().map(|record| record.owner.as_str());
        assert_eq!((owner, holder.token), (Some("the-second"), Some(token)), "{error}");
        assert!(holder.held_for.is_none_or(|time| time <= held + world.ttl()), "{error} after {held:?}");
        return world.expect_nothing_left().await;
    }
    panic!("the lock was never handed over before the wait ended");
}

/// `wait(0)` is a try.
pub async fn a_zero_wait_claims_once(world: &World) {
    let (holder, other, key) = (world.client().await, world.client().await, world.key("zero"));
    let guard = holder.locker.lock(&key).wait(Duration::ZERO).await.expect("it is free");
    let error = other.locker.lock(&key).wait(Duration::ZERO).await.expect_err("it is taken");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(other.calls.claims.load(Ordering::SeqCst), 1);
    guard.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// `max_attempts(n)` sends n claims.
pub async fn attempts_are_bounded(world: &World) {
    let (holder, other, key) = (world.client().await, world.client().await, world.key("attempts"));
    let guard = holder.locker.lock(&key).await.expect("granted");
    for attempts in [1, 2] {
        let before = other.calls.claims.load(Ordering::SeqCst);
        let error = other.locker.lock(&key).max_attempts(attempts).await.expect_err("it is taken");
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert_eq!(other.calls.claims.load(Ordering::SeqCst) - before, u64::from(attempts));
    }
    guard.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// A dropped waiter leaves the queue: the next waiter is granted the lock at once.
pub async fn a_cancelled_wait_gives_up_its_place(world: &World) {
    let (holder, quitter, other) = (world.client().await, world.client().await, world.client().await);
    let key = world.key("cancel");
    let guard = holder.locker.lock(&key).await.expect("granted");
    // A lease so long that a leftover queue place would be noticed.
    let request = quitter.locker.lock(&key).ttl(Duration::from_secs(600));
    let cancelled = tokio::spawn(request.into_future());
    quitter.calls.queued(1).await;
    let waiter = spawn_waiter(world, &other, &key).await;
    cancelled.abort();
    assert!(cancelled.await.expect_err("aborted").is_cancelled());
    guard.unlock().await.expect("released");
    expect_granted(world, waiter).await.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// Waiters are granted the lock in order of arrival.
pub async fn waiters_are_served_in_order(world: &World) {
    let (holder, key) = (world.client().await, world.key("fifo"));
    let guard = holder.locker.lock(&key).await.expect("granted");
    let served = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut clients = Vec::new();
    let mut tasks = JoinSet::new();
    for number in 0..6 {
        let (client, served) = (world.client().await, served.clone());
        let request = client.locker.lock(&key).wait(world.test_limit() * 2).into_future();
        tasks.spawn(async move {
            let guard = request.await.expect("granted");
            served.lock().unwrap().push(number);
            guard.unlock().await.expect("released");
        });
        client.calls.queued(1).await;
        clients.push(client);
    }
    guard.unlock().await.expect("released");
    timeout(world.test_limit() * 2, tasks.join_all()).await.expect("every waiter was served");
    assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3, 4, 5]);
    world.expect_nothing_left().await;
}

/// A crashed waiter delays the waiters behind it by one lease at most.
pub async fn a_dead_waiter_is_skipped(world: &World) {
    let (holder, dead, other) = (world.client().await, world.client().await, world.client().await);
    let key = world.key("dead-waiter");
    let guard = holder.locker.lock(&key).await.expect("granted");
    let gone = spawn_waiter(world, &dead, &key).await;
    let waiter = spawn_waiter(world, &other, &key).await;
    dead.calls.cut();
    gone.abort();
    guard.unlock().await.expect("released");
    expect_granted(world, waiter).await.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// One release wakes one waiter.
pub async fn one_wake_up_per_release(world: &World) {
    const WAITERS: u64 = 6;
    let (holder, key) = (world.client().await, world.key("herd"));
    // A lease so long that no waiter polls in the meantime.
    let ttl = Duration::from_secs(60);
    let guard = holder.locker.lock(&key).ttl(ttl).await.expect("granted");
    let mut clients = Vec::new();
    let mut tasks = JoinSet::new();
    for _ in 0..WAITERS {
        let client = world.client().await;
        let request = client.locker.lock(&key).ttl(ttl).into_future();
        tasks.spawn(async move { request.await.expect("granted").unlock().await.expect("released") });
        client.calls.queued(1).await;
        clients.push(client);
    }
    guard.unlock().await.expect("released");
    timeout(world.test_limit(), tasks.join_all()).await.expect("every waiter was served");
    let sum = |count: fn(&Client) -> u64| clients.iter().map(count).sum::<u64>();
    let wakes = sum(|client| client.calls.wakes.load(Ordering::SeqCst));
    let claims = sum(|client| client.calls.claims.load(Ordering::SeqCst));
    // One each, plus some for handovers that time out on a slow machine. A thundering herd would need 21 and 27.
    assert!(wakes <= 2 * WAITERS, "{wakes} wake-ups for {WAITERS} releases");
    assert!(claims <= 3 * WAITERS, "{claims} claims for {WAITERS} grants");
}

/// Closing ends the waits of the locker, and leaves no queue place for longer than a lease.
pub async fn closing_ends_waits(world: &World) {
    let (holder, client, key) = (world.client().await, world.client().await, world.key("close-wait"));
    let guard = holder.locker.lock(&key).await.expect("granted");
    let waiter = spawn_waiter(world, &client, &key).await;
    client.locker.close().await.expect("closed");
    let ended = timeout(world.test_limit(), waiter).await.expect("in time").expect("the task did not panic");
    assert_eq!(ended.expect_err("closed").kind(), ErrorKind::Closed);
    guard.unlock().await.expect("released");
    world.expect_nothing_left().await;
}
