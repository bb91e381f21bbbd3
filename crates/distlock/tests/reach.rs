//! The error of a caller whose wait ended: either another owner holds the lock, or the engine is unreachable. On a
//! manual clock, so that the rule is tested to the millisecond.

use std::error::Error as _;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock::backend::memory::{Fault, Memory, Operation, Store};
use distlock::{Clock, Error, ErrorKind, Event, EventKind, LockGuard, Locker, ManualClock, Result};
use distlock_testkit::{Calls, Wire};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A generous limit for what must happen soon in real time.
const TEST_LIMIT: Duration = Duration::from_secs(20);

fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

struct World {
    store: Store,
    hand: ManualClock,
    locker: Locker,
    other: Locker,
    calls: Arc<Calls>,
    /// The events of `other` that end a request.
    ends: Arc<Mutex<Vec<String>>>,
}

impl World {
    fn new() -> World {
        let (clock, hand) = Clock::manual();
        let store = Store::with_clock(clock.clone());
        let (calls, ends) = (Arc::new(Calls::default()), Arc::new(Mutex::new(Vec::new())));
        let seen = ends.clone();
        let observer = move |event: &Event<'_>| match event.kind {
            EventKind::TimedOut { waited } => seen.lock().unwrap().push(format!("timed out after {waited:?}")),
            EventKind::Failed { error, waited } => {
                seen.lock().unwrap().push(format!("{:?} after {waited:?}", error.kind()));
            }
            _ => {}
        };
        let locker = Locker::builder().clock(clock.clone()).build(Memory::on(&store)).expect("a locker");
        let engine = Wire::new(Memory::on(&store), calls.clone());
        let other = Locker::builder().clock(clock).observer(observer).build(engine).expect("a locker");
        World { store, hand, locker, other, calls, ends }
    }

    /// Starts a request that waits for at most `wait`.
    fn ask(&self, wait: Duration) -> JoinHandle<Result<LockGuard>> {
        let request = self.other.lock("k").ttl(Duration::from_secs(600)).retry_interval(Duration::from_secs(60));
        tokio::spawn(request.wait(wait).into_future())
    }

    /// Like `ask`, and returns when the request is in the queue. From then on no claim gets a reply.
    async fn ask_and_hang(&self, wait: Duration) -> JoinHandle<Result<LockGuard>> {
        let asked = self.ask(wait);
        self.calls.queued(1).await;
        (0..10).for_each(|_| self.store.script(Operation::Claim, Fault::Hang));
        asked
    }

    /// Asserts that the observer got exactly this event.
    async fn expect_end(&self, end: &str) {
        let told = async {
            while self.ends.lock().unwrap().is_empty() {
                tokio::time::sleep(ms(1)).await;
            }
        };
        timeout(TEST_LIMIT, told).await.expect("an end");
        assert_eq!(*self.ends.lock().unwrap(), [end]);
    }
}

async fn end_of(asked: JoinHandle<Result<LockGuard>>) -> Error {
    timeout(TEST_LIMIT, asked).await.expect("soon").expect("no panic").expect_err("not granted")
}

#[tokio::test]
async fn f79_a_claim_without_a_reply_is_unknown_shortly_after_the_timeout() {
    let world = World::new();
    world.store.script(Operation::Claim, Fault::Hang);
    let asked = world.ask(ms(2_000));
    while world.calls.claims.load(std::sync::atomic::Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    world.hand.jump(ms(2_249));
    tokio::time::sleep(ms(20)).await;
    assert!(!asked.is_finished(), "a reply that is a little slow still counts");
    world.hand.jump(ms(1));
    let error = end_of(asked).await;
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert!(error.to_string().contains("within 2.250 s: no reply for 2.250 s"), "{error}");
    assert!(error.source().is_some() && error.holder().is_none(), "{error:?}");
    world.expect_end("Unknown after 2.25s").await;
}

#[tokio::test]
async fn f79_a_queued_waiter_claims_once_more_before_it_times_out() {
    let world = World::new();
    let guard = world.locker.lock("k").ttl(Duration::from_secs(600)).await.expect("granted");
    let asked = world.ask_and_hang(ms(2_000)).await;
    world.hand.jump(ms(2_250));
    let error = end_of(asked).await;
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert!(error.source().is_some() && error.holder().is_none(), "{error:?}");
    world.expect_end("Unknown after 2.25s").await;
    guard.unlock().await.expect("released");
}

#[tokio::test]
async fn f79_a_reply_younger_than_a_second_still_counts() {
    let world = World::new();
    let guard = world.locker.lock("k").ttl(Duration::from_secs(600)).await.expect("granted");
    let asked = world.ask_and_hang(ms(700)).await;
    world.hand.jump(ms(950));
    let error = end_of(asked).await;
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    let holder = error.holder().expect("who has it");
    assert_eq!(holder.token, Some(guard.fencing_token()));
    assert_eq!(
        (holder.held_for, holder.ttl_left),
        (Some(ms(950)), Some(Duration::from_secs(600) - ms(950))),
        "{error}"
    );
    world.expect_end("timed out after 950ms").await;
}

#[tokio::test]
async fn f79_the_last_failure_is_the_cause() {
    let world = World::new();
    (0..10).for_each(|_| world.store.script(Operation::Claim, Fault::Refuse));
    let asked = world.ask(ms(2_000));
    while world.calls.claims.load(std::sync::atomic::Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    world.hand.jump(ms(2_000));
    let error = end_of(asked).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let cause = error.source().expect("the last failure").to_string();
    assert!(cause.contains("refused, as the test asked for"), "{cause}");
    world.expect_end("Unavailable after 2s").await;
}

#[tokio::test]
async fn f79_several_locks_without_a_reply_are_unknown() {
    let world = World::new();
    world.store.script(Operation::Claim, Fault::Hang);
    let asked = tokio::spawn(world.other.lock_all(["a", "b"]).wait(ms(500)).into_future());
    tokio::task::yield_now().await;
    let advance = async {
        loop {
            world.hand.jump(ms(50));
            tokio::time::sleep(ms(1)).await;
        }
    };
    let error = tokio::select! {
        ended = timeout(TEST_LIMIT, asked) => ended.expect("soon").expect("no panic").expect_err("not granted"),
        () = advance => unreachable!("it never ends"),
    };
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert!(error.source().is_some() && error.key().is_some(), "{error:?}");
}
