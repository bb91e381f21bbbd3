//! The core over the memory engine: the cost of the lock itself when the engine costs nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use distlock::backend::memory::Memory;
use distlock::{Event, EventKind, LockGuard, Locker};

use crate::process::{cpu_ms, status};

const PAIRS: u32 = 200_000;
const ROUNDS: usize = 7;
const HELD: usize = 100_000;
const TTL: Duration = Duration::from_secs(10);

/// Prints every figure of the core.
pub(crate) fn run() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        println!("memory engine, {} cores", std::thread::available_parallelism().map_or(0, usize::from));
        uncontended().await;
        held().await;
    });
}

async fn uncontended() {
    let locker = Locker::new(Memory::new()).expect("a locker");
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..PAIRS {
            let guard = locker.lock("invoice:42").await.expect("granted");
            guard.unlock().await.expect("released");
        }
        rounds.push(start.elapsed() / PAIRS);
    }
    rounds.sort();
    println!("uncontended lock+unlock, 1 task: median {:?}, best {:?} (aim: 3 µs)", rounds[ROUNDS / 2], rounds[0]);
    println!("threads of this process afterwards: {} (main and one keeper)", status("Threads:"));
}

/// The smallest margin that any renewal left, in milliseconds, and the number of renewals.
#[derive(Default)]
struct Renewals {
    count: AtomicU64,
    late: AtomicU64,
    least_margin_ms: AtomicU64,
}

async fn held() {
    let seen = Arc::new(Renewals { least_margin_ms: AtomicU64::new(u64::MAX), ..Renewals::default() });
    let observer = seen.clone();
    let locker = Locker::builder()
        .default_ttl(TTL)
        .observer(move |event: &Event<'_>| match event.kind {
            EventKind::Renewed { margin: Some(margin) } => {
                observer.count.fetch_add(1, Ordering::Relaxed);
                observer.least_margin_ms.fetch_min(margin.as_millis() as u64, Ordering::Relaxed);
            }
            EventKind::Lost { .. } | EventKind::RenewalFailed { .. } => {
                observer.late.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        })
        .build(Memory::new())
        .expect("a locker");

    let before = status("VmRSS:");
    let mut guards: Vec<LockGuard> = Vec::with_capacity(HELD);
    for number in 0..HELD {
        guards.push(locker.lock(format!("invoice:{number}")).await.expect("granted"));
    }
    let bytes = (status("VmRSS:") - before) * 1024 / HELD as u64;
    println!("{HELD} held locks: {bytes} bytes each, store and guard included (aim: 1024)");

    let cpu = cpu_ms();
    let start = Instant::now();
    tokio::time::sleep(TTL * 2).await;
    let used = (cpu_ms() - cpu) as f64 / start.elapsed().as_millis() as f64 * 100.0;
    let least = Duration::from_millis(seen.least_margin_ms.load(Ordering::Relaxed));
    // Renewal at one third leaves two thirds of the lease as margin; a renewal that has used up half of that is late.
    let aim = TTL / 3;
    println!(
        "renewed {} times in {:?}, least margin {least:?} (aim: over {aim:?}), {} failed, {used:.1} % of one core",
        seen.count.load(Ordering::Relaxed),
        start.elapsed(),
        seen.late.load(Ordering::Relaxed),
    );
    assert!(guards.iter().all(|guard| !guard.is_lost()), "a lock was lost");
}
