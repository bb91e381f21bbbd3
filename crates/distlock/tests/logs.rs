//! The library's `tracing` events: the names and fields that dashboards are built on.

mod log_kit;

use std::time::{Duration, Instant};

use distlock::backend::memory::{Fault, Memory, Operation, Store};
use distlock::{Clock, Locker};
use distlock_testkit::servers::TEST_LIMIT;
use log_kit::Log;

fn line(log: &Log, message: &str) -> String {
    let text = log.text();
    text.lines().find(|line| line.contains(message)).unwrap_or_else(|| panic!("no {message:?} in {text}")).to_owned()
}

/// Waits for a message: the keeper logs on its own thread.
async fn until_said(log: &Log, message: &str) {
    let started = Instant::now();
    while !log.text().contains(message) {
        assert!(started.elapsed() < TEST_LIMIT, "no {message:?} in {}", log.text());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A single test, because the subscriber is global to the process.
#[tokio::test]
async fn lock_events_are_logged_with_the_documented_names() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false);
    subscriber.with_writer(move || writer.clone()).init();
    let (clock, hand) = Clock::manual();
    let store = Store::with_clock(clock.clone());
    let locker = Locker::builder().clock(clock).build(Memory::on(&store)).unwrap();

    let guard = locker.lock("invoice:42").owner("req-7").await.unwrap();
    store.script(Operation::Renew, Fault::Refuse);
    let waiter =
        tokio::spawn(async move { locker.lock("invoice:42").owner("req-8").wait(Duration::from_secs(4)).await });
    until_said(&log, "lock busy").await;
    hand.jump(Duration::from_secs(4));
    waiter.await.unwrap().unwrap_err();
    // By now a renewal is due. The first is refused, and the next is tried at once, without the clock advancing.
    until_said(&log, "lock renewed").await;
    let other = Locker::builder().build(Memory::on(&store)).unwrap();
    other.inspect().force_release("invoice:42", guard.fencing_token(), "stuck").await.unwrap();
    guard.lost().await;
    until_said(&log, "lock lost").await;
    other.lock("other").await.unwrap().unlock().await.unwrap();
    store.script(Operation::Claim, Fault::Refuse);
    other.try_lock("away").await.unwrap_err();

    for (message, parts) in [
        ("lock acquired", &[" DEBUG ", "lock.name=invoice:42", "lock.owner=req-7", "lock.token=1", "lock.wait_s="][..]),
        ("lock busy", &["lock.owner=req-8", "owner req-7"]),
        ("lock wait timed out", &[" INFO ", "lock.outcome=\"timeout\"", "lock.wait_s=4"]),
        (
            "lock wait failed",
            &[" WARN ", "lock.name=away", "lock.outcome=\"unavailable\"", "error.kind=\"unavailable\""],
        ),
        ("lock renewal failed", &[" WARN ", "error.kind=\"unavailable\"", "lock.ttl_s="]),
        (
            "lock lost",
            &[" ERROR ", "lock.outcome=\"lost\"", "lock.held_s=4", "lock.backend=\"memory\"", "lock.reason=\"broken\""],
        ),
        ("lock forced", &[" WARN ", "reason=\"stuck\""]),
        ("lock released", &["lock.name=other", "lock.outcome=\"released\""]),
    ] {
        let line = line(&log, message);
        // The span is between the two, where there is one.
        assert!(line.contains(&format!("distlock: {message}")), "{line:?}");
        for part in parts {
            assert!(line.contains(part), "{part:?} is not in {line:?}");
        }
    }
}
