//! rslock, on one server or with Redlock on several.

use std::time::Duration;

use rslock::{Lock, LockManager};
use tokio::sync::mpsc;

use crate::peer::Peer;

pub(crate) struct Rslock {
    manager: LockManager,
    ttl: Duration,
}

impl Rslock {
    pub(crate) fn new(servers: &[&str], ttl: Duration) -> Rslock {
        let manager = LockManager::new(servers.iter().map(|server| format!("redis://{server}/")).collect());
        Rslock { manager, ttl }
    }
}

impl Peer for Rslock {
    type Guard = Lock;

    async fn lock(&self, key: &str) -> Lock {
        // Tries again until it has the lock, with the default pauses.
        self.manager.acquire_no_guard(key, self.ttl).await.expect("acquired")
    }

    async fn unlock(&self, guard: Lock) {
        guard.release().await;
    }

    async fn keep(&self, key: String, granted: mpsc::UnboundedSender<()>) {
        let work = async || {
            let _ = granted.send(());
            std::future::pending::<()>().await;
        };
        self.manager.using(key.as_bytes(), self.ttl, work).await.expect("renewed");
    }
}
