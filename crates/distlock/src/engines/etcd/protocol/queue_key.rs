//! A key of a lock's queue, as it was made once.

#![cfg_attr(
    not(feature = "simulation"),
    allow(unreachable_pub, reason = "only the model of this repository reaches it")
)]

use crate::engines::etcd::protocol::messages::KeyValue;

/// A key by its name and its create revision: a later key of the same name is another one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueKey {
    /// Its name.
    pub key: Vec<u8>,
    /// Its create revision.
    pub created: i64,
}

impl QueueKey {
    pub(crate) fn of(kv: &KeyValue) -> Self {
        QueueKey { key: kv.key.clone(), created: kv.create_revision }
    }
}
