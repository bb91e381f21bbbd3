//! Where visitors come in: encrypted or not, never too many, none who only stands there, and no strangers in the way of who
//! has the token.

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

use crate::patient::Patient;

/// How many connections there may be: all browsers that may look, and some who ask.
const MOST_VISITORS: usize = 320;
/// Who takes longer to shake hands is sent away.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Who takes longer to say what it wants, also after an answer, is sent away.
const HEAD: Duration = Duration::from_secs(5);
/// The longest head of a request.
const LONGEST_HEAD: usize = 16 * 1024;
/// When the machine has no descriptors left.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection.
trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remote(pub(crate) SocketAddr);

/// Whether somebody has shown the token over this connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known(Arc<AtomicBool>);

impl Known {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Those who have not shown the token, the one who came first first.
#[derive(Default)]
struct Strangers(Vec<(AbortHandle, Known)>);

impl Strangers {
    fn add(&mut self, visit: AbortHandle, known: Known) {
        self.0.retain(Strangers::is_inside);
        self.0.push((visit, known));
    }

    /// Sends the first one away, if there is one: who has the token has shown it long before.
    fn make_way(&mut self) -> bool {
        let first = self.0.iter().position(Strangers::is_inside).map(|at| self.0.remove(at));
        first.map(|(visit, _)| visit.abort()).is_some()
    }

    fn is_inside((visit, known): &(AbortHandle, Known)) -> bool {
        !visit.is_finished() && !known.get()
    }
}

/// Takes connections.
pub(crate) struct Door {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

impl Door {
    pub(crate) fn new(listener: TcpListener, tls: Option<Arc<ServerConfig>>) -> Door {
        Door { listener, tls: tls.map(TlsAcceptor::from) }
    }

    /// Lets visitors in until `stop` resolves, and then waits for those who are inside.
    pub(crate) async fn serve(self, app: Router, stop: impl Future<Output = ()>) {
        let (stopping, stopped) = watch::channel(());
        let (mut visits, mut strangers) = (JoinSet::new(), Strangers::default());
        let mut stop = pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                Some(_) = visits.join_next() => continue,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                // All have the token. Dropped: it is told at once, and does not wait for somebody else to leave.
                Ok(_) if visits.len() >= MOST_VISITORS && !strangers.make_way() => {}
                Ok((stream, remote)) => {
                    let known = Known::default();
                    let whom = (Remote(remote), known.clone());
                    let visit = visit(stream, whom, self.tls.clone(), app.clone(), stopped.clone());
                    strangers.add(visits.spawn(visit), known);
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
        drop(stopping);
        while visits.join_next().await.is_some() {}
    }
}

async fn visit(
    stream: TcpStream,
    (remote, known): (Remote, Known),
    tls: Option<TlsAcceptor>,
    app: Router,
    mut stopped: watch::Receiver<()>,
) {
    let Ok(Ok(wire)) = timeout(HANDSHAKE, shake_hands(stream, tls)).await else { return };
    let app = TowerToHyperService::new(app);
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(remote);
        request.extensions_mut().insert(known.clone());
        app.call(request)
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(LONGEST_HEAD);
    let mut connection = pin!(server.serve_connection(TokioIo::new(Patient::new(wire)), service));
    tokio::select! {
        // What goes wrong here went wrong for the visitor alone, who knows.
        _ = connection.as_mut() => return,
        // An error: the other end is dropped, and that is the sign.
        _ = stopped.changed() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

async fn shake_hands(stream: TcpStream, tls: Option<TlsAcceptor>) -> io::Result<Box<dyn Wire>> {
    // An event is small and must not wait for the next one.
    stream.set_nodelay(true)?;
    Ok(match tls {
        None => Box::new(stream),
        Some(tls) => Box::new(tls.accept(stream).await?),
    })
}
