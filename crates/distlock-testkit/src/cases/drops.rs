//! Every other public future, dropped after any number of polls. No client has to wait for a lease because of it, and
//! no state is left behind. The futures of a single lock are in `cases.rs`.

use std::future::{Future, IntoFuture};
use std::time::Duration;

use distlock::{ErrorKind, Leader, Leaders};
use tokio::time::timeout;

use super::{expect_granted, expect_lock, spawn_waiter};
use crate::polls::poll_times;
use crate::setup::World;

/// More polls than any of these futures needs without contention.
const MOST_POLLS: usize = 8;
/// A future that is still pending after this time is dropped while it waits.
const A_MOMENT: Duration = Duration::from_millis(50);

/// Polls `future` at most `polls` times, or until it stays pending for a moment, and drops it.
pub(super) async fn drop_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    timeout(A_MOMENT, poll_times(polls, future)).await.ok().flatten()
}

/// `lock_all` and the unlock of several locks, dropped.
pub async fn several_locks_dropped_at_every_poll(world: &World) {
    let (client, other) = (world.lasting_client().await, world.lasting_client().await);
    let keys = [world.key("all-polls"), world.key("all-polls")];
    for polls in 0..MOST_POLLS {
        drop(drop_after(polls, client.locker.lock_all(&keys).into_future()).await);
        let all = other.locker.lock_all(&keys).wait(world.test_limit()).await.expect("they become free");
        let _ = drop_after(polls, client.locker.lock_all(&keys).wait(world.test_limit()).into_future()).await;
        let _ = drop_after(polls, all.unlock()).await;
        let guard = client.locker.lock_all(&keys).wait(world.test_limit()).await.expect("they become free");
        let _ = drop_after(polls, guard.lost()).await;
        guard.check().expect("held");
        guard.unlock().await.expect("released");
    }
    world.expect_nothing_left().await;
}

/// A reader's and a writer's request, dropped while the lock is free and while it is held.
pub async fn readers_and_writers_dropped_at_every_poll(world: &World) {
    let (client, other, key) = (world.lasting_client().await, world.lasting_client().await, world.key("shared-polls"));
    for polls in 0..MOST_POLLS {
        drop(drop_after(polls, client.locker.read(&key).into_future()).await);
        drop(drop_after(polls, client.locker.write(&key).into_future()).await);
        drop(drop_after(polls, client.locker.try_read(&key).into_future()).await);
        drop(drop_after(polls, client.locker.try_write(&key).into_future()).await);
        let writer = other.locker.write(&key).wait(world.test_limit()).await.expect("it becomes free");
        drop(drop_after(polls, client.locker.read(&key).into_future()).await);
        drop(drop_after(polls, client.locker.try_read(&key).into_future()).await);
        writer.unlock().await.expect("released");
        let reader = other.locker.read(&key).wait(world.test_limit()).await.expect("it becomes free");
        drop(drop_after(polls, client.locker.write(&key).into_future()).await);
        drop(drop_after(polls, client.locker.try_write(&key).into_future()).await);
        let _ = drop_after(polls, reader.unlock()).await;
    }
    expect_lock(world, &other.locker, &key).await.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// Acquiring and releasing a permit, dropped: all permits become available again.
pub async fn permits_dropped_at_every_poll(world: &World) {
    let (client, other, key) = (world.lasting_client().await, world.lasting_client().await, world.key("permit-polls"));
    let (ours, theirs) = (client.locker.semaphore(&key, 2), other.locker.semaphore(&key, 2));
    for polls in 0..MOST_POLLS {
        drop(drop_after(polls, ours.acquire().into_future()).await);
        drop(drop_after(polls, ours.try_acquire().into_future()).await);
        let both = [(); 2].map(|()| theirs.acquire().wait(world.test_limit()).into_future());
        let [first, second] = both;
        let (first, second) = (first.await.expect("a permit"), second.await.expect("another"));
        drop(drop_after(polls, ours.acquire().into_future()).await);
        drop(drop_after(polls, ours.try_acquire().into_future()).await);
        let _ = drop_after(polls, first.unlock()).await;
        second.unlock().await.expect("released");
    }
    world.expect_nothing_left().await;
}

/// Campaigning, leading, reading the leader, and resigning, dropped: the next candidate is elected.
pub async fn elections_dropped_at_every_poll(world: &World) {
    let (client, other, key) =
        (world.lasting_client().await, world.lasting_client().await, world.key("election-polls"));
    let (ours, theirs) = (client.locker.election(&key), other.locker.election(&key));
    for polls in 0..MOST_POLLS {
        drop(drop_after(polls, ours.campaign("ours").into_future()).await);
        let _ = drop_after(polls, ours.lead("ours", async |_| std::future::pending::<()>().await)).await;
        let leadership = theirs.campaign("theirs").wait(world.test_limit()).await.expect("elected");
        drop(drop_after(polls, ours.campaign("ours").into_future()).await);
        let _ = drop_after(polls, ours.leader()).await;
        let mut leaders = ours.observe(Duration::from_millis(10));
        if drop_after(polls, leaders.next()).await.is_none() {
            assert!(
                next_leader(world, &mut leaders).await.is_some(),
                "the leader is reported again after a dropped look"
            );
        }
        let _ = drop_after(polls, leadership.proclaim("half way")).await;
        leadership.guard().check().expect("still leading");
        let _ = drop_after(polls, leadership.resign()).await;
    }
    expect_lock(world, &other.locker, &key).await.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// Retries until the engine replies: a slow machine may time out once.
async fn next_leader(world: &World, leaders: &mut Leaders<'_>) -> Option<Leader> {
    let until = world.now().after(world.test_limit());
    loop {
        match leaders.next().await {
            Ok(leader) => return leader,
            Err(error) => assert!(error.is_retryable() && world.now() < until, "{error}"),
        }
    }
}

/// After a dropped adoption the hold belongs to the old guard, to the new guard, or is free.
pub async fn adoption_dropped_at_every_poll(world: &World) {
    let (before, after, key) = (world.lasting_client().await, world.lasting_client().await, world.key("adopt-polls"));
    for polls in 0..MOST_POLLS {
        let old = expect_lock(world, &before.locker, &key).await;
        let ticket = old.export();
        drop(drop_after(polls, after.locker.adopt(&ticket)).await);
        drop(old);
    }
    expect_lock(world, &after.locker, &key).await.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// Asking a holder, receiving the request, and handing over, dropped: the waiter still gets the lock.
pub async fn asking_dropped_at_every_poll(world: &World) {
    let (holder, waiter, asker) =
        (world.lasting_client().await, world.lasting_client().await, world.lasting_client().await);
    let key = world.key("ask-polls");
    for polls in 0..MOST_POLLS {
        let guard = expect_lock(world, &holder.locker, &key).await;
        drop(drop_after(polls, asker.locker.ask(&key, "soon").into_future()).await);
        let _ = drop_after(polls, guard.asked()).await;
        guard.check().expect("asking alone does not end the hold");
        let waiting = spawn_waiter(world, &waiter, &key).await;
        let _ = drop_after(polls, guard.hand_over()).await;
        expect_granted(world, waiting).await.unlock().await.expect("released");
    }
    world.expect_nothing_left().await;
}

/// Dropped inspections change no lock.
pub async fn inspection_dropped_at_every_poll(world: &World) {
    let (client, other, key) = (world.lasting_client().await, world.lasting_client().await, world.key("look-polls"));
    let guard = client.locker.lock(&key).await.expect("granted");
    let inspect = other.locker.inspect();
    for polls in 0..MOST_POLLS {
        let _ = drop_after(polls, inspect.list("")).await;
        let _ = drop_after(polls, inspect.get(&key)).await;
        let _ = drop_after(polls, inspect.history(&key, 10)).await;
        let mut watch = other.locker.inspect().watch("", Duration::from_millis(10));
        let _ = drop_after(polls, watch.next()).await;
        let _ = drop_after(polls, guard.lost()).await;
        let _ = drop_after(polls, guard.run(std::future::pending::<()>())).await;
        let _ = drop_after(polls, guard.relabel("seen")).await;
        guard.check().expect("held");
    }
    guard.unlock().await.expect("released");
    world.expect_nothing_left().await;
}

/// After a dropped forced release the hold is either lost and its holder notified, or unchanged.
pub async fn force_release_dropped_at_every_poll(world: &World) {
    let (client, other, key) = (world.lasting_client().await, world.lasting_client().await, world.key("force-polls"));
    for polls in 0..MOST_POLLS {
        let guard = expect_lock(world, &client.locker, &key).await;
        let inspect = other.locker.inspect();
        let _ = drop_after(polls, inspect.force_release(&key, guard.fencing_token(), "a test")).await;
        if let Err(error) = guard.unlock().await {
            assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        }
        expect_lock(world, &other.locker, &key).await.unlock().await.expect("released");
    }
    world.expect_nothing_left().await;
}

/// A dropped `close` continues in the background: all holds are released.
pub async fn close_dropped_at_every_poll(world: &World) {
    let (other, key) = (world.lasting_client().await, world.key("close-polls"));
    for polls in 1..4 {
        let client = world.lasting_client().await;
        let guard = client.locker.lock(&key).wait(world.test_limit()).await.expect("granted");
        let closed = drop_after(polls, client.locker.close()).await;
        expect_lock(world, &other.locker, &key).await.unlock().await.expect("released");
        assert!(guard.is_lost() && (closed.is_some() || client.locker.lock(&key).await.is_err()));
    }
    world.expect_nothing_left().await;
}
