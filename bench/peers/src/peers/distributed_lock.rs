//! distributed-lock, on one server.

use std::time::Duration;

use distributed_lock_core::traits::{DistributedLock as _, LockHandle, LockProvider};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};

use crate::peer::Peer;

/// `acquire` does not wait for a lock that is held, whatever its timeout; it documents no pause for its callers.
const PAUSE: Duration = Duration::from_millis(10);

pub(crate) struct DistributedLock(RedisLockProvider);

impl DistributedLock {
    /// Connects with the library's default ratios between lease, renewal and least validity.
    pub(crate) async fn connect(server: &str, ttl: Duration) -> DistributedLock {
        let provider = RedisLockProvider::builder().url(format!("redis://{server}")).expiry(ttl);
        let provider = provider.extension_cadence(ttl / 3).min_validity(ttl * 9 / 10);
        DistributedLock(provider.build().await.expect("connected"))
    }
}

impl Peer for DistributedLock {
    type Guard = RedisLockHandle;

    async fn lock(&self, key: &str) -> RedisLockHandle {
        let lock = self.0.create_lock(key);
        loop {
            if let Ok(handle) = lock.acquire(None).await {
                return handle;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn unlock(&self, guard: RedisLockHandle) {
        guard.release().await.expect("released");
    }
}
