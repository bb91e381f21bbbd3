//! Limits how many claims of one lock this engine has in flight.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::types::key::Key;
use crate::types::sync::{Mutex, MutexGuard};

/// How many claims of one lock are in flight at once. Enough that a node which is slow to reply to one claim does not hold
/// up the others; few enough that a release is never sent behind the claims of a thousand tasks.
const MAX_CLAIMS: usize = 8;

/// The limits of all locks with a claim in flight.
#[derive(Debug, Default)]
pub(crate) struct ClaimLimits(Mutex<HashMap<Key, Arc<Semaphore>>>);

/// The right to have a claim in flight, until it is dropped.
pub(crate) struct ClaimPermit<'a> {
    limits: &'a ClaimLimits,
    key: &'a Key,
    _permit: Option<OwnedSemaphorePermit>,
}

impl ClaimLimits {
    /// Waits until another claim of `key` may be sent.
    pub(crate) async fn acquire<'a>(&'a self, key: &'a Key) -> ClaimPermit<'a> {
        let limit = self.table().entry(key.clone()).or_insert_with(|| Arc::new(Semaphore::new(MAX_CLAIMS))).clone();
        // Made before the wait, so that a claim that is dropped while it waits leaves no entry behind.
        let mut permit = ClaimPermit { limits: self, key, _permit: None };
        // The semaphore is never closed.
        permit._permit = limit.acquire_owned().await.ok();
        permit
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Key, Arc<Semaphore>>> {
        self.0.lock()
    }
}

impl Drop for ClaimPermit<'_> {
    fn drop(&mut self) {
        self._permit = None;
        let mut table = self.limits.table();
        // A claim that waits has a clone of the semaphore.
        if table.get(self.key).is_some_and(|limit| Arc::strong_count(limit) == 1) {
            table.remove(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn few_claims_are_in_flight_and_an_unused_limit_is_dropped() {
        let (limits, key) = (ClaimLimits::default(), Key::new("a").unwrap());
        let mut inside = Vec::new();
        for _ in 0..MAX_CLAIMS {
            inside.push(limits.acquire(&key).await);
        }
        {
            let mut next = std::pin::pin!(limits.acquire(&key));
            let poll = std::future::poll_fn(|context| std::task::Poll::Ready(next.as_mut().poll(context).is_ready()));
            assert!(!poll.await, "one too many");
            inside.pop();
            let through = next.await;
            assert_eq!(limits.table().len(), 1);
            drop(through);
        }
        inside.clear();
        assert!(limits.table().is_empty());
    }
}
