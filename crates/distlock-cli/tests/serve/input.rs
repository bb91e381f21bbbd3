//! Bad input: a clear JSON error with a kind, nothing held.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use serde_json::Value;

use crate::kit::{Answer, Daemon, LIMIT, eventually};

#[test]
fn bad_requests_are_refused_with_a_kind_and_hold_nothing() {
    let daemon = Daemon::start("mem://");
    let long = format!("/v1/locks/{}", "x".repeat(513));
    let large = format!("{{\"label\": \"{}\"}}", "x".repeat(64 * 1024));
    let [missing, malformed] = ["00000000000000000000000000000000", "nonsense"].map(|id| format!("/v1/holds/{id}"));
    let lock = "/v1/locks/a";
    let rows: [(&str, &str, &str, u16, &str); 30] = [
        ("POST", lock, r#"{"tll": "3s"}"#, 400, "invalid_input"),
        ("POST", lock, r#"{"ttl": 3}"#, 400, "invalid_input"),
        ("POST", lock, r#"{"ttl": "0s"}"#, 400, "invalid_input"),
        ("POST", lock, r#"{"ttl": "1ms"}"#, 400, "invalid_input"),
        ("POST", lock, r#"{"ttl": "25h"}"#, 400, "invalid_input"),
        ("POST", lock, r#"{"ttl": "99999999999999999999s"}"#, 400, "invalid_input"),
        ("POST", lock, r#"{"ttl": "NaN"}"#, 400, "invalid_input"),
        ("POST", lock, r#"{"wait": "1000y"}"#, 400, "invalid_input"),
        ("POST", lock, r#"{"wait": "-1s"}"#, 400, "invalid_input"),
        ("POST", lock, r#"{"silence": "0s"}"#, 400, "invalid_input"),
        ("POST", lock, r#"{"owner": ""}"#, 400, "invalid_input"),
        ("POST", lock, r#"{"owner": "a\nb"}"#, 400, "invalid_input"),
        ("POST", lock, r#"{"mode": "slots", "slots": 0}"#, 400, "invalid_input"),
        ("POST", lock, r#"{"mode": "slots", "slots": -1}"#, 400, "invalid_input"),
        ("POST", lock, r#"{"ttl": "3s", "ttl": "4s"}"#, 400, "invalid_input"),
        ("POST", lock, "{", 400, "invalid_input"),
        ("POST", lock, "[]", 400, "invalid_input"),
        ("POST", lock, &large, 413, "invalid_input"),
        ("POST", &long, "{}", 400, "invalid_input"),
        ("POST", "/v1/locks/a%0Ab", "{}", 400, "invalid_input"),
        ("POST", "/v1/locks/%FF", "{}", 400, "invalid_input"),
        ("PUT", lock, "{}", 405, "invalid_input"),
        ("GET", "/v1/nothing", "", 404, "invalid_input"),
        ("GET", "/v1/locks?perfix=a", "", 400, "invalid_input"),
        ("GET", &missing, "", 404, "not_held"),
        ("DELETE", &missing, "", 404, "not_held"),
        ("DELETE", &malformed, "", 404, "not_held"),
        ("POST", &format!("{missing}/alive"), "", 404, "not_held"),
        ("GET", &format!("{missing}/events"), "", 404, "not_held"),
        ("POST", &format!("{missing}/extend"), r#"{"ttl": "3s", "x": 1}"#, 400, "invalid_input"),
    ];
    for (method, path, body, status, kind) in rows {
        let answer = daemon.send(method, path, body);
        let what = format!("{method} {} {}", &path[..path.len().min(60)], &body[..body.len().min(60)]);
        assert_eq!((answer.status, answer.kind()), (status, kind), "{what}: {answer:?}");
        assert!(answer.json["error"]["message"].as_str().is_some_and(|text| !text.is_empty()), "{what}");
    }
    let locks = daemon.send("GET", "/v1/locks", "");
    assert_eq!(locks.json["locks"], Value::Array(Vec::new()), "nothing is held");
    assert_eq!(daemon.metric("distlock_serve_holds"), 0);
}

#[test]
fn a_wrong_content_type_is_refused() {
    let daemon = Daemon::start("mem://");
    for (header, status) in [
        ("Content-Type: text/plain", 415),
        ("Content-Type: application/x-www-form-urlencoded", 415),
        ("X-Other: 1", 415),
        ("Content-Type: application/json; charset=utf-8", 201),
    ] {
        let mut stream = UnixStream::connect(&daemon.socket).unwrap();
        write!(stream, "POST /v1/locks/a HTTP/1.0\r\n{header}\r\nContent-Length: 12\r\n\r\n{{\"try\":true}}").unwrap();
        let answer = Answer::read(stream);
        assert_eq!(answer.status, status, "{header}: {answer:?}");
    }
}

#[test]
fn a_client_that_sends_its_request_too_slowly_is_refused_and_others_are_served() {
    let daemon = Daemon::start("mem://");
    let mut body = UnixStream::connect(&daemon.socket).unwrap();
    body.write_all(b"POST /v1/locks/a HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{")
        .unwrap();
    let mut head = UnixStream::connect(&daemon.socket).unwrap();
    head.write_all(b"POST /v1/lo").unwrap();
    assert_eq!(daemon.send("GET", "/healthz", "").status, 200, "meanwhile");
    let answer = Answer::read(body);
    assert_eq!((answer.status, answer.kind()), (408, "invalid_input"));
    head.set_read_timeout(Some(LIMIT)).unwrap();
    assert_eq!(std::io::Read::read(&mut head, &mut [0; 64]).unwrap(), 0, "it is closed");
    assert_eq!(daemon.metric("distlock_serve_holds"), 0);
}

#[test]
fn a_lock_that_is_held_is_423_with_its_holder() {
    let daemon = Daemon::start("mem://");
    daemon.acquire("a", r#"{"label": "mine", "silence": "60s"}"#);
    for body in [r#"{"try": true}"#, r#"{"wait": "10ms"}"#] {
        let busy = daemon.send("POST", "/v1/locks/a", body);
        assert_eq!((busy.status, busy.kind()), (423, "timeout"), "{busy:?}");
        assert_eq!(busy.json["error"]["holder"]["label"], "mine");
        assert!(busy.json["error"]["message"].as_str().unwrap().contains("held by"), "{busy:?}");
    }
}

#[test]
fn a_client_that_hangs_up_while_it_waits_is_withdrawn() {
    let daemon = Daemon::start("mem://");
    let held = daemon.acquire("a", r#"{"silence": "60s"}"#);
    for headers in [&[][..], &["Idempotency-Key: k"]] {
        let waiter = daemon.open("POST", "/v1/locks/a", headers, r#"{"silence": "60s"}"#);
        daemon.await_metric("distlock_serve_waiting", 1);
        waiter.shutdown(Shutdown::Both).unwrap();
        daemon.await_metric("distlock_serve_waiting", 0);
        let queue = || daemon.send("GET", "/v1/locks/a", "").json["waiters"].as_array().map(Vec::len);
        eventually("the queue is empty", || (queue() == Some(0)).then_some(()));
    }
    let released = daemon.send("DELETE", &format!("/v1/holds/{}", held["id"].as_str().unwrap()), "");
    assert_eq!((released.status, released.text.as_str()), (204, ""));
    daemon.acquire("a", r#"{"try": true}"#);
}

#[test]
fn requests_with_the_same_key_are_one_attempt() {
    let daemon = Daemon::start("mem://");
    let key = ["Idempotency-Key: one"];
    let body = r#"{"silence": "60s"}"#;
    let ask = |headers: &[&str], body: &str| Answer::read(daemon.open("POST", "/v1/locks/a", headers, body));
    let first = ask(&key, body);
    let again = ask(&key, body);
    assert_eq!((first.status, again.status), (201, 201), "{again:?}");
    assert_eq!(first.json["id"], again.json["id"]);
    assert_eq!(first.json["token"], again.json["token"]);
    let other = ask(&key, r#"{"silence": "50s"}"#);
    assert_eq!((other.status, other.kind()), (422, "invalid_input"));
    for bad in [format!("Idempotency-Key: {}", "x".repeat(129)), "Idempotency-Key:".to_owned()] {
        assert_eq!(ask(&[&bad], body).kind(), "invalid_input");
    }

    // Two requests wait as one; one that hangs up does not withdraw the other.
    let second = ["Idempotency-Key: two"];
    let gone = daemon.open("POST", "/v1/locks/a", &second, body);
    daemon.await_metric("distlock_serve_waiting", 1);
    let stays = daemon.open("POST", "/v1/locks/a", &second, body);
    gone.shutdown(Shutdown::Both).unwrap();
    let waiters = daemon.send("GET", "/v1/locks/a", "").json["waiters"].as_array().unwrap().len();
    assert_eq!(waiters, 1, "one place in the queue");
    assert_eq!(daemon.send("DELETE", &format!("/v1/holds/{}", first.json["id"].as_str().unwrap()), "").status, 204);
    let granted = Answer::read(stays);
    assert_eq!(granted.status, 201, "{granted:?}");
    let late = ask(&key, body);
    assert_eq!((late.status, late.kind()), (404, "not_held"), "a late repeat acquires nothing");
}
