//! A loss has one reason: the caller, `lost()`, observers and the history of the lock report the same.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock::backend::memory::{Memory, Store};
use distlock::{Clock, Event, EventKind, HistoryKind, LockGuard, Locker, LossReason};
use tokio::time::timeout;

/// A generous limit for what must happen soon in real time.
const TEST_LIMIT: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(1);
/// Repeated, because the keeper may be faster than the caller, and then the race does not occur.
const ROUNDS: u64 = 100;

type Told = Arc<Mutex<BTreeMap<u64, Vec<LossReason>>>>;

/// Ends a hold whose lease ended before the keeper had a chance to notice, as in a process that stood still, and whose
/// lock another owner holds by now. Returns the reasons that the caller got, by token.
async fn lose_and_leave(
    (locker, delay): (&Locker, Duration),
    told: &Told,
    pass: impl Fn(),
    leave: impl AsyncFn(LockGuard) -> LossReason,
) -> Vec<(u64, LossReason)> {
    let mut reasons = Vec::new();
    for _ in 0..ROUNDS {
        let guard = locker.lock("k").ttl(TTL).lock_delay(delay).wait(TEST_LIMIT).await.expect("granted");
        let token = guard.fencing_token().get();
        pass();
        reasons.push((token, leave(guard).await));
    }
    let all = async {
        while told.lock().unwrap().len() < reasons.len() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(TEST_LIMIT, all).await.expect("every loss is reported to observers");
    reasons
}

async fn check(delay: Duration, leave: impl AsyncFn(LockGuard) -> LossReason) {
    let (clock, hand) = Clock::manual();
    let store = Store::with_clock(clock.clone());
    let told = Told::default();
    let seen = told.clone();
    let observer = move |event: &Event<'_>| {
        let token = event.token.map_or(0, distlock::FencingToken::get);
        match event.kind {
            EventKind::Lost { reason, .. } => {
                seen.lock().unwrap().entry(token).or_default().push(reason.clone());
            }
            EventKind::Released { .. } => panic!("{token} was lost, and not released"),
            _ => {}
        }
    };
    let engine = Memory::on(&store);
    let locker = Locker::builder().clock(clock.clone()).history(1000).observer(observer).build(engine).unwrap();
    // Also beyond the delay: the store grants the lock to the next owner.
    let reasons = lose_and_leave((&locker, delay), &told, || hand.jump((TTL + delay) * 2), leave).await;
    let key = distlock::Key::new("k").unwrap();
    let lost = |entry: &distlock::HistoryEntry| entry.kind == HistoryKind::Lost;
    let written = async {
        loop {
            hand.jump(Duration::from_secs(1));
            let history = locker.inspect().history(&key, 1000).await.expect("read");
            let written: BTreeMap<_, _> =
                history.into_iter().filter(lost).map(|entry| (entry.token.get(), entry.reason)).collect();
            if written.len() == reasons.len() {
                return written;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let written = timeout(TEST_LIMIT, written).await.expect("every loss is written down");
    let told = told.lock().unwrap();
    for (token, reason) in reasons {
        assert_eq!(reason, LossReason::Expired, "the clock settles it");
        assert_eq!(told[&token], std::slice::from_ref(&reason), "the reason that observers got for token {token}");
        assert_eq!(written[&token], Some(reason.describe().to_owned()), "the recorded reason of token {token}");
    }
}

#[tokio::test]
async fn a_guard_dropped_after_its_loss_is_reported_with_the_reason_of_run() {
    check(Duration::ZERO, async |guard: LockGuard| {
        let error = guard.run(async {}).await.expect_err("the lease is over");
        error.loss_reason().expect("a loss").clone()
    })
    .await;
}

#[tokio::test]
async fn a_guard_unlocked_after_its_loss_is_reported_with_the_reason_of_unlock() {
    check(Duration::ZERO, async |guard: LockGuard| {
        let error = guard.unlock().await.expect_err("the lease is over");
        error.loss_reason().expect("a loss").clone()
    })
    .await;
}

#[tokio::test]
async fn a_lost_lock_in_its_delay_is_reported() {
    check(TTL, async |guard: LockGuard| {
        let error = guard.check().expect_err("the lease is over");
        error.loss_reason().expect("a loss").clone()
    })
    .await;
}

#[tokio::test]
async fn a_leadership_is_reported_as_lost_before_the_next_one_begins() {
    let (clock, hand) = Clock::manual();
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = events.clone();
    let observer = move |event: &Event<'_>| {
        let token = event.token.map_or(0, distlock::FencingToken::get);
        match event.kind {
            EventKind::Acquired { .. } => seen.lock().unwrap().push(("leads", token)),
            EventKind::Lost { .. } | EventKind::Released { .. } => seen.lock().unwrap().push(("lost", token)),
            _ => {}
        }
    };
    let engine = Memory::on(&Store::with_clock(clock.clone()));
    let locker = Locker::builder().clock(clock).default_ttl(TTL).observer(observer).build(engine).unwrap();
    let election = locker.election("e");
    // The leader's previous hold is lost when it campaigns again, and its keeper may not have noticed yet.
    let mut leadership = election.campaign("me").await.expect("elected");
    for _ in 0..ROUNDS {
        hand.jump(TTL * 2);
        leadership.guard().check().expect_err("the lease is over");
        leadership = election.campaign("me").await.expect("elected again");
    }
    // The same with the library's own loop.
    drop(leadership);
    let mut terms = 0;
    let led = election.lead("me", async |_| {
        terms += 1;
        if terms <= ROUNDS {
            hand.jump(TTL * 2);
            // Dropped here, because the lease has ended.
            tokio::task::yield_now().await;
            std::future::pending::<()>().await;
        }
    });
    timeout(TEST_LIMIT, led).await.expect("in time").expect("led to the end");
    locker.close().await.expect("closed");
    let events = events.lock().unwrap();
    let mut leader = None;
    for (what, token) in events.iter() {
        match *what {
            "leads" => assert_eq!(leader.replace(token), None, "it leads before its loss is reported: {events:?}"),
            _ => assert_eq!(leader.take(), Some(token), "{events:?}"),
        }
    }
    assert!(events.len() as u64 > 4 * ROUNDS, "{events:?}");
}
