//! Clients and daemons that are stopped and killed: the first client knows before the next one is granted the lock.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::time::Duration;

use distlock::Locker;
use distlock_testkit::proxy::{Direction, Flow, Proxy};
use rustix::process::Signal;

use crate::kit::{Answer, Daemon, Engine, LIMIT, Language, Process, clean, clients, distlock, wall};

const TTL: f64 = 6.0;

/// Waits for the lock on the engine itself, without the daemon, in a thread. Sends the time of the grant.
fn next_holder(url: &str, name: &'static str) -> mpsc::Receiver<f64> {
    let (sender, grant) = mpsc::channel();
    let url = url.to_owned();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let locker = Locker::connect(&url).await.unwrap();
            let guard = locker.lock(name).wait(LIMIT * 2).await.unwrap();
            let _ = sender.send(wall());
            let _ = guard.unlock().await;
        });
    });
    grant
}

fn first_holder(language: Language, address: &str, ttl: f64) -> Process {
    let mut holder = Process::start(&mut language.program(&["hold", address, "job", &ttl.to_string()]));
    assert!(holder.line_of("held").parse::<u64>().is_ok());
    holder
}

/// Returns when the first client's `check` passed for the last time.
fn last_good(holder: &mut Process) -> f64 {
    let line = holder.line_of("lost");
    line.split(' ').next().unwrap().parse().unwrap()
}

/// What happens to whom.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    DaemonKilled,
    DaemonStopped,
    ClientStopped,
}

fn assert_told_before_the_next_grant(engine: &Engine, language: Language, fault: Fault) {
    let daemon = Daemon::start(&engine.url);
    let mut holder = first_holder(language, &daemon.address(), TTL);
    let grant = next_holder(&engine.url, "job");
    match fault {
        Fault::DaemonKilled => daemon.process.signal(Signal::KILL),
        Fault::DaemonStopped => daemon.process.signal(Signal::STOP),
        Fault::ClientStopped => holder.signal(Signal::STOP),
    }
    // A file's lock is not granted to others while the daemon is stopped.
    let told_first = (fault == Fault::DaemonStopped).then(|| last_good(&mut holder));
    if fault == Fault::DaemonStopped && engine.url.starts_with("file") {
        daemon.process.signal(Signal::CONT);
    }
    let granted = grant.recv_timeout(LIMIT).expect("the next holder gets it in a bounded time");
    if fault == Fault::ClientStopped {
        holder.signal(Signal::CONT);
    }
    let last_good = told_first.unwrap_or_else(|| last_good(&mut holder));
    assert!(last_good > 0.0 && last_good < granted, "{fault:?}: still good at {last_good}, granted at {granted}");
    assert_eq!(holder.end(), 0);
}

#[test]
fn a_killed_daemon_on_redis() {
    assert_told_before_the_next_grant(&Engine::redis(), Language::Python, Fault::DaemonKilled);
}

#[test]
fn a_killed_daemon_on_etcd() {
    assert_told_before_the_next_grant(&Engine::etcd(), Language::Node, Fault::DaemonKilled);
}

#[test]
fn a_stopped_daemon_on_redis() {
    assert_told_before_the_next_grant(&Engine::redis(), Language::Node, Fault::DaemonStopped);
}

#[test]
fn a_stopped_daemon_on_etcd() {
    assert_told_before_the_next_grant(&Engine::etcd(), Language::Python, Fault::DaemonStopped);
}

#[test]
fn a_stopped_daemon_on_files() {
    assert_told_before_the_next_grant(&Engine::files(), Language::Python, Fault::DaemonStopped);
}

#[test]
fn a_stopped_python_client_on_redis() {
    assert_told_before_the_next_grant(&Engine::redis(), Language::Python, Fault::ClientStopped);
}

#[test]
fn a_stopped_node_client_on_etcd() {
    assert_told_before_the_next_grant(&Engine::etcd(), Language::Node, Fault::ClientStopped);
}

#[test]
fn a_stopped_client_on_files() {
    assert_told_before_the_next_grant(&Engine::files(), Language::Python, Fault::ClientStopped);
}

/// Without a lease the kernel frees the lock with the daemon; the client is told by the end of its stream.
#[test]
fn a_killed_daemon_on_files_is_noticed_long_before_the_deadline() {
    let engine = Engine::files();
    let daemon = Daemon::start(&engine.url);
    let ttl = 120.0;
    let mut holder = first_holder(Language::Python, &daemon.address(), ttl);
    let began = wall();
    daemon.process.signal(Signal::KILL);
    let lost = last_good(&mut holder);
    assert!(lost - began < ttl / 4.0, "{} s", lost - began);
}

/// The lease is long: only the death of the process can be why the lock is free.
#[test]
fn a_killed_client_frees_its_lock_at_once() {
    for (engine, language) in [(Engine::redis(), Language::Python), (Engine::files(), Language::Node)] {
        let daemon = Daemon::start(&engine.url);
        let ttl = 600.0;
        let holder = first_holder(language, &daemon.address(), ttl);
        daemon.await_metric("distlock_serve_streams", 1);
        let grant = next_holder(&engine.url, "job");
        holder.signal(Signal::KILL);
        assert!(grant.recv_timeout(LIMIT).is_ok(), "long before the lease ends");
        daemon.await_metric("distlock_serve_holds_ended_total{end=\"died\"}", 1);
    }
}

/// Two processes have one attempt: the second one was told a deadline, too.
#[test]
fn the_death_of_one_process_does_not_end_the_hold_of_another() {
    let daemon = Daemon::start("mem://");
    let (key, body) = ("Idempotency-Key: shared", r#"{"ttl": "600s", "silence": "600s"}"#);
    let program = "import distlock._http, socket, sys, time\n\
                   daemon = distlock._http.Daemon(sys.argv[1], None, None)\n\
                   hold = daemon.call('POST', '/v1/locks/a', {'ttl': '600s', 'silence': '600s'}, 30, 'shared')\n\
                   stream = socket.socket(socket.AF_UNIX); stream.connect(sys.argv[1])\n\
                   stream.sendall(f'GET /v1/holds/{hold[\"id\"]}/events HTTP/1.0\\r\\n\\r\\n'.encode())\n\
                   stream.recv(1); print(hold['id'], flush=True); time.sleep(600)";
    let mut command = clean("python3");
    command.args(["-c", program, &daemon.address()]).env("PYTHONPATH", clients().join("python"));
    let mut first = Process::start(command.env("PYTHONDONTWRITEBYTECODE", "1"));
    let id = first.line();
    let second = Answer::read(daemon.open("POST", "/v1/locks/a", &[key], body));
    assert_eq!((second.status, second.json["id"].as_str()), (201, Some(&*id)), "{second:?}");
    first.signal(Signal::KILL);
    first.end();
    daemon.await_metric("distlock_serve_streams", 0);
    // Longer than the daemon takes to notice a death. No request about the hold, which would show that another one uses it.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(daemon.metric("distlock_serve_holds_ended_total{end=\"died\"}"), 0);
    assert_eq!(daemon.send("POST", &format!("/v1/holds/{id}/alive"), "").status, 200);
}

/// The proxy delays the daemon's answers and events by three seconds. The daemon is killed when it has just answered: a client
/// that counted from the arrival of the answer would believe to hold the lock for three seconds after its lease has ended.
fn assert_late_answers_do_not_move_the_deadline_past_the_lease(language: Language) {
    let (engine, ttl, late) = (Engine::redis(), 24.0, Duration::from_secs(3));
    let mut daemon = Process::start(&mut distlock(&["serve", "--url", &engine.url, "--listen", "127.0.0.1:0"]));
    let line = daemon.line();
    let (url, token) = line.split_once("#token=").expect("an address with a token");
    let address: SocketAddr = url.trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
    let proxy = Proxy::start(address);
    proxy.set(Direction::Replies, Flow::Delay(late));
    let through = format!("http://127.0.0.1:{}/#token={token}", proxy.port());
    let mut holder = first_holder(language, &through, ttl);
    let grant = next_holder(&engine.url, "job");
    // The event stream, and requests that show life.
    let accepted = proxy.counts().accepted;
    let asked = proxy.wait_for("a few more requests", |counts| counts.accepted >= accepted + 2);
    proxy.wait_for("an answer", |counts| counts.replies.received > asked.replies.received);
    daemon.signal(Signal::KILL);
    let last_good = last_good(&mut holder);
    let granted = grant.recv_timeout(LIMIT * 2).expect("the lease ends");
    assert!(last_good < granted, "{language:?}: still good at {last_good}, granted at {granted}");
}

#[test]
fn late_answers_do_not_move_the_deadline_of_python_past_the_lease() {
    assert_late_answers_do_not_move_the_deadline_past_the_lease(Language::Python);
}

#[test]
fn late_answers_do_not_move_the_deadline_of_node_past_the_lease() {
    assert_late_answers_do_not_move_the_deadline_past_the_lease(Language::Node);
}
