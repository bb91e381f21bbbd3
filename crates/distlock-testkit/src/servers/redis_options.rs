//! The start options of a Redis server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use super::certs::Certs;
use super::port::Port;
use super::redis::RedisServer;
use crate::clock_shim::ClockShim;
use crate::netns::Namespace;

/// The kit's own user on every server. It keeps its rights when a test changes the other users.
pub(super) const CONTROL_USER: &str = "testkit";
pub(super) const CONTROL_PASSWORD: &str = "testkit-control";

/// Start options. Defaults: no password, no TLS, no persistence, `DEBUG` allowed.
#[derive(Debug, Clone, Default)]
#[must_use = "call start() on it"]
pub struct RedisOptions {
    pub(super) lines: Vec<String>,
    pub(super) password: Option<String>,
    pub(super) tls: Option<Certs>,
    pub(super) environment: Vec<(String, String)>,
    pub(super) arguments: Vec<String>,
    /// The name of a network namespace, and the server's address in it.
    pub(super) namespace: Option<(String, Ipv4Addr)>,
}

impl RedisOptions {
    /// Adds a line to the configuration file; later lines win.
    pub fn config(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Sets the password of the default user.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.config(format!("requirepass {password}"))
    }

    /// Adds a user with a password and the rules of `ACL SETUSER`, such as `+@all ~* &*`.
    pub fn user(self, name: &str, password: &str, rules: &str) -> Self {
        self.config(format!("user {name} on >{password} {rules}"))
    }

    /// Accepts only TLS on the port, with a server certificate of `certs`; clients need none.
    pub fn tls(mut self, certs: &Certs) -> Self {
        self.tls = Some(certs.clone());
        self
    }

    /// Makes it a replica of the server at `master`.
    pub fn replica_of(self, master: SocketAddr) -> Self {
        self.config(format!("replicaof {} {}", master.ip(), master.port()))
    }

    /// Writes every change to disk before replying.
    pub fn persistent(self) -> Self {
        self.config("appendonly yes").config("appendfsync always")
    }

    /// Sets a variable in the server's environment.
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs the server under `shim`, which can shift its clocks.
    pub fn clock(self, shim: &ClockShim) -> Self {
        shim.environment().iter().fold(self, |options, (name, value)| options.env(name, value))
    }

    /// Runs the server in a network namespace, on its address.
    pub fn namespace(mut self, namespace: &Namespace) -> Self {
        self.namespace = Some((namespace.name().to_owned(), namespace.address()));
        self
    }

    /// Adds an argument to the command line.
    pub(super) fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Starts the server and waits until it answers.
    #[track_caller]
    pub fn start(self) -> RedisServer {
        RedisServer::launch(&self)
    }

    pub(super) fn file(&self, directory: &Path, port: &Port) -> String {
        let socket = directory.join(super::redis::SOCKET);
        let mut lines = vec![
            format!("bind {}", self.host()),
            // The namespace's address is as private as loopback.
            "protected-mode no".to_owned(),
            format!("dir {}", directory.display()),
            format!("unixsocket {}", socket.display()),
            "unixsocketperm 700".to_owned(),
            "daemonize no".to_owned(),
            format!("user {CONTROL_USER} on >{CONTROL_PASSWORD} ~* &* +@all"),
        ];
        let number = port.number();
        match &self.tls {
            None => lines.push(format!("port {number}")),
            Some(certs) => lines.extend([
                "port 0".to_owned(),
                format!("tls-port {number}"),
                format!("tls-cert-file {}", certs.server_cert().display()),
                format!("tls-key-file {}", certs.server_key().display()),
                format!("tls-ca-cert-file {}", certs.ca().display()),
                "tls-auth-clients no".to_owned(),
                // Also for connections to other servers, as a replica or a sentinel.
                "tls-replication yes".to_owned(),
            ]),
        }
        if !self.is_sentinel() {
            lines.extend(self.data_lines());
        }
        lines.extend(self.lines.iter().cloned());
        lines.join("\n") + "\n"
    }

    pub(super) fn host(&self) -> Ipv4Addr {
        self.namespace.as_ref().map_or(Ipv4Addr::LOCALHOST, |(_, address)| *address)
    }

    fn is_sentinel(&self) -> bool {
        self.arguments.iter().any(|argument| argument == "--sentinel")
    }

    /// Returns the lines that a sentinel would refuse.
    fn data_lines(&self) -> Vec<String> {
        vec![
            "save \"\"".to_owned(),
            "appendonly no".to_owned(),
            "enable-debug-command yes".to_owned(),
            format!("masteruser {CONTROL_USER}"),
            format!("masterauth {CONTROL_PASSWORD}"),
            // Replicas in tests are small and need not wait for one another.
            "repl-diskless-sync-delay 0".to_owned(),
        ]
    }
}
