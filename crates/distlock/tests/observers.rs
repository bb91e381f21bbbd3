//! Observers: the order of their events, and that none of them blocks a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use distlock::backend::memory::{Memory, Store};
use distlock::{Clock, Event, EventKind, LockGuard, Locker};
use distlock_testkit::{Calls, Wire};
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(10);
/// A generous limit for what must happen soon in real time.
const TEST_LIMIT: Duration = Duration::from_secs(20);

fn word(kind: &EventKind<'_>) -> &'static str {
    match kind {
        EventKind::Acquired { .. } => "acquired",
        EventKind::Renewed { .. } => "renewed",
        EventKind::Released { .. } => "released",
        EventKind::Lost { .. } => "lost",
        _ => "other",
    }
}

async fn until_so(mut is_so: impl FnMut() -> bool) {
    let looks = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(TEST_LIMIT, looks).await.expect("soon");
}

#[tokio::test]
async fn a_hanging_observer_delays_no_renewal() {
    let (clock, hand) = Clock::manual();
    let (calls, seen) = (Arc::new(Calls::default()), Arc::new(Mutex::new(Vec::new())));
    let (go_on, hangs) = mpsc::channel::<()>();
    let (told, hangs) = (seen.clone(), Mutex::new(hangs));
    let observer = move |event: &Event<'_>| {
        told.lock().unwrap().push(word(&event.kind));
        if let EventKind::Renewed { .. } = event.kind {
            // Until the test ends it, or is over.
            let _ = hangs.lock().unwrap().recv();
        }
    };
    let engine = Wire::new(Memory::on(&Store::with_clock(clock.clone())), calls.clone());
    let locker = Locker::builder().clock(clock).default_ttl(TTL).observer(observer).build(engine).unwrap();
    let guard = locker.lock("k").await.unwrap();
    for renewals in 1..=10 {
        hand.jump(TTL / 3);
        // Only a reply that is applied moves the deadline and plans the next renewal.
        until_so(|| calls.renewals.load(Ordering::SeqCst) >= renewals && guard.remaining() > Some(TTL * 9 / 10)).await;
    }
    until_so(|| seen.lock().unwrap().len() == 2).await;
    guard.check().expect("renewed for three times as long as its lease is");
    assert_eq!(*seen.lock().unwrap(), ["acquired", "renewed"], "it hangs in the first");
    drop(go_on);
    guard.unlock().await.expect("released");
    until_so(|| seen.lock().unwrap().last() == Some(&"released")).await;
    let seen = seen.lock().unwrap();
    assert_eq!((seen[0], seen[seen.len() - 1]), ("acquired", "released"), "after all that waited: {seen:?}");
    assert!(seen.len() >= 10 && seen[1..seen.len() - 1].iter().all(|word| *word == "renewed"), "{seen:?}");
}

#[tokio::test]
async fn a_hanging_observer_blocks_no_call() {
    let (clock, hand) = Clock::manual();
    let (_go_on, hangs) = mpsc::channel::<()>();
    let (told, is_told) = mpsc::channel();
    let hangs = Mutex::new(hangs);
    let observer = move |event: &Event<'_>| {
        if let EventKind::Renewed { .. } = event.kind {
            let _ = told.send(());
            let _ = hangs.lock().unwrap().recv();
        }
    };
    let engine = Memory::on(&Store::with_clock(clock.clone()));
    let locker = Locker::builder().clock(clock).default_ttl(TTL).observer(observer).build(engine).unwrap();
    let guard = locker.lock("k").await.unwrap();
    hand.jump(TTL / 3);
    until_so(|| is_told.try_recv().is_ok()).await;
    let calls = async {
        let other = locker.lock("other").await.expect("granted");
        other.unlock().await.expect("released");
        guard.unlock().await.expect("released");
        locker.close().await.expect("closed");
    };
    assert!(timeout(TEST_LIMIT, calls).await.is_ok(), "all return while it hangs");
}

#[tokio::test]
async fn events_of_a_call_are_observed_before_it_returns() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    let observer = move |event: &Event<'_>| told.lock().unwrap().push(word(&event.kind));
    let locker = Locker::builder().observer(observer).build(Memory::new()).unwrap();
    for _ in 0..100 {
        let guard = locker.lock("k").await.unwrap();
        assert_eq!(*seen.lock().unwrap(), ["acquired"]);
        guard.unlock().await.unwrap();
        assert_eq!(*seen.lock().unwrap(), ["acquired", "released"]);
        seen.lock().unwrap().clear();
    }
    drop(locker.lock("k").await.unwrap());
    locker.close().await.unwrap();
    assert_eq!(*seen.lock().unwrap(), ["acquired", "released"], "closing reports the remaining events");
}

#[tokio::test]
async fn an_observer_may_use_the_locker() {
    let (clock, hand) = Clock::manual();
    let held: Arc<Mutex<Option<LockGuard>>> = Arc::default();
    let losses = Arc::new(AtomicU64::new(0));
    let (drops, count) = (held.clone(), losses.clone());
    let observer = move |event: &Event<'_>| {
        if let EventKind::Lost { .. } = event.kind {
            count.fetch_add(1, Ordering::SeqCst);
            // A guard of the same lock, while its loss is being reported.
            drop(drops.lock().unwrap().take());
        }
    };
    let store = Store::with_clock(clock.clone());
    let locker = Locker::builder().clock(clock).default_ttl(TTL).observer(observer).build(Memory::on(&store)).unwrap();
    for round in 1..=20 {
        let guard = locker.lock("k").wait(TEST_LIMIT).await.unwrap();
        *held.lock().unwrap() = Some(guard);
        hand.jump(TTL * 2);
        until_so(|| losses.load(Ordering::SeqCst) == round).await;
        until_so(|| held.lock().unwrap().is_none()).await;
    }
    timeout(TEST_LIMIT, locker.close()).await.expect("in time").expect("closed");
    assert!(store.is_empty() && losses.load(Ordering::SeqCst) == 20, "each was reported once, and nothing is left");
}
