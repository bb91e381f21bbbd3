//! What every contestant in Rust can do.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};

/// The lease of every lock that is not taken to be lost.
pub(crate) const TTL_MS: u64 = 10_000;

/// How many locks of [`Peer::keep_many`] are taken at a time.
const AT_A_TIME: usize = 64;

/// A lock library, or a lower bound for one.
pub(crate) trait Peer: Send + Sync + 'static {
    /// A held lock.
    type Guard: Send;

    /// Returns what one task uses.
    fn for_task(self: &Arc<Self>) -> Arc<Self> {
        self.clone()
    }

    /// Takes the lock, however long that lasts.
    fn lock(&self, key: &str) -> impl Future<Output = Self::Guard> + Send;

    /// Releases it.
    fn unlock(&self, guard: Self::Guard) -> impl Future<Output = ()> + Send;

    /// Takes the lock, sends to `granted`, and renews the lock in the way of this library for as long as the future
    /// lives.
    fn keep(&self, key: String, granted: mpsc::UnboundedSender<()>) -> impl Future<Output = ()> + Send {
        async move {
            let guard = self.lock(&key).await;
            let _ = granted.send(());
            std::future::pending::<()>().await;
            self.unlock(guard).await;
        }
    }

    /// Keeps all `keys` in tasks; returns when all are granted.
    fn keep_many(self: Arc<Self>, keys: Vec<String>) -> impl Future<Output = ()> + Send {
        async move {
            let (granted, mut grants) = mpsc::unbounded_channel();
            let turns = Arc::new(Semaphore::new(AT_A_TIME));
            let count = keys.len();
            let starter = async {
                for key in keys {
                    turns.acquire().await.expect("never closed").forget();
                    let (peer, granted) = (self.clone(), granted.clone());
                    tokio::spawn(async move { peer.keep(key, granted).await });
                }
            };
            let counter = async {
                for _ in 0..count {
                    grants.recv().await.expect("this function has a sender");
                    turns.add_permits(1);
                }
            };
            tokio::join!(starter, counter);
        }
    }
}
