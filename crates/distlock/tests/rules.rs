//! The numbered rules of ARCHITECTURE.md, each provoked by a scripted fault or a manual clock.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock::backend::memory::{Fault, Memory, Operation, Store};
use distlock::{Clock, ErrorKind, Event, EventKind, HoldState, LockGuard, Locker, LossReason, ManualClock, Moment};
use distlock_testkit::servers::eventually;
use distlock_testkit::{Calls, Wire};
use tokio::sync::watch;

const TTL: Duration = Duration::from_secs(10);
/// The usable part of a lease of 10 s by rule 1: minus a thousandth for drift and 2 ms in reserve.
const USABLE: Duration = Duration::from_millis(9_988);
/// A generous limit for what must happen soon in real time.
const TEST_LIMIT: Duration = Duration::from_secs(20);

/// A store, a locker on it, and control of their common clock.
struct World {
    store: Store,
    clock: Clock,
    hand: ManualClock,
    locker: Locker,
    calls: Arc<Calls>,
    /// The number of events of each kind, and the time of the last one.
    seen: watch::Receiver<Seen>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    renewed: u64,
    failed: u64,
    lost: u64,
    released: u64,
}

impl World {
    fn new() -> World {
        let (clock, hand) = Clock::manual();
        let store = Store::with_clock(clock.clone());
        let calls = Arc::new(Calls::default());
        let (count, seen) = watch::channel(Seen::default());
        let observer = move |event: &Event<'_>| {
            count.send_modify(|seen| match event.kind {
                EventKind::Renewed { .. } => seen.renewed += 1,
                EventKind::RenewalFailed { .. } => seen.failed += 1,
                EventKind::Lost { .. } => seen.lost += 1,
                EventKind::Released { .. } => seen.released += 1,
                _ => {}
            });
        };
        let engine = Wire::new(Memory::on(&store), calls.clone());
        let locker = Locker::builder().clock(clock.clone()).observer(observer).build(engine).expect("a locker");
        World { store, clock, hand, locker, calls, seen }
    }

    async fn until(&mut self, what: impl FnMut(&Seen) -> bool) {
        tokio::time::timeout(TEST_LIMIT, self.seen.wait_for(what)).await.expect("soon").expect("observed");
    }

    /// Returns when `sent` renewals were sent, and the keeper has stopped waiting for the reply to the last.
    async fn until_given_up(&self, guard: &LockGuard, sent: u64) {
        until_so(async || self.calls.renewals.load(Ordering::SeqCst) >= sent).await;
        // The keeper waits for a reply for a quarter of the remaining lease.
        self.hand.jump(guard.remaining().expect("it has a lease").mul_f64(0.26));
    }

    fn other(&self) -> Locker {
        Locker::builder().clock(self.clock.clone()).build(Memory::on(&self.store)).expect("a locker")
    }
}

async fn expect_lost(guard: &LockGuard) -> LossReason {
    tokio::time::timeout(TEST_LIMIT, guard.lost()).await.expect("notified soon")
}

fn deadline(guard: &LockGuard) -> Moment {
    guard.deadline().expect("it has a lease")
}

#[tokio::test]
async fn rule_1_a_guard_is_lost_at_its_deadline_before_the_servers_lease_ends() {
    let world = World::new();
    let guard = world.locker.lock("k").watchdog(false).await.unwrap();
    let other = world.other();
    // The keeper would release a hold that it finds lost.
    world.calls.cut();
    world.hand.jump(USABLE - Duration::from_millis(1));
    assert_eq!(guard.remaining(), Some(Duration::from_millis(1)));
    assert!(!guard.is_lost());
    world.hand.jump(Duration::from_millis(1));
    assert!(guard.is_lost(), "by the clock, without any timer");
    assert!(other.try_lock("k").await.unwrap().is_none(), "the server still has it");
    assert_eq!(expect_lost(&guard).await, LossReason::Expired);
    world.hand.jump(TTL - USABLE);
    assert!(other.try_lock("k").await.unwrap().is_some(), "only now");
}

#[tokio::test]
async fn rule_1_an_answered_renewal_moves_the_deadline_from_when_it_was_sent() {
    let mut world = World::new();
    let guard = world.locker.lock("k").await.unwrap();
    let first = deadline(&guard);
    let delay = Duration::from_millis(900);
    world.store.script(Operation::Renew, Fault::DelayReply(delay));
    world.hand.jump(TTL / 3);
    // Until then the keeper's thread reads the clock, so the clock must not move before the store has executed the
    // renewal.
    let inspect = world.other().inspect();
    until_so(async || {
        let lock = inspect.get("k").await.unwrap();
        lock.and_then(|lock| lock.holder()?.ttl_left) == Some(TTL)
    })
    .await;
    assert_eq!(deadline(&guard), first, "not before it is answered");
    world.hand.jump(delay);
    world.until(|seen| seen.renewed == 1).await;
    let sent = first.before(USABLE).after(TTL / 3);
    assert_eq!(deadline(&guard), sent.after(USABLE), "not from when the answer came");
    assert!(world.clock.now().since(sent) >= delay);
}

#[tokio::test]
async fn rule_1_a_grant_after_its_own_deadline_is_not_believed() {
    let world = World::new();
    world.store.script(Operation::Claim, Fault::DelayReply(TTL * 2));
    let request = tokio::spawn(world.locker.lock("k").into_future());
    while world.calls.claims.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let started = world.clock.now();
    while world.calls.claims.load(Ordering::SeqCst) == 1 {
        world.hand.jump(Duration::from_millis(500));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let guard = request.await.unwrap().unwrap();
    assert!(deadline(&guard) > started.after(TTL * 2), "the lease is counted from the second claim");
    assert_eq!(guard.fencing_token().get(), 2, "the first lease was over when it was claimed again");
}

#[tokio::test]
async fn rule_2_a_failed_renewal_is_at_risk_and_not_lost() {
    let mut world = World::new();
    let guard = world.locker.lock("k").await.unwrap();
    for fault in [Fault::Refuse, Fault::LoseReply] {
        world.store.script(Operation::Renew, fault);
    }
    assert_eq!(guard.state(), HoldState::Held);
    world.hand.jump(TTL / 3);
    // The first retry comes at once, the next after some time of the clock.
    world.until(|seen| seen.failed == 2).await;
    assert_eq!(guard.state(), HoldState::AtRisk);
    world.hand.jump(Duration::from_millis(250));
    world.until(|seen| seen.renewed == 1).await;
    assert_eq!(world.seen.borrow().failed, 2);
    assert_eq!(guard.state(), HoldState::Held);
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn rule_2_lost_is_final_even_when_the_engine_comes_back() {
    let mut world = World::new();
    let guard = world.locker.lock("k").await.unwrap();
    world.calls.cut();
    world.hand.jump(TTL / 3);
    world.until(|seen| seen.failed >= 1).await;
    assert_eq!(guard.state(), HoldState::AtRisk);
    world.hand.jump(USABLE);
    assert!(guard.is_lost());
    world.until(|seen| seen.lost == 1).await;
    assert_eq!(guard.extend(TTL).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.check().unwrap_err().loss_reason(), Some(&LossReason::Expired));
}

#[tokio::test]
async fn rule_2_a_loss_reported_by_the_server_counts_at_once() {
    let mut world = World::new();
    let guard = world.locker.lock("k").await.unwrap();
    world.store.steal(guard.key());
    world.hand.jump(TTL / 3);
    assert_eq!(expect_lost(&guard).await, LossReason::Revoked);
    assert!(world.clock.now() < deadline(&guard), "long before the deadline");
    world.until(|seen| seen.lost == 1).await;
    assert_eq!(guard.unlock().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn rule_2_a_pushed_loss_is_reported_without_waiting_for_a_renewal() {
    let world = World::new();
    let guard = world.locker.lock("k").await.unwrap();
    let operator = world.other();
    operator.inspect().force_release("k", guard.fencing_token(), "stuck").await.unwrap();
    // The clock stands still: no renewal is due.
    assert_eq!(expect_lost(&guard).await, LossReason::Broken);
    assert_eq!(world.calls.renewals.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn rule_3_a_claim_with_a_lost_reply_is_retried_with_the_same_attempt() {
    let world = World::new();
    world.store.script(Operation::Claim, Fault::LoseReply);
    let guard = world.locker.try_lock("k").await.unwrap().expect("our own grant, found again");
    assert_eq!(guard.fencing_token().get(), 1, "one grant");
    guard.unlock().await.unwrap();
    assert!(world.store.is_empty());
}

#[tokio::test]
async fn rule_3_an_unknown_outcome_is_reported_and_cleaned_up() {
    let world = World::new();
    for fault in [Fault::LoseReply, Fault::LoseReply] {
        world.store.script(Operation::Claim, fault);
    }
    let error = world.locker.try_lock("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    until_empty(&world.store).await;
}

#[tokio::test]
async fn rule_3_a_release_with_a_lost_reply_is_unknown_and_retried_in_the_background() {
    let world = World::new();
    for fault in [Fault::LoseRequest, Fault::LoseReply] {
        let guard = world.locker.lock("k").await.unwrap();
        world.store.script(Operation::Release, fault);
        let error = guard.unlock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown);
        assert!(error.to_string().contains("in the background"), "{error}");
        until_empty(&world.store).await;
    }
}

#[tokio::test]
async fn rule_5_futures_dropped_while_the_engine_hangs_are_cleaned_up() {
    let world = World::new();
    world.store.script(Operation::Claim, Fault::DelayReply(TTL / 2));
    let request = tokio::spawn(world.locker.lock("k").into_future());
    while world.store.is_empty() {
        tokio::task::yield_now().await;
    }
    request.abort();
    until_empty(&world.store).await;

    let guard = world.locker.lock("k").await.unwrap();
    world.store.script(Operation::Release, Fault::Hang);
    let unlock = tokio::time::timeout(Duration::from_millis(20), guard.unlock()).await;
    assert!(unlock.is_err(), "it hangs");
    until_empty(&world.store).await;
}

#[tokio::test]
async fn rule_8_renewals_are_batched() {
    const LOCKS: u64 = 1000;
    let mut world = World::new();
    let mut guards = Vec::new();
    for number in 0..LOCKS {
        guards.push(world.locker.lock(format!("k{number}")).await.unwrap());
    }
    world.hand.jump(TTL / 3);
    world.until(|seen| seen.renewed == LOCKS).await;
    let calls = world.calls.renewals.load(Ordering::SeqCst);
    assert!(calls <= 8, "{calls} calls for {LOCKS} locks");
    assert!(guards.iter().all(|guard| guard.state() == HoldState::Held));
}

#[tokio::test]
async fn rule_8_renewal_continues_while_the_application_blocks_its_runtime() {
    let world = World::new();
    let guard = world.locker.lock("k").await.unwrap();
    let first = deadline(&guard);
    // The point of this test is a thread that does not yield.
    for round in 1..=4 {
        world.hand.jump(TTL / 3);
        eventually("a renewal", || (world.seen.borrow().renewed == round).then_some(()));
    }
    assert!(world.clock.now() > first, "longer than a lease");
    assert_eq!(guard.state(), HoldState::Held, "renewed in the meantime");
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn rule_8_a_hanging_renewal_is_given_up_and_retried() {
    let mut world = World::new();
    let guard = world.locker.lock("k").await.unwrap();
    let first = deadline(&guard);
    world.store.script(Operation::Renew, Fault::Hang);
    world.hand.jump(TTL / 3);
    world.until_given_up(&guard, 1).await;
    world.until(|seen| seen.renewed == 1).await;
    assert_eq!(world.seen.borrow().failed, 1);
    world.hand.jump(first.since(world.clock.now()));
    assert!(!guard.is_lost(), "the second try was answered");
}

#[tokio::test]
async fn rule_8_hanging_renewals_delay_no_others() {
    // As many as are started at once.
    const HANGING: u64 = 4;
    let mut world = World::new();
    let guard = world.locker.lock("k").await.unwrap();
    (0..HANGING).for_each(|_| world.store.script(Operation::Renew, Fault::Hang));
    world.hand.jump(TTL / 3);
    for sent in 1..=HANGING {
        world.until_given_up(&guard, sent).await;
    }
    world.until(|seen| seen.renewed == 1).await;
    assert_eq!(guard.state(), HoldState::Held, "the one after them was answered");
}

#[tokio::test]
async fn rule_9_an_unknown_outcome_stays_unknown_after_a_refusal() {
    let store = Store::new();
    let locker =
        Locker::builder().retry_interval(Duration::from_millis(1)).max_retries(1).build(Memory::on(&store)).unwrap();
    store.script(Operation::Claim, Fault::LoseReply);
    store.script(Operation::Claim, Fault::Refuse);
    let error = locker.lock("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    until_empty(&store).await;
}

#[tokio::test]
async fn rule_9_a_refused_request_is_not_unknown() {
    let world = World::new();
    world.store.script(Operation::Claim, Fault::Refuse);
    let error = world.locker.try_lock("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_retryable());
    assert_eq!(world.calls.releases.load(Ordering::SeqCst), 0, "nothing to withdraw");
    let guard = world.locker.lock("k").await.unwrap();
    world.store.script(Operation::Release, Fault::Refuse);
    assert_eq!(guard.unlock().await.unwrap_err().kind(), ErrorKind::Unavailable);
    until_empty(&world.store).await;
}

#[tokio::test]
async fn rule_9_a_wait_survives_a_short_outage_and_gives_up_in_the_end() {
    let store = Store::new();
    let locker =
        Locker::builder().retry_interval(Duration::from_millis(1)).max_retries(4).build(Memory::on(&store)).unwrap();
    for _ in 0..4 {
        store.script(Operation::Claim, Fault::Refuse);
    }
    locker.lock("k").await.expect("the fifth is answered").unlock().await.unwrap();
    for _ in 0..5 {
        store.script(Operation::Claim, Fault::Refuse);
    }
    assert_eq!(locker.lock("k").await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn rule_10_a_missing_engine_is_an_error_and_never_a_weaker_lock() {
    // Without its feature an engine does not exist either, and the error says so.
    let out_of_reach = if cfg!(feature = "redis") { ErrorKind::Unavailable } else { ErrorKind::Unsupported };
    for (url, kind) in [
        ("memory://", ErrorKind::Config),
        ("http://127.0.0.1/", ErrorKind::Config),
        ("", ErrorKind::Config),
        ("redlock://a,b", ErrorKind::Config),
        ("redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", out_of_reach),
    ] {
        let error = Locker::connect(url).await.expect_err(url);
        assert_eq!(error.kind(), kind, "{url}: {error}");
    }
}

#[tokio::test]
async fn a_store_made_in_code_is_private() {
    let [one, two] = [(); 2].map(|()| Locker::new(Memory::new()).unwrap());
    let public = Locker::connect("mem://").await.unwrap();
    let guard = one.lock("rules: made in code").await.unwrap();
    for other in [two, public] {
        assert!(other.try_lock("rules: made in code").await.unwrap().is_some());
    }
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn a_handed_over_lease_counts_from_the_handover_not_from_the_message() {
    let world = World::new();
    let guard = world.locker.lock("k").await.unwrap();
    let calls = Arc::new(Calls::default());
    let engine = Wire::new(Memory::on(&world.store), calls.clone());
    let waiting = Locker::builder().clock(world.clock.clone()).build(engine).unwrap();
    let waiter = tokio::spawn(waiting.lock("k").into_future());
    calls.queued(1).await;
    world.hand.jump(Duration::from_secs(1));
    let handed = world.clock.now();
    guard.unlock().await.unwrap();
    let next = waiter.await.unwrap().unwrap();
    let end = deadline(&next);
    assert!(end <= handed.after(USABLE), "no later than a lease after the handover");
    assert!(end > handed.after(USABLE - Duration::from_millis(50)), "and not much earlier");
}

#[tokio::test]
async fn observers_see_every_event_of_a_lock() {
    let log = Arc::new(Mutex::new(Vec::new()));
    let seen = log.clone();
    let (clock, hand) = Clock::manual();
    let store = Store::with_clock(clock.clone());
    let locker = Locker::builder()
        .clock(clock.clone())
        .observer(move |event: &Event<'_>| {
            let name = match event.kind {
                EventKind::Waiting { holder } => format!("waiting for {:?}", holder.and_then(|holder| holder.token)),
                EventKind::Acquired { .. } => format!("acquired {}", event.token.expect("it has a token")),
                EventKind::TimedOut { waited } => format!("timed out after {waited:?}"),
                EventKind::Released { held } => format!("released after {held:?}"),
                other => format!("{other:?}"),
            };
            seen.lock().unwrap().push(format!("{} {} {name}", event.backend, event.key));
        })
        .build(Memory::on(&store))
        .unwrap();
    let guard = locker.lock("k").await.unwrap();
    let waiter = tokio::spawn(locker.clone().lock("k").wait(Duration::from_secs(1)).into_future());
    while log.lock().unwrap().len() < 2 {
        tokio::task::yield_now().await;
    }
    hand.jump(Duration::from_secs(1));
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
    guard.unlock().await.unwrap();
    let log = log.lock().unwrap();
    let expected = [
        "memory k acquired 1",
        "memory k waiting for Some(FencingToken(1))",
        "memory k timed out after 1s",
        "memory k released after 1s",
    ];
    assert_eq!(*log, expected);
}

#[tokio::test]
async fn a_panicking_observer_loses_no_lock() {
    let events = Arc::new(AtomicU64::new(0));
    let seen = events.clone();
    let observer = move |_: &Event<'_>| {
        seen.fetch_add(1, Ordering::SeqCst);
        std::panic::resume_unwind(Box::new("a bad observer"));
    };
    let (clock, hand) = Clock::manual();
    let engine = Memory::on(&Store::with_clock(clock.clone()));
    let locker = Locker::builder().clock(clock).observer(observer).build(engine).unwrap();
    let guard = locker.lock("k").await.unwrap();
    for renewals in 1..=4 {
        hand.jump(TTL / 3);
        until_so(async || events.load(Ordering::SeqCst) > renewals).await;
    }
    assert!(guard.unlock().await.is_ok(), "kept by renewal all the time");
}

async fn until_empty(store: &Store) {
    until_so(async || store.is_empty()).await;
}

/// Polls until `is_so` returns true.
async fn until_so(mut is_so: impl AsyncFnMut() -> bool) {
    let looks = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(TEST_LIMIT, looks).await.expect("soon");
}
