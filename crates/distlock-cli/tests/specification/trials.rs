//! `verify` and `bench` on good engines, and on one whose data is deleted.

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use distlock_testkit::servers::{EtcdServer, PostgresServer, RedisServer};
use serde_json::Value;

use crate::machine::Machine;

fn verify(machine: &Machine, more: &[&str]) -> (i32, Value) {
    let done = machine.run(&[&["verify", "--json", "--workers", "4"], more].concat());
    let report = serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("{} {}", done.stdout, done.stderr));
    (done.code, report)
}

#[track_caller]
fn check_safe((code, report): (i32, Value)) {
    assert_eq!((code, report["verdict"].as_str()), (0, Some("safe")), "{report:#}");
    assert!(report["holds"].as_u64() > Some(10), "{report:#}");
    assert_eq!(report["waits"]["count"], report["holds"], "{report:#}");
}

#[test]
fn redis_is_safe_when_workers_are_killed_and_stopped() {
    let server = RedisServer::start();
    let machine = Machine::with_server(server.url());
    let (code, report) = verify(&machine, &["--time", "3s", "--ttl", "500ms", "--kills", "2", "--pauses", "1"]);
    assert_eq!((report["kills"].as_u64(), report["pauses"].as_u64()), (Some(2), Some(1)), "{report:#}");
    assert_eq!(report["in_order"], true);
    check_safe((code, report));
}

#[test]
fn verify_passes_on_this_machine_with_text_output() {
    let machine = Machine::new();
    let done = machine.run(&["verify", "--time", "1s", "--kills", "1"]);
    assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
    assert!(
        done.stdout.starts_with("safe: ") && done.stdout.contains("6 workers, 1 kills, 0 pauses"),
        "{}",
        done.stdout
    );
    assert!(done.stdout.contains("waits: p50") && done.stdout.contains('█'), "{}", done.stdout);
}

#[test]
fn etcd_is_safe() {
    let server = EtcdServer::start();
    check_safe(verify(&Machine::new(), &["--time", "1s", &server.url()]));
}

#[test]
fn postgresql_is_safe_when_a_worker_is_killed() {
    let server = PostgresServer::start();
    let machine = Machine::with_server(server.url());
    assert_eq!(machine.code(&["setup"]), 0);
    check_safe(verify(&machine, &["--time", "3s", "--ttl", "1s", "--kills", "1"]));
}

#[test]
fn verify_detects_a_server_that_loses_data() {
    let server = RedisServer::start();
    let machine = Machine::with_server(server.url());
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        // Until the other end of the channel is gone, also by a panic; with a pause, so that there are locks to
        // delete.
        scope.spawn(move || {
            while is_over.recv_timeout(Duration::from_millis(3)) == Err(RecvTimeoutError::Timeout) {
                server.command(&["FLUSHALL"]);
            }
        });
        let (code, report) = verify(&machine, &["--time", "2s"]);
        drop(over);
        assert_eq!((code, report["verdict"].as_str()), (2, Some("unsafe")), "{report:#}");
        let said = report["violations"][0].as_str().unwrap_or_default();
        assert!(said.starts_with("exclusion: worker"), "{report:#}");
    });
}

#[test]
fn an_unreachable_engine_is_69() {
    let mut server = RedisServer::start();
    server.kill9();
    let machine = Machine::with_server(server.url());
    assert_eq!(machine.code(&["verify", "--connect-timeout", "1s"]), 69);
    assert_eq!(machine.code(&["bench", "--connect-timeout", "1s"]), 69);
    assert_eq!(machine.code(&["verify", "--workers", "0"]), 64);
}

#[test]
fn bench_measures_and_leaves_no_lock_behind() {
    let server = RedisServer::start();
    let machine = Machine::with_server(server.url());
    let done = machine.run(&["bench", "--json", "--time", "200ms", "--tasks", "4", "--holds", "10"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let parts: Vec<Value> = done.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let names: Vec<_> = parts.iter().map(|part| part["part"].as_str().unwrap()).collect();
    assert_eq!(names, ["alone", "uncontended", "contended", "held"]);
    for part in &parts {
        let number = |field: &str| part[field].as_f64().unwrap_or_else(|| panic!("{field}: {part}"));
        assert!(number("count") >= 1.0 && number("per_second") > 0.0, "{part}");
        assert!(number("p50_us") > 0.0 && number("p50_us") <= number("p99_us"), "{part}");
        assert!(number("p99_us") <= number("max_us"), "{part}");
    }
    assert_eq!(machine.run(&["ls", "--json"]).stdout, "");
    let text = Machine::new().run(&["bench", "--time", "100ms", "--holds", "2"]).stdout;
    assert!(text.contains("contended: ") && text.contains("handoffs") && text.contains('█'), "{text}");
}
