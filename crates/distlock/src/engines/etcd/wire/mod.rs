//! How requests reach the cluster: connections, batches of writes, and the watch stream.

pub(crate) mod batcher;
pub(crate) mod caller_runtime;
pub(crate) mod client;
pub(crate) mod endpoint;
#[cfg(test)]
pub(crate) mod keys_only;
pub(crate) mod tasks;
pub(crate) mod unary;
pub(crate) mod watches;
