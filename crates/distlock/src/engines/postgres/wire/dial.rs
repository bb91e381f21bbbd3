//! Opening the stream under a connection: TCP with or without TLS, a Unix socket, or whatever the caller gives.

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

/// The kernel gives a connection up when sent data stays unacknowledged for so long.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(2);
const KEEPALIVE_AFTER: Duration = Duration::from_secs(5);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 3;

/// Any stream that PostgreSQL can be spoken over.
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
            Box::pin(async move { Ok(Box::new(opening.await?) as BoxStream) })
        };
        Dialer { dial: Arc::new(dial), place: place.into() }
    }

    /// Opens TCP streams, encrypted where `encryption` is given.
    pub(in crate::engines) fn tcp(host: &str, port: u16, encryption: Option<Encryption>) -> Dialer {
        let place = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let address: (Arc<str>, u16) = (host.into(), port);
        match encryption {
            None => Dialer::new(&place, move || open_tcp(address.clone())),
            Some(encryption) => Dialer::new(&place, move || {
                let (address, encryption) = (address.clone(), encryption.clone());
                async move { encryption.over(&address.0, open_tcp(address.clone()).await?).await }
            }),
        }
    }

    pub(in crate::engines) fn unix(path: PathBuf) -> Dialer {
        Dialer::new(&path.display().to_string(), move || UnixStream::connect(path.clone()))
    }

    pub(in crate::engines) async fn open(&self) -> io::Result<BoxStream> {
        (self.dial)().await
    }
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dialer({})", self.place)
    }
}

async fn open_tcp((host, port): (Arc<str>, u16)) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((&*host, port)).await?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, KEEPALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(&stream, USER_TIMEOUT.as_millis() as u32)?;
    Ok(stream)
}

pub(in crate::engines) use tls::Encryption;

#[cfg(feature = "tls")]
mod tls {
    use std::io;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;

    use crate::engines::shared::tls::Tls;
    use crate::types::error::Result;

    /// Asks the server for TLS: a length, and the number that stands for the request.
    const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

    /// What is needed to encrypt the connections of an engine.
    #[derive(Clone)]
    pub(in crate::engines) struct Encryption(TlsConnector);

    impl Encryption {
        /// # Errors
        /// Kind `Config`, naming what cannot be used.
        pub(in crate::engines) fn new(tls: &Tls) -> Result<Encryption> {
            Ok(Encryption(tls.client()?.into()))
        }

        /// Encrypts the stream to `host`. A server that does not encrypt is an error.
        pub(super) async fn over(&self, host: &str, mut stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
            stream.write_all(&SSL_REQUEST).await?;
            if stream.read_u8().await? != b'S' {
                return Err(io::Error::other("the server does not offer TLS"));
            }
            let name = host.to_owned().try_into().map_err(io::Error::other)?;
            self.0.connect(name, stream).await
        }
    }
}

#[cfg(not(feature = "tls"))]
mod tls {
    use std::io;

    use tokio::net::TcpStream;

    use crate::engines::shared::tls::Tls;
    use crate::types::error::Result;

    /// Does not exist in a build without the feature.
    #[derive(Clone)]
    pub(in crate::engines) enum Encryption {}

    impl Encryption {
        pub(in crate::engines) fn new(_tls: &Tls) -> Result<Encryption> {
            Err(crate::engines::shared::tls::not_built_in())
        }

        pub(super) async fn over(&self, _host: &str, _stream: TcpStream) -> io::Result<TcpStream> {
            match *self {}
        }
    }
}
