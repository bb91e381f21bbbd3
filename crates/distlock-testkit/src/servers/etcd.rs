//! An etcd server: single, or a member of a cluster.

use std::fs;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::time::Instant;

use super::directory::Directory;
use super::etcd_options::EtcdOptions;
use super::etcdctl::Etcdctl;
use super::http;
use super::polling::{TEST_LIMIT, poll_until};
use super::port::Port;
use super::process::Process;
use super::redis::Data;

/// What a server logs when another process has its port.
pub(super) const PORT_TAKEN: &str = "address already in use";

/// The ports of one member.
#[derive(Debug)]
pub(super) struct Ports {
    client: Port,
    peer: Port,
    /// Plain HTTP without authentication, even if the clients' port requires TLS or a password.
    metrics: Port,
}

impl Ports {
    pub(super) fn free() -> Ports {
        Ports { client: Port::free(), peer: Port::free(), metrics: Port::free() }
    }

    /// The member's part of `--initial-cluster`.
    pub(super) fn member(&self, name: &str) -> String {
        format!("{name}=http://{}", self.peer.address())
    }
}

/// An etcd server. Dropping it kills it.
#[derive(Debug)]
pub struct EtcdServer {
    // Declared before the directory, so that the server is dead before its directory is removed.
    process: Process,
    directory: Directory,
    ports: Ports,
    name: String,
    cluster: String,
    options: EtcdOptions,
}

impl EtcdServer {
    /// A server with the defaults of [`EtcdOptions`].
    #[track_caller]
    pub fn start() -> EtcdServer {
        EtcdServer::options().start()
    }

    /// Returns the options of a server or cluster.
    pub fn options() -> EtcdOptions {
        EtcdOptions::default()
    }

    /// Starts a member without waiting for the others.
    pub(super) fn launch(options: &EtcdOptions, name: &str, ports: Ports, cluster: &str) -> EtcdServer {
        let directory = Directory::new();
        let process = spawn(options, name, &ports, cluster, &directory);
        let (name, cluster) = (name.to_owned(), cluster.to_owned());
        EtcdServer { process, directory, ports, name, cluster, options: options.clone() }
    }

    /// The URL of the server; with authentication on, for `root`.
    pub fn url(&self) -> String {
        url(&self.options, &[self.address()])
    }

    /// Returns the endpoint in the form of other etcd clients: `http://127.0.0.1:12379`.
    pub fn endpoint(&self) -> String {
        format!("{}://{}", self.options.scheme(), self.address())
    }

    /// The address of the server.
    pub fn address(&self) -> SocketAddr {
        self.ports.client.address()
    }

    /// The port of the server; it stays the same when the server is restarted.
    pub fn port(&self) -> u16 {
        self.ports.client.number()
    }

    /// The member's name in its cluster.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the server keeps its data.
    pub fn data_directory(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Starts the server again on its ports, killing it first if it runs, and waits until it answers. Only a single
    /// server can lose its data: a cluster does not accept such a member back.
    #[track_caller]
    pub fn restart(&mut self, data: Data) {
        self.relaunch(data);
        let start = Instant::now();
        while let Err(log) = self.until_healthy() {
            let is_port_taken = log.contains(PORT_TAKEN) && start.elapsed() < TEST_LIMIT;
            assert!(is_port_taken, "etcd did not start again:\n{log}");
            self.relaunch(Data::Kept);
        }
        if data == Data::Lost {
            self.enable_auth();
        }
    }

    /// Like [`restart`](Self::restart), without waiting: a cluster without a majority would never answer.
    pub fn relaunch(&mut self, data: Data) {
        self.process.kill9();
        if data == Data::Lost {
            assert!(!self.cluster.contains(','), "a member of a cluster cannot lose its data");
            fs::remove_dir_all(self.data_directory()).expect("the data directory can be removed");
        }
        self.process = spawn(&self.options, &self.name, &self.ports, &self.cluster, &self.directory);
    }

    /// `etcdctl` for this server, with all rights.
    pub fn etcdctl(&self) -> Etcdctl {
        Etcdctl::new(&self.options, &[self.endpoint()])
    }

    /// Returns whether the server reports itself as the leader; false if it is frozen or dead.
    pub fn is_leader(&mut self) -> bool {
        self.is_running() && self.metric("etcd_server_is_leader") == Some(1.0)
    }

    /// Whether the server knows a leader.
    pub fn has_leader(&mut self) -> bool {
        self.is_running() && self.metric("etcd_server_has_leader") == Some(1.0)
    }

    /// Whether the server can serve a linearizable read.
    pub fn is_healthy(&self) -> bool {
        http::get(self.ports.metrics.address(), "/health").is_ok_and(|body| body.contains(r#""health":"true""#))
    }

    /// A number of the server's `/metrics`.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let all = http::get(self.ports.metrics.address(), "/metrics").ok()?;
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok();
        all.lines().find_map(value)
    }

    /// Whether it is alive and not frozen.
    pub(super) fn is_running(&mut self) -> bool {
        self.process.ended().is_none() && !self.process.is_frozen()
    }

    /// Waits until the server answers; returns its log if it ended instead.
    pub(super) fn until_healthy(&mut self) -> Result<(), String> {
        let answer = poll_until(TEST_LIMIT, || {
            if self.process.ended().is_some() {
                return Some(Err(self.log()));
            }
            self.is_healthy().then_some(Ok(()))
        });
        answer.unwrap_or_else(|| Err(self.log()))
    }

    /// Switches authentication on if the options say so.
    pub(super) fn enable_auth(&self) {
        let Some(password) = &self.options.root_password else { return };
        let open = Etcdctl::new(&EtcdOptions { root_password: None, ..self.options.clone() }, &[self.endpoint()]);
        open.run(&["user", "add", &format!("root:{password}")]);
        open.run(&["role", "add", "root"]);
        open.run(&["user", "grant-role", "root", "root"]);
        open.run(&["auth", "enable"]);
    }
}

/// The server's process, to kill, freeze and thaw; a restarted server has a new process.
impl Deref for EtcdServer {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for EtcdServer {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// The URL for several endpoints.
pub(super) fn url(options: &EtcdOptions, addresses: &[SocketAddr]) -> String {
    let scheme = if options.tls.is_some() { "etcds" } else { "etcd" };
    let user = options.root_password.as_ref().map(|password| format!("root:{password}@")).unwrap_or_default();
    let hosts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    format!("{scheme}://{user}{}/", hosts.join(","))
}

fn spawn(options: &EtcdOptions, name: &str, ports: &Ports, cluster: &str, directory: &Directory) -> Process {
    let client = format!("{}://{}", options.scheme(), ports.client.address());
    let peer = format!("http://{}", ports.peer.address());
    let mut flags = vec![
        format!("--name={name}"),
        format!("--data-dir={}", directory.path().join("data").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster={cluster}"),
        format!("--listen-metrics-urls=http://{}", ports.metrics.address()),
        "--logger=zap".to_owned(),
    ];
    if let Some(certs) = &options.tls {
        flags.push(format!("--cert-file={}", certs.server_cert().display()));
        flags.push(format!("--key-file={}", certs.server_key().display()));
    }
    // The log is truncated, so that the log of an earlier start is not mistaken for this one.
    let log = directory.write("log", "");
    let started = Process::start(&options.version.program(), &log, |command| {
        command.args(flags).args(&options.flags).current_dir(directory.path());
    });
    started.unwrap_or_else(|error| panic!("etcd cannot be started: {error}"))
}
