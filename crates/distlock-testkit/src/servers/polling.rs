//! Waits for conditions by polling.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// How long the kit waits for a condition: generous, since machines are slow at times.
pub const TEST_LIMIT: Duration = Duration::from_secs(30);

const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Polls until `look` returns a value; returns `None` if that takes longer than `most`.
pub fn poll_until<T>(most: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(seen) = look() {
            return Some(seen);
        }
        if start.elapsed() > most {
            return None;
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
}

/// Polls until `look` returns a value, and panics if that takes longer than [`TEST_LIMIT`]. `what` completes the
/// sentence "waited for …".
#[track_caller]
pub fn eventually<T>(what: impl Display, look: impl FnMut() -> Option<T>) -> T {
    match poll_until(TEST_LIMIT, look) {
        Some(seen) => seen,
        None => panic!("waited {TEST_LIMIT:?} in vain for {what}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_condition_is_seen_and_a_missing_one_times_out() {
        let mut looks = 0;
        let third = || {
            looks += 1;
            (looks == 3).then_some("there")
        };
        assert_eq!(poll_until(TEST_LIMIT, third), Some("there"));
        assert_eq!(poll_until(Duration::from_millis(20), || None::<()>), None);
    }
}
