//! The test kit: one conformance suite for all engines, engines that are broken on purpose to show that the suite
//! detects it, and a checker of histories.
//!
//! The author of an engine implements [`Setup`] and writes one line:
//!
//! ```ignore
//! distlock_testkit::conformance! { memory: MemorySetup }
//! ```
//!
//! The fault tests use [`servers`] (real ones, to kill, freeze and restart), a [`proxy`] in front of them, a second
//! process that takes locks ([`mod@child`]), lock clients of other languages ([`stranger`]), clocks that can be
//! shifted ([`clock_shim`]) and networks that can be partitioned ([`netns`]).

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
