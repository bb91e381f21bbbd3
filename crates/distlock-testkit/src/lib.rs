//! What tells whether an engine is right: one conformance suite for all of them, backends that are wrong on purpose to
//! show that the suite notices, and a checker of histories.
//!
//! An engine's author implements [`Setup`] and writes one line:
//!
//! ```ignore
//! distlock_testkit::conformance! { memory: MemorySetup }
//! ```
//!
//! The fault tests stand on [`servers`] (real ones, to kill, freeze and restart), a [`proxy`] in front of them, a second
//! process that takes locks ([`mod@child`]), lock clients of other languages ([`stranger`]), clocks that can be moved
//! ([`clock_shim`]) and networks that can be taken apart ([`netns`]).

mod any_engine;
pub mod broken;
pub mod capability_table;
pub mod cases;
pub mod child;
pub mod clock_shim;
pub mod conformance;
mod dice;
mod fuzz;
pub mod history;
pub mod netns;
mod polls;
pub mod proxy;
pub mod servers;
mod setup;
pub mod stranger;
mod ticks;
mod turns;
mod wire;

pub use dice::Dice;
pub use fuzz::{assert_in_proportion, fuzz};
pub use polls::poll_times;
pub use setup::{Client, MemorySetup, Setup, World};
pub use ticks::Ticks;
pub use turns::Turns;
pub use wire::{Calls, Wire};
