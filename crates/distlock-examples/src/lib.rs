//! Locks for web services: [`LockLayer`] for tower, [`Locked`] for axum. The examples use them.
//!
//! Copy the files you need into your service: this crate is not published.

mod lock_layer;
mod locked;
mod refusal;
#[cfg(test)]
mod testing;

pub use lock_layer::{LockLayer, LockService};
pub use locked::{Lockable, Locked};
pub use refusal::Refusal;
