//! Re-entry from another process; here from another client, which shares only the engine.

use std::time::Duration;

use distlock::backend::{Claim, Release};
use distlock::{Key, LockGuard, Mode, OwnerId, Process, Record};

use super::{expect_grant, expect_granted, expect_lock, record_history, spawn_waiter};
use crate::setup::{Client, World};

/// The same owner enters with the same token. The lock is free when its last entry has left.
pub async fn an_owner_reenters_from_another_client(world: &World) {
    let (one, two, other) = (world.client().await, world.client().await, world.client().await);
    let key = world.key("enter");
    let first = one.locker.lock(&key).owner("order-7").reentrant().await.expect("granted");
    let second = two.locker.lock(&key).owner("order-7").reentrant().wait(world.test_limit()).await.expect("entered");
    assert_eq!(first.fencing_token(), second.fencing_token());
    assert!(other.locker.try_lock(&key).owner("order-8").reentrant().await.expect("no failure").is_none());
    expect_labels_of_their_own(&other, &key, [&first, &second]).await;
    first.unlock().await.expect("released");
    second.check().expect("it is still inside");
    assert!(other.locker.try_lock(&key).await.expect("no failure").is_none(), "the second is still inside");
    let token = second.fencing_token();
    second.unlock().await.expect("released");
    let next = other.locker.try_lock(&key).await.expect("no failure").expect("it is free");
    assert!(next.fencing_token() > token);
    next.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// Inspection shows every entry with its own label.
async fn expect_labels_of_their_own(other: &Client, key: &Key, entries: [&LockGuard; 2]) {
    let capabilities = other.locker.capabilities();
    if !capabilities.inspects || !capabilities.amends {
        return;
    }
    for (entry, label) in entries.iter().zip(["one", "two"]) {
        entry.relabel(label).await.expect("changed");
    }
    let shown = other.locker.inspect().get(key).await.expect("shown").expect("it is held");
    let labels = shown.holders.iter().map(|holder| holder.record.as_ref().and_then(|record| record.label.as_deref()));
    assert_eq!(labels.collect::<Vec<_>>(), [Some("one"), Some("two")]);
}

/// An owner that is inside never queues behind the waiters for its own lock.
pub async fn a_reentry_bypasses_the_queue(world: &World) {
    let (one, two, other) = (world.client().await, world.client().await, world.client().await);
    let key = world.key("pass-by");
    let first = one.locker.lock(&key).owner("order-7").reentrant().await.expect("granted");
    let waiting = spawn_waiter(world, &other, &key).await;
    let second = two.locker.try_lock(&key).owner("order-7").reentrant().await.expect("no failure").expect("entered");
    first.unlock().await.expect("released");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!waiting.is_finished(), "the second is still inside");
    second.unlock().await.expect("released");
    expect_granted(world, waiting).await.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// A duplicate request is one entry, and a duplicate release is one release.
pub async fn a_repeated_reentry_counts_once(world: &World) {
    let (engine, other, key) = (world.engine().await, world.client().await, world.key("enter-twice"));
    let owner = OwnerId::new("order-7").expect("a good owner");
    let record = Record::new(owner, Process::current(), None, world.clock.wall()).with_mode(Mode::Reentrant);
    let claim = || Claim::new(key.clone(), world.ttl() * 10, false, record.clone().into());
    let (first, second) = (claim(), claim());
    let token = expect_grant(&*engine, &first).await.token;
    for _ in 0..2 {
        assert_eq!(expect_grant(&*engine, &second).await.token, token);
    }
    assert_eq!(engine.release(&second).await.expect("released"), Release::Released);
    assert_eq!(engine.release(&second).await.expect("no error"), Release::NotOurs);
    assert!(other.locker.try_lock(&key).await.expect("no failure").is_none(), "the first is still inside");
    assert_eq!(engine.release(&first).await.expect("released"), Release::Released);
    expect_lock(world, &other.locker, &key).await.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// Each entry has its own lease: an entry that crashed neither ends the other entries nor lives on through them.
pub async fn a_crashed_reentry_leaves_the_others_inside(world: &World) {
    let (dead, living, other) = (world.client().await, world.client().await, world.client().await);
    let key = world.key("dead-entry");
    std::mem::forget(dead.locker.lock(&key).owner("order-7").reentrant().await.expect("granted"));
    dead.calls.cut();
    let inside = living.locker.lock(&key).owner("order-7").reentrant().await.expect("entered");
    tokio::time::sleep(world.ttl() * 2).await;
    inside.check().expect("its own lease is renewed");
    assert!(other.locker.try_lock(&key).await.expect("no failure").is_none(), "it is inside");
    inside.unlock().await.expect("released");
    expect_lock(world, &other.locker, &key).await.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// Entries of a few owners, cancelled waits and drops at random; the checker judges the history.
pub async fn reentries_keep_a_clean_history(world: &World) {
    record_history(world, "entries", |locker, key, number| {
        let owner = number % 3;
        (locker.lock(key).owner(format!("owner-{owner}")).reentrant(), owner)
    })
    .await;
}
