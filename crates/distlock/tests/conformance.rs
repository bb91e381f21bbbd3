//! Every case of the conformance suite on every set-up.

use distlock_testkit::MemorySetup;

distlock_testkit::conformance! {
    memory: MemorySetup,
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
