//! What tells whether an engine is right: one conformance suite for all of them, backends that are wrong on purpose to
//! show that the suite notices, and a checker of histories.
//!
//! An engine's author implements [`Setup`] and writes one line:
//!
//! ```ignore
//! distlock_testkit::conformance! { memory: MemorySetup }
//! ```
//!
//! The fault tests stand on [`servers`] (real ones, to kill, freeze and restart) and on a [`proxy`] in front of them.

pub mod broken;
pub mod cases;
pub mod conformance;
pub mod history;
mod polls;
pub mod proxy;
pub mod servers;
mod setup;
mod wire;

pub use polls::poll_times;
pub use setup::{Client, MemorySetup, Setup, World};
pub use wire::{Calls, Wire};
