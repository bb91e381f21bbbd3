//! Connections: dialling, reconnecting, batching, listening.

pub(super) mod batcher;
pub(super) mod claims;
pub(super) mod connection;
pub(super) mod dial;
pub(super) mod lender;
pub(super) mod link;
pub(super) mod links;
pub(super) mod listener;
pub(super) mod options;
pub(super) mod pass_file;
pub(super) mod releases;
pub(super) mod renewals;
