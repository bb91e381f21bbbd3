//! What more than one engine needs.

pub(crate) mod admission;
pub(crate) mod history;
#[cfg(any(feature = "etcd", feature = "redis"))]
pub(crate) mod listing;
#[cfg(any(feature = "etcd", feature = "redis"))]
pub(crate) mod tls;
