//! Handover of a lock between the tasks of one client, and forced release.

use std::future::IntoFuture;
use std::time::Instant;

use distlock::backend::etcd::Etcd;
use distlock::{Locker, LossReason};
use distlock_testkit::proxy::{Direction, Flow, Proxy};
use distlock_testkit::servers::EtcdServer;
use tokio::time::timeout;

use super::etcd_faults_kit::{eventually, keys, locker_at, ms, secs, transactions};

/// Many waiters of one client: each is granted the lock once, in order, and the queue continues when some of them
/// leave.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_of_one_client_is_served_without_gaps() {
    let server = EtcdServer::start();
    let engine = Etcd::builder([server.address().to_string()]).build().unwrap();
    let handle = engine.handle();
    let locker = Locker::builder().default_ttl(secs(60)).build(engine).unwrap();
    let guard = locker.lock("a").await.unwrap();
    let mut waiters = Vec::new();
    for count in 2..=12 {
        let waiter = locker.clone().lock("a").wait(secs(30)).into_future();
        waiters.push(tokio::spawn(async move { waiter.await.unwrap() }));
        eventually("it has its place", || keys(&server).len() == count).await;
    }
    // Two in the middle give up.
    for at in [7, 3] {
        let cancelled = waiters.remove(at);
        cancelled.abort();
        assert!(cancelled.await.is_err());
    }
    eventually("they have left", || keys(&server).len() == 10).await;
    let before = handle.requests();
    let mut last = guard.fencing_token();
    guard.unlock().await.unwrap();
    for waiter in waiters {
        let next = timeout(secs(5), waiter).await.expect("handed over").unwrap();
        assert!(next.fencing_token() > last);
        last = next.fencing_token();
        next.check().expect("it is held");
        next.unlock().await.unwrap();
    }
    assert!(keys(&server).is_empty());
    let requests = handle.requests() - before;
    assert!(requests <= 20, "{requests} requests for 10 releases, two places given up and a keep-alive or two");
}

/// The next waiter of the same client has lost its key without knowing: the lock goes to the waiter behind it, and to
/// no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_not_handed_to_a_waiter_without_its_key() {
    let server = EtcdServer::start();
    let (ours, other) = (locker_at(&[server.address()], secs(60)), locker_at(&[server.address()], secs(60)));
    for _ in 0..5 {
        let guard = ours.lock("a").await.unwrap();
        let robbed = tokio::spawn(ours.clone().lock("a").wait(secs(30)).into_future());
        eventually("it waits", || keys(&server).len() == 2).await;
        let last = tokio::spawn(other.clone().lock("a").wait(secs(30)).into_future());
        let its_key = keys(&server).into_iter().find(|key| key.ends_with("-1")).expect("the second of its client");
        eventually("the other waits", || keys(&server).len() == 3).await;
        server.etcdctl().run(&["del", &its_key]);
        guard.unlock().await.unwrap();
        let next = timeout(secs(10), last).await.expect("its turn").unwrap().expect("granted");
        tokio::time::sleep(ms(50)).await;
        assert!(!robbed.is_finished(), "two hold the lock");
        let token = next.fencing_token();
        next.unlock().await.unwrap();
        let again = timeout(secs(10), robbed).await.expect("behind the other").unwrap().expect("granted");
        assert!(again.fencing_token() > token);
        again.unlock().await.unwrap();
    }
}

/// The next waiter of the same client gives up at the very moment when the lock is handed to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_handed_to_a_cancelled_waiter_is_passed_on() {
    let server = EtcdServer::start();
    let locker = locker_at(&[server.address()], secs(60));
    for turn in 0..30_u64 {
        let guard = locker.lock("a").await.unwrap();
        let leaver = tokio::spawn(locker.clone().lock("a").wait(secs(30)).into_future());
        eventually("it waits", || keys(&server).len() == 2).await;
        let last = tokio::spawn(locker.clone().lock("a").wait(secs(30)).into_future());
        eventually("it waits too", || keys(&server).len() == 3).await;
        let unlocking = tokio::spawn(guard.unlock());
        tokio::time::sleep(std::time::Duration::from_micros(turn * 100)).await;
        leaver.abort();
        unlocking.await.unwrap().expect("released");
        drop(leaver.await);
        let next = timeout(secs(5), last).await.expect("passed on").unwrap().expect("granted");
        assert!(!next.is_lost());
        next.unlock().await.unwrap();
        eventually("nothing is left", || keys(&server).is_empty()).await;
    }
}

/// A lock that is taken repeatedly does not create new key names, over which etcd would have to walk each time.
#[tokio::test(flavor = "multi_thread")]
async fn key_names_are_reused() {
    let server = EtcdServer::start();
    let locker = locker_at(&[server.address()], secs(60));
    let mut names = std::collections::HashSet::new();
    let mut tokens = std::collections::HashSet::new();
    for _ in 0..5 {
        let guard = locker.lock("a").await.unwrap();
        assert!(tokens.insert(guard.fencing_token()));
        names.extend(keys(&server));
        guard.unlock().await.unwrap();
    }
    assert_eq!(names.len(), 1, "{names:?}");
}

/// A forced release is recorded: the holder learns that its lock was broken.
#[tokio::test(flavor = "multi_thread")]
async fn a_forced_release_is_reported_as_broken() {
    let server = EtcdServer::start();
    let (holder, operator) = (locker_at(&[server.address()], secs(60)), locker_at(&[server.address()], secs(60)));
    for held_for in [ms(0), ms(1_000)] {
        let guard = holder.lock("a").await.unwrap();
        tokio::time::sleep(held_for).await;
        operator.inspect().force_release("a", guard.fencing_token(), "stuck").await.unwrap();
        assert_eq!(timeout(secs(5), guard.lost()).await.expect("notified"), LossReason::Broken);
        assert!(keys(&server).is_empty());
    }
}

/// The head is broken while another entry of its owner enters: that entry does not hold the lock, and queues behind
/// the waiters.
#[tokio::test(flavor = "multi_thread")]
async fn a_reentry_into_a_broken_head_is_not_granted() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let near = || locker_at(&[server.address()], secs(12));
    let (first, one, other, far) = (near(), near(), near(), locker_at(&[proxy.address()], secs(12)));
    let enter = |locker: &Locker| locker.lock("a").owner("order-7").reentrant().wait(secs(60)).into_future();
    let held = first.lock("a").await.unwrap();
    let inside = tokio::spawn(enter(&one));
    eventually("it queues", || keys(&server).len() == 2).await;
    let entering = tokio::spawn(enter(&far));
    eventually("it queues too", || keys(&server).len() == 3).await;
    let next = tokio::spawn(other.lock("a").wait(secs(60)).into_future());
    eventually("the next one queues", || keys(&server).len() == 4).await;
    // Its watch is open by then; from now on replies are delayed, and requests are not.
    tokio::time::sleep(secs(1)).await;
    proxy.set(Direction::Replies, Flow::Delay(ms(700)));
    held.unlock().await.unwrap();
    let inside = inside.await.unwrap().expect("the head is its own");
    eventually("the second entry is made", || keys(&server).iter().filter(|key| key.contains("{}")).count() == 2).await;
    one.inspect().force_release("a", inside.fencing_token(), "stuck").await.unwrap();
    assert_eq!(timeout(secs(10), inside.lost()).await.expect("notified"), LossReason::Broken);
    let next = timeout(secs(10), next).await.expect("its turn").unwrap().expect("granted");
    tokio::time::sleep(secs(2)).await;
    if entering.is_finished() {
        // On a slow machine it was inside before.
        let entered = entering.await.unwrap().expect("granted");
        timeout(secs(1), entered.lost()).await.expect("two holders");
        return;
    }
    proxy.pass();
    let token = next.fencing_token();
    next.unlock().await.expect("still our hold");
    let entered = timeout(secs(30), entering).await.expect("its turn").unwrap().expect("granted");
    assert!(entered.fencing_token() > token);
    entered.unlock().await.unwrap();
    eventually("nothing is left", || keys(&server).is_empty()).await;
}

/// The key of an unanswered claim is deleted by its name. If that delete arrives late, a retry has deleted the key
/// long ago, and another task of the same client may hold the lock: its hold must survive.
#[tokio::test(flavor = "multi_thread")]
async fn f05_late_release_of_an_unanswered_claim_keeps_the_next_hold_of_its_client() {
    let server = EtcdServer::start();
    let [silent, slow] = [(); 2].map(|()| Proxy::start(server.address()));
    let locker = locker_at(&[silent.address(), slow.address(), server.address()], secs(60));
    locker.lock("warm").await.unwrap().unlock().await.unwrap();
    silent.drop_replies();
    let asked = tokio::spawn(locker.lock("a").max_attempts(1).into_future());
    eventually("the key is made", || keys(&server).len() == 1).await;
    slow.hold_requests();
    silent.cut();
    asked.await.unwrap().expect_err("the reply is lost");
    slow.wait_for("the release", |counts| counts.requests.held() > 0);
    let sent = Instant::now();
    eventually("it is released by the third way", || keys(&server).is_empty()).await;
    let next = locker.try_lock("a").await.unwrap().expect("it is free");
    let (held, before) = (keys(&server), transactions(&server));
    // The release itself arrives now, and its cancellation later.
    slow.set(Direction::Requests, Flow::Delay(sent.elapsed()));
    eventually("the release comes", || transactions(&server) > before).await;
    assert_eq!(keys(&server), held, "deleted by the release of another");
    next.unlock().await.expect("still our hold");
    assert!(keys(&server).is_empty());
}
