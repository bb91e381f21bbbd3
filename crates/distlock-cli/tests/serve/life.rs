//! A hold lives as long as its client, and its stream tells what happens to it.

use std::net::Shutdown;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::kit::{Answer, Daemon, Engine, Events, distlock, eventually};

fn id(hold: &serde_json::Value) -> String {
    hold["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_hold_ends_after_its_stream_and_not_before_what_its_client_was_told() {
    let daemon = Daemon::start("mem://");
    let asked = Instant::now();
    let hold = daemon.acquire("a", r#"{"ttl": "7s"}"#);
    let told = Duration::from_millis(hold["left_ms"].as_u64().unwrap());
    assert!(told > Duration::from_secs(5), "longer than the silence: {told:?}");
    let mut events = Events::open(&daemon, &id(&hold));
    assert_eq!(events.next().unwrap().0, "held");
    drop(events);
    daemon.await_metric("distlock_serve_streams", 0);
    daemon.acquire("a", r#"{"wait": "60s"}"#);
    assert!(asked.elapsed() >= told, "{:?}", asked.elapsed());
    assert_eq!(daemon.metric("distlock_serve_holds_ended_total{end=\"silent\"}"), 1);
}

#[test]
fn an_open_stream_keeps_a_hold_and_tells_of_each_renewal() {
    let daemon = Daemon::start("mem://");
    let hold = daemon.acquire("a", r#"{"ttl": "3s"}"#);
    let mut events = Events::open(&daemon, &id(&hold));
    // Two leases, and more than the silence.
    for _ in 0..8 {
        events.next_of("held");
    }
    assert_eq!(daemon.send("GET", &format!("/v1/holds/{}", id(&hold)), "").status, 200);
    assert_eq!(daemon.send("POST", "/v1/locks/a", r#"{"try": true}"#).status, 423);
    assert_eq!(daemon.send("DELETE", &format!("/v1/holds/{}", id(&hold)), "").status, 204);
    while let Some((name, _)) = events.next() {
        assert_eq!(name, "held", "nothing is lost");
    }
}

#[test]
fn calls_keep_a_hold_until_the_silence_that_the_client_chose() {
    let daemon = Daemon::start("mem://");
    let hold = daemon.acquire("a", r#"{"ttl": "60s", "silence": "6s"}"#);
    assert!(hold["left_ms"].as_u64().unwrap() <= 6_000 && hold["silence_ms"] == 6_000, "{hold}");
    let mut events = Events::open(&daemon, &id(&hold));
    // For longer than the silence in all, with calls at a third of it.
    for _ in 0..4 {
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(daemon.send("POST", &format!("/v1/holds/{}/alive", id(&hold)), "").status, 200);
    }
    // An open stream is not enough for a client that chose calls.
    assert_eq!(events.next_of("lost")["reason"], "silent");
    assert!(events.next().is_none());
    assert_eq!(daemon.send("GET", &format!("/v1/holds/{}", id(&hold)), "").kind(), "not_held");
    daemon.acquire("a", r#"{"wait": "30s"}"#);
}

#[test]
fn a_second_stream_ends_the_first_and_the_hold_lives_on() {
    let daemon = Daemon::start("mem://");
    let hold = daemon.acquire("a", r#"{"ttl": "3s"}"#);
    let mut first = Events::open(&daemon, &id(&hold));
    first.next_of("held");
    let mut second = Events::open(&daemon, &id(&hold));
    second.next_of("held");
    while first.next().is_some() {}
    for _ in 0..8 {
        second.next_of("held");
    }
    assert_eq!(daemon.send("GET", &format!("/v1/holds/{}", id(&hold)), "").status, 200);
}

#[test]
fn a_broken_lock_and_a_question_are_told() {
    let engine = Engine::redis();
    let daemon = Daemon::start(&engine.url);
    let hold = daemon.acquire("a", r#"{"ttl": "5s"}"#);
    let mut events = Events::open(&daemon, &id(&hold));
    let mut asker =
        crate::kit::Process::start(&mut distlock(&["ask", "--url", &engine.url, "a", "--reason", "deploy"]));
    assert_eq!(events.next_of("asked")["reason"], "deploy");
    let token = hold["token"].as_str().unwrap();
    let words = ["break", "--url", &engine.url, "a", "--if-token", token, "--reason", "test"];
    assert!(distlock(&words).stderr(std::process::Stdio::null()).status().unwrap().success());
    let lost = events.next_of("lost");
    assert!(["broken", "revoked"].contains(&lost["reason"].as_str().unwrap()), "{lost}");
    let answer = daemon.send("POST", &format!("/v1/holds/{}/alive", id(&hold)), "");
    assert_eq!((answer.status, answer.kind()), (410, "lost"), "{answer:?}");
    assert_eq!(asker.end(), 0);
}

#[test]
fn a_daemon_that_loses_its_engine_says_at_risk_before_lost() {
    let mut engine = distlock_testkit::servers::RedisServer::start();
    let daemon = Daemon::start(&engine.url());
    let hold = daemon.acquire("a", r#"{"ttl": "6s"}"#);
    let mut events = Events::open(&daemon, &id(&hold));
    events.next_of("held");
    engine.kill9();
    assert!(events.next_of("at-risk")["left_ms"].as_u64().unwrap() <= 6_000);
    assert_eq!(events.next_of("lost")["reason"], "expired");
}

#[test]
fn a_daemon_that_stops_tells_its_streams_and_waits_for_their_clients() {
    let engine = Engine::redis();
    let mut daemon = Daemon::start(&engine.url);
    let hold = daemon.acquire("a", r#"{"ttl": "60s"}"#);
    let mut events = Events::open(&daemon, &id(&hold));
    events.next_of("held");
    let waiter = daemon.open("POST", "/v1/locks/a", &[], "");
    daemon.await_metric("distlock_serve_waiting", 1);
    daemon.process.signal(Signal::TERM);
    assert_eq!(events.next_of("lost")["reason"], "closed");
    assert_eq!(Answer::read(waiter).kind(), "closed");
    assert_eq!(daemon.send("POST", "/v1/locks/b", "").kind(), "closed", "no new holds");
    let busy = distlock(&["run", "--url", &engine.url, "-n", "-q", "a", "true"]).status().unwrap();
    assert_eq!(busy.code(), Some(75), "its client may not have heard yet");
    assert_eq!(daemon.send("DELETE", &format!("/v1/holds/{}", id(&hold)), "").status, 204);
    assert_eq!(daemon.process.end(), 0);
    let free = distlock(&["run", "--url", &engine.url, "-n", "-q", "a", "true"]).status().unwrap();
    assert_eq!(free.code(), Some(0));
    assert!(!daemon.socket.exists(), "the socket is removed");
}

#[test]
fn a_daemon_that_stops_does_not_give_away_the_lock_of_a_client_that_says_nothing() {
    let engine = Engine::redis();
    let mut daemon = Daemon::start(&engine.url);
    let asked = Instant::now();
    let hold = daemon.acquire("a", r#"{"ttl": "20s"}"#);
    let told = Duration::from_millis(hold["left_ms"].as_u64().unwrap());
    let stream = daemon.open("GET", &format!("/v1/holds/{}/events", id(&hold)), &[], "");
    daemon.await_metric("distlock_serve_streams", 1);
    stream.shutdown(Shutdown::Both).unwrap();
    daemon.process.signal(Signal::TERM);
    assert_eq!(daemon.process.end(), 0);
    let is_free = || distlock(&["run", "--url", &engine.url, "-n", "-q", "a", "true"]).status().unwrap().success();
    eventually("its lease ends", || is_free().then_some(()));
    assert!(asked.elapsed() >= told, "{:?} of {told:?}", asked.elapsed());
}
