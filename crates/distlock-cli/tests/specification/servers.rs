//! The same commands with the locks on a real server, chosen by one variable.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use distlock_testkit::servers::{EtcdServer, PostgresServer, RedisServer, RedlockNodes};

use crate::common::{Wrapper, await_gone, code};
use crate::machine::{Machine, finish};

#[test]
fn every_command_works_with_redis() {
    let server = RedisServer::start();
    check_commands(&Machine::with_server(server.url()));
}

#[test]
fn every_command_works_with_etcd() {
    let server = EtcdServer::start();
    check_commands(&Machine::with_server(server.url()));
}

#[test]
fn every_command_works_with_redlock() {
    let nodes = RedlockNodes::start(3);
    nodes.settle();
    check_commands(&Machine::with_server(nodes.url()));
}

#[test]
fn every_command_works_with_postgresql() {
    let server = PostgresServer::start();
    let machine = Machine::with_server(server.url());
    let refused = machine.run(&["run", "job", "touch", "ran"]);
    assert!(refused.code == 78 && refused.stderr.contains("distlock setup"), "{}: {}", refused.code, refused.stderr);
    assert!(!machine.path("ran").exists());
    let printed = machine.run(&["setup", "--print"]);
    assert!(printed.code == 0 && printed.stdout.contains("CREATE TABLE"), "{}", printed.stderr);
    assert_eq!(server.sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'distlock'"), "0", "only printed");
    // By hand, and then by the program: it can be repeated.
    server.sql(&printed.stdout);
    assert_eq!(machine.run(&["setup"]).stdout, "ready for locks\n");
    check_commands(&machine);
}

#[test]
fn a_password_file_is_used_unless_others_can_read_it() {
    let server = PostgresServer::options().password("s3cret").start();
    assert_eq!(Machine::with_server(server.url()).code(&["setup"]), 0);
    let at = server.address();
    // The first host is away, and has another password.
    let machine = Machine::with_server(format!("postgres://postgres@127.0.0.1:1,{at}/postgres"));
    machine.write("pgpass", &format!("127.0.0.1:1:*:postgres:wrong\n#\n{}:{}:*:postgres:s3cret\n", at.ip(), at.port()));
    let run = |mode: u32| {
        std::fs::set_permissions(machine.path("pgpass"), std::fs::Permissions::from_mode(mode))
            .expect("a file of ours");
        finish(machine.distlock(&["run", "job", "true"]).env("PGPASSFILE", machine.path("pgpass")))
    };
    assert_eq!(run(0o600).code, 0, "{}", run(0o600).stderr);
    let refused = run(0o644);
    assert!(refused.code == 77 && !refused.stderr.contains("s3cret"), "{}: {}", refused.code, refused.stderr);
}

/// The history keeps the holder and the user who broke the lock after both are gone.
#[test]
fn a_break_is_in_the_history_of_redis() {
    let server = RedisServer::start();
    let machine = Machine::with_server(format!("{}?history=20", server.url()));
    let mut holder = machine.hold("job");
    let token = machine.show("job")["holder"]["token"].as_str().expect("a token").to_owned();
    assert_eq!(machine.code(&["break", "job", "--if-token", &token, "--reason", "it hangs"]), 0);
    assert_eq!(code(holder.wait()), 79);
    let shown = machine.run(&["history", "--json", "job"]).stdout;
    let entries: Vec<serde_json::Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let whats: Vec<_> = entries.iter().map(|entry| entry["what"].as_str().unwrap_or_default()).collect();
    assert_eq!(whats, ["acquired", "broken", "lost"], "{shown}");
    assert_eq!(entries[1]["reason"], "it hangs");
    assert!(entries.iter().all(|entry| entry["token"] == token.as_str()), "{shown}");
}

fn check_commands(machine: &Machine) {
    let done = machine.run(&["run", "job", "sh", "-c", "echo $DISTLOCK_LOCK_NAME $DISTLOCK_HELD $DISTLOCK_TTL_MS"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "job 1 30000\n"), "{}", done.stderr);
    let mut holder = machine.hold("job");
    assert!(!machine.is_free("job"));
    let token = machine.show("job")["holder"]["token"].as_str().expect("a token").to_owned();
    assert!(machine.run(&["ls"]).stdout.contains(&token));
    let mut watch = Wrapper::start(&mut machine.distlock(&["watch", "--json"]));
    assert!(watch.line().contains(&token));
    let next = ["run", "--owner", "next", "job", "sh", "-c", "echo $DISTLOCK_TOKEN; read line; true"];
    let mut waiter = Wrapper::start(machine.distlock(&next).stdin(Stdio::piped()));
    machine.await_waiters("job", 1);
    assert_eq!(machine.show("job")["waiters"][0]["owner"], "next");
    let wrong = ["break", "job", "--if-token", "1", "--reason", "test"];
    assert_eq!(machine.code(&wrong), 75, "another token");
    let right = ["break", "job", "--if-token", &token, "--reason", "test"];
    let done = machine.run(&right);
    assert!(done.code == 0 && done.stderr.contains("may still be running"), "{}", done.stderr);
    assert_eq!(code(holder.wait()), 79, "its holder was notified");
    let higher = waiter.line();
    assert!(number(&higher) > number(&token), "{higher} after {token}");
    assert_eq!(machine.show("job")["holder"]["token"], higher.trim());
    while !watch.line().contains(higher.trim()) {}
    drop(waiter.stdin());
    assert_eq!(code(waiter.wait()), 0);
    assert!(machine.is_free("job"));
    let token = machine.run(&["acquire", "job"]).stdout;
    assert!(!machine.is_free("job"));
    assert_eq!(machine.code(&["release", "job", "--token", token.trim()]), 0);
    assert!(machine.is_free("job"));
    assert!(machine.lock_files().iter().all(|name| !name.ends_with(".lock")), "no lock of this machine");
}

fn number(token: &str) -> u64 {
    token.trim().parse().expect("a token is a number")
}

#[test]
fn a_foreign_key_excludes_is_listed_and_cannot_be_broken() {
    let server = RedisServer::start();
    let machine = Machine::with_server(server.url());
    server.command(&["SET", "job", "stranger"]);
    let refused = machine.run(&["run", "-n", "job", "touch", "ran"]);
    assert!(refused.code == 75 && !machine.path("ran").exists(), "{}", refused.stderr);
    assert!(refused.stderr.contains("not distlock"), "{}", refused.stderr);
    assert!(machine.run(&["show", "job"]).stdout.contains("not distlock"), "{}", machine.run(&["show", "job"]).stdout);
    assert_eq!(machine.show("job")["holder"]["token"], serde_json::Value::Null);
    let broken = machine.run(&["break", "job", "--if-token", "1", "--reason", "test"]);
    assert!(broken.code != 0, "{}", broken.stderr);
    assert_eq!(server.command(&["GET", "job"]).text(), "stranger");
    server.command(&["DEL", "job"]);
    assert!(machine.is_free("job"));
}

#[test]
fn the_command_ends_before_its_lease_when_the_server_freezes() {
    // A machine that pauses for longer than the margin is always late: one good run of three is enough.
    assert!((0..3).any(|_| freezes_in_time()), "the command outlived its lease three times");
}

fn freezes_in_time() -> bool {
    let server = RedisServer::start();
    let machine = Machine::with_server(server.url());
    let words =
        ["run", "--ttl", "6s", "-k", "1", "job", "sh", "-c", "trap '' TERM; echo $$; while :; do sleep 1; done"];
    let mut wrapper = Wrapper::start(machine.distlock(&words).stderr(Stdio::null()));
    let command = wrapper.line_pid();
    // A renewal after this only makes the lease longer.
    let asked = Instant::now();
    let lease = u64::try_from(server.command(&["PTTL", "job"]).int()).expect("it has a lease");
    server.stop();
    await_gone(command);
    let gone = asked.elapsed();
    assert_eq!(code(wrapper.wait()), 79);
    server.cont();
    gone < Duration::from_millis(lease)
}

#[test]
fn a_redis_that_does_not_answer_is_69_within_the_connect_timeout() {
    let server = RedisServer::start();
    server.stop();
    check_silence(&Machine::with_server(server.url()));
    server.cont();
}

#[test]
fn an_etcd_that_does_not_answer_is_69_within_the_connect_timeout() {
    let server = EtcdServer::start();
    server.stop();
    check_silence(&Machine::with_server(server.url()));
    server.cont();
}

#[test]
fn a_postgresql_that_does_not_answer_is_69_within_the_connect_timeout() {
    let server = PostgresServer::start();
    server.freeze();
    check_silence(&Machine::with_server(server.url()));
    server.thaw();
}

fn check_silence(machine: &Machine) {
    let start = Instant::now();
    let done = machine.run(&["run", "--connect-timeout", "1s", "job", "touch", "ran"]);
    assert_eq!(done.code, 69, "{}", done.stderr);
    assert!(start.elapsed() < Duration::from_secs(15) && !machine.path("ran").exists());
}

/// Names that other programs use for their locks in the same etcd.
#[test]
fn the_url_can_request_verbatim_names() {
    let server = EtcdServer::start();
    let machine = Machine::with_server(format!("{}jobs/?names=verbatim", server.url()));
    let mut holder = machine.hold("by/night");
    let keys = server.etcdctl().run(&["get", "--prefix", "--keys-only", "jobs/by/night/"]);
    assert_eq!(keys.lines().filter(|line| !line.is_empty()).count(), 1, "{keys}");
    assert!(machine.run(&["ls", "by/"]).stdout.contains("by/night"));
    let token = machine.show("by/night")["holder"]["token"].as_str().expect("a token").to_owned();
    assert_eq!(machine.code(&["break", "by/night", "--if-token", &token, "--reason", "test"]), 0);
    assert_eq!(code(holder.wait()), 79, "its holder was notified");
}
