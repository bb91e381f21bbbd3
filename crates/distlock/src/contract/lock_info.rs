//! A lock as an engine lists it.

use std::sync::Arc;

use crate::types::key::Key;
use crate::types::owner::{Holder, Record};

/// A lock as the engine sees it.
///
/// With the feature `serde` it can be sent to others:
///
/// ```
/// # #[cfg(feature = "serde")]
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use distlock::{Locker, backend::LockInfo};
/// let locker = Locker::connect("mem://lock-info").await?;
/// let guard = locker.lock("order:7").label("shipping").await?;
/// let lock = locker.inspect().get("order:7").await?.expect("it is held");
/// let json = serde_json::to_string(&lock)?;
/// assert!(json.contains("shipping"), "{json}");
/// assert_eq!(serde_json::from_str::<LockInfo>(&json)?.holder().unwrap().token, Some(guard.fencing_token()));
/// # Ok(()) }
/// # #[cfg(not(feature = "serde"))] fn main() {}
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock.
    pub key: Key,
    /// The holders in the order of their grants; empty while the lock is between two holders.
    pub holders: Vec<Holder>,
    /// The waiters in the order of the queue.
    pub waiters: Vec<Arc<Record>>,
}

impl LockInfo {
    /// Returns the description of `key`.
    #[must_use]
    pub fn new(key: Key, holders: impl IntoIterator<Item = Holder>, waiters: Vec<Arc<Record>>) -> Self {
        LockInfo { key, holders: holders.into_iter().collect(), waiters }
    }

    /// Returns the holder; of several, the first.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        self.holders.first()
    }
}
