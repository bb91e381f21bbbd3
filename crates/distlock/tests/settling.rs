//! A manual clock that settles: when `advance` returns, everything that was due is done. No test here sleeps.

mod log_kit;

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use distlock::backend::memory::{Fault, Memory, Operation, Store};
use distlock::{ErrorKind, Event, EventKind, HoldState, LockGuard, Locker, LossReason};

const TTL: Duration = Duration::from_secs(10);

fn locker(store: &Store) -> Locker {
    Locker::new(Memory::on(store)).expect("a locker")
}

async fn fifty_holds(lockers: &[Locker]) -> Vec<LockGuard> {
    let mut holds = Vec::new();
    for number in 0..50_u32 {
        let locker = &lockers[number as usize % lockers.len()];
        holds.push(locker.lock(number).ttl(TTL).await.unwrap());
    }
    holds
}

fn lost(holds: &[LockGuard]) -> usize {
    holds.iter().filter(|hold| hold.is_lost()).count()
}

#[tokio::test]
async fn fifty_holds_are_renewed_in_steps_of_less_than_a_lease() {
    let (store, clock) = Store::manual();
    let holds = fifty_holds(&[locker(&store)]).await;
    for _ in 0..5 {
        clock.advance(Duration::from_secs(4)).await;
        assert_eq!(lost(&holds), 0);
        assert!(holds.iter().all(|hold| hold.remaining() > Some(TTL.mul_f64(0.6))), "renewed when it was due");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_lockers_are_settled_also_in_one_step_of_many_leases() {
    let (store, clock) = Store::manual();
    let holds = fifty_holds(&[locker(&store), locker(&store), locker(&store)]).await;
    clock.advance(TTL * 30).await;
    assert_eq!(lost(&holds), 0);
    clock.jump(TTL);
    assert_eq!(lost(&holds), 50, "a process that stood still has renewed nothing");
}

#[tokio::test]
async fn a_waiter_is_granted_the_lock_when_the_lease_before_it_ends() {
    let (store, clock) = Store::manual();
    let holder = locker(&store).lock("k").ttl(TTL).watchdog(false).await.unwrap();
    let other = locker(&store);
    let waiters: Vec<_> = (0..3).map(|_| tokio::spawn(other.clone().lock("k").ttl(TTL).into_future())).collect();
    clock.advance(TTL - Duration::from_millis(100)).await;
    assert!(!holder.is_lost() && waiters.iter().all(|waiter| !waiter.is_finished()));
    clock.advance(Duration::from_millis(100)).await;
    assert!(holder.is_lost());
    let granted: Vec<_> = waiters.iter().map(|waiter| waiter.is_finished()).collect();
    assert_eq!(granted, [true, false, false], "the first, and only the first");
}

#[tokio::test]
async fn a_wait_times_out_at_its_own_moment_within_a_long_step() {
    let (store, clock) = Store::manual();
    let waits = Arc::new(Mutex::new(Vec::new()));
    let seen = waits.clone();
    let observer = move |event: &Event<'_>| {
        if let EventKind::TimedOut { waited } = event.kind {
            seen.lock().unwrap().push(waited);
        }
    };
    let locker = Locker::builder().observer(observer).build(Memory::on(&store)).unwrap();
    let _held = locker.lock("k").await.unwrap();
    let wait = Duration::from_millis(5_300);
    let waiter = tokio::spawn(locker.clone().lock("k").wait(wait).into_future());
    clock.advance(TTL * 3).await;
    assert_eq!(*waits.lock().unwrap(), [wait]);
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
}

#[tokio::test]
async fn a_default_limit_ends_waits_for_locks_and_not_campaigns() {
    let (store, clock) = Store::manual();
    let locker = Locker::builder().default_wait(Duration::from_secs(5)).build(Memory::on(&store)).unwrap();
    let [other, third, candidate] = [(); 3].map(|()| locker.clone());
    let _held = locker.lock("k").await.unwrap();
    let _leading = locker.election("leader").campaign("a").await.unwrap();
    let waits = [
        tokio::spawn(async move { other.lock("k").await.map(drop) }),
        tokio::spawn(async move { third.lock_all(["j", "k"]).await.map(drop) }),
    ];
    let patient = tokio::spawn(locker.clone().lock("k").wait(Duration::from_secs(90)).into_future());
    let campaign = tokio::spawn(candidate.election("leader").campaign("b").into_future());
    clock.advance(Duration::from_secs(60)).await;
    for wait in waits {
        assert!(wait.is_finished());
        assert_eq!(wait.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    }
    assert!(!patient.is_finished() && !campaign.is_finished());
}

/// Sets a flag when it is dropped.
struct Cancelled(Arc<AtomicBool>);

impl Drop for Cancelled {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_holder_is_told_with_its_next_renewal_or_at_once() {
    for at_once in [true, false] {
        let (store, clock) = Store::manual();
        let guard = locker(&store).lock("k").ttl(TTL).await.unwrap();
        let cancelled = Arc::new(AtomicBool::new(false));
        let work = Cancelled(cancelled.clone());
        let run = tokio::spawn(async move {
            let endless = async move {
                let _work = work;
                std::future::pending::<()>().await;
            };
            guard.run(endless).await
        });
        clock.settle().await;
        let ended = store.expire("k");
        assert_eq!(ended.count(), 1);
        if at_once {
            ended.tell_holders();
            clock.settle().await;
        } else {
            clock.settle().await;
            assert!(!cancelled.load(Ordering::SeqCst), "nobody has told it");
            clock.advance(TTL / 3).await;
        }
        assert!(cancelled.load(Ordering::SeqCst), "the work is dropped");
        let error = run.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.loss_reason()), (ErrorKind::Lost, Some(&LossReason::Revoked)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_task_is_told_and_every_first_waiter_served_on_several_threads() {
    let (store, clock) = Store::manual();
    let (holder, other) = (locker(&store), locker(&store));
    let cancelled: Vec<_> = (0..50).map(|_| Arc::new(AtomicBool::new(false))).collect();
    let mut tasks = Vec::new();
    for (number, flag) in cancelled.iter().enumerate() {
        let guard = holder.lock(number as u64).ttl(TTL).await.unwrap();
        let work = Cancelled(flag.clone());
        let endless = async move {
            let _work = work;
            std::future::pending::<()>().await;
        };
        tasks.push(tokio::spawn(async move { guard.run(endless).await }));
    }
    let waiters: Vec<_> =
        (0..50_u64).map(|number| tokio::spawn(other.clone().lock(number).ttl(TTL).into_future())).collect();
    // The waiters' tasks run on other threads: they have begun when the store has their claims.
    while other.inspect().list("").await.unwrap().iter().any(|lock| lock.waiters.is_empty()) {
        tokio::task::yield_now().await;
    }
    (0..50_u64).for_each(|number| store.expire(number).tell_holders());
    clock.settle().await;
    assert_eq!(cancelled.iter().filter(|flag| !flag.load(Ordering::SeqCst)).count(), 0, "not told");
    clock.advance(TTL).await;
    for waiter in waiters {
        assert!(!waiter.await.unwrap().unwrap().is_lost(), "granted, and renewed since");
    }
}

#[tokio::test]
async fn stealing_takes_the_lock_from_its_holder_and_from_waiters_for_a_second() {
    let (store, clock) = Store::manual();
    let locker = locker(&store);
    let guard = locker.lock("k").await.unwrap();
    assert_eq!(store.steal("another").count(), 0);
    store.steal(String::from("k")).tell_holders();
    clock.settle().await;
    assert!(guard.is_lost());
    let other = locker.clone();
    assert!(other.try_lock("k").await.unwrap().is_none(), "stolen");
    clock.advance(Duration::from_secs(1)).await;
    assert!(other.try_lock("k").await.unwrap().is_some());
    assert_eq!(store.expire("").count(), 0, "not a name");
}

#[tokio::test]
async fn observers_have_received_what_happened() {
    let (store, clock) = Store::manual();
    let renewed = Arc::new(AtomicU64::new(0));
    let seen = renewed.clone();
    let observer = move |event: &Event<'_>| {
        if matches!(event.kind, EventKind::Renewed { .. }) {
            // A slow observer: the keeper is done long before it.
            std::thread::sleep(Duration::from_millis(2));
            seen.fetch_add(1, Ordering::SeqCst);
        }
    };
    let locker = Locker::builder().observer(observer).build(Memory::on(&store)).unwrap();
    let _holds = fifty_holds(&[locker]).await;
    clock.advance(Duration::from_secs(4)).await;
    assert_eq!(renewed.load(Ordering::SeqCst), 50);
}

#[tokio::test]
async fn requests_without_a_reply_are_settled_and_the_limits_of_the_keeper_pass_with_the_clock() {
    let (store, clock) = Store::manual();
    let locker = locker(&store);
    let guard = locker.lock("k").ttl(TTL).await.unwrap();
    // More than may be in flight at a time.
    (0..6).for_each(|_| store.script(Operation::Renew, Fault::Hang));
    clock.advance(TTL).await;
    assert_eq!(guard.state(), HoldState::Held, "the seventh renewal was answered");

    store.script(Operation::Renew, Fault::DelayReply(Duration::from_secs(3)));
    clock.advance(TTL * 2).await;
    assert_eq!(guard.state(), HoldState::Held);

    store.script(Operation::Release, Fault::Hang);
    drop(guard);
    clock.settle().await;
    assert!(!store.is_empty(), "the release has no reply");
    clock.advance(Duration::from_secs(3)).await;
    assert!(store.is_empty(), "it was sent again");
}

#[tokio::test]
async fn a_store_that_is_disconnected_costs_no_lock_before_its_deadline() {
    let (store, clock) = Store::manual();
    let locker = locker(&store);
    let guard = locker.lock("k").ttl(TTL).await.unwrap();
    store.disconnect();
    assert_eq!(locker.try_lock("free").await.unwrap_err().kind(), ErrorKind::Unavailable);
    clock.advance(Duration::from_secs(9)).await;
    assert_eq!(guard.state(), HoldState::AtRisk);
    store.reconnect();
    clock.advance(Duration::from_secs(60)).await;
    assert_eq!(guard.state(), HoldState::Held);

    store.disconnect();
    let waiter = tokio::spawn(locker.lock("free").into_future());
    clock.advance(TTL).await;
    assert_eq!(guard.lost().await, LossReason::Expired);
    clock.advance(Duration::from_secs(60)).await;
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Unavailable, "it gave up on the engine");
}

#[tokio::test(start_paused = true)]
async fn the_paused_time_of_tokio_stands_still_meanwhile() {
    let (store, clock) = Store::manual();
    let holds = fifty_holds(&[locker(&store)]).await;
    let before = tokio::time::Instant::now();
    let own_timer = tokio::spawn(tokio::time::sleep(Duration::from_millis(1)));
    clock.advance(TTL * 2).await;
    assert_eq!(tokio::time::Instant::now(), before);
    assert!(!own_timer.is_finished());
    assert_eq!(lost(&holds), 0);
}

#[test]
fn no_runtime_is_needed() {
    let (store, clock) = Store::manual();
    let locker = locker(&store);
    let guard = block_on(locker.lock("k").ttl(TTL).into_future()).unwrap();
    block_on(clock.advance(TTL * 2));
    assert!(!guard.is_lost());
}

/// Polls until the future is ready.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
    }
}

#[test]
fn a_future_that_is_set_aside_stops_no_clock() {
    let text = log_kit::Log::default();
    let writer = text.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    let _logs = tracing::subscriber::set_default(subscriber);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (store, clock) = Store::manual();
        let locker = locker(&store);
        let _held = locker.lock("k").await.unwrap();
        let other = locker.clone();
        let mut aside = pin!(other.lock("k").wait(Duration::from_secs(5)).into_future());
        let is_pending = poll_fn(|context| Poll::Ready(aside.as_mut().poll(context).is_pending())).await;
        assert!(is_pending);
        clock.advance(TTL).await;
        assert!(!text.text().contains("not polled"), "it is in the same task: {}", text.text());
        assert_eq!(aside.await.unwrap_err().kind(), ErrorKind::Timeout);

        // In another task, it cannot be told from one that is slow.
        let mut elsewhere = pin!(other.lock("k").wait(Duration::from_secs(5)).into_future());
        assert!(elsewhere.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        clock.advance(TTL).await;
        assert!(text.text().contains("not polled"), "{}", text.text());
        assert_eq!(elsewhere.await.unwrap_err().kind(), ErrorKind::Timeout);
    });
}
