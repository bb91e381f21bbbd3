//! Shared by the fault tests of one Redis server and of several.

use std::time::Duration;

use distlock::backend::Backend;
use distlock::{Clock, Locker, Moment};

/// A generous limit for what must happen.
pub(crate) const TEST_LIMIT: Duration = Duration::from_secs(20);

pub(crate) fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

pub(crate) fn now() -> Moment {
    Clock::system().now()
}

pub(crate) async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Waits until `keys` returns nothing, and fails the test when that takes too long.
pub(crate) async fn expect_none_left(mut keys: impl FnMut() -> Vec<String>) {
    let until = now().after(TEST_LIMIT);
    loop {
        let left = keys();
        if left.is_empty() {
            return;
        }
        assert!(now() < until, "left behind: {left:?}");
        sleep(ms(10)).await;
    }
}

/// Returns a locker on `engine` after one full cycle, so that a fault affects the intended request and neither the
/// dialling nor a missing script.
pub(crate) async fn warm_locker(engine: impl Backend, ttl: Duration) -> Locker {
    let locker = Locker::builder().default_ttl(ttl).retry_interval(ms(50)).build(engine).expect("a locker");
    // A busy machine may not reply in time at first.
    for _ in 0..5 {
        let guard = locker.lock("warm").await.expect("granted");
        let is_extended = guard.extend(ttl).await.is_ok();
        if guard.unlock().await.is_ok() && is_extended {
            return locker;
        }
    }
    panic!("no lock was taken, extended and released without a failure");
}
