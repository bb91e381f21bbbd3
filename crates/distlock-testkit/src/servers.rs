//! Real servers for tests: child processes on loopback ports of their own, in directories of their own.
//!
//! Dropping a server kills it and removes its directory, also when a test panics. A test runner that is itself killed
//! takes its servers along. A server program that the machine lacks is a panic that says how to install it.
//!
//! Everything here blocks for as long as a server takes to answer; a test that must not be held up meanwhile calls it
//! from a thread of its own.

mod built;
mod certs;
mod directory;
mod etcd;
mod etcd_cluster;
mod etcd_options;
mod etcd_version;
mod etcdctl;
mod http;
mod patience;
mod port;
mod process;
mod program;
mod redis;
mod redis_cluster;
mod redis_options;
mod redlock_nodes;
mod reply;
mod resp;
mod sentinel;
mod spawner;

pub(crate) use built::built;
pub use certs::Certs;
pub use directory::Directory;
pub use etcd::EtcdServer;
pub use etcd_cluster::EtcdCluster;
pub use etcd_options::EtcdOptions;
pub use etcd_version::EtcdVersion;
pub use etcdctl::Etcdctl;
pub use patience::{PATIENCE, eventually, poll_until};
pub use port::Port;
pub use process::Process;
pub use program::find_program;
pub use redis::{Data, RedisServer};
pub use redis_cluster::{RedisCluster, SLOTS};
pub use redis_options::RedisOptions;
pub use redlock_nodes::RedlockNodes;
pub use reply::Reply;
pub use resp::RespClient;
pub use sentinel::{SERVICE, SentinelSetup};
pub(crate) use spawner::{spawn, tied};
