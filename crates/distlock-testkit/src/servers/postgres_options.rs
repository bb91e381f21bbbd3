//! The start options of a PostgreSQL server.

use std::net::SocketAddr;

use super::certs::Certs;
use super::postgres::PostgresServer;
use crate::clock_shim::ClockShim;

/// Start options. Defaults: everybody is trusted, no TLS, nothing is forced to the disk.
#[derive(Debug, Clone, Default)]
#[must_use = "call start() on it"]
pub struct PostgresOptions {
    pub(super) settings: Vec<String>,
    pub(super) password: Option<String>,
    pub(super) tls: Option<Certs>,
    pub(super) environment: Vec<(String, String)>,
    pub(super) primary: Option<SocketAddr>,
}

impl PostgresOptions {
    /// Adds a setting, such as `max_connections=10`; later ones win.
    pub fn set(mut self, setting: impl Into<String>) -> Self {
        self.settings.push(setting.into());
        self
    }

    /// Sets the password of the user `postgres`, and asks every client on TCP for its password (SCRAM).
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Accepts only TLS on the port, with a server certificate of `certs`; clients need none.
    pub fn tls(mut self, certs: &Certs) -> Self {
        self.tls = Some(certs.clone());
        self
    }

    /// Forces every commit to the disk, so that nothing is lost when the server is killed.
    pub fn durable(self) -> Self {
        self.set("fsync=on").set("full_page_writes=on")
    }

    /// Makes it a streaming replica of the server at `primary`, started from a copy of its data.
    pub fn replica_of(mut self, primary: &PostgresServer) -> Self {
        self.primary = Some(primary.address());
        self
    }

    /// Reads the clocks of `shim`.
    pub fn clock(mut self, shim: &ClockShim) -> Self {
        self.environment.extend(shim.environment());
        self
    }

    /// Starts the server and waits until it answers.
    #[track_caller]
    pub fn start(&self) -> PostgresServer {
        PostgresServer::launch(self)
    }
}
