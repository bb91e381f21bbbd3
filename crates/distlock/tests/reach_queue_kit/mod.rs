//! What a queued waiter learns when its engine becomes unreachable: the same for every engine with queues.

use std::future::IntoFuture;
use std::time::Duration;

use distlock::{ErrorKind, LockGuard, Locker};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::reach_kit::{TEST_LIMIT, WAIT, expect_unreachable};

/// A waiter is in the queue, the engine goes `away`, and the waiter learns it when its time is over. Returns the guard
/// of the lock that it waited for.
pub(crate) async fn expect_waiter_finds_out(holder: &Locker, other: &Locker, away: impl FnOnce()) -> LockGuard {
    // A lease so long that no waiter claims again in the meantime.
    let guard = holder.lock("quiet").ttl(Duration::from_secs(120)).await.expect("granted");
    let waiter = queue_up(holder, other, WAIT * 2).await;
    away();
    let error = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect_err("never granted");
    expect_unreachable("a waiter in the queue", &error);
    guard
}

/// Asserts that the engine is back, and the error names the other owner again.
pub(crate) async fn expect_busy_again(holder: &Locker, other: &Locker, guard: LockGuard) {
    assert!(!guard.is_lost(), "its lease is longer than the engine was away");
    // Its connections may have to be opened again first.
    let busy = async {
        loop {
            let error = other.lock("quiet").wait(Duration::from_millis(500)).await.expect_err("it is taken");
            if error.kind() == ErrorKind::Timeout {
                return error;
            }
        }
    };
    let error = timeout(TEST_LIMIT, busy).await.expect("the engine is back");
    let named = error.holder().and_then(|found| found.record.as_ref()).map(|record| record.owner.clone());
    assert_eq!(named.as_ref(), Some(holder.owner()), "{error}");
    guard.unlock().await.expect("released");
}

async fn queue_up(holder: &Locker, other: &Locker, wait: Duration) -> JoinHandle<distlock::Result<LockGuard>> {
    let waiter = tokio::spawn(other.lock("quiet").ttl(Duration::from_secs(120)).wait(wait).into_future());
    let waits = async {
        while holder.inspect().get("quiet").await.expect("shown").is_none_or(|lock| lock.waiters.is_empty()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TEST_LIMIT, waits).await.expect("it queues");
    waiter
}
