//! Opening the stream under a connection: TCP, a Unix socket, or whatever the caller gives.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::engines::shared::bounded::Bounded;
use crate::engines::shared::encryption::Encryption;
use crate::types::error::{Error, Result};

/// The kernel gives a connection up when sent data stays unacknowledged for so long.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(2);
const KEEPALIVE_AFTER: Duration = Duration::from_secs(5);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 3;

/// Any stream that a server can be spoken to over.
pub(in crate::engines) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

pub(in crate::engines) type BoxStream = Box<dyn Stream>;

type Dialled = Pin<Box<dyn Future<Output = io::Result<BoxStream>> + Send>>;

/// Opens streams to one server.
#[derive(Clone)]
pub(in crate::engines) struct Dialer {
    dial: Arc<dyn Fn() -> Dialled + Send + Sync>,
    /// The server's address, for messages.
    pub(in crate::engines) place: Arc<str>,
}

impl Dialer {
    /// Opens streams with `dial`.
    pub(in crate::engines) fn new<F, Fut, S>(place: &str, dial: F) -> Dialer
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let dial = move || -> Dialled {
            let opening = dial();
            Box::pin(async move { Ok(Box::new(Bounded::new(opening.await?)) as BoxStream) })
        };
        Dialer { dial: Arc::new(dial), place: place.into() }
    }

    /// Opens TCP streams to an address, encrypted where `encryption` is given.
    pub(in crate::engines) fn tcp(address: &Address, encryption: Option<&Encryption>) -> Dialer {
        let (place, address) = (address.to_string(), address.clone());
        match encryption.cloned() {
            None => Dialer::new(&place, move || open_tcp(address.clone())),
            Some(encryption) => Dialer::new(&place, move || {
                let (address, encryption) = (address.clone(), encryption.clone());
                async move { encryption.over(&address.host, open_tcp(address.clone()).await?).await }
            }),
        }
    }

    pub(in crate::engines) fn unix(path: PathBuf) -> Dialer {
        Dialer::new(&path.display().to_string(), move || UnixStream::connect(path.clone()))
    }

    /// Opens a stream. `engine` begins the message of a failure.
    pub(in crate::engines) async fn open(&self, engine: &str) -> Result<BoxStream> {
        self.connect().await.map_err(|error| {
            Error::unavailable(format!("{engine}: cannot reach {}: {error}", self.place)).with_source(error)
        })
    }

    /// Like [`open`](Dialer::open), without a message that names the server.
    pub(in crate::engines) async fn connect(&self) -> io::Result<BoxStream> {
        (self.dial)().await
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dialer({})", self.place)
    }
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::engines) struct Address {
    /// A name or an address; an IPv6 address without brackets.
    pub(in crate::engines) host: Arc<str>,
    pub(in crate::engines) port: u16,
}

impl Address {
    pub(in crate::engines) fn new(host: &str, port: u16) -> Address {
        Address { host: host.into(), port }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Opens a TCP stream that notices a server that is gone.
pub(in crate::engines) async fn open_tcp(address: Address) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((&*address.host, address.port)).await?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(&stream, USER_TIMEOUT.as_millis() as u32)?;
    Ok(stream)
}
