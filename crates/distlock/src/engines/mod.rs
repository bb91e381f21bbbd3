//! The engines. Each implements [`Backend`](crate::backend::Backend); none knows another, except that Redlock uses Redis's
//! connections.

#[cfg(feature = "etcd")]
pub mod etcd;
pub mod file;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redlock;
pub(crate) mod shared;
