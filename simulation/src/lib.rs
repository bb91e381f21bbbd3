//! The library and its Redis client in thousands of simulated worlds.
//!
//! A world has servers and clients on simulated machines, with a network that loses, delays and holds messages, clocks
//! that differ, and crashes. Everything except the server and the network is the code that users run: the core, the
//! engine, the client crate, the scripts. Time is simulated, and a seed decides everything, so that a finding can be
//! reproduced from its seed. See `docs/decisions/0015-worlds-by-seed.md`.

mod broken;
mod client;
mod crowd;
mod engine;
mod judge;
mod plan;
mod server;
mod timeline;
mod world;

pub use broken::Broken;
pub use engine::Engine;
pub use judge::Finding;
pub use world::{Order, Outcome, run};
