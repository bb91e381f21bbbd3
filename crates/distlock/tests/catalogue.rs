//! Rows of the failure catalogue that need no server.

use std::time::Duration;

use distlock::backend::memory::{Memory, Store};
use distlock::{ErrorKind, Locker};

fn two_clients() -> [Locker; 2] {
    let store = Store::new();
    [(), ()].map(|()| Locker::new(Memory::on(&store)).expect("a locker"))
}

/// A cloned machine: the same host, pid and owner name.
#[tokio::test]
async fn f64_clients_with_equal_identity_exclude_each_other() {
    let [one, twin] = two_clients();
    let guard = one.lock("a").owner("worker-1").await.expect("granted");
    assert!(twin.try_lock("a").owner("worker-1").await.expect("an answer").is_none(), "two holders");
    let refused = twin.unlock("a").await.expect_err("not the twin's");
    assert_eq!(refused.kind(), ErrorKind::NotHeld);
    guard.check().expect("still held");
    guard.unlock().await.expect("released");
    assert!(twin.try_lock("a").owner("worker-1").await.expect("an answer").is_some());
}

#[tokio::test]
async fn f70_a_forgotten_guard_is_renewed_until_max_hold_and_no_longer() {
    let [one, other] = two_clients();
    let (ttl, max_hold) = (Duration::from_millis(200), Duration::from_millis(700));
    let start = std::time::Instant::now();
    std::mem::forget(one.lock("a").ttl(ttl).max_hold(max_hold).await.expect("granted"));
    let next = other.lock("a").wait(Duration::from_secs(20)).await.expect("free after max_hold");
    // Longer than a lease, so the keeper renewed it.
    assert!(start.elapsed() >= max_hold - ttl, "{:?}", start.elapsed());
    next.unlock().await.expect("released");
}
