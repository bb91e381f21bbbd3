//! Faults while a lease is created, renewed, or replaced by a longer one.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use distlock::{ErrorKind, LockGuard, Locker};
use distlock_testkit::proxy::{Direction, Flow, Proxy};
use distlock_testkit::servers::EtcdServer;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::etcd_faults_kit::{eventually, keys, lease_of, locker_at, secs};

/// Returns the key of the lock `a`, and the lease that it is attached to.
fn hangs_on(server: &EtcdServer) -> Option<(String, i64)> {
    let key = keys(server).into_iter().find(|key| key.starts_with("a/"))?;
    let shown = server.etcdctl().run(&["get", &key, "--write-out=fields"]);
    let lease = shown.lines().find_map(|line| line.strip_prefix("\"Lease\" : "))?;
    Some((key, lease.parse().expect("a number")))
}

/// Returns a hold, and others that keep longer leases alive. The hold's extension to 60 s is executed, and its reply
/// is lost.
async fn extended_without_an_answer(
    server: &EtcdServer,
    proxy: &Proxy,
    ttl: u64,
) -> (Locker, Arc<LockGuard>, Vec<LockGuard>) {
    let locker = locker_at(&[proxy.address()], secs(ttl));
    let guard = Arc::new(locker.lock("a").watchdog(false).await.unwrap());
    // Their leases are younger, so that no renewal is due before the hold moves to one of them.
    let mut others = Vec::new();
    for ttl in [60, 90] {
        others.push(locker.lock(format!("other{ttl}")).ttl(secs(ttl)).await.unwrap());
    }
    let before = hangs_on(server);
    proxy.drop_replies();
    let extending = tokio::spawn({
        let guard = guard.clone();
        async move { guard.extend(secs(60)).await }
    });
    eventually("it hangs on another lease", || hangs_on(server) != before).await;
    extending.abort();
    assert!(extending.await.is_err(), "it was answered");
    proxy.cut();
    proxy.pass();
    (locker, guard, others)
}

/// After an extension without a reply the hold is still valid: the next extension finds it where the first one moved
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn f03_an_extension_after_a_lost_reply_keeps_the_hold() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let (_locker, guard, others) = extended_without_an_answer(&server, &proxy, 30).await;
    let moved = hangs_on(&server);
    guard.extend(secs(90)).await.expect("it is still ours");
    assert_ne!(hangs_on(&server), moved, "on the longer one");
    assert!(guard.remaining() > Some(secs(60)));
    Arc::into_inner(guard).expect("the only one").unlock().await.expect("still our hold");
    assert_eq!(keys(&server).len(), others.len());
}

/// Two concurrent extensions are two extensions.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_extensions_keep_the_hold() {
    let server = EtcdServer::start();
    let locker = locker_at(&[server.address()], secs(10));
    // Their leases exist already, so that both extensions are sent at the same moment.
    let _others = [locker.lock("b").ttl(secs(20)).await.unwrap(), locker.lock("c").ttl(secs(30)).await.unwrap()];
    let guard = locker.lock("a").await.unwrap();
    let (short, long) = tokio::join!(guard.extend(secs(20)), guard.extend(secs(30)));
    short.expect("extended");
    long.expect("extended");
    assert!(guard.remaining() > Some(secs(20)));
    guard.unlock().await.expect("still our hold");
}

/// A label change is in flight while the lease is extended: the hold continues on the longer lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_concurrent_label_and_extension_keep_the_hold() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let locker = locker_at(&[proxy.address(), server.address()], secs(30));
    let others = [locker.lock("b").ttl(secs(60)).await.unwrap(), locker.lock("c").ttl(secs(3)).await.unwrap()];
    let guard = Arc::new(locker.lock("a").watchdog(false).await.unwrap());
    let before = hangs_on(&server);
    proxy.hold_requests();
    let [labelled, extended] = [guard.clone(), guard.clone()];
    let labelled = tokio::spawn(async move { labelled.relabel("half way").await });
    proxy.wait_for("the label", |counts| counts.requests.held() > 0);
    let sent = Instant::now();
    // A renewal that gets no reply in time: from then on everything uses another connection.
    let _ = others[1].extend(secs(3)).await;
    let mut extended = tokio::spawn(async move { extended.extend(secs(60)).await });
    // The extension waits for the label; otherwise it would finish long before it.
    let early = timeout(secs(2), &mut extended).await;
    proxy.set(Direction::Requests, Flow::Delay(sent.elapsed()));
    if let Err(error) = labelled.await.unwrap() {
        // On a slow machine it was given up before.
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    }
    let extended = match early {
        Ok(extended) => extended,
        Err(_) => extended.await,
    };
    extended.unwrap().expect("extended");
    guard.check().expect("still ours");
    assert!(guard.remaining() > Some(secs(30)) && hangs_on(&server) != before);
    Arc::into_inner(guard).expect("the only one").unlock().await.expect("still our hold");
    assert_eq!(keys(&server).len(), others.len());
}

/// A label change whose future is no longer polled blocks no other call.
#[tokio::test(flavor = "multi_thread")]
async fn an_unpolled_relabel_blocks_no_extension() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let locker = locker_at(&[proxy.address()], secs(30));
    let guard = locker.lock("a").await.unwrap();
    proxy.hold_requests();
    let mut labelled = pin!(guard.relabel("half way"));
    let is_asked_for = poll_fn(|context| Poll::Ready(labelled.as_mut().poll(context).is_pending())).await;
    assert!(is_asked_for, "no reply yet");
    proxy.pass();
    timeout(secs(10), guard.extend(secs(60))).await.expect("held up by the label").expect("extended");
    labelled.await.expect("it was changed");
}

/// Neither does an extension whose future is no longer polled.
#[tokio::test(flavor = "multi_thread")]
async fn an_unpolled_extension_blocks_no_relabel() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let locker = locker_at(&[proxy.address()], secs(30));
    let guard = locker.lock("a").watchdog(false).await.unwrap();
    // The longer lease exists already, so that the key is about to be moved.
    let other = locker.lock("b").ttl(secs(60)).await.unwrap();
    proxy.hold_requests();
    let mut extended = pin!(guard.extend(secs(60)));
    let is_asked_for = poll_fn(|context| Poll::Ready(extended.as_mut().poll(context).is_pending())).await;
    assert!(is_asked_for, "no reply yet");
    proxy.pass();
    timeout(secs(10), guard.relabel("further")).await.expect("held up by the extension").expect("changed");
    extended.await.expect("extended");
    other.unlock().await.expect("released");
}

/// The lease of a hold is revoked while it is unknown whether the hold has left it: the holder is notified at once,
/// and no key stays behind.
#[tokio::test(flavor = "multi_thread")]
async fn f03_a_lease_revoked_after_an_unanswered_extension_leaves_no_key() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let (_locker, guard, others) = extended_without_an_answer(&server, &proxy, 9).await;
    let (key, _) = hangs_on(&server).expect("its key");
    // The key's name contains its first lease.
    server.etcdctl().run(&["lease", "revoke", &lease_of(&key)]);
    timeout(secs(20), guard.lost()).await.expect("notified");
    assert_eq!(guard.check().expect_err("it is lost").kind(), ErrorKind::Lost);
    eventually("its key is gone", || keys(&server).len() == others.len()).await;
}

/// A re-entry keeps the leases it entered with: a request for a longer one is refused, and the deadline does not move.
#[tokio::test(flavor = "multi_thread")]
async fn extending_a_reentry_beyond_its_lease_is_refused() {
    let server = EtcdServer::start();
    let locker = locker_at(&[server.address()], secs(10));
    let guard = locker.lock("a").owner("order-7").reentrant().watchdog(false).await.unwrap();
    let error = guard.extend(secs(60)).await.expect_err("it would be over after 10 s");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    guard.extend(secs(10)).await.expect("renewed");
    guard.unlock().await.expect("still ours");
}

/// Requests that wait for the same lease fail together.
#[tokio::test(flavor = "multi_thread")]
async fn requests_share_the_wait_for_an_ungranted_lease() {
    const TASKS: u32 = 8;
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let locker = locker_at(&[proxy.address()], secs(30));
    proxy.drop_replies();
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let locker = locker.clone();
        tasks.spawn(async move { locker.try_lock(format!("a{number}")).await });
    }
    for answer in tasks.join_all().await {
        assert_eq!(answer.expect_err("no server replies").kind(), ErrorKind::Unavailable);
    }
    let took = start.elapsed();
    assert!(took < secs(5) * (TASKS - 2), "{took:?}: one after the other");
}

/// An extension is sent at once, also after one that failed: it does not wait until a renewal is due.
#[tokio::test(flavor = "multi_thread")]
async fn an_extension_after_a_failed_one_is_sent_at_once() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let locker = locker_at(&[proxy.address()], secs(90));
    let guard = locker.lock("a").await.unwrap();
    proxy.drop_replies();
    guard.extend(secs(90)).await.expect_err("no server replies");
    proxy.cut();
    proxy.pass();
    let deadline = guard.deadline();
    timeout(secs(15), guard.extend(secs(90))).await.expect("not after a third of the lease").expect("renewed");
    assert!(guard.deadline() > deadline);
    guard.unlock().await.unwrap();
}
