//! How many watches the server has for many holds, and that each loss is told at once all the same.

use std::time::{Duration, Instant};

use distlock::backend::etcd::Etcd;
use distlock::{LockGuard, Locker, LossReason};
use distlock_testkit::servers::{EtcdServer, Etcdctl};
use tokio::time::timeout;

use crate::etcd_faults_kit::{eventually, lease_of, locker, locker_at, ms, secs};

const HOLDS: usize = 200;
/// From so many on, holds share a watch on the prefix.
const OWN_WATCHES: usize = 64;
/// The time in which events are counted, a round of housekeeping, and a little more.
const SWITCH: Duration = Duration::from_secs(5);
/// A loss that a watch tells comes far sooner than the next renewal, or the end of the lease.
const TTL: u64 = 60;

async fn hold(locker: &Locker, names: std::ops::Range<usize>) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for number in names {
        guards.push(locker.lock(format!("a{number}")).await.expect("granted"));
    }
    guards
}

fn watches(server: &EtcdServer) -> usize {
    server.metric("etcd_debugging_mvcc_watcher_total").expect("it counts them") as usize
}

/// Deletes the key of a hold, and waits until its guard knows.
async fn take_away(etcdctl: &Etcdctl, prefix: &str, guard: &LockGuard) {
    etcdctl.run(&["del", "--prefix", &format!("{prefix}{}/", guard.key())]);
    let told = timeout(secs(5), guard.lost()).await.expect("told by a watch");
    assert_eq!(told, LossReason::Revoked);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_holds_share_a_watch_and_each_loss_is_told() {
    let server = EtcdServer::start();
    let locker = locker_at(&[server.address()], secs(TTL));
    let mut guards = hold(&locker, 0..HOLDS).await;
    eventually("all are watched", || watches(&server) > 0).await;
    // Holds that come later have been watched since before they were made.
    guards.extend(hold(&locker, HOLDS..HOLDS + 10).await);
    tokio::time::sleep(secs(1)).await;
    let watches = watches(&server);
    assert!(watches <= OWN_WATCHES, "{watches} watches for {} holds", guards.len());
    for place in [0, HOLDS - 1, HOLDS + 9] {
        take_away(&server.etcdctl(), "", &guards[place]).await;
    }
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    assert_eq!(lost, 3, "no other hold is concerned");
}

#[tokio::test(flavor = "multi_thread")]
async fn holds_below_a_busy_prefix_are_watched_by_themselves() {
    let server = EtcdServer::start();
    let holder = locker_at(&[server.address()], secs(TTL));
    let other = locker_at(&[server.address()], secs(TTL));
    let busy = tokio::spawn(async move {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..16 {
            let other = other.clone();
            tasks.spawn(async move {
                loop {
                    other.lock(format!("busy{task}")).await.expect("granted").unlock().await.expect("released");
                }
            });
        }
        tasks.join_all().await;
    });
    let guards = hold(&holder, 0..HOLDS).await;
    eventually("each has a watch", || watches(&server) >= HOLDS).await;
    busy.abort();
    for place in [0, HOLDS - 1] {
        take_away(&server.etcdctl(), "", &guards[place]).await;
    }
    assert_eq!(guards.iter().filter(|guard| guard.is_lost()).count(), 2, "no other hold is concerned");
}

/// Another process takes many locks and dies: that is over before a watch for each hold would be worth it.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_events_opens_no_watch_for_each_hold() {
    const BURST: usize = 800;
    let server = EtcdServer::start();
    let holder = locker_at(&[server.address()], secs(TTL));
    let other = locker_at(&[server.address()], secs(TTL));
    let guards = hold(&holder, 0..HOLDS).await;
    eventually("they share a watch", || watches(&server) == OWN_WATCHES).await;
    let mut dying = Vec::new();
    for start in (0..BURST).step_by(40) {
        let names = (start..start + 40).map(|number| format!("dying{number}"));
        dying.push(other.lock_all(names).await.expect("granted"));
    }
    let etcdctl = server.etcdctl();
    let key = etcdctl.run(&["get", "--prefix", "--keys-only", "--limit=1", "dying"]);
    etcdctl.run(&["lease", "revoke", &lease_of(key.trim())]);
    // Events come in order: the burst was seen.
    take_away(&etcdctl, "", &guards[HOLDS - 1]).await;
    let seen = Instant::now();
    while seen.elapsed() < SWITCH {
        let watches = watches(&server);
        assert!(watches < HOLDS, "{watches} watches, with those of the other client");
        tokio::time::sleep(ms(100)).await;
    }
    take_away(&etcdctl, "", &guards[HOLDS - 2]).await;
    assert_eq!(guards.iter().filter(|guard| guard.is_lost()).count(), 2, "no other hold is concerned");
}

/// A user that may use some names below the prefix cannot watch all of it.
#[tokio::test(flavor = "multi_thread")]
async fn holds_of_a_user_without_rights_to_the_prefix_are_watched_by_themselves() {
    let server = EtcdServer::options().auth("secret").start();
    let etcdctl = server.etcdctl();
    etcdctl.run(&["user", "add", "narrow:secret"]);
    etcdctl.run(&["role", "add", "narrow"]);
    etcdctl.run(&["role", "grant-permission", "narrow", "readwrite", "locks/a", "locks/b"]);
    etcdctl.run(&["user", "grant-role", "narrow", "narrow"]);
    let narrow = Etcd::builder([server.address().to_string()]).prefix("locks/").login("narrow", "secret");
    let locker = locker(narrow, secs(TTL));
    let guards = hold(&locker, 0..HOLDS).await;
    eventually("each has a watch", || watches(&server) >= HOLDS).await;
    for place in [0, HOLDS - 1] {
        take_away(&etcdctl, "locks/", &guards[place]).await;
    }
    assert_eq!(guards.iter().filter(|guard| guard.is_lost()).count(), 2, "no other hold is concerned");
}
