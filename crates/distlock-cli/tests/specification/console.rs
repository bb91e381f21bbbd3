//! `console`: starting, visiting and ending it. The responses are tested in distlock-console.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

use distlock_testkit::servers::{PostgresServer, RedisServer};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Wrapper, code};
use crate::machine::Machine;

/// Returns the head and the body of the response to a request with this token.
fn visit(url: &str, path: &str, token: &str) -> (String, String) {
    let address = url.strip_prefix("http://").unwrap().split('/').next().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().to_owned(), body.to_owned())
}

#[test]
fn the_console_serves_clients_with_the_token_until_a_signal() {
    let redis = RedisServer::options().password("s3cret-pass").start();
    let there = Machine::with_server(redis.url());
    let postgres = PostgresServer::options().password("s3cret-pass").start();
    let database = Machine::with_server(postgres.url());
    assert_eq!(database.code(&["setup"]), 0);
    for machine in [Machine::new(), there, database] {
        let _holder = machine.hold("job");
        for signal in [Signal::TERM, Signal::INT] {
            let mut console = Wrapper::start(&mut machine.distlock(&["console", "--listen", "127.0.0.1:0"]));
            let line = console.line();
            let (url, token) = line.split_once("#token=").expect("an address with a token");
            let (status, body) = visit(url, "/api/v1/locks", token);
            let listed: Value = serde_json::from_str(&body).unwrap();
            assert_eq!((status.as_str(), &listed["locks"][0]["name"]), ("200", &"job".into()), "{body}");
            assert_eq!(visit(url, "/api/v1/locks", &token[1..]).0, "401");
            let about = visit(url, "/api/v1/session", token).1;
            assert!(!about.contains("s3cret") && about.contains("\"read_only\":false"), "{about}");
            console.signal(signal);
            assert_eq!(code(console.wait()), 0, "{signal:?}");
            assert_eq!(console.rest(), "", "nothing else is printed");
        }
    }
}

#[test]
fn a_token_from_a_file_is_not_printed_and_must_be_a_secret() {
    let machine = Machine::new();
    machine.write("token", "a-token-that-is-long-enough\n");
    let path = machine.text("token");
    let words = ["console", "--json", "--read-only", "--listen", "127.0.0.1:0", "--token-file", &path];
    let everybodys = machine.run(&words);
    assert!(everybodys.code == 78 && everybodys.stderr.contains("chmod 600"), "{}", everybodys.stderr);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut console = Wrapper::start(&mut machine.distlock(&words));
    let line = console.line();
    let said: Value = serde_json::from_str(&line).unwrap();
    assert!(!line.contains("a-token-that") && said["read_only"] == true, "{line}");
    let (status, about) = visit(said["url"].as_str().unwrap(), "/api/v1/session", "a-token-that-is-long-enough");
    assert!(status == "200" && about.contains("\"read_only\":true"), "{about}");
    console.signal(Signal::TERM);
    assert_eq!(code(console.wait()), 0);
}

#[test]
fn insecure_or_invalid_options_are_refused_before_listening() {
    let machine = Machine::new();
    let rows: [(&[&str], i32, &str); 6] = [
        (&["--listen", "0.0.0.0:0"], 78, "--tls-cert"),
        (&["--listen", "nonsense"], 64, "nonsense"),
        (&["--tls-cert", "/nowhere"], 64, "--tls-key"),
        (&["--listen", "127.0.0.1:0", "--tls-cert", "/nowhere", "--tls-key", "/nowhere"], 78, "/nowhere"),
        (&["--listen", "127.0.0.1:0", "--audit-file", "/nowhere/audit"], 78, "/nowhere/audit"),
        (&["--host", "a:1"], 64, "host name"),
    ];
    for (words, expected, hint) in rows {
        let done = machine.run(&[&["console"], words].concat());
        assert_eq!(done.code, expected, "{words:?}: {}", done.stderr);
        assert!(done.stderr.contains(hint) && done.stdout.is_empty(), "{words:?}: {}", done.stderr);
    }
}
