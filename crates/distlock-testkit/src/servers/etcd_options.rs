//! The start options of an etcd server or cluster.

use std::time::Duration;

use super::certs::Certs;
use super::etcd::EtcdServer;
use super::etcd_cluster::EtcdCluster;
use super::etcd_version::EtcdVersion;

/// Start options. Defaults: Debian's version, no authentication, no TLS, etcd's own timing.
#[derive(Debug, Clone, Default)]
#[must_use = "call start() or start_cluster() on it"]
pub struct EtcdOptions {
    pub(super) version: EtcdVersion,
    pub(super) flags: Vec<String>,
    pub(super) root_password: Option<String>,
    pub(super) tls: Option<Certs>,
}

impl EtcdOptions {
    /// Selects a version.
    pub fn version(mut self, version: EtcdVersion) -> Self {
        self.version = version;
        self
    }

    /// Adds an argument to the command line, such as `--max-txn-ops=10`.
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Enables authentication; the user `root` has this password.
    pub fn auth(mut self, root_password: &str) -> Self {
        self.root_password = Some(root_password.to_owned());
        // The minimum that bcrypt allows: these passwords protect nothing.
        self.flag("--bcrypt-cost=4")
    }

    /// Sets how long an authentication token is valid.
    pub fn auth_token_ttl(self, seconds: u32) -> Self {
        self.flag(format!("--auth-token-ttl={seconds}"))
    }

    /// Requires TLS, and client certificates of the same authority.
    pub fn mutual_tls(mut self, certs: &Certs) -> Self {
        self.tls = Some(certs.clone());
        self.flag("--client-cert-auth=true").flag(format!("--trusted-ca-file={}", certs.ca().display()))
    }

    /// Requires TLS without client certificates.
    pub fn tls(mut self, certs: &Certs) -> Self {
        self.tls = Some(certs.clone());
        self
    }

    /// Sets the data size that raises the NOSPACE alarm.
    pub fn quota_bytes(self, bytes: u64) -> Self {
        self.flag(format!("--quota-backend-bytes={bytes}"))
    }

    /// Sets the leader's heartbeat interval, and the silence after which followers elect another leader.
    pub fn timing(self, heartbeat: Duration, election: Duration) -> Self {
        let heartbeat = format!("--heartbeat-interval={}", heartbeat.as_millis());
        self.flag(heartbeat).flag(format!("--election-timeout={}", election.as_millis()))
    }

    /// Starts one server and waits until it answers.
    #[track_caller]
    pub fn start(self) -> EtcdServer {
        let [member] = EtcdCluster::launch(&self, 1).into_members().try_into().expect("one member");
        member
    }

    /// Starts a cluster of three and waits until each member answers.
    #[track_caller]
    pub fn start_cluster(self) -> EtcdCluster {
        EtcdCluster::launch(&self, 3)
    }

    pub(super) fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}
