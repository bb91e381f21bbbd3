//! The daemon over its unix socket, on the memory engine, against an echo of the same bodies by axum in the same run.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::{delete, post};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::process::cpu_ms_of;

const PAIRS: usize = 3_000;
const ROUNDS: usize = 7;
const CLIENTS: usize = 64;
const BURST: Duration = Duration::from_secs(2);
const STREAMS: usize = 1_000;
const IDLE: Duration = Duration::from_secs(20);

const REQUEST: &str = r#"{"ttl":"10s","wait":"5s","silence":"10s"}"#;
/// An answer as the daemon gives it.
const ANSWER: &str = r#"{"id":"0e686b1735ea94b957009c006d28adaf","name":"invoice:42","token":"1","owner":"000ed603e353621f4ae4c2ff2abbf89c","state":"held","left_ms":9985,"took_ms":0,"silence_ms":10000,"lease":false}"#;

/// Prints every figure of the daemon. The program `distlock` is beside this one.
pub(crate) fn run() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let directory = std::env::temp_dir().join(format!("distlock-bench-serve-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let daemon = Server::daemon(directory.join("daemon")).await;
        let echo = Server::echo(directory.join("echo")).await;
        alone(&daemon, &echo).await;
        together(&daemon, &echo).await;
        drop((daemon, echo));
        idle(&Server::daemon(directory.join("idle")).await).await;
        let _ = std::fs::remove_dir_all(&directory);
    });
}

/// Runs a server that returns the daemon's bodies to every request: `distlock-bench serve-echo SOCKET`, a process of its own.
pub(crate) fn echo(words: &[String]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = UnixListener::bind(&words[0]).expect("a socket");
        let acquire = async |_body: Bytes| {
            (StatusCode::CREATED, [(axum::http::header::CONTENT_TYPE, "application/json")], ANSWER)
        };
        let app = Router::new()
            .route("/v1/locks/{name}", post(acquire))
            .route("/v1/holds/{id}", delete(async || StatusCode::NO_CONTENT));
        axum::serve(listener, app).await.expect("it serves");
    });
}

/// A server process.
struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    async fn daemon(socket: PathBuf) -> Server {
        let program = std::env::current_exe().expect("this program").with_file_name("distlock");
        let mut command = Command::new(program);
        command.args(["serve", "--url", "mem://", "--socket"]).arg(&socket);
        Server::start(&mut command, socket).await
    }

    async fn echo(socket: PathBuf) -> Server {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg("serve-echo").arg(&socket);
        Server::start(&mut command, socket).await
    }

    async fn start(command: &mut Command, socket: PathBuf) -> Server {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("cargo build --release");
        for _ in 0..1_000 {
            if UnixStream::connect(&socket).await.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Server { child, socket }
    }

    fn memory_kb(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection that is used again.
struct Connection(BufReader<UnixStream>);

impl Connection {
    async fn open(socket: &Path) -> Connection {
        Connection(BufReader::new(UnixStream::connect(socket).await.expect("it listens")))
    }

    /// Sends a request and returns the body of the answer.
    async fn send(&mut self, method: &str, path: &str, body: &str) -> String {
        let length = body.len();
        let head = "Host: localhost\r\nContent-Type: application/json";
        let text = format!("{method} {path} HTTP/1.1\r\n{head}\r\nContent-Length: {length}\r\n\r\n{body}");
        self.0.get_mut().write_all(text.as_bytes()).await.expect("sent");
        let (mut line, mut length) = (String::new(), 0);
        loop {
            line.clear();
            self.0.read_line(&mut line).await.expect("an answer");
            if line == "\r\n" {
                break;
            }
            assert!(!line.is_empty(), "the connection was closed");
            if let Some(number) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                length = number.trim().parse().expect("a length");
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.expect("a body");
        String::from_utf8(body).expect("text")
    }

    async fn pair(&mut self, name: &str) {
        let hold = self.send("POST", &format!("/v1/locks/{name}"), REQUEST).await;
        let id = id_of(&hold);
        self.send("DELETE", &format!("/v1/holds/{id}"), "").await;
    }
}

fn id_of(hold: &str) -> &str {
    hold.split("\"id\":\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_else(|| panic!("{hold}"))
}

async fn p50(server: &Server) -> Duration {
    let mut connection = Connection::open(&server.socket).await;
    let mut times = Vec::with_capacity(PAIRS);
    for _ in 0..PAIRS {
        let start = Instant::now();
        connection.pair("invoice:42").await;
        times.push(start.elapsed());
    }
    times.sort();
    times[PAIRS / 2]
}

async fn alone(daemon: &Server, echo: &Server) {
    let mut differences = Vec::new();
    let mut last = (Duration::ZERO, Duration::ZERO);
    for _ in 0..ROUNDS {
        last = (p50(daemon).await, p50(echo).await);
        differences.push(last.0.as_secs_f64() * 1e6 - last.1.as_secs_f64() * 1e6);
    }
    differences.sort_by(f64::total_cmp);
    println!(
        "lock+unlock, 1 client: p50 {:?}, echo {:?}; difference, median of {ROUNDS} rounds: {:+.0} µs (aim: at most +120 µs)",
        last.0,
        last.1,
        differences[ROUNDS / 2]
    );
}

/// Returns pairs per second of many clients, each with its own lock.
async fn rate(server: &Server) -> f64 {
    let (pairs, start) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..CLIENTS {
        let (pairs, socket) = (pairs.clone(), server.socket.clone());
        clients.spawn(async move {
            let mut connection = Connection::open(&socket).await;
            let name = format!("invoice:{number}");
            while start.elapsed() < BURST {
                connection.pair(&name).await;
                pairs.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    clients.join_all().await;
    pairs.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}

async fn together(daemon: &Server, echo: &Server) {
    let mut ratios = Vec::new();
    let mut last = (0.0, 0.0);
    for _ in 0..ROUNDS {
        last = (rate(daemon).await, rate(echo).await);
        ratios.push(last.0 / last.1);
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "lock+unlock, {CLIENTS} clients: {:.0}/s, echo {:.0}/s; median of {ROUNDS} rounds: {:.2}× (aim: at least 0.8×)",
        last.0,
        last.1,
        ratios[ROUNDS / 2]
    );
}

async fn idle(daemon: &Server) {
    let mut connection = Connection::open(&daemon.socket).await;
    let mut streams = Vec::with_capacity(STREAMS);
    for number in 0..STREAMS {
        let hold = connection.send("POST", &format!("/v1/locks/invoice:{number}"), r#"{"ttl":"10s"}"#).await;
        let mut stream = UnixStream::connect(&daemon.socket).await.expect("it listens");
        let request = format!("GET /v1/holds/{}/events HTTP/1.1\r\nHost: localhost\r\n\r\n", id_of(&hold));
        stream.write_all(request.as_bytes()).await.expect("sent");
        streams.push(tokio::spawn(async move {
            let (mut bytes, mut piece) = (0, [0; 1024]);
            while let Ok(read) = stream.read(&mut piece).await {
                assert!(read > 0, "a stream has ended");
                bytes += read;
            }
            bytes
        }));
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (cpu, start) = (cpu_ms_of(daemon.child.id()), Instant::now());
    tokio::time::sleep(IDLE).await;
    let used = (cpu_ms_of(daemon.child.id()) - cpu) as f64 / start.elapsed().as_millis() as f64 * 100.0;
    assert!(streams.iter().all(|stream| !stream.is_finished()), "all streams are open");
    let memory = daemon.memory_kb() as f64 / 1024.0;
    println!(
        "{STREAMS} held locks with open streams: {used:.2} % of a core (aim: under 1 %), {memory:.1} MB (aim: under 40 MB)"
    );
}
