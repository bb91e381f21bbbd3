//! PgBouncer in front of a PostgreSQL server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::directory::Directory;
use super::polling::eventually;
use super::port::Port;
use super::postgres::{PostgresServer, as_server_user, give_to_server_user};
use super::process::Process;
use super::program::find_program;

/// A pooler in transaction mode: each transaction may get another session of the server. Dropping it kills it.
#[derive(Debug)]
pub struct PgBouncer {
    _process: Process,
    _directory: Directory,
    port: Port,
}

impl PgBouncer {
    /// Starts a pooler of at most `sessions` sessions of `server`.
    #[track_caller]
    pub fn start(server: &PostgresServer, sessions: u32) -> PgBouncer {
        let (directory, port) = (Directory::new(), Port::free());
        let users = directory.write("users", "\"postgres\" \"\"\n");
        let config = format!(
            "[databases]\n* = host={} port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\n\
             auth_type = trust\nauth_file = {}\npool_mode = transaction\ndefault_pool_size = {sessions}\nmax_client_conn = 500\n",
            server.socket_directory().display(),
            server.port(),
            port.number(),
            users.display(),
        );
        let config = directory.write("pgbouncer.ini", config);
        let log = directory.write("log", "");
        give_to_server_user(directory.path());
        let (program, words) = as_server_user(&find_program("pgbouncer", "pgbouncer"));
        let started = Process::start(&program, &log, |command| {
            command.args(words).arg(config).current_dir(directory.path());
        });
        let process = started.unwrap_or_else(|error| panic!("pgbouncer cannot be started: {error}"));
        let bouncer = PgBouncer { _process: process, _directory: directory, port };
        eventually("pgbouncer", || bouncer.answers().then_some(()));
        bouncer
    }

    /// The address of the pooler.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The port of the pooler.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Whether it answers a request for TLS, which it does not have.
    fn answers(&self) -> bool {
        let asked = TcpStream::connect(self.address()).and_then(|mut stream| {
            stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 47])?;
            let mut answer = [0];
            stream.read_exact(&mut answer)
        });
        asked.is_ok()
    }
}
