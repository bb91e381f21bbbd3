//! The daemon: binds its socket or address, then serves until it is stopped.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use distlock::Locker;
use distlock_http::{AccessToken, Gate, HostName, HttpServer, Listener, Refused, check_listen, tls_config};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::timeout;

use crate::log::{Log, LogSink};
use crate::news::News;
use crate::routes::{Access, Routes};
use crate::service::Service;
use crate::socket::Socket;

/// How many connections are open at once: event streams, waiting requests and others.
const MAX_CONNECTIONS: usize = 10_000;
/// How long open requests may take after the stop.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

/// Where the daemon listens.
#[derive(Debug)]
pub enum Listen {
    /// On a unix socket at this path.
    Socket(PathBuf),
    /// On this address.
    Address(SocketAddr),
    /// On a socket that was opened by the service manager, unix or TCP.
    Opened(OwnedFd),
}

/// The options of a daemon.
pub struct Options {
    /// Where it listens.
    pub listen: Listen,
    /// The token that gives access on TCP.
    pub token: AccessToken,
    /// Host names that clients on TCP may use, besides `localhost` and addresses.
    pub hosts: Vec<HostName>,
    /// The certificate chain and its key, both PEM, for TCP.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Accept other machines without encryption.
    pub insecure_listen: bool,
    /// The lease of requests that do not name one.
    pub default_ttl: Duration,
    /// Receives log lines.
    pub log: LogSink,
    /// Log also what happens all the time: every lock that is acquired and released.
    pub is_verbose: bool,
}

/// Where a daemon can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// At this unix socket.
    Socket(PathBuf),
    /// At this URL.
    Url(String),
}

/// A daemon that listens. Dropping it closes the listener.
#[derive(Debug)]
pub struct Daemon {
    server: HttpServer,
    access: Access,
    place: Place,
    service: Arc<Service>,
    /// Removes the socket at the end.
    _socket: Option<Socket>,
}

impl Daemon {
    /// Binds the socket or address; no request is served yet. `news` must observe the locker.
    ///
    /// # Errors
    /// When the options are refused, one of their files cannot be used, or the socket or address is in use.
    pub async fn bind(locker: Locker, news: News, options: Options) -> Result<Daemon, Refused> {
        let log = Log { sink: options.log.clone(), is_verbose: options.is_verbose };
        let service = Arc::new(Service::new(locker, news, log, options.default_ttl));
        let (listener, place, socket) = match options.listen {
            Listen::Socket(ref path) => {
                let (socket, listener) = Socket::bind(path)?;
                (Listener::Unix(listener), Place::Socket(path.clone()), Some(socket))
            }
            Listen::Address(address) => {
                check_listen(address, options.tls.is_some(), options.insecure_listen)?;
                let taken = |problem: io::Error| Refused::new(format!("cannot listen on {address}: {problem}"));
                let listener = TcpListener::bind(address).await.map_err(taken)?;
                let (listener, place) = on_tcp(listener, &options)?;
                (listener, place, None)
            }
            Listen::Opened(ref descriptor) => {
                let (listener, place) = opened(descriptor, &options)?;
                (listener, place, None)
            }
        };
        let access = match listener {
            Listener::Unix(_) => Access::Users(vec![0, rustix::process::geteuid().as_raw()]),
            Listener::Tcp(..) => Access::Token(Gate::new(options.token, options.hosts)),
        };
        let server = HttpServer::new(listener, MAX_CONNECTIONS);
        Ok(Daemon { server, access, place, service, _socket: socket })
    }

    /// Returns where the daemon can be reached.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Serves until `stop` resolves. Then it accepts no more holds, tells the event streams, and waits for up to ten
    /// seconds until the clients have released their locks or their deadlines have passed. The locks of other clients are left to
    /// their leases: a client that cannot hear must not find its lock given away before its deadline.
    pub async fn serve(self, stop: impl Future<Output = ()>) {
        let Daemon { server, access, service, _socket, .. } = self;
        let (stopping, stopped) = tokio::sync::oneshot::channel::<()>();
        let server = server.serve(Routes::new(service.clone(), access), async {
            // An error means that the sender was dropped, which also stops the server.
            let _ = stopped.await;
        });
        let farewell = async {
            stop.await;
            let is_empty = service.stop().await;
            let _ = stopping.send(());
            is_empty
        };
        let last = async {
            let ((), is_empty) = tokio::join!(server_limit(server, &service), farewell);
            is_empty
        };
        let is_empty = tokio::select! {
            is_empty = last => is_empty,
            () = service.end_silent() => true,
            () = service.look_for_questions() => true,
        };
        if is_empty {
            // Waits for releases that are under way.
            let _ = timeout(SHUTDOWN_LIMIT, service.locker.close()).await;
        } else {
            // Dropping the last guards would release these locks before the deadlines of their clients.
            std::mem::forget(service);
        }
    }
}

/// Runs the server; once it was stopped, its open requests have [`SHUTDOWN_LIMIT`].
async fn server_limit(server: impl Future<Output = ()>, service: &Service) {
    let late = async {
        service.stopped().await;
        tokio::time::sleep(SHUTDOWN_LIMIT).await;
    };
    tokio::select! {
        () = server => {}
        () = late => {}
    }
}

fn on_tcp(listener: TcpListener, options: &Options) -> Result<(Listener, Place), Refused> {
    let tls = options.tls.as_ref().map(|(certificate, key)| tls_config(certificate, key)).transpose()?;
    let address = listener.local_addr().map_err(|problem| Refused::new(problem.to_string()))?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    Ok((Listener::Tcp(listener, tls), Place::Url(format!("{scheme}://{address}/"))))
}

/// Takes over a socket of the service manager.
fn opened(descriptor: &OwnedFd, options: &Options) -> Result<(Listener, Place), Refused> {
    let refuse = |problem: io::Error| Refused::new(format!("the socket of the service manager: {problem}"));
    let copy = || descriptor.try_clone().map_err(refuse);
    let unix = std::os::unix::net::UnixListener::from(copy()?);
    if let Ok(address) = unix.local_addr() {
        unix.set_nonblocking(true).map_err(refuse)?;
        let path = address.as_pathname().unwrap_or(Path::new("")).to_owned();
        return Ok((Listener::Unix(UnixListener::from_std(unix).map_err(refuse)?), Place::Socket(path)));
    }
    let tcp = std::net::TcpListener::from(copy()?);
    tcp.set_nonblocking(true).map_err(refuse)?;
    let address = tcp.local_addr().map_err(refuse)?;
    check_listen(address, options.tls.is_some(), options.insecure_listen)?;
    on_tcp(TcpListener::from_std(tcp).map_err(refuse)?, options)
}
