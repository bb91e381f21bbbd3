//! One client of a store.

use std::sync::OnceLock;

use super::faults::Operation;
use super::state::{LockTable, Sender};
use super::store::Store;
use crate::contract::Attachment;
use crate::types::clock::{DEFAULT_DRIFT, Moment};
use crate::types::error::Result;

/// One client of a [`Store`].
#[derive(Debug)]
pub struct Memory {
    pub(super) store: Store,
    pub(super) attachment: OnceLock<Attachment>,
}

impl Memory {
    /// Returns the only client of a store of its own.
    #[must_use]
    pub fn new() -> Memory {
        Memory::on(&Store::new())
    }

    /// Returns a client of `store`.
    #[must_use]
    pub fn on(store: &Store) -> Memory {
        Memory { store: store.clone(), attachment: OnceLock::new() }
    }

    pub(super) fn drift(&self) -> f64 {
        self.attachment.get().map_or(DEFAULT_DRIFT, |attachment| attachment.drift)
    }

    /// Reads the client's own clock, which may differ from the store's.
    pub(super) fn now(&self) -> Moment {
        self.attachment.get().map_or(self.store.clock(), |attachment| &attachment.clock).now()
    }

    pub(super) fn sender(&self) -> Sender {
        Sender { sent: self.now(), losses: self.attachment.get().map(|attachment| attachment.losses.clone()) }
    }

    /// Carries a request out on the store, with the fault that is scripted for it.
    pub(super) async fn request<T>(
        &self,
        operation: Operation,
        apply: impl FnOnce(&mut LockTable, Moment) -> Result<T>,
    ) -> Result<T> {
        self.store.request(operation, apply).await
    }
}

impl Default for Memory {
    fn default() -> Self {
        Memory::new()
    }
}
