//! Waiting for a notification by inotify.

use std::future::pending;
use std::time::Duration;

use super::claim::{Attempted, attempt};
use super::state::State;
use crate::contract::{Claim, Wake};

/// inotify tells of a close a moment before the kernel frees the lock: the pause before each try after a notification.
const HINT_RETRY_PAUSES: [Duration; 5] = [
    Duration::from_millis(1),
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(4),
    Duration::from_millis(8),
];

pub(super) async fn wait(state: &State, claim: &Claim) -> Wake {
    let mut pauses = [].iter();
    loop {
        // The attempt sees what changed before this call; a later change is a notification.
        match attempt(state, claim) {
            Ok(Attempted::Granted(grant)) => return Wake::Granted(grant),
            Ok(Attempted::Busy(..)) => {}
            // The next claim meets the error again and reports it.
            Err(_) => return Wake::Retry,
        }
        if let Some(pause) = pauses.next() {
            tokio::time::sleep(*pause).await;
            continue;
        }
        let Some(waiter) = state.waiters.get(claim.attempt) else { return pending().await };
        waiter.hint().await;
        pauses = HINT_RETRY_PAUSES.iter();
    }
}
