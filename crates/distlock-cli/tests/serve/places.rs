//! Where the daemon listens, and who comes in.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use distlock_testkit::servers::{Certs, Directory};
use rustix::process::Signal;

use crate::kit::{Answer, Daemon, Language, Process, clean, distlock};

/// Runs the daemon where it must refuse to start, and returns what it said.
fn refusal(words: &[&str]) -> String {
    let output = distlock(&[&["serve", "--url", "mem://"], words].concat()).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{words:?}: {said}");
    said
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_or_another_file_is_not() {
    let directory = Directory::new();
    let socket = directory.path().join("s");
    let path = socket.to_str().unwrap();
    let mut first = Daemon::at("mem://", &socket);
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(refusal(&["--socket", path]).contains("another daemon listens"));
    first.signal(Signal::KILL);
    first.end();
    assert!(socket.exists(), "what a killed daemon leaves");
    let second = Daemon::at("mem://", &socket);
    drop(second);

    let file = directory.write("file", "precious");
    assert!(refusal(&["--socket", file.to_str().unwrap()]).contains("not a socket"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    let others = directory.path().join("others");
    let _listener = UnixListener::bind(&others).unwrap();
    assert!(refusal(&["--socket", others.to_str().unwrap()]).contains("another program listens"));
    assert!(others.exists());
    let long = directory.path().join("x".repeat(120));
    assert!(!refusal(&["--socket", long.to_str().unwrap()]).is_empty());
    assert!(refusal(&["--socket", "/nowhere/at/all"]).contains("/nowhere"));
}

/// In a directory where others can write, a link would make the daemon create a file of their choice.
#[test]
fn a_link_beside_the_socket_is_not_followed() {
    let directory = Directory::new();
    let (socket, target) = (directory.path().join("s"), directory.path().join("target"));
    std::os::unix::fs::symlink(&target, directory.path().join("s.daemon")).unwrap();
    assert!(refusal(&["--socket", socket.to_str().unwrap()]).contains("s.daemon"));
    assert!(!target.exists() && !socket.exists());
}

#[test]
fn a_process_of_another_user_is_refused_needs_root() {
    let daemon = Daemon::start("mem://");
    // Even if the owner of the socket lets other users open it.
    for path in [daemon.socket.parent().unwrap(), &daemon.socket] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    }
    let mut command = clean("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "curl", "-s", "-i", "--unix-socket"]);
    let output = command.arg(&daemon.socket).arg("http://localhost/v1/locks").output().unwrap();
    let answer = String::from_utf8_lossy(&output.stdout);
    assert!(answer.contains("403") && answer.contains("\"auth\""), "{answer}{output:?}");
    assert_eq!(daemon.send("GET", "/v1/locks", "").status, 200);
}

fn tcp(url: &str, path: &str, headers: &str) -> Answer {
    let address = url.strip_prefix("http://").unwrap().trim_end_matches('/');
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\n{headers}\r\n").unwrap();
    Answer::read(stream)
}

#[test]
fn on_tcp_only_clients_with_the_token_come_in() {
    let mut daemon = Process::start(&mut distlock(&["serve", "--url", "mem://", "--listen", "127.0.0.1:0"]));
    let line = daemon.line();
    let (url, token) = line.split_once("#token=").unwrap();
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let rows = [
        ("/v1/locks", format!("Host: localhost\r\n{bearer}"), 200),
        ("/v1/locks", "Host: localhost\r\n".to_owned(), 401),
        ("/v1/locks", format!("Host: localhost\r\nAuthorization: Bearer {}\r\n", &token[1..]), 401),
        ("/v1/locks", format!("Host: localhost\r\nCookie: token={token}\r\n"), 401),
        ("/v1/locks", format!("Host: evil.example\r\n{bearer}"), 421),
        ("/v1/locks", bearer.clone(), 421),
        ("/v1/locks", format!("Host: localhost\r\nOrigin: http://evil.example\r\n{bearer}"), 403),
        ("/metrics", "Host: localhost\r\n".to_owned(), 401),
        ("/healthz", "Host: localhost\r\n".to_owned(), 200),
    ];
    for (path, headers, status) in rows {
        let answer = tcp(url, path, &headers);
        assert_eq!(answer.status, status, "{path} {headers}: {answer:?}");
        assert!(status == 200 || answer.kind() == "auth");
    }
    assert!(refusal(&["--listen", "0.0.0.0:0"]).contains("--tls-cert"));
}

#[test]
fn the_clients_use_tls_and_a_token_from_a_file() {
    let (certs, directory) = (Certs::new(), Directory::new());
    let token = directory.write("token", "a-token-that-is-long-enough\n");
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).unwrap();
    let [cert, key] = [certs.server_cert(), certs.server_key()].map(|path| path.to_str().unwrap().to_owned());
    let token = token.to_str().unwrap();
    let words = ["serve", "--url", "mem://", "--listen", "127.0.0.1:0", "--token-file", token];
    let mut daemon = Process::start(&mut distlock(&[&words[..], &["--tls-cert", &cert, "--tls-key", &key]].concat()));
    let url = daemon.line();
    assert!(url.starts_with("https://") && !url.contains("token"), "{url}");
    for language in [Language::Python, Language::Node] {
        let mut program = language.program(&["basics", &url, "tls"]);
        program.env("SERVE_TOKEN", "a-token-that-is-long-enough").env("SERVE_CA", certs.ca());
        assert_eq!(Process::start(&mut program).output().trim(), "good", "{language:?}");
    }
}

#[test]
fn a_socket_of_the_service_manager_is_used() {
    let directory = Directory::new();
    let socket = directory.path().join("s");
    // What systemd does: the socket is descriptor 3, and the process that it is for is named.
    let program = "import os, socket, sys\n\
                   s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()\n\
                   os.dup2(s.fileno(), 3); os.set_inheritable(3, True)\n\
                   os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))\n\
                   os.execv(sys.argv[2], sys.argv[2:])";
    let mut command = clean("python3");
    command.args(["-c", program]).arg(&socket).arg(env!("CARGO_BIN_EXE_distlock"));
    let mut daemon = Process::start(command.args(["serve", "--url", "mem://"]));
    assert_eq!(daemon.line(), socket.to_str().unwrap());
    let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("200 OK"), "{text}");
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), 0);
    assert!(socket.exists(), "it is the manager's");
}
