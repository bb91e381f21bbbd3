//! The etcd engine on real servers.

use std::net::SocketAddr;
use std::time::Duration;

use distlock::backend::etcd::{Etcd, EtcdBuilder};
use distlock_testkit::Setup;
#[cfg(feature = "tls")]
use distlock_testkit::servers::Certs;
use distlock_testkit::servers::{EtcdCluster, EtcdServer, EtcdVersion, Etcdctl};

const PASSWORD: &str = "s3cret";

/// The shortest lease that etcd grants.
const TTL: Duration = Duration::from_secs(2);

fn engine(addresses: &[SocketAddr]) -> EtcdBuilder {
    Etcd::builder(addresses.iter().map(ToString::to_string))
}

fn leftovers(etcdctl: &Etcdctl) -> Vec<String> {
    let keys = etcdctl.run(&["get", "--prefix", "--keys-only", ""]);
    keys.lines().filter(|key| !key.is_empty()).map(str::to_owned).collect()
}

/// Runs blocking work where it blocks no other task.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("the task did not panic")
}

macro_rules! setup {
    ($(#[$doc:meta])* $name:ident($server:ty) = $start:expr, $addresses:expr, $finish:expr) => {
        $(#[$doc])*
        pub(crate) struct $name($server);

        impl Setup for $name {
            type Engine = Etcd;

            async fn start() -> Self {
                $name(aside($start).await)
            }

            async fn client(&self) -> Etcd {
                let (addresses, finish): (fn(&$server) -> Vec<SocketAddr>, fn(EtcdBuilder) -> EtcdBuilder) =
                    ($addresses, $finish);
                finish(engine(&addresses(&self.0))).build().expect("a client")
            }

            fn ttl(&self) -> Duration {
                TTL
            }

            async fn leftovers(&self) -> Vec<String> {
                let etcdctl = self.0.etcdctl();
                aside(move || leftovers(&etcdctl)).await
            }
        }
    };
}

setup! {
    /// One server of Debian's version.
    OneEtcd(EtcdServer) = EtcdServer::start, |server| vec![server.address()], |client| client
}

setup! {
    /// A cluster of three.
    ThreeEtcd(EtcdCluster) = EtcdCluster::start, EtcdCluster::addresses, |client| client
}

setup! {
    /// One server of a newer version.
    NewerEtcd(EtcdServer) = || EtcdServer::options().version(EtcdVersion::V3_5).start(),
    |server| vec![server.address()],
    |client| client.prefix("team/locks/")
}

setup! {
    /// One server with authentication.
    AuthEtcd(EtcdServer) = || EtcdServer::options().auth(PASSWORD).start(),
    |server| vec![server.address()],
    |client| client.login("root", PASSWORD)
}

/// One server that requires a client certificate.
#[cfg(feature = "tls")]
pub(crate) struct MutualTlsEtcd {
    server: EtcdServer,
    certs: Certs,
}

#[cfg(feature = "tls")]
impl Setup for MutualTlsEtcd {
    type Engine = Etcd;

    async fn start() -> Self {
        let start = || {
            let certs = Certs::new();
            MutualTlsEtcd { server: EtcdServer::options().mutual_tls(&certs).start(), certs }
        };
        aside(start).await
    }

    async fn client(&self) -> Etcd {
        let read = |file: std::path::PathBuf| std::fs::read(file).expect("a certificate");
        engine(&[self.server.address()])
            .tls(Some(read(self.certs.ca())))
            .tls_identity(read(self.certs.client_cert()), read(self.certs.client_key()))
            .build()
            .expect("a client")
    }

    fn ttl(&self) -> Duration {
        TTL
    }

    async fn leftovers(&self) -> Vec<String> {
        let etcdctl = self.server.etcdctl();
        aside(move || leftovers(&etcdctl)).await
    }
}
