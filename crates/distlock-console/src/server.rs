//! Accepts connections, with or without TLS. Bounds their number, drops idle ones, and prefers clients that have shown
//! the token.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::stall_limit::StallLimit;

/// How many connections are open at once: all event streams, and some other requests.
const MAX_CONNECTIONS: usize = 320;
/// How long a TLS handshake may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// How long a client may take to send a request's head, also between requests.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// The longest request head.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// The pause when the machine has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// The address of the client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remote(pub(crate) SocketAddr);

/// Whether a request on this connection has shown the token.
#[derive(Debug, Clone, Default)]
pub(crate) struct Authenticated(Arc<AtomicBool>);

impl Authenticated {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
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

/// The listener of the console.
pub(crate) struct HttpServer {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

impl HttpServer {
    pub(crate) fn new(listener: TcpListener, tls: Option<Arc<ServerConfig>>) -> HttpServer {
        HttpServer { listener, tls: tls.map(TlsAcceptor::from) }
    }

    /// Accepts connections until `stop` resolves, then waits for the open ones.
    pub(crate) async fn serve(self, app: Router, stop: impl Future<Output = ()>) {
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
                Ok(_) if connections.len() >= MAX_CONNECTIONS && !unauthenticated.close_oldest() => {}
                Ok((stream, remote)) => {
                    let authenticated = Authenticated::default();
                    let client = (Remote(remote), authenticated.clone());
                    let serve_client = serve_client(stream, client, self.tls.clone(), app.clone(), stopped.clone());
                    unauthenticated.add(connections.spawn(serve_client), authenticated);
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            }
        }
        drop(stopping);
        while connections.join_next().await.is_some() {}
    }
}

async fn serve_client(
    stream: TcpStream,
    (remote, authenticated): (Remote, Authenticated),
    tls: Option<TlsAcceptor>,
    app: Router,
    mut stopped: watch::Receiver<()>,
) {
    let Ok(Ok(transport)) = timeout(HANDSHAKE_LIMIT, handshake(stream, tls)).await else { return };
    let app = TowerToHyperService::new(app);
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(remote);
        request.extensions_mut().insert(authenticated.clone());
        app.call(request)
    });
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

async fn handshake(stream: TcpStream, tls: Option<TlsAcceptor>) -> io::Result<Box<dyn Transport>> {
    // An event is small and must not wait for the next one.
    stream.set_nodelay(true)?;
    Ok(match tls {
        None => Box::new(stream),
        Some(tls) => Box::new(tls.accept(stream).await?),
    })
}
