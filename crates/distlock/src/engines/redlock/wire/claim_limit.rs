//! How many claims for one lock this engine has on their way at once.

use crate::types::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::types::key::Key;

/// Enough that nobody waits for a node that is slow to answer somebody else; few enough that a release never stands
/// behind the claims of a thousand tasks.
const AT_ONCE: usize = 8;

/// The gates of all locks that somebody claims right now.
#[derive(Debug, Default)]
pub(crate) struct Gates(Mutex<HashMap<Key, Arc<Semaphore>>>);

/// A claim that is on its way.
pub(crate) struct Passage<'a> {
    gates: &'a Gates,
    key: &'a Key,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Gates {
    /// Returns when it is this claim's turn.
    pub(crate) async fn pass<'a>(&'a self, key: &'a Key) -> Passage<'a> {
        let gate = self.table().entry(key.clone()).or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE))).clone();
        // Made before the wait, so that a claim that is dropped in it leaves no gate behind.
        let mut passage = Passage { gates: self, key, _permit: None };
        // Nobody closes a gate.
        passage._permit = gate.acquire_owned().await.ok();
        passage
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Key, Arc<Semaphore>>> {
        self.0.lock()
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        self._permit = None;
        let mut table = self.gates.table();
        // Whoever waits at it has a share of it.
        if table.get(self.key).is_some_and(|gate| Arc::strong_count(gate) == 1) {
            table.remove(self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_gate_lets_few_pass_at_once_and_is_gone_when_nobody_wants_through() {
        let (gates, key) = (Gates::default(), Key::new("a").unwrap());
        let mut inside = Vec::new();
        for _ in 0..AT_ONCE {
            inside.push(gates.pass(&key).await);
        }
        {
            let mut next = std::pin::pin!(gates.pass(&key));
            let poll = std::future::poll_fn(|context| std::task::Poll::Ready(next.as_mut().poll(context).is_ready()));
            assert!(!poll.await, "one too many");
            inside.pop();
            let through = next.await;
            assert_eq!(gates.table().len(), 1);
            drop(through);
        }
        inside.clear();
        assert!(gates.table().is_empty());
    }
}
