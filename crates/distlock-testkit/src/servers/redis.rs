//! A Redis server.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

use super::directory::Directory;
use super::polling::{TEST_LIMIT, eventually, poll_until};
use super::port::Port;
use super::process::Process;
use super::program::find_program;
use super::redis_options::{CONTROL_PASSWORD, CONTROL_USER, RedisOptions};
use super::reply::Reply;
use super::resp::RespClient;
use crate::netns::Namespace;

/// The name of the unix socket in the server's directory.
pub(super) const SOCKET: &str = "redis.sock";

/// Written once: a sentinel stores its state in it, and a restart must keep that.
const CONFIG: &str = "redis.conf";

/// What a server logs when another process has its port.
const PORT_TAKEN: &str = "Address already in use";

/// How many ports to try: each failure means that another process took the port between choosing and using it.
const ATTEMPTS: usize = 10;

/// The data that a restarted server finds on its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// All that it had written.
    Kept,
    /// Nothing.
    Lost,
}

/// A Redis server. Dropping it kills it.
#[derive(Debug)]
pub struct RedisServer {
    // Declared before the directory, so that the server is dead before its directory is removed.
    process: Process,
    directory: Directory,
    port: Port,
    options: RedisOptions,
}

impl RedisServer {
    /// A server with the defaults of [`RedisOptions`].
    #[track_caller]
    pub fn start() -> RedisServer {
        RedisServer::options().start()
    }

    /// Returns the options of a server.
    pub fn options() -> RedisOptions {
        RedisOptions::default()
    }

    #[track_caller]
    pub(super) fn launch(options: &RedisOptions) -> RedisServer {
        for _ in 0..ATTEMPTS {
            let (directory, port) = (Directory::new(), Port::free());
            directory.write(CONFIG, options.file(directory.path(), &port));
            let process = spawn(options, &directory);
            let mut server = RedisServer { process, directory, port, options: options.clone() };
            match server.until_ready() {
                Ok(()) => return server,
                Err(log) if log.contains(PORT_TAKEN) => {}
                Err(log) => panic!("redis-server did not start:\n{log}"),
            }
        }
        panic!("redis-server found no free port {ATTEMPTS} times");
    }

    /// The URL of the server, for the default user.
    pub fn url(&self) -> String {
        match &self.options.password {
            None => format!("{}://{}/", self.scheme(), self.address()),
            Some(password) => format!("{}://:{password}@{}/", self.scheme(), self.address()),
        }
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.options.tls.is_some()
    }

    pub(super) fn password(&self) -> Option<&str> {
        self.options.password.as_deref()
    }

    /// Returns the URL of the server for `user`.
    pub fn url_of(&self, user: &str, password: &str) -> String {
        format!("{}://{user}:{password}@{}/", self.scheme(), self.address())
    }

    /// The URL of the server's unix socket, for the default user without a password.
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// The unix socket; every server has one.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join(SOCKET)
    }

    /// The address of the server.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((self.options.host(), self.port()))
    }

    /// The port of the server; it stays the same when the server is restarted.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Where the server keeps its data.
    pub fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// Starts the server again on its port, killing it first if it runs, and waits until it answers.
    #[track_caller]
    pub fn restart(&mut self, data: Data) {
        self.relaunch(data);
        let start = std::time::Instant::now();
        while let Err(log) = self.until_ready() {
            let is_port_taken = log.contains(PORT_TAKEN) && start.elapsed() < TEST_LIMIT;
            assert!(is_port_taken, "redis-server did not start again:\n{log}");
            self.relaunch(Data::Kept);
        }
    }

    /// Like [`restart`](Self::restart), without waiting: the server may still be loading its data.
    pub fn relaunch(&mut self, data: Data) {
        self.process.kill9();
        if data == Data::Lost {
            let _ = fs::remove_file(self.directory.path().join("dump.rdb"));
            let _ = fs::remove_dir_all(self.directory.path().join("appendonlydir"));
        }
        self.process = spawn(&self.options, &self.directory);
    }

    /// Sends a command over a new connection with all rights, past any proxy. Panics when no reply comes; an error
    /// reply is a reply.
    #[track_caller]
    pub fn command<A: AsRef<[u8]>>(&self, arguments: &[A]) -> Reply {
        let shown = || String::from_utf8_lossy(arguments[0].as_ref()).into_owned();
        self.try_command(arguments).unwrap_or_else(|error| panic!("no reply to {}: {error}", shown()))
    }

    /// Like [`command`](Self::command), for servers that may not reply.
    pub fn try_command<A: AsRef<[u8]>>(&self, arguments: &[A]) -> io::Result<Reply> {
        self.client()?.command(arguments)
    }

    /// Returns a connection of the kit's own user over the unix socket, which needs neither TLS nor the network.
    pub fn client(&self) -> io::Result<RespClient> {
        let mut client = RespClient::unix(&self.socket())?;
        match client.command(&["AUTH", CONTROL_USER, CONTROL_PASSWORD])? {
            Reply::Simple(_) => Ok(client),
            refused => Err(io::Error::other(refused.to_string())),
        }
    }

    /// Returns the value of a field of `INFO section`.
    #[track_caller]
    pub fn info(&self, section: &str, field: &str) -> Option<String> {
        let all = self.command(&["INFO", section]).to_string();
        let value = |line: &str| line.strip_prefix(field)?.strip_prefix(':').map(str::to_owned);
        all.lines().find_map(value)
    }

    /// Returns how often the server has run `command` (`set`, `evalsha`, `client|list`, …), including in scripts.
    #[track_caller]
    pub fn calls(&self, command: &str) -> u64 {
        let Some(stats) = self.info("commandstats", &format!("cmdstat_{command}")) else { return 0 };
        let calls = stats.split(',').find_map(|part| part.strip_prefix("calls="));
        calls.and_then(|number| number.parse().ok()).expect("a number of calls")
    }

    /// Waits until this replica has everything from its master.
    #[track_caller]
    pub fn expect_in_sync(&self) {
        let is_up = || self.info("replication", "master_link_status").is_some_and(|status| status == "up");
        eventually("a replica's link to its master", || is_up().then_some(()));
    }

    fn scheme(&self) -> &'static str {
        if self.is_encrypted() { "rediss" } else { "redis" }
    }

    /// Waits until the server answers; returns its log if it ended instead.
    fn until_ready(&mut self) -> Result<(), String> {
        let pong = Reply::Simple("PONG".into());
        let answer = poll_until(TEST_LIMIT, || {
            if self.process.ended().is_some() {
                return Some(Err(self.log()));
            }
            self.try_command(&["PING"]).is_ok_and(|reply| reply == pong).then_some(Ok(()))
        });
        answer.unwrap_or_else(|| Err(self.log()))
    }
}

/// The server's process, to kill, freeze and thaw; a restarted server has a new process.
impl Deref for RedisServer {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for RedisServer {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

fn spawn(options: &RedisOptions, directory: &Directory) -> Process {
    let program = find_program("redis-server", "redis-server");
    let (program, words) = match &options.namespace {
        None => (program, vec![]),
        Some((name, _)) => Namespace::wrap(name, &program),
    };
    // The log is truncated, so that the log of an earlier start is not mistaken for this one.
    let log = directory.write("log", "");
    let started = Process::start(&program, &log, |command| {
        command.args(words).arg(CONFIG).args(&options.arguments).envs(options.environment.iter().cloned());
        command.current_dir(directory.path());
    });
    started.unwrap_or_else(|error| panic!("redis-server cannot be started: {error}"))
}
