//! Interoperation in one queue with other programs: `etcdctl lock` is Go's `concurrency.Mutex`.

#![cfg(feature = "etcd")]

use std::future::IntoFuture;
use std::io::{BufRead, BufReader, Lines};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use distlock::backend::etcd::{Etcd, EtcdCompare};
use distlock::{ErrorKind, LockGuard, Locker};
use distlock_testkit::proxy::{Direction, Flow, Proxy};
use distlock_testkit::servers::{EtcdServer, Etcdctl, eventually};
use tokio::task::JoinHandle;
use tokio::time::timeout;

const TEST_LIMIT: Duration = Duration::from_secs(20);

fn locker(server: &EtcdServer) -> Locker {
    Locker::new(Etcd::builder([server.address().to_string()]).verbatim_names().build().unwrap()).unwrap()
}

fn keys(etcdctl: &Etcdctl, prefix: &str) -> Vec<String> {
    let keys = etcdctl.run(&["get", "--prefix", "--keys-only", prefix]);
    keys.lines().filter(|key| !key.is_empty()).map(str::to_owned).collect()
}

/// Returns when `count` keys exist below `prefix`.
async fn queued(server: &EtcdServer, prefix: &str, count: usize) {
    let (etcdctl, prefix) = (server.etcdctl(), prefix.to_owned());
    let wait = move || eventually("a place in the queue", || (keys(&etcdctl, &prefix).len() == count).then_some(()));
    tokio::task::spawn_blocking(wait).await.unwrap();
}

/// `etcdctl lock NAME`, which prints its key when it holds the lock, and releases it when it is interrupted.
struct Go {
    process: Child,
    /// Kept open: the program prints a second line, and would die without releasing the lock if the pipe were closed.
    output: Option<Lines<BufReader<ChildStdout>>>,
}

impl Go {
    fn lock(server: &EtcdServer, name: &str, ttl: u32) -> Go {
        let mut command = server.etcdctl().command(&["lock", name, &format!("--ttl={ttl}")]);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("etcdctl runs");
        let output = process.stdout.take().map(|output| BufReader::new(output).lines());
        Go { process, output }
    }

    /// Returns its key when it holds the lock.
    async fn granted(&mut self) -> String {
        let mut output = self.output.take().expect("its output");
        let line = tokio::task::spawn_blocking(move || (output.next(), output));
        let (line, output) = timeout(TEST_LIMIT, line).await.expect("in time").unwrap();
        self.output = Some(output);
        line.expect("a line").expect("text")
    }

    fn is_waiting(&mut self) -> bool {
        self.process.try_wait().expect("it can be asked").is_none()
    }

    fn release(mut self) {
        let pid = self.process.id().to_string();
        assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        self.process.wait().expect("it ends");
    }
}

impl Drop for Go {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Writes `value` in an application's own transaction on the condition that the lock is held. Returns etcd's output.
fn write(server: &EtcdServer, condition: &EtcdCompare, value: &str) -> String {
    let key = String::from_utf8(condition.key.clone()).unwrap();
    let script = format!("create(\"{key}\") = \"{}\"\n\nput data {value}\n\n\n", condition.create_revision);
    let mut txn = server.etcdctl().command(&["txn"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut txn.stdin.take().unwrap(), script.as_bytes()).unwrap();
    String::from_utf8(txn.wait_with_output().unwrap().stdout).unwrap()
}

fn wait_for(locker: &Locker, name: &str) -> JoinHandle<distlock::Result<LockGuard>> {
    tokio::spawn(locker.clone().lock(name).wait(TEST_LIMIT).into_future())
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_waits_for_our_lock() {
    let server = EtcdServer::start();
    // Configured by the URL here, because a configuration file has no builder.
    let locker = Locker::connect(&format!("{}jobs/?names=verbatim", server.url())).await.unwrap();
    let guard = locker.lock("by/night").await.unwrap();
    let mut go = Go::lock(&server, "jobs/by/night", 10);
    queued(&server, "jobs/by/night/", 2).await;
    assert!(go.is_waiting());
    let released = Instant::now();
    guard.unlock().await.unwrap();
    assert!(go.granted().await.starts_with("jobs/by/night/"));
    assert!(released.elapsed() < Duration::from_secs(2));
}

/// An owner that has entered twice holds the lock until its last entry has left, also against a client that queued
/// between the two.
#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_waits_for_the_last_entry() {
    let server = EtcdServer::start();
    let (one, two) = (locker(&server), locker(&server));
    let first = one.lock("jobs").owner("order-7").reentrant().await.unwrap();
    let mut go = Go::lock(&server, "jobs", 10);
    queued(&server, "jobs/", 2).await;
    let second = two.lock("jobs").owner("order-7").reentrant().wait(TEST_LIMIT).await.unwrap();
    first.unlock().await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let in_line = tokio::task::spawn_blocking({
        let etcdctl = server.etcdctl();
        move || keys(&etcdctl, "jobs/")
    });
    assert_eq!(in_line.await.unwrap().len(), 2, "the head stays");
    second.check().unwrap();
    second.unlock().await.unwrap();
    assert!(go.granted().await.starts_with("jobs/"));
}

#[tokio::test(flavor = "multi_thread")]
async fn our_waiter_waits_for_etcdctl() {
    let server = EtcdServer::start();
    let mut go = Go::lock(&server, "jobs/nightly", 10);
    let key = go.granted().await;
    let locker = locker(&server);
    assert!(locker.try_lock("jobs/nightly").await.unwrap().is_none());
    let error = locker.lock("jobs/nightly").wait(Duration::from_millis(200)).await.expect_err("it is taken");
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("a client that is not distlock"), "{error}");
    assert_eq!(keys(&server.etcdctl(), "jobs/"), [key]);
    let waiter = wait_for(&locker, "jobs/nightly");
    queued(&server, "jobs/nightly/", 2).await;
    let released = Instant::now();
    go.release();
    let guard = waiter.await.unwrap().expect("granted");
    assert!(released.elapsed() < Duration::from_secs(2));
    guard.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_queue_in_the_order_of_arrival() {
    let server = EtcdServer::start();
    let locker = locker(&server);
    let guard = locker.lock("q").await.unwrap();
    let mut first = Go::lock(&server, "q", 10);
    queued(&server, "q/", 2).await;
    let second = wait_for(&locker, "q");
    queued(&server, "q/", 3).await;
    let mut third = Go::lock(&server, "q", 10);
    queued(&server, "q/", 4).await;
    guard.unlock().await.unwrap();
    first.granted().await;
    assert!(!second.is_finished());
    first.release();
    let guard = second.await.unwrap().expect("second");
    assert!(third.is_waiting());
    assert_eq!(keys(&server.etcdctl(), "q/").len(), 2);
    guard.unlock().await.unwrap();
    third.granted().await;
    third.release();
    queued(&server, "q/", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_etcdctl_frees_the_lock_when_its_lease_ends() {
    let server = EtcdServer::start();
    let mut go = Go::lock(&server, "k", 3);
    go.granted().await;
    let waiter = wait_for(&locker(&server), "k");
    queued(&server, "k/", 2).await;
    let killed = Instant::now();
    go.process.kill().unwrap();
    let guard = waiter.await.unwrap().expect("granted");
    assert!(killed.elapsed() < Duration::from_secs(6), "{:?}", killed.elapsed());
    guard.unlock().await.unwrap();
}

/// A key in the layout of Go's client, without a value, counts as a holder, and is never taken for one of ours.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_the_layout_of_gos_client_counts() {
    let server = EtcdServer::start();
    let etcdctl = server.etcdctl();
    let granted = etcdctl.run(&["lease", "grant", "60"]);
    let lease = granted.split(' ').nth(1).expect("lease ID granted");
    etcdctl.run(&["put", &format!("g/{lease}"), "", &format!("--lease={lease}")]);
    let locker = locker(&server);
    assert!(locker.try_lock("g").await.unwrap().is_none());
    let shown = locker.inspect().get("g").await.unwrap().expect("it is held");
    let holder = shown.holder().expect("a holder");
    assert!(holder.record.is_none() && holder.ttl_left.is_some());
    let token = holder.token.expect("a create revision");
    locker.inspect().force_release("g", token, "its client is gone").await.expect("forced");
    locker.try_lock("g").await.unwrap().expect("free").unlock().await.unwrap();
}

/// A key that is not a lock is never deleted, not even by force.
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_not_locks_are_never_deleted() {
    let server = EtcdServer::start();
    server.etcdctl().run(&["put", "f/readme", "do not delete"]);
    let locker = locker(&server);
    assert!(locker.try_lock("f").await.unwrap().is_none(), "the first key below the name holds the lock");
    assert!(locker.inspect().list("").await.unwrap().is_empty());
    let token = locker.inspect().get("f").await.unwrap().unwrap().holder().unwrap().token.unwrap();
    let error = locker.inspect().force_release("f", token, "stuck").await.expect_err("not ours");
    assert_eq!(error.kind(), ErrorKind::Foreign);
    assert_eq!(keys(&server.etcdctl(), ""), ["f/readme"]);
}

/// Names nest for Go's client. Escaped names of ours do not.
#[tokio::test(flavor = "multi_thread")]
async fn only_verbatim_names_nest() {
    let server = EtcdServer::start();
    let escaped = Locker::new(Etcd::builder([server.address().to_string()]).build().unwrap()).unwrap();
    let inner = escaped.lock("a/b").await.unwrap();
    let outer = escaped.lock("a").wait(Duration::from_secs(2)).await.expect("another lock");
    inner.unlock().await.unwrap();
    outer.unlock().await.unwrap();
    let verbatim = locker(&server);
    let _inner = verbatim.lock("a/b").await.unwrap();
    assert!(verbatim.try_lock("a").await.unwrap().is_none());
}

/// An application's own transaction can depend on its lock being held.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_can_depend_on_the_lock() {
    let server = EtcdServer::start();
    let engine = Etcd::builder([server.address().to_string()]).build().unwrap();
    let handle = engine.handle();
    let locker = Locker::new(engine).unwrap();
    let guard = locker.lock("a").await.unwrap();
    let compare = handle.compare(guard.key(), guard.fencing_token()).expect("it is held");
    assert!(write(&server, &compare, "in-time").starts_with("SUCCESS"));
    let token = guard.fencing_token();
    let key = guard.key().clone();
    guard.unlock().await.unwrap();
    assert!(write(&server, &compare, "late").starts_with("FAILURE"));
    assert!(server.etcdctl().run(&["get", "data"]).ends_with("in-time"));
    assert_eq!(handle.compare(&key, token), None);
}

/// A holder that does not know yet that its lock is gone can no longer write; the current holder can.
#[tokio::test(flavor = "multi_thread")]
async fn the_transaction_of_a_stale_holder_is_refused() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let client = |address: SocketAddr| {
        let engine = Etcd::builder([address.to_string()]).build().unwrap();
        (engine.handle(), Locker::builder().default_ttl(Duration::from_secs(60)).build(engine).unwrap())
    };
    let ((stale, first), (fresh, second)) = (client(proxy.address()), client(server.address()));
    let guard = first.lock("a").await.unwrap();
    let token = guard.fencing_token();
    assert!(write(&server, &stale.compare(guard.key(), token).expect("it is held"), "first").starts_with("SUCCESS"));
    proxy.set(Direction::Replies, Flow::Hold);
    second.inspect().force_release("a", token, "it does not answer").await.unwrap();
    let next = second.lock("a").wait(TEST_LIMIT).await.unwrap();
    assert!(!guard.is_lost(), "it believes that it holds the lock");
    let late = stale.compare(guard.key(), token).expect("as far as it knows");
    assert!(write(&server, &late, "late").starts_with("FAILURE"));
    let condition = fresh.compare(next.key(), next.fencing_token()).expect("it is held");
    assert!(write(&server, &condition, "second").starts_with("SUCCESS"));
    assert!(server.etcdctl().run(&["get", "data"]).ends_with("second"));
    next.unlock().await.unwrap();
}

/// With a channel given by the application, everything uses that channel, also after its connection broke.
#[tokio::test(flavor = "multi_thread")]
async fn the_application_can_give_a_channel() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let channel =
        tonic::transport::Endpoint::from_shared(format!("http://{}", proxy.address())).unwrap().connect_lazy();
    let locker = Locker::new(Etcd::over(channel).prefix("p/").build().unwrap()).unwrap();
    let guard = locker.lock("a").await.unwrap();
    assert_eq!(keys(&server.etcdctl(), "p/a/").len(), 1);
    proxy.cut();
    let other = locker.clone().lock("b").wait(TEST_LIMIT).await.expect("connected again");
    guard.check().expect("still held");
    drop(other);
    guard.unlock().await.unwrap();
    locker.close().await.unwrap();
}

/// The histories of all clients share one lease, and survive its loss.
#[tokio::test(flavor = "multi_thread")]
async fn histories_share_a_lease_and_survive_its_loss() {
    let server = EtcdServer::start();
    let client = || async { Locker::connect(&format!("{}?history=10&prefix=p/", server.url())).await.unwrap() };
    let (first, second, stays) = (client().await, client().await, client().await);
    for locker in [&first, &second] {
        locker.lock("a").await.unwrap().unlock().await.unwrap();
        locker.close().await.unwrap();
    }
    stays.lock("b").await.unwrap().unlock().await.unwrap();
    expect_entries(&stays, "b", 2).await;
    let etcdctl = server.etcdctl();
    assert_eq!(keys(&etcdctl, "p/{}history/a/").len(), 4);
    let leases = etcdctl.run(&["lease", "list"]);
    let leases: Vec<_> = leases.lines().skip(1).collect();
    assert_eq!(leases.len(), 2, "that of the histories, and that of the locker which is still open: {leases:?}");
    leases.iter().for_each(|lease| drop(etcdctl.run(&["lease", "revoke", lease])));
    assert!(keys(&etcdctl, "p/{}history/").is_empty(), "they hang on it");

    stays.lock("a").await.unwrap().unlock().await.unwrap();
    expect_entries(&stays, "a", 2).await;
}

async fn expect_entries(locker: &Locker, key: &str, count: usize) {
    let written = async {
        while locker.inspect().history(key, 10).await.unwrap().len() < count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(TEST_LIMIT, written).await.expect("it is written");
}
