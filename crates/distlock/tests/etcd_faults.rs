//! Behaviour when etcd, the network or the client fails. The numbers are those of the failure catalogue.

#![cfg(feature = "etcd")]

mod etcd_faults_kit;
#[path = "etcd_faults/leases.rs"]
mod leases;
#[path = "etcd_faults/modes.rs"]
mod modes;
#[path = "etcd_faults/reach.rs"]
mod reach;
mod reach_kit;
mod reach_queue_kit;
#[path = "etcd_faults/runtimes.rs"]
mod runtimes;
#[path = "etcd_faults/turns.rs"]
mod turns;
#[path = "etcd_faults/watches.rs"]
mod watches;

use std::future::IntoFuture;

use distlock::backend::etcd::Etcd;
use distlock::{ErrorKind, HoldState, Locker, LossReason};
use distlock_testkit::proxy::{Direction, Door, Flow, Proxy};
use distlock_testkit::servers::{Data, EtcdCluster, EtcdServer};
use etcd_faults_kit::{Child, eventually, keys, keys_of, lease_of, locker, locker_at, ms, secs};
use tokio::time::timeout;

distlock_testkit::child!();

/// Applied, reply lost: the retried claim has the same id and finds its own key.
#[tokio::test(flavor = "multi_thread")]
async fn f01_claim_applied_and_its_reply_lost() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let locker = locker_at(&[proxy.address()], secs(10));
    locker.lock("warm").await.unwrap().unlock().await.unwrap();
    proxy.drop_replies();
    let asked = tokio::spawn(locker.lock("a").wait(secs(20)).into_future());
    eventually("the key is made", || keys(&server).len() == 1).await;
    proxy.cut();
    proxy.pass();
    let guard = asked.await.unwrap().expect("granted after all");
    assert_eq!(keys(&server).len(), 1, "one attempt, one key");
    guard.unlock().await.unwrap();
    assert!(keys(&server).is_empty());
}

/// A grant that arrives after its own lease has ended is not a grant.
#[tokio::test(flavor = "multi_thread")]
async fn f02_reply_after_the_deadline() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let locker = locker_at(&[proxy.address()], secs(2));
    locker.lock("warm").await.unwrap().unlock().await.unwrap();
    proxy.set(Direction::Replies, Flow::Delay(ms(2_500)));
    if let Ok(guard) = locker.lock("a").wait(secs(8)).await {
        assert!(!guard.is_lost(), "granted with a lease that is over");
    }
    proxy.pass();
    let guard = locker.lock("b").wait(secs(20)).await.expect("it recovers");
    guard.unlock().await.unwrap();
    eventually("nothing is left", || keys(&server).is_empty()).await;
}

/// Only an answered renewal moves the deadline.
#[tokio::test(flavor = "multi_thread")]
async fn f03_renewal_reply_lost() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let locker = locker_at(&[proxy.address()], secs(6));
    let guard = locker.lock("a").await.unwrap();
    proxy.drop_replies();
    let deadline = guard.deadline();
    eventually("it is at risk", || guard.state() == HoldState::AtRisk).await;
    assert_eq!(guard.deadline(), deadline);
    proxy.cut();
    proxy.pass();
    eventually("it is renewed", || guard.deadline() > deadline).await;
    assert_eq!(guard.state(), HoldState::Held);
    guard.unlock().await.unwrap();
}

/// A release whose reply is lost is unknown to the caller, but it took effect.
#[tokio::test(flavor = "multi_thread")]
async fn f04_release_reply_lost() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let locker = locker_at(&[proxy.address()], secs(10));
    let guard = locker.lock("a").await.unwrap();
    proxy.drop_replies();
    let unlocking = tokio::spawn(guard.unlock());
    eventually("the key is gone", || keys(&server).is_empty()).await;
    proxy.cut();
    proxy.pass();
    let error = unlocking.await.unwrap().expect_err("the reply is lost");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    locker_at(&[server.address()], secs(10)).try_lock("a").await.unwrap().expect("free").unlock().await.unwrap();
}

/// A release that is retried after its reply was lost does not end the next hold.
#[tokio::test(flavor = "multi_thread")]
async fn f05_repeated_release_does_not_end_the_next_hold() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let (first, next) = (locker_at(&[proxy.address()], secs(10)), locker_at(&[server.address()], secs(10)));
    let guard = first.lock("a").await.unwrap();
    proxy.drop_replies();
    let unlocking = tokio::spawn(guard.unlock());
    let held = next.lock("a").wait(secs(10)).await.expect("released, without the knowledge of the first holder");
    proxy.cut();
    proxy.pass();
    unlocking.await.unwrap().expect_err("the reply is lost");
    first.close().await.expect("every release was answered in the end");
    held.check().expect("still the next one's");
    assert_eq!(keys(&server).len(), 1);
    held.unlock().await.unwrap();
}

/// The same when the new key has the same name as the key that is deleted again.
#[tokio::test(flavor = "multi_thread")]
async fn f05_repeated_delete_keeps_a_newer_key_of_the_same_name() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let locker = locker_at(&[proxy.address()], secs(10));
    let guard = locker.lock("a").await.unwrap();
    let key = keys(&server).pop().expect("its key");
    proxy.drop_replies();
    let unlocking = tokio::spawn(guard.unlock());
    eventually("the key is gone", || keys(&server).is_empty()).await;
    server.etcdctl().run(&["put", &key, "newer"]);
    proxy.cut();
    proxy.pass();
    let error = unlocking.await.unwrap().expect_err("the reply is lost");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    locker.close().await.expect("the release was repeated, and answered");
    assert!(server.etcdctl().run(&["get", &key]).ends_with("newer"));
}

/// A connection that breaks after the request was sent does not cause two grants.
#[tokio::test(flavor = "multi_thread")]
async fn f06_connection_cut_after_sending() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let locker = locker_at(&[proxy.address()], secs(10));
    locker.lock("warm").await.unwrap().unlock().await.unwrap();
    let mut last = 0;
    for _ in 0..5 {
        proxy.cut_after(Direction::Replies, 0);
        let guard = locker.lock("a").wait(secs(20)).await.expect("granted over the next connection");
        assert_eq!(keys(&server).len(), 1);
        assert!(guard.fencing_token().get() > last);
        last = guard.fencing_token().get();
        guard.unlock().await.unwrap();
    }
    assert!(keys(&server).is_empty());
}

/// An acquire that is dropped while its request is in flight leaves no trace.
#[tokio::test(flavor = "multi_thread")]
async fn f07_acquire_future_dropped() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let locker = locker_at(&[proxy.address()], secs(10));
    locker.lock("warm").await.unwrap().unlock().await.unwrap();
    proxy.delay(ms(100));
    for wait in [0, 20, 60, 120, 180, 220] {
        let _ = timeout(ms(wait), locker.lock("a").into_future()).await;
    }
    proxy.pass();
    eventually("nothing is left", || keys(&server).is_empty()).await;
    let guard = locker.try_lock("a").await.unwrap();
    assert!(guard.is_some(), "something is in the way");
}

/// The holder is killed: the next client is granted the lock when the lease ends.
#[tokio::test(flavor = "multi_thread")]
async fn f12_holder_killed() {
    let server = EtcdServer::start();
    let mut child = Child::hold(&server, "a", secs(3));
    let locker = locker_at(&[server.address()], secs(3));
    assert!(locker.try_lock("a").await.unwrap().is_none());
    let killed = std::time::Instant::now();
    child.kill9();
    let guard = locker.lock("a").wait(secs(20)).await.expect("its lease ends");
    assert!(killed.elapsed() < secs(6), "{:?}", killed.elapsed());
    assert!(guard.fencing_token().get() > child.token);
    guard.unlock().await.unwrap();
}

/// A request that is delayed and arrives after its sender gave up leaves no lasting trace.
#[tokio::test(flavor = "multi_thread")]
async fn f14_late_request() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let locker = locker_at(&[proxy.address(), server.address()], secs(30));
    locker.lock("warm").await.unwrap().unlock().await.unwrap();
    proxy.hold_requests();
    let asked = tokio::spawn(locker.lock("a").max_attempts(1).into_future());
    proxy.wait_for("the claim", |counts| counts.requests.held() > 0);
    tokio::time::sleep(ms(200)).await;
    // Only the request itself will arrive, not its cancellation.
    let request = proxy.counts().requests.held();
    asked.await.unwrap().expect_err("it is held up");
    tokio::time::sleep(ms(500)).await;
    proxy.cut_after(Direction::Requests, request);
    proxy.set(Direction::Requests, Flow::Pass);
    let other = locker_at(&[server.address()], secs(10));
    let guard = other.lock("a").wait(secs(5)).await.expect("what came late does not stay");
    guard.unlock().await.unwrap();
    tokio::time::sleep(secs(1)).await;
    other.lock("a").wait(secs(5)).await.expect("nor comes back").unlock().await.unwrap();
    eventually("nothing is left", || keys(&server).is_empty()).await;
}

/// A process that is stopped for longer than its lease knows on waking that it lost the lock.
#[tokio::test(flavor = "multi_thread")]
async fn f49_client_paused_for_longer_than_its_lease() {
    let server = EtcdServer::start();
    let mut child = Child::hold(&server, "a", secs(2));
    child.stop();
    let locker = locker_at(&[server.address()], secs(2));
    let guard = locker.lock("a").wait(secs(20)).await.expect("its lease ends");
    assert!(guard.fencing_token().get() > child.token);
    child.cont();
    assert!(child.says_lost(), "two holders");
    guard.check().expect("the late one has not touched it");
    guard.unlock().await.unwrap();
}

/// A connection that accepts requests and never replies is replaced by another endpoint in time.
#[tokio::test(flavor = "multi_thread")]
async fn f50_keepalive_stalls_without_an_error() {
    let server = EtcdServer::start();
    let proxies = [Proxy::start(server.address()), Proxy::start(server.address())];
    let locker = locker_at(&proxies.each_ref().map(Proxy::address), secs(6));
    let guard = locker.lock("a").await.unwrap();
    proxies[0].set(Direction::Replies, Flow::Freeze);
    proxies[0].door(Door::Silent);
    let deadline = guard.deadline();
    tokio::time::sleep(secs(5)).await;
    assert_eq!(guard.state(), HoldState::Held);
    assert!(guard.deadline() > deadline, "renewed over the other endpoint");
    tokio::time::sleep(secs(8)).await;
    guard.check().expect("still held");
    guard.unlock().await.unwrap();
}

/// A reply that was buffered counts from when its request was sent.
#[tokio::test(flavor = "multi_thread")]
async fn f51_buffered_keepalive_replies() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let locker = locker_at(&[proxy.address()], secs(6));
    let guard = locker.lock("a").await.unwrap();
    proxy.set(Direction::Replies, Flow::Delay(ms(700)));
    let first = guard.deadline();
    eventually("it is renewed", || guard.deadline() > first).await;
    let left = guard.remaining().expect("it has a lease");
    assert!(left <= ms(6_000 - 690), "{left:?} left of a lease whose request was sent 0.7 s ago");
    proxy.pass();
    guard.unlock().await.unwrap();
}

/// The key is deleted while the lease lives: the holder learns of it from its watch, not from its lease.
#[tokio::test(flavor = "multi_thread")]
async fn f52_key_gone_though_the_lease_lives() {
    let server = EtcdServer::start();
    let locker = locker_at(&[server.address()], secs(60));
    let guard = locker.lock("a").await.unwrap();
    server.etcdctl().run(&["del", "--prefix", "a/"]);
    let reason = timeout(secs(2), guard.lost()).await.expect("notified at once");
    assert_eq!(reason, LossReason::Revoked);
}

/// The same while the connection is down: the new watch stream starts where the old one ended.
#[tokio::test(flavor = "multi_thread")]
async fn f52_key_gone_while_the_connection_is_down() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let locker = locker_at(&[proxy.address()], secs(60));
    let guard = locker.lock("a").await.unwrap();
    eventually("it is watched", || server.metric("etcd_debugging_mvcc_watcher_total") == Some(1.0)).await;
    proxy.drop_replies();
    server.etcdctl().run(&["del", "--prefix", "a/"]);
    assert!(!guard.is_lost(), "no event has arrived");
    proxy.cut();
    proxy.pass();
    assert_eq!(timeout(secs(10), guard.lost()).await.expect("notified by the new stream"), LossReason::Revoked);
}

/// The leader is stopped and continues: an etcd of this version may then revoke live leases. A holder whose key is
/// gone stops believing as soon as the watch can tell it.
#[tokio::test(flavor = "multi_thread")]
async fn f52_leader_paused_for_nine_seconds() {
    let mut cluster = EtcdCluster::start();
    let locker = locker_at(&cluster.addresses(), secs(5));
    let guard = locker.lock("a").await.unwrap();
    let leader = cluster.leader();
    cluster.members()[leader].stop();
    tokio::time::sleep(secs(9)).await;
    cluster.members()[leader].cont();
    let mut gone_since = None;
    for _ in 0..40 {
        tokio::time::sleep(ms(250)).await;
        let there = !keys_of(&cluster.etcdctl()).is_empty();
        if guard.is_lost() {
            break;
        }
        match (there, gone_since) {
            (true, _) => gone_since = None,
            (false, None) => gone_since = Some(std::time::Instant::now()),
            (false, Some(since)) => assert!(since.elapsed() < secs(1), "the key is gone, its holder not notified"),
        }
    }
    // A surviving key is deleted now, and only the watch can tell: it has moved to a server that is alive.
    if !guard.is_lost() {
        cluster.etcdctl().run(&["del", "--prefix", "a/"]);
    }
    timeout(secs(2), guard.lost()).await.expect("notified at once");
    drop(guard);
    let next = locker.lock("a").wait(secs(20)).await.expect("the cluster works");
    next.unlock().await.unwrap();
}

/// Without a majority the holder's lease ends at its deadline, and no other client is granted the lock before that.
#[tokio::test(flavor = "multi_thread")]
async fn f53_followers_frozen() {
    let mut cluster = EtcdCluster::start();
    let (holder, other) = (locker_at(&cluster.addresses(), secs(3)), locker_at(&cluster.addresses(), secs(3)));
    let guard = holder.lock("a").await.unwrap();
    let followers = cluster.followers();
    followers.iter().for_each(|at| cluster.members()[*at].stop());
    timeout(secs(20), guard.lost()).await.expect("notified when its lease has ended");
    assert!(guard.deadline().unwrap() <= distlock::Clock::system().now());
    followers.iter().for_each(|at| cluster.members()[*at].cont());
    let next = other.lock("a").wait(secs(30)).await.expect("the cluster works again");
    assert!(next.fencing_token() > guard.fencing_token());
    next.unlock().await.unwrap();
}

/// The leader, to which all clients are connected, is killed: holders keep their locks, and waiters keep waiting.
#[tokio::test(flavor = "multi_thread")]
async fn f54_leader_killed() {
    let mut cluster = EtcdCluster::start();
    let leader = cluster.leader();
    let mut addresses = cluster.addresses();
    addresses.swap(0, leader);
    let (holder, other) = (locker_at(&addresses, secs(8)), locker_at(&addresses, secs(8)));
    let guard = holder.lock("a").await.unwrap();
    let waiter = tokio::spawn(other.lock("a").wait(secs(40)).into_future());
    cluster.members_mut()[leader].kill9();
    tokio::time::sleep(secs(10)).await;
    guard.check().expect("renewed by the new leader");
    assert!(!waiter.is_finished(), "granted while it is held");
    guard.unlock().await.expect("released");
    waiter.await.unwrap().expect("granted").unlock().await.unwrap();
}

/// Compaction removes the events that a watch would have to catch up with: all watchers read the state again, and no
/// holder is notified of a loss that did not happen.
#[tokio::test(flavor = "multi_thread")]
async fn f55_watch_cancelled_by_compaction() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let locker = locker_at(&[proxy.address()], secs(20));
    let guard = locker.lock("a").await.unwrap();
    let waiter = tokio::spawn(locker.clone().lock("a").wait(secs(40)).into_future());
    eventually("both are there", || keys(&server).len() == 2).await;
    tokio::time::sleep(secs(1)).await;
    proxy.door(Door::Refuse);
    proxy.cut();
    for value in ["1", "2", "3"] {
        server.etcdctl().run(&["put", "other", value]);
    }
    let revision = server.etcdctl().run(&["get", "other", "-w", "fields"]);
    let revision = revision.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).expect("a revision");
    server.etcdctl().run(&["compact", revision]);
    server.etcdctl().run(&["del", "other"]);
    proxy.pass();
    tokio::time::sleep(secs(2)).await;
    guard.check().expect("nothing happened to it");
    assert!(!waiter.is_finished());
    guard.unlock().await.expect("released");
    let next = timeout(secs(3), waiter).await.expect("woken, not polled").unwrap().expect("granted");
    next.unlock().await.unwrap();
}

/// The watch reports late that a waiter is at the head, when it no longer is: the current state of the cluster counts.
#[tokio::test(flavor = "multi_thread")]
async fn f56_watch_lags() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let (near, far) = (locker_at(&[server.address()], secs(30)), locker_at(&[proxy.address()], secs(30)));
    let guard = near.lock("a").await.unwrap();
    let held = keys(&server);
    let waiter = tokio::spawn(far.lock("a").wait(secs(30)).into_future());
    eventually("it queues", || keys(&server).len() == 2).await;
    tokio::time::sleep(secs(1)).await;
    proxy.set(Direction::Replies, Flow::Delay(secs(2)));
    guard.unlock().await.unwrap();
    let place = keys(&server).into_iter().find(|key| !held.contains(key)).expect("the waiter's");
    server.etcdctl().run(&["del", &place]);
    let next = near.try_lock("a").await.unwrap().expect("it is free");
    tokio::time::sleep(secs(5)).await;
    assert!(!waiter.is_finished(), "two holders");
    next.check().expect("still the only one");
    proxy.pass();
    next.unlock().await.unwrap();
    waiter.await.unwrap().expect("granted in the end").unlock().await.unwrap();
}

/// A waiter whose lease is gone gets a new lease and a new place.
#[tokio::test(flavor = "multi_thread")]
async fn f57_waiters_lease_revoked() {
    let server = EtcdServer::start();
    let (holder, other) = (locker_at(&[server.address()], secs(30)), locker_at(&[server.address()], secs(30)));
    let guard = holder.lock("a").await.unwrap();
    let held = keys(&server);
    let waiter = tokio::spawn(other.lock("a").wait(secs(20)).into_future());
    eventually("it queues", || keys(&server).len() == 2).await;
    tokio::time::sleep(ms(500)).await;
    let place = keys(&server).into_iter().find(|key| !held.contains(key)).unwrap();
    server.etcdctl().run(&["lease", "revoke", &lease_of(&place)]);
    eventually("it queues again", || keys(&server).iter().any(|key| !held.contains(key) && *key != place)).await;
    assert!(!waiter.is_finished(), "granted while it is held");
    guard.unlock().await.unwrap();
    waiter.await.unwrap().expect("granted").unlock().await.unwrap();
}

/// A claim on a lease that is gone gets a new lease.
#[tokio::test(flavor = "multi_thread")]
async fn f58_claim_on_a_dead_lease() {
    let server = EtcdServer::start();
    let locker = locker_at(&[server.address()], secs(30));
    let guard = locker.lock("a").await.unwrap();
    let lease = lease_of(&keys(&server)[0]);
    guard.unlock().await.unwrap();
    server.etcdctl().run(&["lease", "revoke", &lease]);
    let guard = locker.try_lock("a").await.unwrap().expect("free, with a new lease");
    assert_ne!(lease_of(&keys(&server)[0]), lease);
    guard.unlock().await.unwrap();
}

/// A claim without a majority fails or waits; afterwards there is one key or none, never two holders.
#[tokio::test(flavor = "multi_thread")]
async fn f59_claim_without_a_majority() {
    let mut cluster = EtcdCluster::start();
    // The server that is asked accepts the claim, and waits for the others.
    let mut addresses = cluster.addresses();
    addresses.swap(0, cluster.leader());
    let locker = locker_at(&addresses, secs(5));
    locker.lock("warm").await.unwrap().unlock().await.unwrap();
    let followers = cluster.followers();
    followers.iter().for_each(|at| cluster.members()[*at].stop());
    let error = locker.lock("a").wait(secs(3)).await.expect_err("no majority");
    assert!(error.is_retryable(), "{error}");
    // Longer than a request's timeout: its outcome is unknown when it is executed after all.
    tokio::time::sleep(secs(4)).await;
    followers.iter().for_each(|at| cluster.members()[*at].cont());
    let other = locker_at(&cluster.addresses(), secs(5));
    // The lease of a key that is not withdrawn would live twice as long.
    other.lock("a").wait(secs(15)).await.expect("nothing is in the way for long").unlock().await.unwrap();
    eventually("nothing is left", || keys_of(&cluster.etcdctl()).is_empty()).await;
}

/// The lease that all locks share is revoked: every guard is notified at once.
#[tokio::test(flavor = "multi_thread")]
async fn f60_shared_lease_revoked() {
    let server = EtcdServer::start();
    let locker = locker_at(&[server.address()], secs(60));
    let mut guards = Vec::new();
    for number in 0..20 {
        guards.push(locker.lock(format!("a{number}")).await.unwrap());
    }
    let private = locker.lock("private").ttl(secs(30)).await.unwrap();
    tokio::time::sleep(secs(1)).await;
    let lease = keys(&server).iter().find(|key| key.starts_with("a0/")).map(|key| lease_of(key)).unwrap();
    server.etcdctl().run(&["lease", "revoke", &lease]);
    for guard in &guards {
        assert_eq!(timeout(secs(1), guard.lost()).await.expect("notified at once"), LossReason::Revoked);
    }
    private.check().expect("another TTL has a lease of its own");
    private.unlock().await.unwrap();
}

/// A cluster without space refuses new locks with a definite error, and still releases old ones.
#[tokio::test(flavor = "multi_thread")]
async fn f61_no_space() {
    let server = EtcdServer::options().quota_bytes(16 * 1024 * 1024).start();
    let locker = locker_at(&[server.address()], secs(30));
    let guard = locker.lock("a").await.unwrap();
    let filler = "x".repeat(100_000);
    let full = (0..400).any(|number| server.etcdctl().try_run(&["put", &format!("fill{number}"), &filler]).is_err());
    assert!(full, "the quota was not reached");
    let error = locker.try_lock("b").await.expect_err("there is no space");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let released = guard.unlock().await;
    if refuses_releases_without_space(&server) {
        let error = released.expect_err("a transaction");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        return;
    }
    released.expect("released all the same");
    assert!(keys(&server).iter().all(|key| key.starts_with("fill")));
}

/// Before 3.4.20 and 3.5.7 etcd refuses every transaction when there is no space, also one that only deletes.
fn refuses_releases_without_space(server: &EtcdServer) -> bool {
    let status = server.etcdctl().run(&["endpoint", "status"]);
    let version = status.split(", ").nth(2).unwrap_or_default();
    let numbers: Vec<u32> = version.split('.').filter_map(|number| number.parse().ok()).collect();
    matches!(numbers[..], [3, 4, patch] if patch < 20) || matches!(numbers[..], [3, 5, patch] if patch < 7)
}

/// An expired login is renewed transparently, also for a watch that is opened then.
#[tokio::test(flavor = "multi_thread")]
async fn f61_login_expired() {
    let server = EtcdServer::options().auth("s3cret").auth_token_ttl(1).start();
    let locker = locker(Etcd::builder([server.address().to_string()]).login("root", "s3cret"), secs(60));
    let short = locker.lock("short").ttl(secs(4)).await.unwrap();
    // Keeps the watch stream open past the end of the login.
    let long = locker.lock("long").await.unwrap();
    for name in ["a", "b"] {
        tokio::time::sleep(secs(5)).await;
        let guard = locker.lock(name).await.expect("logged in anew");
        let waiter = tokio::spawn(locker.clone().lock(name).wait(secs(30)).into_future());
        tokio::time::sleep(secs(1)).await;
        guard.unlock().await.unwrap();
        let next = timeout(secs(3), waiter).await.expect("woken, not polled").unwrap().expect("granted");
        next.unlock().await.unwrap();
    }
    assert_eq!(short.state(), HoldState::Held, "renewed all the time");
    short.unlock().await.unwrap();
    long.unlock().await.unwrap();
}

/// Wrong credentials are an error at once, of kind `Auth`.
#[tokio::test(flavor = "multi_thread")]
async fn f61_wrong_password() {
    let server = EtcdServer::options().auth("s3cret").start();
    let locker = locker(Etcd::builder([server.address().to_string()]).login("root", "guess"), secs(4));
    let error = locker.lock("a").wait(secs(5)).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
    assert!(!error.to_string().contains("guess"));
}

/// A cluster that was set back would repeat its tokens, so it is refused.
#[tokio::test(flavor = "multi_thread")]
async fn f62_cluster_set_back() {
    let mut server = EtcdServer::start();
    let locker = locker_at(&[server.address()], secs(2));
    for _ in 0..5 {
        locker.lock("a").await.unwrap().unlock().await.unwrap();
    }
    server.restart(Data::Lost);
    let error = locker.lock("a").wait(secs(20)).await.expect_err("its revisions went back");
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    eventually("nothing is left", || keys(&server).is_empty()).await;
}

/// The same with a copy of the cluster's own data: it has the same id, and only its revision shows it.
#[tokio::test(flavor = "multi_thread")]
async fn f62_cluster_restored_from_an_old_copy() {
    let mut server = EtcdServer::start();
    let locker = locker_at(&[server.address()], secs(2));
    locker.lock("a").await.unwrap().unlock().await.unwrap();
    server.kill9();
    let (data, copy) = (server.data_directory(), server.data_directory().with_extension("copy"));
    let put = |from: &std::path::Path, to: &std::path::Path| {
        let done = std::process::Command::new("cp").arg("-a").args([from, to]).status();
        assert!(done.expect("cp runs").success());
    };
    put(&data, &copy);
    server.restart(Data::Kept);
    let mut last = 0;
    for _ in 0..5 {
        let guard = locker.lock("a").wait(secs(20)).await.unwrap();
        last = guard.fencing_token().get();
        guard.unlock().await.unwrap();
    }
    server.kill9();
    std::fs::remove_dir_all(&data).expect("removed");
    put(&copy, &data);
    server.restart(Data::Kept);
    let error = locker.lock("a").wait(secs(20)).await.expect_err("its revisions went back");
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    let repeated = locker_at(&[server.address()], secs(2)).lock("a").wait(secs(20)).await.expect("a new client");
    assert!(repeated.fencing_token().get() < last, "a client that has seen nothing cannot tell: see the documentation");
    repeated.unlock().await.unwrap();
}

/// All endpoints go down and come back: a wait continues, and a hold within its lease survives.
#[tokio::test(flavor = "multi_thread")]
async fn all_endpoints_down_and_back() {
    let mut server = EtcdServer::start();
    let locker = locker_at(&[server.address()], secs(10));
    let guard = locker.lock("a").await.unwrap();
    server.kill9();
    let waiter = tokio::spawn(locker.clone().lock("b").wait(secs(30)).into_future());
    tokio::time::sleep(secs(2)).await;
    let error = locker.try_lock("c").await.expect_err("no server is reachable");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    server.restart(Data::Kept);
    waiter.await.unwrap().expect("granted").unlock().await.unwrap();
    guard.check().expect("within its lease");
    guard.unlock().await.expect("released");
}

/// An unreachable server is an error when the locker is created, and the error names the address.
#[tokio::test]
async fn an_unreachable_server_is_an_error_at_once() {
    let gone = EtcdServer::start().url();
    let error = Locker::connect(&gone).await.expect_err("no server is reachable");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}
