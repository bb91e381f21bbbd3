//! What tells whether an engine is right: one conformance suite for all of them, backends that are wrong on purpose to
//! show that the suite notices, and a checker of histories.
//!
//! An engine's author implements [`Setup`] and writes one line:
//!
//! ```ignore
//! distlock_testkit::conformance! { memory: MemorySetup }
//! ```

pub mod broken;
pub mod cases;
pub mod conformance;
pub mod history;
mod polls;
mod setup;
mod wire;

pub use polls::poll_times;
pub use setup::{Client, MemorySetup, Setup, World};
pub use wire::{Calls, Wire};
