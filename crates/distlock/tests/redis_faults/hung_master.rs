//! A cluster with one hung master: it keeps its connections open and does not reply.

use std::collections::HashMap;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distlock::backend::redis::Redis;
use distlock::{Event, EventKind, LockGuard, Locker};
use distlock_testkit::servers::{RedisCluster, RedisServer};
use tokio::time::timeout;

use crate::bench::{TEST_LIMIT, ms, now, sleep};

/// The lease of the locks on the hung master: it outlasts the test.
const LONG: Duration = Duration::from_secs(30);
/// A lease that needs several renewals in [`WATCHED`].
const SHORT: Duration = Duration::from_secs(2);
/// How long the locks on the other masters are observed.
const WATCHED: Duration = Duration::from_secs(3);
/// The initial lease of a lock that is handed over.
const FIRST_LEASE: Duration = Duration::from_secs(1);

/// The events of a locker's observer, by lock name.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Tallies>>);

#[derive(Default)]
struct Tallies {
    failed: usize,
    /// The remaining lease at the first renewal.
    first_margins: HashMap<String, Duration>,
}

impl Seen {
    fn note(&self, event: &Event<'_>) {
        let mut tallies = self.0.lock().unwrap();
        match event.kind {
            EventKind::RenewalFailed { .. } => tallies.failed += 1,
            EventKind::Renewed { margin: Some(margin) } => {
                tallies.first_margins.entry(event.key.to_string()).or_insert(margin);
            }
            _ => {}
        }
    }

    fn failed(&self) -> usize {
        self.0.lock().unwrap().failed
    }

    fn margin_of(&self, name: &str) -> Option<Duration> {
        self.0.lock().unwrap().first_margins.get(name).copied()
    }
}

/// Starts a cluster that keeps serving while one master is unreachable.
fn start() -> RedisCluster {
    RedisCluster::with(&RedisServer::options().config("cluster-require-full-coverage no"))
}

fn engine(cluster: &RedisCluster) -> Redis {
    let hosts: Vec<_> = cluster.nodes().iter().map(|node| (node.address().ip().to_string(), node.port())).collect();
    Redis::cluster(hosts.iter().map(|(host, port)| (host.as_str(), *port))).build().expect("an engine")
}

async fn connected(cluster: &RedisCluster) -> (Locker, Seen) {
    let seen = Seen::default();
    let told = seen.clone();
    let observer = move |event: &Event<'_>| told.note(event);
    let locker = Locker::builder().retry_interval(ms(50)).max_retries(100).observer(observer);
    (locker.build(engine(cluster)).expect("a locker"), seen)
}

/// Returns `count` names of locks on the master `at`.
fn names(cluster: &RedisCluster, at: usize, count: usize) -> Vec<String> {
    let all = (0..).map(|number| format!("lock-{number}"));
    // By the initial distribution of hash slots.
    all.filter(|name| usize::from(cluster.slot(name)) * 3 / 16_384 == at).take(count).collect()
}

async fn take(locker: &Locker, names: &[String], ttl: Duration) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for name in names {
        // Renewed often, so that the hung master gets requests early on.
        let part = if ttl == LONG { 0.05 } else { 1.0 / 3.0 };
        guards.push(locker.lock(name.as_str()).ttl(ttl).renew_at(part).wait(TEST_LIMIT).await.expect("granted"));
    }
    guards
}

/// Hangs one master with `hung` locks on it and observes the locks on the others.
async fn expect_others_to_go_on(hung: usize) {
    let cluster = start();
    let ((locker, seen), (other, _)) = (connected(&cluster).await, connected(&cluster).await);
    let [theirs, steady, handed] = [(0, hung), (1, 5), (2, 10)].map(|(at, count)| names(&cluster, at, count));
    let stuck = take(&locker, &theirs, LONG).await;
    let steady = take(&locker, &steady, SHORT).await;
    let given = take(&other, &handed, LONG).await;
    let mut waiters = Vec::new();
    for name in &handed {
        waiters.push(tokio::spawn(locker.lock(name.as_str()).ttl(LONG).wait(TEST_LIMIT).into_future()));
        let until = now().after(TEST_LIMIT);
        while cluster.nodes()[2].command(&["EXISTS", &format!("{{{name}}}:q")]).int() == 0 {
            assert!(now() < until, "no waiter is queued");
            sleep(ms(5)).await;
        }
    }
    cluster.nodes()[0].stop();
    let until = now().after(TEST_LIMIT);
    while seen.failed() == 0 {
        assert!(now() < until, "the hung master was not asked");
        sleep(ms(5)).await;
    }
    for guard in given {
        guard.unlock().await.expect("released on a healthy master");
        // Handed over at several moments of a renewal round.
        sleep(ms(50)).await;
    }
    let mut held = Vec::new();
    for waiter in waiters {
        held.push(timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("handed over"));
    }
    sleep(WATCHED).await;
    for guard in held.iter().chain(&steady) {
        assert!(
            !guard.is_lost(),
            "{} was lost although its master is healthy, with {hung} on the hung one",
            guard.key()
        );
    }
    let mut margins: Vec<_> = handed.iter().map(|name| seen.margin_of(name).expect("renewed")).collect();
    margins.sort();
    // A busy machine may be late at times, but not usually: renewed when a third was over, not at the last moment.
    assert!(margins[margins.len() / 2] > FIRST_LEASE / 3, "{margins:?}");
    cluster.nodes()[0].cont();
    for guard in stuck.into_iter().chain(steady).chain(held) {
        assert!(!guard.is_lost(), "{}", guard.key());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f71_a_hung_master_with_one_lock_loses_none_on_the_others() {
    expect_others_to_go_on(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f71_a_hung_master_with_twenty_locks_loses_none_on_the_others() {
    expect_others_to_go_on(20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f71_a_hung_master_with_two_hundred_locks_loses_none_on_the_others() {
    expect_others_to_go_on(200).await;
}

/// Many guards on the hung master are dropped: their releases get no reply.
#[tokio::test(flavor = "multi_thread")]
async fn f71_unanswered_releases_of_a_hung_master_delay_no_other() {
    let cluster = start();
    let (locker, _) = connected(&cluster).await;
    let (other, _) = connected(&cluster).await;
    let [theirs, ours] = [(0, 300), (2, 1)].map(|(at, count)| names(&cluster, at, count));
    let stuck = take(&locker, &theirs, LONG).await;
    let guard = take(&locker, &ours, LONG).await;
    let _warm = take(&other, &names(&cluster, 2, 2)[1..], LONG).await;
    cluster.nodes()[0].stop();
    drop(stuck);
    // Several calls to a hung master are in flight.
    sleep(ms(200)).await;
    drop(guard);
    let next = other.lock(ours[0].as_str()).ttl(LONG).wait(ms(1500)).await;
    assert!(next.is_ok(), "not released before those of the hung master are given up: {next:?}");
    cluster.nodes()[0].cont();
}

#[tokio::test(flavor = "multi_thread")]
async fn f71_the_slot_map_is_not_read_from_a_hung_master() {
    let cluster = start();
    let name = names(&cluster, 2, 1).remove(0);
    cluster.nodes()[0].stop();
    let mut times = Vec::new();
    for _ in 0..5 {
        let started = now();
        let (locker, _) = connected(&cluster).await;
        let guard = locker.lock(name.as_str()).wait(TEST_LIMIT).await.expect("granted");
        guard.unlock().await.expect("released");
        times.push(now().since(started));
    }
    cluster.nodes()[0].cont();
    // The hung master is the first of the hosts. A busy machine may be late at times, but not always.
    assert!(times.iter().any(|time| *time < ms(900)), "{times:?}");
}
