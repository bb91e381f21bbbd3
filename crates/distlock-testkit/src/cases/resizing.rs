//! Semaphores that are used with several sizes at once.

use std::time::Duration;

use distlock::{ErrorKind, LockGuard, Mode, Semaphore};
use tokio::time::timeout;

use super::{expect_granted, record_history_as, spawn_request};
use crate::history::History;
use crate::setup::{Client, World};

/// Permits that are held through a whole case outlast every stall of the machine.
const LEASE: Duration = Duration::from_secs(30);
/// Long enough to be renewed on a busy machine, and short enough to be waited for.
const ENDING_LEASE: Duration = Duration::from_secs(5);

fn resized(client: &Client, key: &distlock::Key, slots: u32) -> Semaphore {
    client.locker.semaphore(key, slots).or_resize()
}

async fn acquire(world: &World, semaphore: &Semaphore) -> LockGuard {
    semaphore.acquire().ttl(LEASE).wait(world.test_limit()).await.expect("granted")
}

async fn is_full(semaphore: &Semaphore) -> bool {
    semaphore.try_acquire().ttl(LEASE).await.expect("no failure").is_none()
}

/// Returns the slots of `permits` in their order.
fn slots_of(permits: &[LockGuard]) -> Vec<u32> {
    let mut slots: Vec<_> = permits.iter().filter_map(LockGuard::slot).collect();
    slots.sort_unstable();
    slots
}

async fn release_all(world: &World, permits: impl IntoIterator<Item = LockGuard>) {
    for permit in permits {
        permit.unlock().await.expect("released");
    }
    world.expect_nothing_left().await;
}

/// Three slots become four while instances with both numbers run, and waiters of both stand in the queue. Never more than
/// four permits are held, and all four are there once the old instances have left.
pub async fn a_semaphore_grows_in_a_rolling_deploy(world: &World) {
    let (old, new, key) = (world.client().await, world.client().await, world.key("grows"));
    let (three, four) = (resized(&old, &key, 3), resized(&new, &key, 4));
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(acquire(world, &three).await);
    }
    let first_new = four.try_acquire().ttl(LEASE).await.expect("no failure").expect("fewer than four are held");
    assert_eq!((first_new.slot(), first_new.mode()), (Some(3), Mode::Slot { of: 4 }));
    assert!(is_full(&four).await && is_full(&three).await, "four are held");
    let request = |semaphore: &Semaphore| semaphore.acquire().ttl(LEASE).wait(world.test_limit() * 4);
    let old_waiter = spawn_request(&old, request(&three)).await;
    let mut new_waiters = Vec::new();
    for _ in 0..3 {
        new_waiters.push(spawn_request(&new, request(&four)).await);
    }

    held.remove(0).unlock().await.expect("released");
    tokio::time::sleep(world.ttl()).await;
    assert!(!old_waiter.is_finished(), "three are held, which is its number");
    assert!(new_waiters.iter().all(|waiter| !waiter.is_finished()), "the old one is before them");
    held.remove(0).unlock().await.expect("released");
    let last_old = expect_granted(world, old_waiter).await;
    let second_new = expect_granted(world, new_waiters.remove(0)).await;
    assert!(second_new.fencing_token() > last_old.fencing_token(), "in the order of the queue");
    tokio::time::sleep(world.ttl()).await;
    assert!(new_waiters.iter().all(|waiter| !waiter.is_finished()), "four are held");

    held.remove(0).unlock().await.expect("released");
    let third_new = expect_granted(world, new_waiters.remove(0)).await;
    last_old.unlock().await.expect("released");
    let fourth_new = expect_granted(world, new_waiters.remove(0)).await;
    let permits = [first_new, second_new, third_new, fourth_new];
    assert_eq!(slots_of(&permits), [0, 1, 2, 3], "all four are there");
    assert!(is_full(&four).await, "and no more");
    for permit in &permits {
        permit.check().expect("held");
    }
    release_all(world, permits).await;
}

/// Four slots become three: no holder is thrown out, and a request with three enters when fewer than three permits are
/// held.
pub async fn a_semaphore_shrinks_without_ending_a_hold(world: &World) {
    let (old, new, key) = (world.client().await, world.client().await, world.key("shrinks"));
    let (four, three) = (resized(&old, &key, 4), resized(&new, &key, 3));
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(acquire(world, &four).await);
    }
    let waiter = spawn_request(&new, three.acquire().ttl(LEASE).wait(world.test_limit() * 4)).await;
    held.remove(0).unlock().await.expect("released");
    tokio::time::sleep(world.ttl()).await;
    assert!(!waiter.is_finished(), "three are held");
    for permit in &held {
        permit.check().expect("no holder is thrown out");
    }
    held.remove(0).unlock().await.expect("released");
    let mut permits = vec![expect_granted(world, waiter).await];
    assert_eq!(permits[0].slot(), Some(0), "one that is free below three");
    assert!(is_full(&three).await, "three are held");
    for permit in held {
        permit.unlock().await.expect("released");
        permits.push(acquire(world, &three).await);
    }
    assert_eq!(slots_of(&permits), [0, 1, 2]);
    assert!(is_full(&three).await, "it has three now");
    release_all(world, permits).await;
}

/// A request for many slots waits behind a waiter with few, although there would be room for it.
pub async fn a_larger_size_does_not_overtake_a_waiter(world: &World) {
    let (old, new, key) = (world.client().await, world.client().await, world.key("in-turn"));
    let (one, many) = (resized(&old, &key, 1), resized(&new, &key, 9));
    let held = acquire(world, &one).await;
    let waiter = spawn_request(&old, one.acquire().ttl(LEASE).wait(world.test_limit() * 4)).await;
    assert!(is_full(&many).await, "a waiter is before it");
    let behind = spawn_request(&new, many.acquire().ttl(LEASE).wait(world.test_limit() * 4)).await;
    tokio::time::sleep(world.ttl()).await;
    assert!(!waiter.is_finished() && !behind.is_finished(), "the first of them waits");
    held.unlock().await.expect("released");
    let (waiter, behind) = (expect_granted(world, waiter).await, expect_granted(world, behind).await);
    assert!(behind.fencing_token() > waiter.fencing_token());
    assert_eq!((waiter.slot(), behind.slot()), (Some(0), Some(1)));
    release_all(world, [waiter, behind]).await;
}

/// An instance of the old size is killed with permits in its hands and a request in the queue: all permits of the new size
/// are there after its leases.
pub async fn a_killed_instance_of_the_old_size_makes_room(world: &World) {
    let (dead, new, key) = (world.client().await, world.client().await, world.key("dead-size"));
    let (three, four) = (resized(&dead, &key, 3), resized(&new, &key, 4));
    for _ in 0..3 {
        std::mem::forget(three.acquire().ttl(ENDING_LEASE).await.expect("granted"));
    }
    let mut permits = vec![acquire(world, &four).await];
    let waiter = spawn_request(&dead, three.acquire().ttl(ENDING_LEASE)).await;
    dead.calls.cut();
    let patience = ENDING_LEASE + world.test_limit() * 2;
    for _ in 0..3 {
        permits.push(four.acquire().ttl(LEASE).wait(patience).await.expect("granted"));
    }
    assert_eq!(slots_of(&permits), [0, 1, 2, 3]);
    assert!(is_full(&four).await, "and no more");
    waiter.abort();
    release_all(world, permits).await;
}

/// Requests that do not say that they resize agree with their own number alone, whatever the others say.
pub async fn sizes_differ_only_if_all_requests_resize(world: &World) {
    let (client, other, key) = (world.client().await, world.client().await, world.key("all-resize"));
    let strict = |slots| other.locker.semaphore(&key, slots);
    let refused = async |semaphore: Semaphore| {
        let error = semaphore.try_acquire().ttl(LEASE).await.expect_err("it does not agree");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        error.to_string()
    };
    let first = acquire(world, &strict(3)).await;
    let second = acquire(world, &resized(&client, &key, 3)).await;
    let why = refused(resized(&client, &key, 4)).await;
    assert!(why.contains("a semaphore of 3") && why.contains(key.as_str()), "{why}");
    first.unlock().await.expect("released");
    assert_eq!(second.slot(), Some(1));

    let first = acquire(world, &strict(3)).await;
    assert_eq!(first.slot(), Some(0), "the number is the same");
    first.unlock().await.expect("released");
    refused(strict(4)).await;
    let third = acquire(world, &resized(&client, &key, 4)).await;
    for slots in [3, 4, 5] {
        refused(strict(slots)).await;
    }
    let error = other.locker.try_lock(&key).await.expect_err("it is a semaphore");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");

    second.unlock().await.expect("released");
    let fourth = acquire(world, &strict(4)).await;
    refused(strict(3)).await;
    refused(resized(&client, &key, 3)).await;
    release_all(world, [third, fourth]).await;
}

/// A permit that is taken over keeps its slot and its size, and goes on to agree with other sizes.
pub async fn an_adopted_permit_keeps_its_size(world: &World) {
    let (before, after, key) = (world.client().await, world.client().await, world.key("adopted-size"));
    let (three, four) = (resized(&before, &key, 3), resized(&after, &key, 4));
    let old = acquire(world, &three).await;
    let mut permits = vec![acquire(world, &four).await];
    let adopted = after.locker.adopt(&old.export()).await.expect("taken over");
    assert_eq!((adopted.slot(), adopted.fencing_token()), (Some(0), old.fencing_token()));
    assert_eq!(adopted.mode(), Mode::Slot { of: 3 });
    timeout(world.test_limit(), old.lost()).await.expect("the old guard is notified");
    for _ in 0..2 {
        permits.push(acquire(world, &four).await);
    }
    assert!(is_full(&four).await && is_full(&three).await, "four are held");
    permits.push(adopted);
    release_all(world, permits).await;
}

/// Permits of two sizes, cancelled waits and drops at random; the checker judges the history.
pub async fn a_resized_semaphore_keeps_a_clean_history(world: &World) {
    let ask = |locker: &distlock::Locker, key: &distlock::Key, number: u32| {
        (locker.semaphore(key, 2 + number % 3).or_resize().acquire(), number)
    };
    record_history_as(world, "resized", History::of_several_sizes(), ask).await;
}
