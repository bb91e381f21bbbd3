//! How a client of etcd is made.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tonic::transport::Channel;

use crate::engines::etcd::engine::Engine;
use crate::engines::etcd::handle::Etcd;
use crate::engines::etcd::protocol::names::Names;
use crate::engines::etcd::wire::client::{Client, Login};
use crate::engines::etcd::wire::endpoint::Endpoint;
use crate::engines::shared::tls::Tls;
use crate::types::error::{Error, ErrorKind, Result};

/// How long to try to reach a server.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Builds an [`Etcd`] engine; made by [`Etcd::builder`] or [`Etcd::over`].
#[must_use = "a builder does nothing until it is built"]
pub struct EtcdBuilder {
    servers: Servers,
    prefix: String,
    verbatim: bool,
    login: Option<Login>,
    dial_timeout: Duration,
    tls: Option<Tls>,
}

enum Servers {
    At(Vec<String>),
    Behind(Channel),
}

impl Etcd {
    /// Returns a builder for the cluster whose servers are at `endpoints`, each `host:port`.
    pub fn builder<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> EtcdBuilder {
        EtcdBuilder::new(Servers::At(endpoints.into_iter().map(Into::into).collect()))
    }

    /// Returns a builder for an engine over a channel that the application has made and keeps connected. The channel should
    /// not balance between servers: what one request has done must be visible to the next.
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// use distlock::{Locker, backend::etcd::Etcd};
    /// use tonic::transport::Endpoint;
    ///
    /// let channel = Endpoint::from_static("http://127.0.0.1:2379").connect_lazy();
    /// let locker = Locker::new(Etcd::over(channel).prefix("locks/").build()?)?;
    /// # Ok(()) }
    /// ```
    pub fn over(channel: Channel) -> EtcdBuilder {
        EtcdBuilder::new(Servers::Behind(channel))
    }
}

impl EtcdBuilder {
    fn new(servers: Servers) -> Self {
        EtcdBuilder {
            servers,
            prefix: String::new(),
            verbatim: false,
            login: None,
            dial_timeout: DIAL_TIMEOUT,
            tls: None,
        }
    }

    /// Sets the prefix of the keys of all locks. Default: none.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Takes slashes in names as they are, so that lock `a/b` is what `etcdctl lock a/b` means. Then the lock `a` is
    /// also held by the holder of `a/b`, as it is for Go's client. Default: slashes are escaped, and names never nest.
    pub fn verbatim_names(mut self) -> Self {
        self.verbatim = true;
        self
    }

    /// Sets the user name and the password. Default: none.
    pub fn login(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Some(Login { name: name.into(), password: password.into() });
        self
    }

    /// Sets the timeout of a connection attempt. Default: 5 s.
    pub fn dial_timeout(mut self, timeout: Duration) -> Self {
        self.dial_timeout = timeout;
        self
    }

    /// Encrypts connections to the endpoints, and trusts the certificates in `ca` (PEM); with `None`, those that the system
    /// trusts. Default: not encrypted. Needs the feature `tls`.
    pub fn tls(mut self, ca: Option<Vec<u8>>) -> Self {
        self.tls.get_or_insert_default().ca = ca;
        self
    }

    /// Encrypts connections, and shows this certificate with its key (both PEM) to the servers. Default: none.
    pub fn tls_identity(mut self, certificate: Vec<u8>, key: Vec<u8>) -> Self {
        self.tls.get_or_insert_default().identity = Some((certificate, key));
        self
    }

    /// Builds the engine. Nothing is sent before it is used.
    ///
    /// # Errors
    /// Kind `Config` if an endpoint or a certificate is invalid; `Unsupported` if TLS is wanted without the feature `tls`.
    pub fn build(self) -> Result<Etcd> {
        let endpoints = match self.servers {
            Servers::Behind(channel) => vec![Endpoint::given(channel)],
            Servers::At(addresses) => addresses
                .iter()
                .map(|address| Endpoint::dial(address, self.tls.as_ref(), self.dial_timeout))
                .collect::<Result<_>>()?,
        };
        if endpoints.is_empty() {
            return Err(Error::new(ErrorKind::Config, "endpoints: at least one is needed"));
        }
        let client = Client::new(endpoints, self.login);
        let names = Names { prefix: self.prefix, verbatim: self.verbatim };
        Ok(Etcd { engine: Arc::new(Engine::new(client, names, self.dial_timeout)) })
    }
}

impl fmt::Debug for EtcdBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdBuilder").field("prefix", &self.prefix).field("login", &self.login).finish_non_exhaustive()
    }
}
