//! The daemon: locks over HTTP for programs in any language.
//!
//! One locker for all clients. A hold lives as long as its client: while the client's event stream is open, or while the
//! client calls within a silence that it chose. What the client is told is true for as long as it says, also when the daemon
//! or the client is stopped, and when messages are late: `docs/serve.md`.
//!
//! Only the HTTP interface is stable. The Rust interface is for the program `distlock` and may change in any version.

mod api;
mod attempts;
mod counters;
mod daemon;
mod events;
mod failure;
mod hold;
mod holds;
mod liveness;
mod lock_json;
mod log;
mod news;
mod process;
mod routes;
mod service;
mod socket;
mod wanted;

pub use daemon::{Daemon, Listen, Options, Place};
pub use lock_json::{holder_json, lock_json, record_json};
pub use log::{LogLine, LogSink};
pub use news::News;
