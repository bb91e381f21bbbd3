//! What more than one engine needs.

#[cfg(any(feature = "etcd", feature = "redis"))]
pub(crate) mod listing;
#[cfg(any(feature = "etcd", feature = "redis"))]
pub(crate) mod tls;
