//! A lock as an engine lists it.

use std::sync::Arc;

use crate::types::key::Key;
use crate::types::owner::{Holder, Record};

/// A lock as the engine sees it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LockInfo {
    /// The lock.
    pub key: Key,
    /// Who has it, the one that got it first first; empty when it is free and somebody is about to get it.
    pub holders: Vec<Holder>,
    /// Who waits for it, the next one first.
    pub waiters: Vec<Arc<Record>>,
}

impl LockInfo {
    /// What is known about `key`.
    #[must_use]
    pub fn new(key: Key, holders: impl IntoIterator<Item = Holder>, waiters: Vec<Arc<Record>>) -> Self {
        LockInfo { key, holders: holders.into_iter().collect(), waiters }
    }

    /// Who has it; of several, the one that got it first.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        self.holders.first()
    }
}
