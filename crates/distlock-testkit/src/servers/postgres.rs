//! A PostgreSQL server.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::built::built;
use super::directory::Directory;
use super::polling::{TEST_LIMIT, eventually, poll_until};
use super::port::Port;
use super::postgres_options::PostgresOptions;
use super::postgres_programs::{find, major_version};
use super::process::Process;
use super::program::find_program;

/// The user that the server runs as where the tests are root: it refuses to be root.
const SERVER_USER: &str = "postgres";

/// What a server logs when another process has its port.
const PORT_TAKEN: &str = "Address already in use";

/// How many ports to try: each failure means that another process took the port between choosing and using it.
const ATTEMPTS: usize = 10;

/// A PostgreSQL server. Dropping it kills it with all its processes.
#[derive(Debug)]
pub struct PostgresServer {
    // Declared before the directory, so that the server is dead before its directory is removed.
    process: Process,
    directory: Directory,
    port: Port,
    options: PostgresOptions,
}

impl PostgresServer {
    /// A server with the defaults of [`PostgresOptions`].
    #[track_caller]
    pub fn start() -> PostgresServer {
        PostgresServer::options().start()
    }

    /// Returns the options of a server.
    pub fn options() -> PostgresOptions {
        PostgresOptions::default()
    }

    #[track_caller]
    pub(super) fn launch(options: &PostgresOptions) -> PostgresServer {
        for _ in 0..ATTEMPTS {
            let (directory, port) = (Directory::new(), Port::free());
            make_data(options, directory.path());
            let process = spawn(options, &directory, &port);
            let mut server = PostgresServer { process, directory, port, options: options.clone() };
            match server.until_ready() {
                Ok(()) => {
                    if let (Some(password), None) = (&options.password, &options.primary) {
                        server.sql(&format!("ALTER USER postgres PASSWORD '{password}'"));
                    }
                    return server;
                }
                Err(log) if log.contains(PORT_TAKEN) => {}
                Err(log) => panic!("postgres did not start:\n{log}"),
            }
        }
        panic!("postgres found no free port {ATTEMPTS} times");
    }

    /// The URL of the database `postgres` for its user `postgres`.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// As [`url`](Self::url), by another way to the server.
    pub fn url_at(&self, address: SocketAddr) -> String {
        let password = self.options.password.as_ref().map(|password| format!(":{password}")).unwrap_or_default();
        let tls = if self.options.tls.is_some() { "?sslmode=verify-full" } else { "" };
        format!("postgres://postgres{password}@{address}/postgres{tls}")
    }

    /// The URL of the server's unix socket.
    pub fn unix_url(&self) -> String {
        format!("postgres://postgres@/postgres?host={}&port={}", self.socket_directory().display(), self.port())
    }

    /// The directory of the unix socket; every server has one, and trusts everybody there.
    pub fn socket_directory(&self) -> &Path {
        self.directory.path()
    }

    /// The address of the server.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The port of the server; it stays the same when the server is restarted.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Kills the server with all its processes (SIGKILL), as a crash of the machine would.
    pub fn crash(&mut self) {
        let children = self.kill_all();
        let is_gone = |child: &Pid| !Path::new(&format!("/proc/{}", child.as_raw_nonzero())).exists();
        eventually("the server's processes to end", || children.iter().all(is_gone).then_some(()));
    }

    /// Freezes the server with all its processes.
    pub fn freeze(&self) {
        // The parent first, so that no process is added meanwhile.
        self.process.stop();
        for child in self.children() {
            let _ = kill_process(child, Signal::STOP);
        }
    }

    /// Thaws a frozen server.
    pub fn thaw(&self) {
        for child in self.children() {
            let _ = kill_process(child, Signal::CONT);
        }
        self.process.cont();
    }

    /// Starts the server again on its port with its data, crashing it first if it runs, and waits until it answers.
    #[track_caller]
    pub fn restart(&mut self) {
        let start = std::time::Instant::now();
        loop {
            self.crash();
            let _ = fs::remove_file(self.data().join("postmaster.pid"));
            self.process = spawn(&self.options, &self.directory, &self.port);
            match self.until_ready() {
                Ok(()) => return,
                Err(log) => assert!(start.elapsed() < TEST_LIMIT, "postgres did not start again:\n{log}"),
            }
        }
    }

    /// Makes a replica a primary, and waits until it can be written to.
    #[track_caller]
    pub fn promote(&self) {
        self.sql("SELECT pg_promote(true, 30)");
    }

    /// Runs SQL as the user `postgres` over the unix socket, past any proxy, and returns its rows, one to a line, with `|`
    /// between their columns. Panics when it fails.
    #[track_caller]
    pub fn sql(&self, sql: &str) -> String {
        self.try_sql(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Like [`sql`](Self::sql), for what may fail.
    pub fn try_sql(&self, sql: &str) -> io::Result<String> {
        let output = self.psql(&["-XAtqc", sql]).output()?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned()),
            false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
        }
    }

    /// Returns the command of a `psql` on this server.
    pub fn psql(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(find("psql"));
        command.args(["-v", "ON_ERROR_STOP=1", "-h"]).arg(self.socket_directory());
        command.args(["-p", &self.port().to_string(), "-U", "postgres", "-d", "postgres"]).args(arguments);
        command.stdin(Stdio::null());
        command
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Kills all processes and returns those that the first one had started. Frees the segment of shared memory that the server would
    /// leave behind: a machine has room for a few thousand.
    fn kill_all(&mut self) -> Vec<Pid> {
        let (children, status) = (self.children(), fs::read_to_string(self.data().join("postmaster.pid")));
        self.process.kill9();
        for child in &children {
            let _ = kill_process(*child, Signal::KILL);
        }
        // `key id`
        if let Some(id) = status.unwrap_or_default().lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) {
            let _ = Command::new("ipcrm").args(["-m", id]).stderr(Stdio::null()).status();
        }
        children
    }

    fn children(&self) -> Vec<Pid> {
        let pid = self.process.pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        children.split_whitespace().filter_map(|child| Pid::from_raw(child.parse().ok()?)).collect()
    }

    /// Waits until the server answers; returns its log if it ended instead.
    fn until_ready(&mut self) -> Result<(), String> {
        let status = self.data().join("postmaster.pid");
        let answer = poll_until(TEST_LIMIT, || {
            if self.process.ended().is_some() {
                return Some(Err(self.log()));
            }
            let status = fs::read_to_string(&status).unwrap_or_default();
            let state = status.lines().nth(7).unwrap_or_default().trim_end();
            matches!(state, "ready" | "standby").then_some(Ok(()))
        });
        answer.unwrap_or_else(|| Err(self.log()))
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill_all();
    }
}

/// The server's first process; a restarted server has a new one.
impl Deref for PostgresServer {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for PostgresServer {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// Returns whether this process is root.
pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns a program and the words before its arguments, to run it as a user that may be a server.
pub(super) fn as_server_user(program: &Path) -> (PathBuf, Vec<String>) {
    if !is_root() {
        return (program.to_owned(), Vec::new());
    }
    // The death signal is set again: it is cleared when the user changes.
    let words = ["--reuid", SERVER_USER, "--regid", SERVER_USER, "--clear-groups", "--pdeathsig", "KILL", "--"];
    let words = words.map(str::to_owned).into_iter().chain([program.display().to_string()]);
    (find_program("setpriv", "util-linux"), words.collect())
}

/// Gives a directory with its contents to the server's user.
pub(super) fn give_to_server_user(path: &Path) {
    if is_root() {
        let done = run(Command::new("chown").args(["-R", &format!("{SERVER_USER}:{SERVER_USER}")]).arg(path));
        done.expect("the directory is given away");
    }
}

fn run(command: &mut Command) -> io::Result<Output> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(output),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned())),
    }
}

/// Makes the data directory: a copy of one that is made once, or of the primary's.
fn make_data(options: &PostgresOptions, directory: &Path) {
    let data = directory.join("data");
    match options.primary {
        None => {
            let template = built(&format!("postgres-{}-small", major_version()), "data", initialise);
            let copied = run(Command::new("cp").args(["-a", "--reflink=auto"]).arg(&template).arg(&data));
            copied.expect("the template is copied");
        }
        Some(primary) => {
            let backup = find("pg_basebackup");
            let from = format!("host={} port={} user=postgres", primary.ip(), primary.port());
            let copied = run(Command::new(backup)
                .args(["-d", &from, "-R", "-X", "stream", "-c", "fast", "--no-sync", "--no-manifest", "-D"])
                .arg(&data));
            copied.expect("the primary is copied");
        }
    }
    if let Some(certs) = &options.tls {
        fs::copy(certs.server_cert(), directory.join("server.pem")).expect("a certificate");
        fs::copy(certs.server_key(), directory.join("server.key")).expect("a key");
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(directory.join("server.key"), private).expect("a private key");
    }
    let way = if options.password.is_some() { "scram-sha-256" } else { "trust" };
    let kind = if options.tls.is_some() { "hostssl" } else { "host" };
    let rules =
        format!("local all all trust\n{kind} all all 127.0.0.1/32 {way}\nhost replication all 127.0.0.1/32 trust\n");
    fs::write(data.join("pg_hba.conf"), rules).expect("the rules of access");
    // It is the working directory, and has the socket.
    give_to_server_user(directory);
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(directory, open).expect("a directory that others may enter");
}

/// Makes an empty database cluster, small enough to be copied for every test.
fn initialise(target: &Path) {
    // The target directory may be where only root may go.
    let place = Directory::new();
    give_to_server_user(place.path());
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(place.path(), open).expect("a directory that others may enter");
    let data = place.path().join("data");
    let (program, words) = as_server_user(&find("initdb"));
    let mut initdb = Command::new(program);
    initdb.args(words).args(["--no-sync", "--wal-segsize=1", "--auth=trust", "--encoding=UTF8", "--locale=C"]);
    initdb.args(["--username=postgres", "-D"]).arg(&data).current_dir(place.path());
    run(&mut initdb).expect("initdb");
    // Two thirds of it are databases to make others from.
    let (program, words) = as_server_user(&find("postgres"));
    let mut single = Command::new(program);
    single.args(words).args(["--single", "-c", "fsync=off", "-D"]).arg(&data).arg("postgres").current_dir(place.path());
    let drop_templates =
        "UPDATE pg_database SET datistemplate = false\nDROP DATABASE template0\nDROP DATABASE template1\n";
    single.stdin(fs::File::open(place.write("drop.sql", drop_templates)).expect("the commands"));
    run(&mut single).expect("a single-user session");
    let copied = run(Command::new("cp").arg("-a").arg(&data).arg(target.join("data")));
    copied.expect("the template is kept");
    assert!(target.join("data").metadata().is_ok_and(|meta| meta.mode() != 0));
}

fn spawn(options: &PostgresOptions, directory: &Directory, port: &Port) -> Process {
    let (program, words) = as_server_user(&find("postgres"));
    let path = directory.path();
    let mut settings = vec![
        format!("port={}", port.number()),
        "listen_addresses=127.0.0.1".into(),
        format!("unix_socket_directories={}", path.display()),
        "fsync=off".into(),
        "full_page_writes=off".into(),
        "shared_buffers=8MB".into(),
        "max_wal_size=64MB".into(),
        "min_wal_size=4MB".into(),
        "wal_keep_size=16MB".into(),
        "max_connections=60".into(),
        "hot_standby=on".into(),
        "autovacuum=off".into(),
        "jit=off".into(),
    ];
    if options.tls.is_some() {
        let file = |name: &str| path.join(name).display().to_string();
        settings.extend(["ssl=on".into(), format!("ssl_cert_file={}", file("server.pem"))]);
        settings.push(format!("ssl_key_file={}", file("server.key")));
    }
    // The log is truncated, so that the log of an earlier start is not mistaken for this one.
    let log = directory.write("log", "");
    let started = Process::start(&program, &log, |command| {
        command.args(words).arg("-D").arg(path.join("data")).current_dir(path);
        settings.iter().chain(&options.settings).for_each(|setting| {
            command.args(["-c", setting]);
        });
        command.envs(options.environment.iter().cloned());
    });
    started.unwrap_or_else(|error| panic!("postgres cannot be started: {error}"))
}
