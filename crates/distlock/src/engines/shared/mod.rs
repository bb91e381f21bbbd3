//! What more than one engine needs.

pub(crate) mod admission;
#[cfg(any(feature = "etcd", feature = "redis"))]
pub(crate) mod listing;
#[cfg(any(feature = "etcd", feature = "redis"))]
pub(crate) mod tls;
