//! The console itself: bound, then served until it is told to stop.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use distlock::Locker;
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::access::AccessToken;
use crate::api::App;
use crate::audit::Audit;
use crate::door::Door;
use crate::gate::Gate;
use crate::options::{Options, Refused};
use crate::watcher::Watcher;
use crate::{routes, tls};

/// How long visitors have to finish once it is told to stop.
const FAREWELL: Duration = Duration::from_secs(2);

/// A console that listens. Dropping it closes the door.
pub struct Console {
    door: Door,
    address: SocketAddr,
    scheme: &'static str,
    token: AccessToken,
    app: App,
}

impl Console {
    /// Listens, with nobody served yet. `engine` names the locker's engine to people and must not hold secrets; what
    /// looks like a URL with a password loses it all the same.
    ///
    /// # Errors
    /// When the options are refused, a file of theirs cannot be used or the address is taken.
    pub async fn bind(locker: Locker, engine: &str, options: Options) -> Result<Console, Refused> {
        options.check()?;
        let audit = Arc::new(Audit::open(options.audit_file.as_deref())?);
        let tls = options.tls.as_ref().map(|(certificate, key)| tls::server(certificate, key)).transpose()?;
        let taken = |problem: io::Error| Refused::new(format!("cannot listen on {}: {problem}", options.listen));
        let listener = TcpListener::bind(options.listen).await.map_err(taken)?;
        let address = listener.local_addr().map_err(taken)?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let gate = Gate::new(options.token.clone(), options.hosts);
        let app = App {
            gate: Arc::new(gate),
            watcher: Arc::new(Watcher::new(locker.clone(), audit.clone())),
            audit,
            locker: Arc::new(locker),
            engine: distlock::redact(engine).into(),
            read_only: options.read_only,
        };
        let door = Door::new(listener, tls);
        Ok(Console { door, address, scheme, token: options.token, app })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it is, for people who know the token.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}/", self.scheme, self.address)
    }

    /// Where it is, with the token. Browsers do not send what follows `#` to anybody, and the page takes it off.
    #[must_use]
    pub fn url_with_token(&self) -> String {
        format!("{}#token={}", self.url(), self.token.reveal())
    }

    /// Serves until `stop` resolves; streams are ended then, and other requests have two seconds to finish.
    ///
    /// # Errors
    /// When the system cannot go on listening.
    pub async fn serve(self, stop: impl Future<Output = ()>) -> io::Result<()> {
        let watcher = self.app.watcher.clone();
        let (stopping, stopped) = tokio::sync::oneshot::channel::<()>();
        let server = self.door.serve(routes::router(self.app), async {
            // An error is the other end dropped: that is the end as well.
            let _ = stopped.await;
        });
        let farewell = async {
            stop.await;
            let _ = stopping.send(());
            watcher.dismiss();
            sleep(FAREWELL).await;
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
