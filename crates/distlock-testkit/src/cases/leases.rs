//! Leases: how they are renewed, how they end, and who is notified.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use distlock::{ErrorKind, HoldState, LossReason};
use tokio::time::timeout;

use super::expect_lock;
use crate::setup::World;

/// Renewal keeps a hold for several leases, and no other client is granted the lock.
pub async fn a_hold_outlives_its_lease_by_renewal(world: &World) {
    let (holder, other, key) = (world.client().await, world.client().await, world.key("renewal"));
    let guard = holder.locker.lock(&key).await.expect("granted");
    let first_deadline = guard.deadline();
    tokio::time::sleep(world.ttl() * 3).await;
    assert_eq!(guard.state(), HoldState::Held);
    if let (Some(first), Some(now)) = (first_deadline, guard.deadline()) {
        assert!(now > first, "the deadline never moved");
    }
    assert!(other.locker.try_lock(&key).await.expect("no failure").is_none());
    guard.unlock().await.expect("released");
}

/// `extend` moves the deadline at once.
pub async fn extending_makes_the_lease_longer(world: &World) {
    let (client, other, key) = (world.client().await, world.client().await, world.key("extend"));
    let ttl = world.ttl();
    let guard = client.locker.lock(&key).watchdog(false).await.expect("granted");
    guard.extend(ttl * 20).await.expect("extended");
    let left = guard.remaining().expect("it has a lease");
    assert!(left > ttl * 10, "only {left:?} left");
    tokio::time::sleep(ttl + ttl / 2).await;
    guard.check().expect("still held");
    assert!(other.locker.try_lock(&key).await.expect("no failure").is_none());
    guard.unlock().await.expect("released");
}

/// Without renewal the hold ends with its lease, and the holder is notified.
pub async fn without_a_watchdog_the_lease_ends(world: &World) {
    let (client, other, key) = (world.client().await, world.client().await, world.key("no-watchdog"));
    let guard = client.locker.lock(&key).watchdog(false).await.expect("granted");
    let deadline = guard.deadline().expect("it has a lease");
    let next = expect_lock(world, &other.locker, &key).await;
    assert!(world.now() > deadline, "granted before the first holder's deadline");
    assert_eq!(guard.lost().await, LossReason::Expired);
    assert_eq!(client.calls.renewals.load(Ordering::SeqCst), 0);
    next.unlock().await.expect("released");
}

/// `max_hold` ends the hold even while the watchdog renews it.
pub async fn max_hold_ends_the_hold(world: &World) {
    let (client, other, key) = (world.client().await, world.client().await, world.key("max-hold"));
    let guard = client.locker.lock(&key).max_hold(world.ttl() / 3).await.expect("granted");
    let reason = timeout(world.test_limit(), guard.lost()).await.expect("notified");
    assert_eq!(reason, LossReason::MaxHold);
    let error = guard.unlock().await.expect_err("lost");
    assert_eq!(error.loss_reason(), Some(&LossReason::MaxHold));
    expect_lock(world, &other.locker, &key).await.unlock().await.expect("released");
}

/// A crashed holder blocks the other clients for one lease and no longer.
pub async fn a_crashed_holder_blocks_for_one_lease(world: &World) {
    let (holder, other, key) = (world.client().await, world.client().await, world.key("crash"));
    let guard = holder.locker.lock(&key).await.expect("granted");
    holder.calls.cut();
    std::mem::forget(guard);
    let crashed = world.now();
    let next = expect_lock(world, &other.locker, &key).await;
    let blocked = world.now().since(crashed);
    assert!(blocked < world.ttl() * 2 + Duration::from_secs(5), "blocked for {blocked:?}");
    next.unlock().await.expect("released");
}

/// Rule 1: the deadline of a holder that is cut off has passed before the next grant.
pub async fn a_cut_off_holder_expires_before_the_next_grant(world: &World) {
    let (holder, other, key) = (world.client().await, world.client().await, world.key("told"));
    let guard = holder.locker.lock(&key).await.expect("granted");
    tokio::time::sleep(world.ttl()).await;
    holder.calls.cut();
    let next = expect_lock(world, &other.locker, &key).await;
    let granted = world.now();
    assert!(guard.is_lost(), "two holders");
    assert!(guard.deadline().expect("it has a lease") < granted);
    assert_eq!(timeout(world.test_limit(), guard.lost()).await.expect("notified"), LossReason::Expired);
    assert_eq!(guard.state(), HoldState::Lost);
    assert!(next.fencing_token() > guard.fencing_token());
    next.unlock().await.expect("released");
}

/// `run` ends with `Lost` and does not poll the work again.
pub async fn work_is_dropped_on_loss(world: &World) {
    let (client, key) = (world.client().await, world.key("run"));
    let guard = client.locker.lock(&key).await.expect("granted");
    assert_eq!(guard.run(async { 7 }).await.expect("done"), 7);
    client.calls.cut();
    let dropped = Arc::new(());
    let held_by_work = dropped.clone();
    let work = guard.run(async move {
        let _held = held_by_work;
        std::future::pending::<()>().await;
    });
    let error = timeout(world.test_limit(), work).await.expect("notified").expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(Arc::strong_count(&dropped), 1, "the work is still there");
}

/// `unlock` after a loss returns `Lost`.
pub async fn unlock_after_a_loss_says_lost(world: &World) {
    let (client, key) = (world.client().await, world.key("unlock-lost"));
    let guard = client.locker.lock(&key).watchdog(false).await.expect("granted");
    timeout(world.test_limit(), guard.lost()).await.expect("notified");
    let error = guard.unlock().await.expect_err("lost");
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(error.loss_reason(), Some(&LossReason::Expired));
    assert_eq!(error.key(), Some(&key));
}
