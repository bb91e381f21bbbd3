//! Real servers for tests: child processes, each with its own loopback ports and directory.
//!
//! Dropping a server kills it and removes its directory, also when a test panics. When a test runner is itself killed,
//! its servers are killed too. If a server program is not installed, the panic says how to install it.
//!
//! Every call blocks until the server replies; a test that must not block calls it from another thread.

mod built;
mod certs;
mod directory;
mod etcd;
mod etcd_cluster;
mod etcd_options;
mod etcd_version;
mod etcdctl;
mod http;
mod pgbouncer;
mod polling;
mod port;
mod postgres;
mod postgres_options;
mod postgres_programs;
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
pub use pgbouncer::PgBouncer;
pub use polling::{TEST_LIMIT, eventually, poll_until};
pub use port::Port;
pub use postgres::PostgresServer;
pub use postgres_options::PostgresOptions;
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
