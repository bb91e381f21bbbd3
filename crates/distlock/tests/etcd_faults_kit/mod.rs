//! Shared by the fault tests of etcd.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use distlock::Locker;
use distlock::backend::etcd::{Etcd, EtcdBuilder};
use distlock_testkit::servers::{EtcdServer, Etcdctl};

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

pub(crate) fn locker(builder: EtcdBuilder, ttl: Duration) -> Locker {
    Locker::builder().default_ttl(ttl).build(builder.build().expect("a client")).expect("a locker")
}

pub(crate) fn locker_at(addresses: &[SocketAddr], ttl: Duration) -> Locker {
    locker(Etcd::builder(addresses.iter().map(ToString::to_string)), ttl)
}

/// Waits until a condition holds, and fails when that takes too long.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < secs(30), "waited in vain: {what}");
        tokio::time::sleep(ms(20)).await;
    }
}

/// Returns all keys of a server.
pub(crate) fn keys(server: &EtcdServer) -> Vec<String> {
    keys_of(&server.etcdctl())
}

pub(crate) fn keys_of(etcdctl: &Etcdctl) -> Vec<String> {
    let keys = etcdctl.try_run(&["get", "--prefix", "--keys-only", ""]).unwrap_or_default();
    keys.lines().filter(|key| !key.is_empty()).map(str::to_owned).collect()
}

/// Returns how many transactions a server has executed.
pub(crate) fn transactions(server: &EtcdServer) -> f64 {
    let labels = r#"grpc_code="OK",grpc_method="Txn",grpc_service="etcdserverpb.KV",grpc_type="unary""#;
    server.metric(&format!("grpc_server_handled_total{{{labels}}}")).expect("it counts them")
}

/// Returns the lease in a key's name.
pub(crate) fn lease_of(key: &str) -> String {
    let place = key.rsplit('/').next().expect("a place");
    place.split('-').next().expect("a lease").to_owned()
}

/// Another process that holds a lock.
pub(crate) struct Child {
    process: std::process::Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    pub(crate) token: u64,
}

impl Child {
    /// Starts a process that takes `name`, and returns when it holds it. `permit` is a semaphore of two, `entry` an
    /// entry of the owner `order-7`.
    pub(crate) fn hold(server: &EtcdServer, name: &str, ttl: Duration) -> Child {
        let mut process = Command::new(std::env::current_exe().expect("this test"))
            .args(["etcd_faults_kit::child", "--exact", "--nocapture", "--include-ignored"])
            .env("DISTLOCK_TEST_CHILD", format!("{} {name} {}", server.address(), ttl.as_secs()))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("this test starts");
        let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        let held = lines.find_map(|line| line.ok()?.split_once("held ")?.1.parse().ok());
        Child { process, lines, token: held.expect("the child holds the lock") }
    }

    pub(crate) fn kill9(&mut self) {
        self.process.kill().expect("killed");
        self.process.wait().expect("gone");
    }

    pub(crate) fn stop(&self) {
        self.signal("STOP");
    }

    pub(crate) fn cont(&self) {
        self.signal("CONT");
    }

    /// Returns whether the child reports at its next check that its lock is lost.
    pub(crate) fn says_lost(&mut self) -> bool {
        // Output from before it was stopped is still in the pipe.
        let words = self.lines.by_ref().map_while(Result::ok);
        words.skip_while(|line| !line.contains("paused")).nth(1).is_some_and(|line| line.contains("lost"))
    }

    fn signal(&self, name: &str) {
        let done = Command::new("kill").args([format!("-{name}"), self.process.id().to_string()]).status();
        assert!(done.expect("kill runs").success());
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Not a test: the body of the other process.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "only started by other tests, as a process to kill"]
async fn child() {
    let Ok(order) = std::env::var("DISTLOCK_TEST_CHILD") else { return };
    let [address, name, ttl] = order.split(' ').collect::<Vec<_>>()[..] else { panic!("bad order {order:?}") };
    let ttl = secs(ttl.parse().expect("seconds"));
    let locker = locker(Etcd::builder([address]), ttl);
    let request = match name {
        "permit" => locker.semaphore(name, 2).acquire(),
        "entry" => locker.lock(name).owner("order-7").reentrant(),
        _ => locker.lock(name),
    };
    let guard = request.await.expect("granted");
    println!("held {}", guard.fencing_token());
    assert!(!guard.is_lost());
    loop {
        let before = Instant::now();
        std::thread::sleep(ms(20));
        if before.elapsed() > ms(500) {
            println!("paused");
            println!("{}", if guard.check().is_err() { "lost" } else { "held on" });
        }
    }
}
