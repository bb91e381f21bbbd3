//! The library and its Redis client in simulated worlds, by the thousand.
//!
//! A world is a server and some clients on machines of their own, with a network between them that loses, delays and
//! holds up messages, clocks that differ, and crashes. Everything but the server and the network is the code that users
//! run: the core, the engine, the client crate, the scripts. Time is simulated, and a seed decides everything, so that what a
//! seed found can be looked at again. See `docs/decisions/0015-worlds-by-seed.md`.

mod broken;
mod client;
mod crowd;
mod engine;
mod judge;
mod plan;
mod server;
mod story;
mod world;

pub use broken::Broken;
pub use engine::Engine;
pub use judge::Finding;
pub use world::{Order, Outcome, run};
