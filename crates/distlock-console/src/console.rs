//! The console: binds its address, then serves until it is stopped.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use distlock::Locker;
use distlock_http::{AccessToken, Gate, HttpServer, Listener, Refused, tls_config};
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::api::App;
use crate::audit::Audit;
use crate::options::Options;
use crate::routes;
use crate::watcher::Watcher;

/// How many connections are open at once: all event streams, and some other requests.
const MAX_CONNECTIONS: usize = 320;
/// How long open requests may take after the stop.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);

/// A console that listens. Dropping it closes the listener.
pub struct Console {
    server: HttpServer,
    address: SocketAddr,
    scheme: &'static str,
    token: AccessToken,
    app: App,
}

impl Console {
    /// Binds the address; no request is served yet. `engine` is the name of the locker's engine for users and must not
    /// contain secrets; the password of a URL is removed in any case.
    ///
    /// # Errors
    /// When the options are refused, one of their files cannot be used, or the address is in use.
    pub async fn bind(locker: Locker, engine: &str, options: Options) -> Result<Console, Refused> {
        options.check()?;
        let audit = Arc::new(Audit::open(options.audit_file.as_deref())?);
        let tls = options.tls.as_ref().map(|(certificate, key)| tls_config(certificate, key)).transpose()?;
        let taken = |problem: io::Error| Refused::new(format!("cannot listen on {}: {problem}", options.listen));
        let listener = TcpListener::bind(options.listen).await.map_err(taken)?;
        let address = listener.local_addr().map_err(taken)?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let app = App {
            gate: Arc::new(Gate::new(options.token.clone(), options.hosts)),
            watcher: Arc::new(Watcher::new(locker.clone(), audit.clone())),
            audit,
            locker: Arc::new(locker),
            engine: distlock::redact(engine).into(),
            read_only: options.read_only,
        };
        let server = HttpServer::new(Listener::Tcp(listener, tls), MAX_CONNECTIONS);
        Ok(Console { server, address, scheme, token: options.token, app })
    }

    /// Returns the address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL without the token.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}/", self.scheme, self.address)
    }

    /// Returns the URL with the token. Browsers do not send the part after `#`, and the page removes it.
    #[must_use]
    pub fn url_with_token(&self) -> String {
        format!("{}#token={}", self.url(), self.token.reveal())
    }

    /// Serves until `stop` resolves. Then it ends the event streams and gives other requests two seconds to finish.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let watcher = self.app.watcher.clone();
        let (stopping, stopped) = tokio::sync::oneshot::channel::<()>();
        let server = self.server.serve(routes::router(self.app), async {
            // An error means that the sender was dropped, which also stops the console.
            let _ = stopped.await;
        });
        let farewell = async {
            stop.await;
            let _ = stopping.send(());
            watcher.close_all();
            sleep(SHUTDOWN_LIMIT).await;
        };
        tokio::select! {
            () = server => {}
            () = watcher.run() => {}
            () = watcher.read_histories() => {}
            () = farewell => {}
        }
        Ok(())
    }
}
