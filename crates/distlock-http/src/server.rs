//! Accepts connections on a unix socket or on TCP, with or without TLS. Bounds their number, drops idle ones, and prefers
//! clients that have shown the token.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::stall_limit::StallLimit;

/// How long a TLS handshake may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// How long a client may take to send a request's head, also between requests.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// The longest request head.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// When a silent client is probed, how often, and how many probes without a reply end its connection. A client whose machine
/// has vanished is gone after 25 s.
const PROBE_AFTER: Duration = Duration::from_secs(10);
const PROBE_EVERY: Duration = Duration::from_secs(5);
const MAX_PROBES: u32 = 3;
/// How long sent data may stay without an acknowledgement. The kernel does not probe meanwhile, and would repeat the data for
/// a quarter of an hour.
const LONGEST_UNACKNOWLEDGED: Duration = Duration::from_secs(25);
/// The pause when the machine has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// The client of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A client on TCP.
    Address(SocketAddr),
    /// A client on the unix socket.
    Process {
        /// Its process id, if it is of this PID namespace.
        pid: Option<i32>,
        /// Its user.
        uid: u32,
    },
}

impl Peer {
    /// Returns the client's machine or process, for logs.
    #[must_use]
    pub fn host(&self) -> String {
        match self {
            Peer::Address(address) => address.ip().to_string(),
            Peer::Process { .. } => self.to_string(),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Address(address) => write!(f, "{address}"),
            Peer::Process { pid: Some(pid), .. } => write!(f, "pid {pid}"),
            Peer::Process { pid: None, uid } => write!(f, "uid {uid}"),
        }
    }
}

/// Whether a request on this connection has shown the token.
#[derive(Debug, Clone, Default)]
pub struct Authenticated(Arc<AtomicBool>);

impl Authenticated {
    /// Records that one has.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The client that a request comes from.
#[derive(Debug, Clone)]
pub struct Client {
    /// Its address or process.
    pub peer: Peer,
    /// Whether a request on the same connection has shown the token.
    pub authenticated: Authenticated,
}

/// The response to a request; there always is one.
pub type Answer = Result<Response, Infallible>;

/// What a server does with requests.
pub trait Answers: Clone + Send + 'static {
    /// Returns the response to a request.
    ///
    /// # Cancel safety
    /// The future is dropped when its client hangs up.
    fn answer(self, request: Request<Incoming>, client: Client) -> impl Future<Output = Answer> + Send + 'static;
}

/// The handlers get the client from the request's extensions.
impl Answers for Router {
    fn answer(self, mut request: Request<Incoming>, client: Client) -> impl Future<Output = Answer> + Send + 'static {
        request.extensions_mut().insert(client.peer);
        request.extensions_mut().insert(client.authenticated);
        TowerToHyperService::new(self).call(request)
    }
}

/// The connections that have not shown the token, the oldest first.
#[derive(Default)]
struct Unauthenticated(Vec<(AbortHandle, Authenticated)>);

impl Unauthenticated {
    fn add(&mut self, serve_client: AbortHandle, authenticated: Authenticated) {
        self.0.retain(Unauthenticated::is_pending);
        self.0.push((serve_client, authenticated));
    }

    /// Closes the oldest connection without a token, if there is one: a client with the token shows it at once.
    fn close_oldest(&mut self) -> bool {
        let first = self.0.iter().position(Unauthenticated::is_pending).map(|at| self.0.remove(at));
        first.map(|(serve_client, _)| serve_client.abort()).is_some()
    }

    fn is_pending((serve_client, authenticated): &(AbortHandle, Authenticated)) -> bool {
        !serve_client.is_finished() && !authenticated.get()
    }
}

/// Where clients connect.
#[derive(Debug)]
pub enum Listener {
    /// On TCP, encrypted with this configuration if there is one.
    Tcp(TcpListener, Option<Arc<ServerConfig>>),
    /// On a unix socket.
    Unix(UnixListener),
}

impl Listener {
    async fn accept(&self) -> io::Result<(RawStream, Peer)> {
        match self {
            Listener::Tcp(listener, tls) => {
                let (stream, address) = listener.accept().await?;
                Ok((RawStream::Tcp(stream, tls.clone()), Peer::Address(address)))
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let client = stream.peer_cred()?;
                let peer = Peer::Process { pid: client.pid().filter(|pid| *pid > 0), uid: client.uid() };
                Ok((RawStream::Ready(Box::new(stream)), peer))
            }
        }
    }
}

/// A connection before its handshake.
enum RawStream {
    Tcp(TcpStream, Option<Arc<ServerConfig>>),
    Ready(Box<dyn Transport>),
}

impl RawStream {
    async fn handshake(self) -> io::Result<Box<dyn Transport>> {
        let (stream, tls) = match self {
            RawStream::Ready(stream) => return Ok(stream),
            RawStream::Tcp(stream, tls) => (stream, tls),
        };
        // An event is small and must not wait for the next one.
        stream.set_nodelay(true)?;
        probe(&stream)?;
        Ok(match tls {
            None => Box::new(stream),
            Some(tls) => Box::new(TlsAcceptor::from(tls).accept(stream).await?),
        })
    }
}

/// Has the kernel probe a silent client: one whose machine has vanished sends no end of its connection.
fn probe(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, MAX_PROBES)?;
    // Only Linux has this one.
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(stream, u32::try_from(LONGEST_UNACKNOWLEDGED.as_millis()).unwrap_or(u32::MAX))?;
    Ok(())
}

/// A server that listens.
#[derive(Debug)]
pub struct HttpServer {
    listener: Listener,
    max_connections: usize,
}

impl HttpServer {
    /// Returns a server that keeps at most `max_connections` connections open.
    #[must_use]
    pub fn new(listener: Listener, max_connections: usize) -> HttpServer {
        HttpServer { listener, max_connections }
    }

    /// Accepts connections until `stop` resolves, then waits for the open ones.
    pub async fn serve(self, app: impl Answers, stop: impl Future<Output = ()>) {
        let (stopping, stopped) = watch::channel(());
        let (mut connections, mut unauthenticated) = (JoinSet::new(), Unauthenticated::default());
        let mut stop = pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                Some(_) = connections.join_next() => continue,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                // All connections have the token. The new one is dropped, so that its client fails at once instead of
                // waiting.
                Ok(_) if connections.len() >= self.max_connections && !unauthenticated.close_oldest() => {}
                Ok((stream, peer)) => {
                    let authenticated = Authenticated::default();
                    let client = Client { peer, authenticated: authenticated.clone() };
                    let serve_client = serve_client(stream, client, app.clone(), stopped.clone());
                    unauthenticated.add(connections.spawn(serve_client), authenticated);
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
        }
        drop(stopping);
        while connections.join_next().await.is_some() {}
    }
}

async fn serve_client(stream: RawStream, client: Client, app: impl Answers, mut stopped: watch::Receiver<()>) {
    let Ok(Ok(transport)) = timeout(HANDSHAKE_LIMIT, stream.handshake()).await else { return };
    let service = service_fn(move |request| app.clone().answer(request, client.clone()));
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT).max_buf_size(MAX_HEAD_BYTES);
    let mut connection = pin!(server.serve_connection(TokioIo::new(StallLimit::new(transport)), service));
    tokio::select! {
        // An error concerns only this client, which sees it itself.
        _ = connection.as_mut() => return,
        // An error means that the sender was dropped: that is the stop signal.
        _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With data under way the kernel does not probe: the other option alone would leave a vanished client for minutes.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_vanished_client_is_noticed_with_and_without_data_under_way() {
        use rustix::net::sockopt;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        probe(&stream).unwrap();
        let silent = sockopt::tcp_keepidle(&stream).unwrap()
            + sockopt::tcp_keepintvl(&stream).unwrap() * sockopt::tcp_keepcnt(&stream).unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap() && silent == Duration::from_secs(25), "{silent:?}");
        assert_eq!(Duration::from_millis(sockopt::tcp_user_timeout(&stream).unwrap().into()), silent);
    }
}
