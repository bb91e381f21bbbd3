//! Where visitors come in, encrypted or not.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Who takes longer to shake hands is sent away.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// When the machine has no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Takes connections.
pub(crate) struct Door {
    address: SocketAddr,
    visitors: mpsc::Receiver<(Box<dyn Wire>, SocketAddr)>,
}

impl Door {
    /// Opens it. Whoever shakes hands keeps nobody waiting behind.
    pub(crate) fn open(listener: TcpListener, tls: Option<Arc<ServerConfig>>) -> io::Result<Door> {
        let address = listener.local_addr()?;
        let (sender, visitors) = mpsc::channel(1);
        tokio::spawn(answer(listener, tls.map(TlsAcceptor::from), sender));
        Ok(Door { address, visitors })
    }
}

async fn answer(listener: TcpListener, tls: Option<TlsAcceptor>, visitors: mpsc::Sender<(Box<dyn Wire>, SocketAddr)>) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = visitors.closed() => return,
        };
        let Ok((stream, remote)) = accepted else {
            sleep(PAUSE).await;
            continue;
        };
        let (tls, visitors) = (tls.clone(), visitors.clone());
        tokio::spawn(async move {
            if let Ok(Ok(wire)) = timeout(HANDSHAKE, shake_hands(stream, tls)).await {
                // Closed: the console ends.
                let _ = visitors.send((wire, remote)).await;
            }
        });
    }
}

async fn shake_hands(stream: TcpStream, tls: Option<TlsAcceptor>) -> io::Result<Box<dyn Wire>> {
    // An event is small and must not wait for the next one.
    stream.set_nodelay(true)?;
    Ok(match tls {
        None => Box::new(stream),
        Some(tls) => Box::new(tls.accept(stream).await?),
    })
}

impl Listener for Door {
    type Io = Box<dyn Wire>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.visitors.recv().await {
            Some(visitor) => visitor,
            // Nobody comes any more; the server ends by its own signal.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.address)
    }
}

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remote(pub(crate) SocketAddr);

impl Connected<IncomingStream<'_, Door>> for Remote {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Remote {
        Remote(*stream.remote_addr())
    }
}
