//! Makes a Redis engine.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::engines::redis::client::Redis;
use crate::engines::redis::state::restart_guard::RestartGuard;
use crate::engines::redis::wire::options::{Options, Protocol};
use crate::engines::redis::wire::sentinels::Sentinels;
use crate::engines::shared::dial::{Address, Dialer};
use crate::engines::shared::encryption::Encryption;
use crate::engines::shared::tls::Tls;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::owner::MAX_TEXT_BYTES;
use crate::types::token::AttemptId;

const DEFAULT_DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Builds a [`Redis`] engine; made by [`Redis::tcp`], [`unix`](Redis::unix), [`sentinel`](Redis::sentinel),
/// [`cluster`](Redis::cluster) or [`over`](Redis::over).
///
/// ```
/// use std::time::Duration;
/// use distlock::backend::redis::Redis;
///
/// let servers = [("s1", 26379), ("s2", 26379), ("s3", 26379)];
/// let engine = Redis::sentinel(servers, "mymaster")
///     .password("secret")
///     .prefix("shop:")
///     .restart_guard(true)
///     .dial_timeout(Duration::from_secs(2))
///     .build()?; // connects when a locker is made of it
/// # drop(engine);
/// # Ok::<(), distlock::Error>(())
/// ```
#[must_use = "a builder does nothing until it is built"]
pub struct RedisBuilder {
    servers: Servers,
    tls: Option<Tls>,
    tls_server_name: Option<String>,
    restart_guard: bool,
    /// Everything that does not depend on the servers.
    options: Options,
}

/// How the servers were named.
enum Servers {
    One(Address),
    Sentinel(Sentinels),
    Cluster(Vec<Address>),
    /// They look after their own encryption.
    Behind(Dialer),
}

impl Redis {
    /// Returns a builder for the server with this name or address. An IPv6 address needs no brackets.
    pub fn tcp(host: &str, port: u16) -> RedisBuilder {
        RedisBuilder::new(Servers::One(Address::new(host, port)))
    }

    /// Returns a builder for the server on a Unix socket of this machine.
    pub fn unix(path: impl Into<PathBuf>) -> RedisBuilder {
        RedisBuilder::new(Servers::Behind(Dialer::unix(path.into())))
    }

    /// Returns a builder for the master of `service`, as the sentinels at these hosts and ports name it. More than half of
    /// them must agree, so name them all.
    pub fn sentinel<'a>(sentinels: impl IntoIterator<Item = (&'a str, u16)>, service: &str) -> RedisBuilder {
        let addresses = sentinels.into_iter().map(|(host, port)| Address::new(host, port)).collect();
        RedisBuilder::new(Servers::Sentinel(Sentinels::new(addresses, service)))
    }

    /// Returns a builder for a cluster, of which these are some of the nodes.
    pub fn cluster<'a>(nodes: impl IntoIterator<Item = (&'a str, u16)>) -> RedisBuilder {
        RedisBuilder::new(Servers::Cluster(nodes.into_iter().map(|(host, port)| Address::new(host, port)).collect()))
    }

    /// Returns a builder for a server behind any stream, such as a tunnel. `dial` is called for each connection, and again
    /// whenever one has died; it runs inside a tokio runtime. `place` names the server in messages.
    ///
    /// ```no_run
    /// # async fn f() -> distlock::Result<()> {
    /// use distlock::{Locker, backend::redis::Redis};
    /// use tokio::net::TcpStream;
    ///
    /// let engine = Redis::over("redis through the tunnel", || TcpStream::connect("127.0.0.1:16379")).build()?;
    /// let locker = Locker::new(engine)?;
    /// # Ok(()) }
    /// ```
    pub fn over<F, Fut, S>(place: &str, dial: F) -> RedisBuilder
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        RedisBuilder::new(Servers::Behind(Dialer::new(place, dial)))
    }
}

impl RedisBuilder {
    fn new(servers: Servers) -> RedisBuilder {
        let dialer = match &servers {
            Servers::One(address) => Dialer::tcp(address, None),
            Servers::Behind(dialer) => dialer.clone(),
            Servers::Sentinel(sentinels) => unknown_yet(&format!("the master of {:?}", sentinels.service)),
            Servers::Cluster(_) => unknown_yet("a node of the cluster"),
        };
        let options = Options {
            dialer,
            sentinels: None,
            is_cluster: false,
            encryption: None,
            prefix: String::new(),
            database: 0,
            username: None,
            password: None,
            protocol: None,
            dial_timeout: DEFAULT_DIAL_TIMEOUT,
            wait_replicas: 0,
            loads_scripts: true,
            guard: None,
            needs_info: false,
            wake: AttemptId::random(),
        };
        RedisBuilder { servers, tls: None, tls_server_name: None, restart_guard: false, options }
    }

    /// Sets the prefix of each lock's name in Redis. Default: none.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.options.prefix = prefix.into();
        self
    }

    /// Sets the number of the database. Default: 0.
    pub fn database(mut self, number: u32) -> Self {
        self.options.database = number;
        self
    }

    /// Sets the user of the server's access list. Default: the server's default user.
    pub fn username(mut self, name: &str) -> Self {
        self.options.username = Some(name.into());
        self
    }

    /// Sets the password. Default: none.
    pub fn password(mut self, password: &str) -> Self {
        self.options.password = Some(password.into());
        self
    }

    /// Sets the credentials for the sentinels; the user may be left out. Default: none, whatever the user of the servers is.
    pub fn sentinel_login(mut self, username: Option<&str>, password: &str) -> Self {
        if let Servers::Sentinel(sentinels) = &mut self.servers {
            let login = sentinels.login.clone().set_password(password);
            sentinels.login = username.into_iter().fold(login, |login, name| login.set_username(name));
        }
        self
    }

    /// Sets the version of the protocol. Default: the newest that the server speaks.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.options.protocol = Some(protocol);
        self
    }

    /// Encrypts connections, and trusts the certificates in `ca` (PEM); with `None`, those that the system trusts. Default:
    /// not encrypted. Needs the feature `tls`.
    pub fn tls(mut self, ca: Option<Vec<u8>>) -> Self {
        self.tls.get_or_insert_default().ca = ca;
        self
    }

    /// Encrypts connections, and shows this certificate with its key (both PEM) to the servers. Default: none.
    pub fn tls_identity(mut self, certificate: Vec<u8>, key: Vec<u8>) -> Self {
        self.tls.get_or_insert_default().identity = Some((certificate, key));
        self
    }

    /// Encrypts connections, and expects certificates for this name. Default: for the host that is dialled.
    pub fn tls_server_name(mut self, name: &str) -> Self {
        self.tls.get_or_insert_default();
        self.tls_server_name = Some(name.into());
        self
    }

    /// Sets whether a server that was restarted, promoted or emptied grants nothing until every lease from before is over.
    /// Until then a claim fails with kind `Unavailable`, and its error says how long that takes. The same happens on a server
    /// that is used for the first time. Every client that locks there must have it on. Default: off.
    pub fn restart_guard(mut self, on: bool) -> Self {
        self.restart_guard = on;
        self
    }

    /// Sets how many replicas must have acknowledged a grant before it counts (`WAIT`). If fewer do within 250 ms, the lock
    /// is released and the claim fails with kind `Unavailable`. A failover is then less likely to forget the lock. It still
    /// can: renewals are not waited for, and a replica that lags may be promoted. Default: 0.
    pub fn wait_replicas(mut self, count: u32) -> Self {
        self.options.wait_replicas = count;
        self
    }

    /// Sets the timeout of a connection attempt. Default: 5 s.
    pub fn dial_timeout(mut self, most: Duration) -> Self {
        self.options.dial_timeout = most;
        self
    }

    /// Builds the engine. It connects when a locker is made of it.
    ///
    /// # Errors
    /// Kind `Config`, naming the option that is refused; `Unsupported` if TLS is wanted without the feature `tls`.
    pub fn build(mut self) -> Result<Redis> {
        let refuse = |problem: String| Err(Error::new(ErrorKind::Config, problem));
        let Options { prefix, username, password, dial_timeout, .. } = &self.options;
        if prefix.len() > MAX_TEXT_BYTES {
            return refuse(format!("prefix: {} bytes, at most {MAX_TEXT_BYTES} are accepted", prefix.len()));
        }
        if prefix.contains(|c: char| c.is_control() || matches!(c, '{' | '}')) {
            return refuse("prefix: a control character or a brace".into());
        }
        if username.is_some() && password.is_none() {
            return refuse("password: missing; a user name is given".into());
        }
        if dial_timeout.is_zero() {
            return refuse("dial_timeout: nothing can be reached in no time".into());
        }
        if self.restart_guard {
            self.options.guard = Some(Arc::new(RestartGuard::new(prefix)));
            self.options.needs_info = true;
        }
        if let Some(tls) = &self.tls {
            self.options.encryption = Some(Encryption::new(tls, self.tls_server_name.as_deref())?);
        }
        let encryption = self.options.encryption.clone();
        let mut seeds = Vec::new();
        match self.servers {
            Servers::Behind(_) if encryption.is_some() => {
                return refuse("tls: the application opens the stream and encrypts it".into());
            }
            Servers::Behind(_) => {}
            Servers::One(address) => self.options.dialer = Dialer::tcp(&address, encryption.as_ref()),
            Servers::Cluster(nodes) if nodes.is_empty() => return refuse("nodes: at least one is needed".into()),
            Servers::Cluster(_) if self.options.guard.is_some() => {
                return Err(Error::new(ErrorKind::Unsupported, "restart_guard: there is none for a cluster")
                    .with_help("each of its slots would need a canary, and a quarantine when it is first used"));
            }
            Servers::Cluster(_) if self.options.database != 0 => {
                return refuse("database: a cluster has only 0".into());
            }
            Servers::Cluster(nodes) => (seeds, self.options.is_cluster) = (nodes, true),
            Servers::Sentinel(sentinels) if sentinels.addresses.is_empty() => {
                return refuse("sentinels: at least one is needed".into());
            }
            Servers::Sentinel(mut sentinels) => {
                sentinels.encryption = encryption;
                self.options.sentinels = Some(sentinels);
            }
        }
        Ok(Redis::new(self.options, seeds))
    }
}

/// Returns a dialer for a server that is looked up whenever it is dialled.
fn unknown_yet(place: &str) -> Dialer {
    Dialer::new(place, || std::future::ready(Err::<tokio::net::TcpStream, _>(io::Error::other("it is not known yet"))))
}

impl fmt::Debug for RedisBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBuilder").field("tls", &self.tls).field("options", &self.options).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_printed() {
        let builder = Redis::tcp("localhost", 6379).username("app").password("hunter2");
        assert!(!format!("{builder:?}").contains("hunter2"));
        assert!(!format!("{:?}", builder.build().unwrap()).contains("hunter2"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let cases = [
            ("prefix: ", Redis::tcp("localhost", 6379).prefix("a{b}")),
            ("prefix: ", Redis::tcp("localhost", 6379).prefix(&"x".repeat(257))),
            ("password: ", Redis::tcp("localhost", 6379).username("app")),
            ("dial_timeout: ", Redis::unix("/run/redis.sock").dial_timeout(Duration::ZERO)),
        ];
        for (start, builder) in cases {
            let error = builder.build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().starts_with(start), "{error}");
        }
    }
}
