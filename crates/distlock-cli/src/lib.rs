//! The `distlock` program, as a library for its own tests. Not a public API.

pub mod acquire;
pub mod ancestry;
pub mod child;
pub mod commands;
mod control_request;
mod control_socket;
pub mod duration;
pub mod engine;
pub mod environment;
pub mod exit;
pub mod flags;
mod guardian;
pub mod histogram;
pub mod hold;
pub mod hold_token;
pub mod lock_view;
pub mod note;
pub mod plan;
pub mod policy;
mod report;
pub mod signal_name;
pub mod signal_stream;
pub mod supervise;
mod sys;
mod terminal;
mod tree;
