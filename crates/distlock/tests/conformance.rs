//! Every case of the conformance suite on every set-up.

#[path = "setups/file.rs"]
mod file_setup;
#[cfg(feature = "postgres")]
#[path = "setups/postgres.rs"]
mod postgres_setups;
#[cfg(feature = "redis")]
#[path = "setups/redis.rs"]
mod redis_setups;
#[cfg(feature = "redis")]
#[path = "setups/redlock.rs"]
mod redlock_setups;

use distlock_testkit::MemorySetup;
use file_setup::FileSetup;

distlock_testkit::conformance! {
    memory: MemorySetup,
    file: FileSetup,
}

#[cfg(feature = "redis")]
distlock_testkit::conformance! {
    redis: redis_setups::Server<redis_setups::Plain>,
    redis_resp2: redis_setups::Server<redis_setups::Resp2>,
    redis_prefix: redis_setups::Server<redis_setups::Prefix>,
    redis_acl: redis_setups::Server<redis_setups::Acl>,
    redis_no_channel: redis_setups::Server<redis_setups::NoChannel>,
    redis_sentinel: redis_setups::Sentinel,
    redis_cluster: redis_setups::Cluster,
    redlock_3: redlock_setups::Nodes<3, 3>,
    redlock_5: redlock_setups::Nodes<5, 5>,
    redlock_3_of_5: redlock_setups::Nodes<5, 3>,
}

#[cfg(all(feature = "redis", feature = "tls"))]
distlock_testkit::conformance! {
    redis_tls: redis_setups::Tls,
}

#[cfg(feature = "etcd")]
mod etcd_setups;

#[cfg(feature = "etcd")]
use etcd_setups::{AuthEtcd, NewerEtcd, OneEtcd, ThreeEtcd};

#[cfg(feature = "etcd")]
distlock_testkit::conformance! {
    etcd: OneEtcd,
    etcd_three: ThreeEtcd,
    etcd_newer: NewerEtcd,
    etcd_auth: AuthEtcd,
}

#[cfg(all(feature = "etcd", feature = "tls"))]
use etcd_setups::MutualTlsEtcd;

#[cfg(all(feature = "etcd", feature = "tls"))]
distlock_testkit::conformance! {
    etcd_mutual_tls: MutualTlsEtcd,
}

#[cfg(feature = "postgres")]
distlock_testkit::conformance! {
    postgres: postgres_setups::Plain,
    postgres_pooled: postgres_setups::Pooled,
    postgres_lent: postgres_setups::Lent,
    postgres_replicated: postgres_setups::Replicated,
}

#[cfg(all(feature = "postgres", feature = "tls"))]
distlock_testkit::conformance! {
    postgres_tls: postgres_setups::Tls,
}
