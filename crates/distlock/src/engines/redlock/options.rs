//! The options that all nodes of one engine share.

use std::time::Duration;

use crate::engines::redis::node::{Keys, NodeOptions};
use crate::types::error::Result;
use crate::types::key::Key;
use crate::types::token::AttemptId;

/// The nodes and the options that they share.
#[derive(Debug)]
pub(super) struct RedlockOptions {
    pub(super) nodes: Vec<NodeOptions>,
    pub(super) prefix: String,
    pub(super) dial_timeout: Duration,
    pub(super) restart_guard: bool,
    /// Names the channel on which every node notifies this engine's waiters.
    pub(super) wake: AttemptId,
}

impl RedlockOptions {
    /// Returns the key of a node's note: the fence of a lock with an empty name, which no lock can have.
    pub(super) fn note_key(&self) -> String {
        format!("{{{}}}:f", self.prefix)
    }

    pub(super) fn keys(&self, key: &Key) -> Result<Keys> {
        Keys::new(&self.prefix, key)
    }
}
