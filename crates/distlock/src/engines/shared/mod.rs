//! What more than one engine needs.

pub(crate) mod admission;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod bounded;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
pub(crate) mod contention;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod dial;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod encryption;
pub(crate) mod host;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod late_claims;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
pub(crate) mod listing;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod mode_text;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod record_text;
pub(crate) mod row;
pub(crate) mod settings;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis"))]
pub(crate) mod tls;
pub(crate) mod url_parts;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod waiting;
