//! Semaphores.

use std::sync::Arc;

use distlock::{ErrorKind, Mode};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{record_history, spawn_request};
use crate::setup::World;

/// There are as many permits as slots; the lowest free slot is granted first, and tokens rise.
pub async fn slots_are_counted_and_the_lowest_is_granted_first(world: &World) {
    let (client, other, key) = (world.client().await, world.client().await, world.key("slots"));
    let (here, there) = (client.locker.semaphore(&key, 3), other.locker.semaphore(&key, 3));
    let first = here.acquire().await.expect("granted");
    let second = there.acquire().await.expect("granted");
    let third = here.try_acquire().await.expect("no failure").expect("there are three");
    assert_eq!([&first, &second, &third].map(|permit| permit.slot()), [Some(0), Some(1), Some(2)]);
    assert_eq!(first.mode(), Mode::Slot { of: 3 });
    assert!(third.fencing_token() > second.fencing_token() && second.fencing_token() > first.fencing_token());
    assert!(there.try_acquire().await.expect("no failure").is_none(), "all are taken");
    let token = second.fencing_token();
    second.unlock().await.expect("released");
    let again = here.try_acquire().await.expect("no failure").expect("one is free");
    assert_eq!(again.slot(), Some(1));
    assert!(again.fencing_token() > token, "the tokens of a slot rise");
    for permit in [first, third, again] {
        permit.unlock().await.expect("released");
    }
    world.expect_nothing_left().await;
}

/// Permits are granted in queue order.
pub async fn a_semaphore_is_served_in_order(world: &World) {
    let (holder, key) = (world.client().await, world.key("slots-in-order"));
    let semaphore = holder.locker.semaphore(&key, 2);
    let permits = [semaphore.acquire().await.expect("granted"), semaphore.acquire().await.expect("granted")];
    let served = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut clients = Vec::new();
    let mut tasks = JoinSet::new();
    for number in 0..5 {
        let (client, served) = (world.client().await, served.clone());
        let request = client.locker.semaphore(&key, 2).acquire().wait(world.test_limit() * 2);
        let granted = spawn_request(&client, request).await;
        tasks.spawn(async move {
            let permit = granted.await.expect("the task did not panic").expect("granted");
            served.lock().unwrap().push((permit.fencing_token(), number));
            permit.unlock().await.expect("released");
        });
        clients.push(client);
    }
    for permit in permits {
        permit.unlock().await.expect("released");
    }
    timeout(world.test_limit() * 2, tasks.join_all()).await.expect("every waiter was served");
    let mut served = std::mem::take(&mut *served.lock().unwrap());
    served.sort_unstable();
    assert_eq!(served.into_iter().map(|(_, number)| number).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    world.expect_nothing_left().await;
}

/// While a semaphore is in use, requests with another number of slots and lock requests are refused.
pub async fn another_number_of_slots_is_refused(world: &World) {
    let (client, other, key) = (world.client().await, world.client().await, world.key("slots-agree"));
    let permit = client.locker.semaphore(&key, 3).acquire().await.expect("granted");
    let error = other.locker.semaphore(&key, 4).acquire().await.expect_err("it has three");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.to_string().contains("a semaphore of 3") && error.to_string().contains(key.as_str()), "{error}");
    let error = other.locker.try_lock(&key).await.expect_err("it is a semaphore");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    permit.unlock().await.expect("released");

    let lock = other.locker.lock(&key).await.expect("it is not in use");
    let error = client.locker.semaphore(&key, 3).try_acquire().await.expect_err("it is a lock");
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    lock.unlock().await.expect("released");
    let permit = other.locker.semaphore(&key, 4).acquire().await.expect("it is not in use");
    permit.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// The permit of a crashed process is free after its lease; permits of living processes stay held.
pub async fn a_crashed_permit_comes_back_after_one_lease(world: &World) {
    let (dead, living, other) = (world.client().await, world.client().await, world.client().await);
    let key = world.key("dead-permit");
    std::mem::forget(dead.locker.semaphore(&key, 2).acquire().await.expect("granted"));
    dead.calls.cut();
    let kept = living.locker.semaphore(&key, 2).acquire().await.expect("granted");
    let next = other.locker.semaphore(&key, 2).acquire().wait(world.test_limit()).await.expect("it comes back");
    assert_eq!(next.slot(), Some(0), "the slot of the crashed holder");
    kept.check().expect("its own lease is renewed");
    assert!(other.locker.semaphore(&key, 2).try_acquire().await.expect("no failure").is_none());
    for permit in [kept, next] {
        permit.unlock().await.expect("released");
    }
    world.expect_nothing_left().await;
}

/// Permits of one owner are independent: the owner waits for itself only when all slots are taken, and each drop frees
/// one.
pub async fn one_owner_may_have_several_permits(world: &World) {
    let (client, key) = (world.client().await, world.key("several"));
    let semaphore = client.locker.semaphore(&key, 2);
    let first = semaphore.acquire().await.expect("granted");
    let second = semaphore.acquire().await.expect("granted");
    let third = spawn_request(&client, semaphore.acquire().wait(world.test_limit())).await;
    drop(first);
    let third = super::expect_granted(world, third).await;
    assert_eq!((second.slot(), third.slot()), (Some(1), Some(0)));
    second.unlock().await.expect("released");
    third.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// Permits, cancelled waits and drops at random; the checker judges the history.
pub async fn a_semaphore_keeps_a_clean_history(world: &World) {
    record_history(world, "semaphore", |locker, key, number| (locker.semaphore(key, 3).acquire(), number)).await;
}
