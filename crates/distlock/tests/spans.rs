//! The spans that docs/metrics.md promises, with their fields.
#![cfg(feature = "spans")]

mod log_kit;

use std::time::{Duration, Instant};

use distlock::backend::memory::{Memory, Store};
use distlock::{Clock, Locker};
use distlock_testkit::servers::TEST_LIMIT;
use log_kit::Log;
use tracing_subscriber::fmt::format::FmtSpan;

/// Returns the spans of this name that have ended.
fn ended(log: &Log, name: &str) -> Vec<String> {
    let is_it = |line: &&str| line.contains(&format!("{name}{{")) && line.contains("close");
    log.text().lines().filter(is_it).map(str::to_owned).collect()
}

/// A single test, because the subscriber is global to the process.
#[tokio::test]
async fn asking_holding_and_renewing_are_spans() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
    subscriber.with_span_events(FmtSpan::CLOSE).with_writer(move || writer.clone()).init();
    let (clock, hand) = Clock::manual();
    let store = Store::with_clock(clock.clone());
    let locker = Locker::builder().clock(clock).build(Memory::on(&store)).unwrap();

    let guard = locker.lock("invoice:42").owner("req-7").await.unwrap();
    assert!(locker.clone().try_lock("invoice:42").await.unwrap().is_none());
    let asked = ended(&log, "lock acquire");
    let parts = ["INFO", "distlock", "lock.name=invoice:42", "lock.owner=req-7", "lock.backend=\"memory\""];
    assert!(parts.iter().all(|part| asked[0].contains(part)), "{asked:?}");
    assert!(asked[0].contains("lock.outcome=\"acquired\"") && asked[1].contains("lock.outcome=\"busy\""), "{asked:?}");

    guard.run(async { tracing::info!("charged") }).await.unwrap();
    let held = ended(&log, "lock hold");
    assert!(
        held.len() == 1 && held[0].contains("lock.name=invoice:42") && held[0].contains("lock.token=1"),
        "{held:?}"
    );
    let text = log.text();
    let inside = text.lines().find(|line| line.ends_with("charged")).expect("what the work said");
    assert!(inside.contains("lock hold{"), "{inside}");

    // Advanced once and then waited for, because the keeper runs on its own thread.
    hand.jump(Duration::from_secs(4));
    let started = Instant::now();
    while ended(&log, "lock renew").is_empty() {
        assert!(started.elapsed() < TEST_LIMIT, "it is renewed");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let renewed = ended(&log, "lock renew");
    assert!(renewed[0].contains("DEBUG") && renewed[0].contains("lock.count=1"), "{renewed:?}");
    guard.unlock().await.unwrap();
}
