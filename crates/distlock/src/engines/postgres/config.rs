//! Makes a PostgreSQL engine.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::Client;

use crate::engines::postgres::client::Postgres;
use crate::engines::postgres::protocol::requests::Statements;
use crate::engines::postgres::protocol::schema::{DEFAULT_SCHEMA, Schema};
use crate::engines::postgres::wire::dial::dial_tcp;
use crate::engines::postgres::wire::lender::Lender;
use crate::engines::postgres::wire::options::{Options, Server};
use crate::engines::postgres::wire::pass_file::password_for;
use crate::engines::shared::dial::{Address, Dialer};
use crate::engines::shared::encryption::Encryption;
use crate::engines::shared::tls::Tls;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::owner::{MAX_TEXT_BYTES, Process};
use crate::types::secret::Secret;

const DEFAULT_DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Builds a [`Postgres`] engine; made by [`Postgres::tcp`], [`any_of`](Postgres::any_of), [`unix`](Postgres::unix) or
/// [`over`](Postgres::over).
#[must_use = "a builder does nothing until it is built"]
pub struct PostgresBuilder {
    lender: Option<Lender>,
    servers: Vec<ServerName>,
    tls: Option<Tls>,
    is_pooled: bool,
    user: Option<String>,
    password: Option<Secret>,
    database: Option<String>,
    schema: String,
    prefix: String,
    dial_timeout: Duration,
}

/// A server as it was named.
enum ServerName {
    Tcp(String, u16),
    /// The directory of the socket, and the port in the socket's name.
    Unix(PathBuf, u16),
    /// It looks after its own encryption.
    Behind(Dialer),
}

impl Postgres {
    /// Returns a builder for the server with this name or address. An IPv6 address needs no brackets.
    pub fn tcp(host: &str, port: u16) -> PostgresBuilder {
        Postgres::any_of([(host, port)])
    }

    /// Returns a builder for a primary and its replicas: the server that can be written to is used.
    pub fn any_of<'a>(servers: impl IntoIterator<Item = (&'a str, u16)>) -> PostgresBuilder {
        PostgresBuilder::new(servers.into_iter().map(|(host, port)| ServerName::Tcp(host.into(), port)).collect())
    }

    /// Returns a builder for the server on a Unix socket of this machine: the directory of the socket, and the port in its
    /// name.
    pub fn unix(directory: impl Into<PathBuf>, port: u16) -> PostgresBuilder {
        PostgresBuilder::new(vec![ServerName::Unix(directory.into(), port)])
    }

    /// Returns a builder for a server behind any stream, such as a tunnel or a connection that the application has opened.
    /// `dial` is called for each connection, and again whenever one has died; it runs inside a tokio runtime. `place` names
    /// the server in messages.
    ///
    /// ```no_run
    /// # async fn f() -> distlock::Result<()> {
    /// use distlock::{Locker, backend::postgres::Postgres};
    /// use tokio::net::TcpStream;
    ///
    /// let tunnel = Postgres::over("postgres through the tunnel", || TcpStream::connect("127.0.0.1:15432"));
    /// let locker = Locker::new(tunnel.user("app").database("shop").build()?)?;
    /// # Ok(()) }
    /// ```
    pub fn over<F, Fut, S>(place: &str, dial: F) -> PostgresBuilder
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        PostgresBuilder::new(vec![ServerName::Behind(Dialer::new(place, dial))])
    }

    /// A server to which a pool of the application has connections: see [`pool`](PostgresBuilder::pool). No other connection
    /// is opened, so waiters poll, and the locker's [`capabilities`](crate::Locker::capabilities) say so.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    ///
    /// use distlock::Locker;
    /// use distlock::backend::postgres::Postgres;
    ///
    /// # struct Pool;
    /// # impl Pool { async fn get(&self) -> Result<Box<tokio_postgres::Client>, std::io::Error> { unreachable!() } }
    /// # fn f(pool: Arc<Pool>) -> distlock::Result<()> {
    /// let lend = move || {
    ///     let pool = pool.clone();
    ///     async move { pool.get().await }
    /// };
    /// let locker = Locker::new(Postgres::from_pool(lend, |lent| lent).build()?)?;
    /// # Ok(()) }
    /// ```
    pub fn from_pool<F, Fut, C, E>(lend: F, client: fn(&C) -> &Client) -> PostgresBuilder
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<C, E>> + Send + 'static,
        C: Send + Sync + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        PostgresBuilder::new(Vec::new()).pool(lend, client)
    }
}

impl PostgresBuilder {
    fn new(servers: Vec<ServerName>) -> PostgresBuilder {
        PostgresBuilder {
            lender: None,
            servers,
            tls: None,
            is_pooled: false,
            user: None,
            password: None,
            database: None,
            schema: DEFAULT_SCHEMA.into(),
            prefix: String::new(),
            dial_timeout: DEFAULT_DIAL_TIMEOUT,
        }
    }

    /// Sets the user. Default: the name of the user that this process runs as.
    pub fn user(mut self, name: &str) -> Self {
        self.user = Some(name.into());
        self
    }

    /// Sets the password. Default: that of the password file (`PGPASSFILE`, `~/.pgpass`), if it has one.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Sets the database. Default: the one with the user's name.
    pub fn database(mut self, name: &str) -> Self {
        self.database = Some(name.into());
        self
    }

    /// Sets the schema in which `distlock setup` made the tables and functions. Default: `distlock`.
    pub fn schema(mut self, name: &str) -> Self {
        self.schema = name.into();
        self
    }

    /// Sets the prefix of each lock's name in the tables. Default: none.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Encrypts connections, and trusts the certificates in `ca` (PEM); with `None`, those that the system trusts. The
    /// server's certificate must be for the host that is dialled. Default: not encrypted. Needs the feature `tls`.
    pub fn tls(mut self, ca: Option<Vec<u8>>) -> Self {
        self.tls.get_or_insert_default().ca = ca;
        self
    }

    /// Encrypts connections, and shows this certificate with its key (both PEM) to the server. Default: none.
    pub fn tls_identity(mut self, certificate: Vec<u8>, key: Vec<u8>) -> Self {
        self.tls.get_or_insert_default().identity = Some((certificate, key));
        self
    }

    /// Says that a pooler in transaction mode is in between, so that nothing of a session lasts. Default: found out when a
    /// connection is opened.
    pub fn pooled(mut self) -> Self {
        self.is_pooled = true;
        self
    }

    /// Borrows the connections for claims, releases and renewals from a pool of the application; the servers of this builder
    /// are then only listened to, over one connection of the engine's own. Default: all connections are the engine's own.
    ///
    /// `lend` is called in the runtime in which the locker is made, and `client` finds the client in what was lent: `|lent|
    /// lent` where that dereferences to it. An engine keeps two of the pool's connections, so that no lock waits for the
    /// application, and gives one back (drops it) when it has failed and its last statement was answered, or with the
    /// locker. It leaves no prepared statement, setting or lock in a session. The pool drives its connections: while the
    /// application blocks that runtime, locks are not renewed.
    pub fn pool<F, Fut, C, E>(mut self, lend: F, client: fn(&C) -> &Client) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<C, E>> + Send + 'static,
        C: Send + Sync + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        self.lender = Some(Lender::new(lend, client));
        self
    }

    /// Sets the timeout for connecting to one server, or for borrowing a connection from a pool. Default: 5 s.
    pub fn dial_timeout(mut self, limit: Duration) -> Self {
        self.dial_timeout = limit;
        self
    }

    /// Makes the engine. It connects when it is used.
    ///
    /// # Errors
    /// Kind `Config`, naming the setting; `Unsupported` for TLS without the feature.
    pub fn build(self) -> Result<Postgres> {
        let refuse = |field: &str, fault: &str| Err(Error::new(ErrorKind::Config, format!("{field}: {fault}")));
        if self.servers.is_empty() {
            self.check_without_server()?;
        }
        if self.dial_timeout.is_zero() {
            return refuse("dial_timeout", "zero");
        }
        if self.prefix.len() > MAX_TEXT_BYTES || self.prefix.contains(char::is_control) {
            return refuse("prefix", &format!("a control character, or more than {MAX_TEXT_BYTES} bytes"));
        }
        let schema = Schema::new(&self.schema)?;
        let encryption = self.tls.as_ref().map(|tls| Encryption::new(tls, None)).transpose()?;
        let user = self.user.unwrap_or_else(|| Process::current().user.clone());
        let database = self.database.unwrap_or_else(|| user.clone());
        // NUL ends a text on the wire.
        if [&user, &database].iter().any(|text| text.is_empty() || text.contains('\0')) {
            return refuse("username", "the user's or the database's name is empty or has a zero byte");
        }
        let given = self.password;
        let servers = self.servers.into_iter().map(|server| Server {
            password: given.clone().or_else(|| server.password(&database, &user)),
            dialer: server.dialer(encryption.as_ref()),
        });
        let servers = servers.collect();
        let (statements, prefix, dial_timeout) = (Statements::of(&schema), self.prefix, self.dial_timeout);
        let (is_encrypted, is_pooled) = (encryption.is_some(), self.is_pooled);
        Ok(Postgres::new(Options {
            lender: self.lender,
            servers,
            is_encrypted,
            is_pooled,
            user,
            database,
            schema,
            statements,
            prefix,
            dial_timeout,
        }))
    }
}

impl PostgresBuilder {
    /// Refuses settings of connections where the engine opens none.
    fn check_without_server(&self) -> Result<()> {
        let PostgresBuilder { lender, user, password, database, tls, .. } = self;
        let fault = match lender {
            None => "endpoints: no server is given",
            Some(_) if tls.is_some() => "tls: the connections are the pool's, and no server is given to listen to",
            Some(_) if user.is_some() || password.is_some() || database.is_some() => {
                "username: the connections are the pool's, and no server is given to listen to"
            }
            Some(_) => return Ok(()),
        };
        Err(Error::new(ErrorKind::Config, fault))
    }
}

impl ServerName {
    fn dialer(self, encryption: Option<&Encryption>) -> Dialer {
        match self {
            ServerName::Tcp(host, port) => dial_tcp(Address::new(&host, port), encryption.cloned()),
            ServerName::Unix(directory, port) => Dialer::unix(directory.join(format!(".s.PGSQL.{port}"))),
            ServerName::Behind(dialer) => dialer,
        }
    }

    /// Looks the password up in the password file, where a socket is named by its directory or `localhost`.
    fn password(&self, database: &str, user: &str) -> Option<Secret> {
        match self {
            ServerName::Tcp(host, port) => password_for(host, *port, database, user),
            ServerName::Unix(directory, port) => {
                let password = |host: &str| password_for(host, *port, database, user);
                password(&directory.to_string_lossy()).or_else(|| password("localhost"))
            }
            ServerName::Behind(_) => None,
        }
    }
}

impl fmt::Debug for PostgresBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PostgresBuilder { user, database, schema, prefix, .. } = self;
        let mut shown = f.debug_struct("PostgresBuilder");
        shown.field("user", user).field("database", database).field("schema", schema).field("prefix", prefix);
        shown.finish_non_exhaustive()
    }
}
