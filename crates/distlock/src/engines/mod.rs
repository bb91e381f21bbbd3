//! The engines. Each implements [`Backend`](crate::backend::Backend) in a folder of its own, whose `open.rs` is its
//! row of the registry. No engine imports another, except that Redlock uses the connections and scripts of Redis.
//!
//! Without its feature, or on a system that it does not run on, an engine is only its `open.rs`: its URLs are still
//! understood, and opening it names what is missing.

#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(not(feature = "etcd"))]
pub(crate) mod etcd {
    pub(crate) mod open;
}
#[cfg(target_os = "linux")]
pub mod file;
#[cfg(not(target_os = "linux"))]
pub(crate) mod file {
    pub(crate) mod open;
}
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(not(feature = "postgres"))]
pub(crate) mod postgres {
    pub(crate) mod open;
    mod schema_name;
}
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(not(feature = "redis"))]
pub(crate) mod redis {
    pub(crate) mod open;
}
#[cfg(feature = "redis")]
pub mod redlock;
#[cfg(not(feature = "redis"))]
pub(crate) mod redlock {
    pub(crate) mod open;
}
pub(crate) mod shared;
