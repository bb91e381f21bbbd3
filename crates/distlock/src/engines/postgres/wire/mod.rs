//! Connections: dialling, reconnecting, batching, listening.

pub(super) mod batcher;
pub(super) mod connection;
pub(super) mod dial;
pub(super) mod link;
pub(super) mod listener;
pub(super) mod options;
pub(super) mod pass_file;
