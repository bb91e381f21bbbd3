//! Locks on real servers under injected faults.
//!
//! [`run`] starts servers and worker processes, injects the faults of a [`Plan`], and judges from the workers'
//! journals what they believed. `cargo xtask chaos ENGINE --seconds N --seed S` is this crate's program.

mod arena;
mod broken;
mod engine;
mod fault;
mod job;
mod job_worker;
mod journal;
mod judge;
mod links;
mod log_events;
mod plan;
mod pulse;
mod resource;
mod run;
pub mod soak;
mod tally;
mod tick_judge;
mod timeline;
pub mod worker;
mod workers;

pub use broken::Broken;
pub use engine::Engine;
pub use fault::{Fault, Trouble};
pub use judge::Finding;
pub use plan::{Plan, Step};
pub use run::{Order, describe, run};
pub use tally::{Outcome, Tally};
pub use tick_judge::TickViolation;
