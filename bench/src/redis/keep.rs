//! Nothing but held locks and their renewals, on a server that runs already: for counting instructions of either side.
//!
//! `valgrind --tool=callgrind distlock-bench redis keep PORT LOCKS SECONDS`, with two times: what they differ by is the cost
//! of the renewals, without that of taking the locks.

use std::sync::Arc;
use std::time::Duration;

use distlock::LockGuard;

use super::{TTL, locker};
use crate::process::cpu_us;

/// Takes `locks` locks one after the other, waits until the first renewals are over, and holds them for `seconds`.
pub(super) fn run(port: u16, locks: usize, seconds: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let locker = Arc::new(locker(port));
        let mut guards: Vec<LockGuard> = Vec::with_capacity(locks);
        for number in 0..locks {
            guards.push(locker.lock(format!("held:{number}")).await.expect("granted"));
        }
        tokio::time::sleep(TTL / 3 + Duration::from_millis(500)).await;
        let before = cpu_us();
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let used = cpu_us() - before;
        println!("{locks} held: {:.3} % of a core", used as f64 / seconds.max(1) as f64 / 10_000.0);
        assert!(guards.iter().all(|guard| !guard.is_lost()), "a lock was lost");
        // Without releasing what is held: that is not measured.
        std::process::exit(0);
    });
}
