//! Faults while a lock is shared, counted or adopted.

use std::collections::HashMap;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use distlock::backend::etcd::Etcd;
use distlock::{Locker, LossReason};
use distlock_testkit::Turns;
use distlock_testkit::proxy::{Direction, Flow, Proxy};
use distlock_testkit::servers::EtcdServer;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::etcd_faults_kit::{Child, eventually, keys, lease_of, locker_at, ms, secs};

fn lockers<const N: usize>(server: &EtcdServer, ttl: u64) -> [Locker; N] {
    std::array::from_fn(|_| locker_at(&[server.address()], secs(ttl)))
}

/// Applied, reply lost: a reader's and a permit's retried claims find their own keys.
#[tokio::test(flavor = "multi_thread")]
async fn f01_shared_claims_applied_and_their_replies_lost() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let (away, near) = (locker_at(&[proxy.address()], secs(10)), locker_at(&[server.address()], secs(10)));
    away.lock("warm").await.unwrap().unlock().await.unwrap();
    for permits in [false, true] {
        let ask = |locker: &Locker| match permits {
            false => locker.read("a"),
            true => locker.semaphore("a", 3).acquire(),
        };
        // Alone, and beside another.
        for others in [0, 1] {
            let beside = if others == 1 { Some(ask(&near).await.expect("granted")) } else { None };
            proxy.drop_replies();
            let asked = tokio::spawn(ask(&away).wait(secs(20)).into_future());
            eventually("the key is made", || keys(&server).len() == others + 1).await;
            proxy.cut();
            proxy.pass();
            let guard = asked.await.unwrap().expect("granted after all");
            assert_eq!(keys(&server).len(), others + 1, "one attempt, one key");
            assert_eq!(guard.slot(), permits.then_some(u32::try_from(others).unwrap()));
            guard.unlock().await.unwrap();
            if let Some(beside) = beside {
                beside.unlock().await.expect("it was never touched");
            }
            assert!(keys(&server).is_empty());
        }
    }
}

/// A reader whose lease is revoked is notified; the writer behind it enters when the other reader has left, and not
/// before.
#[tokio::test(flavor = "multi_thread")]
async fn f57_readers_lease_revoked_while_a_writer_waits() {
    let server = EtcdServer::start();
    let [one, two, writer] = lockers(&server, 30);
    let stays = two.read("a").await.unwrap();
    let first = keys(&server);
    // The last reader before the writer, which waits for its end.
    let revoked = one.read("a").await.unwrap();
    let key = keys(&server).into_iter().find(|key| !first.contains(key)).expect("its key");
    assert!(key.ends_with("-shared"), "{key}");
    let writing = tokio::spawn(writer.write("a").wait(secs(20)).into_future());
    eventually("it queues", || keys(&server).len() == 3).await;
    server.etcdctl().run(&["lease", "revoke", &lease_of(&key)]);
    // The next renewal, after a third of the TTL, would report it, too.
    assert_eq!(timeout(secs(5), revoked.lost()).await.expect("notified"), LossReason::Revoked);
    tokio::time::sleep(ms(500)).await;
    assert!(!writing.is_finished(), "a writer is inside with a reader");
    stays.check().expect("its own lease is good");
    stays.unlock().await.unwrap();
    writing.await.unwrap().expect("granted").unlock().await.unwrap();
}

/// When the lease of a writer is revoked, the readers behind it enter at once.
#[tokio::test(flavor = "multi_thread")]
async fn f57_writers_lease_revoked_while_readers_wait() {
    let server = EtcdServer::start();
    let [writer, one, two] = lockers(&server, 30);
    let guard = writer.write("a").await.unwrap();
    let key = keys(&server).pop().expect("its key");
    let waiting = [&one, &two].map(|locker| tokio::spawn(locker.read("a").wait(secs(20)).into_future()));
    eventually("they queue", || keys(&server).len() == 3).await;
    server.etcdctl().run(&["lease", "revoke", &lease_of(&key)]);
    timeout(secs(5), guard.lost()).await.expect("notified");
    // By polling they would notice only after a third of their TTL.
    for reader in waiting {
        let reader = timeout(secs(5), reader).await.expect("let in").unwrap().expect("granted");
        assert!(!reader.is_lost());
    }
}

/// Within one client a lock is handed over by the reply to a release; the release of one reader does not end the other
/// readers' holds.
#[tokio::test(flavor = "multi_thread")]
async fn a_leaving_reader_does_not_hand_over_while_another_reads() {
    let server = EtcdServer::start();
    let [locker] = lockers(&server, 30);
    let readers = [locker.clone().read("a").await.unwrap(), locker.clone().read("a").await.unwrap()];
    let writing = tokio::spawn(locker.clone().write("a").wait(secs(20)).into_future());
    eventually("it queues", || keys(&server).len() == 3).await;
    let [stays, leaves] = readers;
    leaves.unlock().await.unwrap();
    tokio::time::sleep(ms(500)).await;
    assert!(!writing.is_finished(), "a writer is inside with a reader");
    let behind = [(); 2].map(|()| tokio::spawn(locker.clone().read("a").wait(secs(20)).into_future()));
    eventually("they queue", || keys(&server).len() == 4).await;
    stays.unlock().await.unwrap();
    let writer = timeout(secs(10), writing).await.expect("let in").unwrap().expect("granted");
    assert!(behind.iter().all(|reader| !reader.is_finished()), "readers are inside with a writer");
    writer.unlock().await.unwrap();
    let mut inside = Vec::new();
    for reader in behind {
        inside.push(timeout(secs(10), reader).await.expect("let in together").unwrap().expect("granted"));
    }
}

/// The permit of a killed process is available again after its lease, with its slot.
#[tokio::test(flavor = "multi_thread")]
async fn f12_process_with_a_permit_killed() {
    let server = EtcdServer::start();
    let mut child = Child::hold(&server, "permit", secs(2));
    let [locker] = lockers(&server, 10);
    let semaphore = locker.semaphore("permit", 2);
    let stays = semaphore.acquire().await.unwrap();
    assert_eq!(stays.slot(), Some(1));
    assert!(semaphore.try_acquire().await.unwrap().is_none(), "both are taken");
    child.kill9();
    let next = semaphore.acquire().wait(secs(20)).await.expect("it comes back");
    assert_eq!(next.slot(), Some(0));
    assert!(next.fencing_token().get() > child.token);
    stays.check().expect("untouched");
}

/// With any number of concurrent clients, a slot has one holder at a time, and its tokens rise.
#[tokio::test(flavor = "multi_thread")]
async fn slots_have_one_holder_each_and_rising_tokens() {
    const SLOTS: u32 = 3;
    let server = EtcdServer::start();
    let clients: [Locker; 4] = lockers(&server, 30);
    // The token of each slot's last holder, and whether it is inside.
    let slots: Arc<Mutex<HashMap<u32, (u64, bool)>>> = Arc::default();
    let mut tasks = JoinSet::new();
    for number in 0..12 {
        let (semaphore, slots) = (clients[number % 4].semaphore("a", SLOTS), slots.clone());
        tasks.spawn(async move {
            for round in 0..6 {
                // Some clients queue, and some only try.
                let permit = match (number + round) % 3 {
                    0 => semaphore.try_acquire().await.expect("no failure"),
                    _ => Some(semaphore.acquire().wait(secs(60)).await.expect("granted")),
                };
                let Some(permit) = permit else { continue };
                let (slot, token) = (permit.slot().expect("a slot"), permit.fencing_token().get());
                let before = slots.lock().unwrap().insert(slot, (token, true));
                let (last, inside) = before.unwrap_or_default();
                assert!(!inside && token > last && slot < SLOTS, "slot {slot}: {token} after {last}, {inside}");
                tokio::time::sleep(ms(1)).await;
                slots.lock().unwrap().insert(slot, (token, false));
                permit.unlock().await.expect("released");
            }
        });
    }
    tasks.join_all().await;
    assert!(keys(&server).is_empty());
}

/// A holder whose hold was adopted by another client cannot harm it: neither by releasing it, nor by using the name of
/// its key again, nor when its lease ends.
#[tokio::test(flavor = "multi_thread")]
async fn an_adopted_hold_is_out_of_reach_of_its_old_holder() {
    let server = EtcdServer::start();
    let [before, after] = lockers(&server, 10);
    let old = before.lock("a").await.unwrap();
    let (key, token) = (keys(&server), old.fencing_token());
    let new = after.adopt(&old.export()).await.expect("taken over");
    assert_eq!((keys(&server), new.fencing_token()), (key.clone(), token), "the same key");
    // At once, before the old holder is notified.
    assert!(old.unlock().await.is_err());
    assert_eq!(keys(&server), key);
    let waiting = tokio::spawn(before.lock("a").wait(secs(30)).into_future());
    eventually("it queues", || keys(&server).len() == 2).await;
    server.etcdctl().run(&["lease", "revoke", &lease_of(&key[0])]);
    eventually("it queues again", || keys(&server).len() == 2).await;
    tokio::time::sleep(ms(500)).await;
    new.check().expect("it hangs on another lease");
    assert!(!waiting.is_finished(), "two holders");
    new.unlock().await.expect("still our hold");
    waiting.await.unwrap().expect("granted").unlock().await.unwrap();
}

/// Applied, reply lost: the adoption is retried, and finds that it is done. The old holder learns the reason.
#[tokio::test(flavor = "multi_thread")]
async fn f01_adoption_applied_and_its_reply_lost() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let (before, after) = (locker_at(&[server.address()], secs(10)), locker_at(&[proxy.address()], secs(10)));
    after.lock("warm").await.unwrap().unlock().await.unwrap();
    let old = before.semaphore("a", 2).acquire().await.unwrap();
    let ticket = old.export();
    let adopting = tokio::spawn(async move { (after.adopt(&ticket).await, after) });
    // Its keys are read first, so that only the replies to writes are lost.
    proxy.drop_replies();
    tokio::time::sleep(ms(300)).await;
    proxy.cut();
    proxy.pass();
    let (new, _after) = adopting.await.unwrap();
    let new = new.expect("taken over after all");
    assert_eq!((new.fencing_token(), new.slot()), (old.fencing_token(), Some(0)));
    assert_eq!(timeout(secs(10), old.lost()).await.expect("notified"), LossReason::Adopted);
    new.unlock().await.expect("still our hold");
    assert!(keys(&server).is_empty());
}

/// A late claim whose key was created by a later attempt and adopted since changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn f14_late_claim_does_not_change_an_adopted_hold() {
    const LATE: Duration = Duration::from_secs(12);
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let before = locker_at(&[proxy.address(), server.address()], secs(30));
    let after = locker_at(&[server.address()], secs(30));
    let first = before.lock("a").await.unwrap();
    proxy.set(Direction::Requests, Flow::Delay(LATE));
    let asked = Instant::now();
    let waiting = tokio::spawn(before.clone().lock("a").wait(secs(60)).into_future());
    eventually("it asks the other server", || keys(&server).len() == 2).await;
    first.unlock().await.expect("released");
    let old = waiting.await.unwrap().expect("granted");
    let new = after.adopt(&old.export()).await.expect("taken over");
    let look = || server.etcdctl().run(&["get", &keys(&server)[0], "--write-out=fields"]);
    let as_taken_over: Vec<_> = look().lines().skip(4).map(str::to_owned).collect();
    assert!(asked.elapsed() < LATE, "the machine is too slow for this test");
    tokio::time::sleep(LATE.saturating_sub(asked.elapsed()) + secs(1)).await;
    assert_eq!(look().lines().skip(4).collect::<Vec<_>>(), as_taken_over, "it was written again");
    new.unlock().await.expect("still our hold");
    drop(old);
    eventually("nothing is left", || keys(&server).is_empty()).await;
}

/// A lock that was adopted while its old holder released it is not handed to the next waiter of the old client.
#[tokio::test(flavor = "multi_thread")]
async fn an_adopted_hold_is_not_handed_to_a_waiter_of_its_old_client() {
    let server = EtcdServer::start();
    let [before, after] = lockers(&server, 10);
    let old = before.lock("a").await.unwrap();
    let ticket = old.export();
    let waiting = tokio::spawn(before.clone().lock("a").wait(secs(30)).into_future());
    eventually("it queues", || keys(&server).len() == 2).await;
    let new = after.adopt(&ticket).await.expect("taken over");
    assert!(old.unlock().await.is_err());
    tokio::time::sleep(ms(300)).await;
    assert!(!waiting.is_finished(), "two holders");
    new.check().expect("still our hold");
    new.unlock().await.expect("still our hold");
    waiting.await.unwrap().expect("granted").unlock().await.unwrap();
}

/// A request in the same batch as one whose lease is gone still succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_write_does_not_fail_its_batch() {
    let server = EtcdServer::start();
    let [locker] = lockers(&server, 10);
    let held = locker.lock("long").ttl(secs(20)).await.unwrap();
    let lost = locker.lock("short").await.unwrap();
    let key = keys(&server).into_iter().find(|key| key.starts_with("short/")).expect("its key");
    server.etcdctl().run(&["lease", "revoke", &lease_of(&key)]);
    let mut tasks = JoinSet::new();
    for number in 0..60 {
        let locker = locker.clone();
        tasks.spawn(async move {
            let request = locker.lock(format!("many:{number}"));
            let request = if number % 2 == 0 { request } else { request.ttl(secs(20)) };
            request.wait(secs(20)).await.expect("granted").unlock().await.expect("released");
        });
    }
    tasks.join_all().await;
    assert!(!held.is_lost(), "its lease is another one");
    timeout(secs(10), lost.lost()).await.expect("notified");
    held.unlock().await.unwrap();
}

/// Concurrent requests are batched into few server requests.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_requests_are_batched() {
    const TASKS: usize = 64;
    let server = EtcdServer::start();
    let engine = Etcd::builder([server.address().to_string()]).build().unwrap();
    let handle = engine.handle();
    let locker = Locker::new(engine).unwrap();
    locker.lock("warm").await.unwrap().unlock().await.unwrap();
    let before = handle.requests();
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let locker = locker.clone();
        tasks.spawn(async move { locker.lock(format!("many:{number}")).await.expect("granted") });
    }
    let guards = tasks.join_all().await;
    let claims = handle.requests() - before;
    assert!(claims < TASKS as u64 / 2, "{claims} requests for {TASKS} locks");
    assert_eq!(keys(&server).len(), TASKS);
    drop(guards);
    locker.close().await.expect("all are released");
    assert!(keys(&server).is_empty());
}

/// The process of an owner's first entry dies: the other entries stay inside, and the last one to leave frees the
/// lock.
#[tokio::test(flavor = "multi_thread")]
async fn f12_process_of_the_first_entry_killed() {
    let server = EtcdServer::start();
    let [inside, other] = lockers(&server, 2);
    let mut child = Child::hold(&server, "entry", secs(2));
    let enter = || inside.lock("entry").owner("order-7").reentrant().wait(secs(5));
    let guard = enter().await.expect("it enters");
    assert_eq!(guard.fencing_token().get(), child.token);
    let waiting = tokio::spawn(other.clone().lock("entry").wait(secs(30)).into_future());
    eventually("it queues", || keys(&server).len() == 4).await;
    child.kill9();
    eventually("its entry ends with its lease", || keys(&server).len() == 3).await;
    tokio::time::sleep(secs(3)).await;
    guard.check().expect("still inside");
    assert!(!waiting.is_finished(), "two holders");
    guard.unlock().await.expect("released");
    let next = timeout(secs(2), waiting).await.expect("the head is gone at once").unwrap().expect("granted");
    next.unlock().await.unwrap();
    eventually("nothing is left", || keys(&server).is_empty()).await;
}

/// Without other entries the head ends with its lease.
#[tokio::test(flavor = "multi_thread")]
async fn f12_process_of_the_last_entry_killed() {
    let server = EtcdServer::start();
    let [other] = lockers(&server, 2);
    let mut child = Child::hold(&server, "entry", secs(2));
    child.kill9();
    let guard = other.lock("entry").owner("order-8").reentrant().wait(secs(15)).await.expect("the lease ends");
    assert!(guard.fencing_token().get() > child.token);
    guard.unlock().await.unwrap();
    eventually("nothing is left", || keys(&server).is_empty()).await;
}

/// Applied, reply lost: a re-entry is retried, counts once, and its release frees the lock.
#[tokio::test(flavor = "multi_thread")]
async fn f01_entry_applied_and_its_reply_lost() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let (near, away) = (locker_at(&[server.address()], secs(10)), locker_at(&[proxy.address()], secs(10)));
    let enter = |locker: &Locker| locker.lock("a").owner("order-7").reentrant().wait(secs(30));
    away.lock("warm").await.unwrap().unlock().await.unwrap();
    let first = enter(&near).await.expect("granted");
    // Replies are delayed, so that the entry exists before its reply arrives.
    proxy.set(Direction::Replies, Flow::Delay(secs(1)));
    let entering = tokio::spawn(enter(&away).into_future());
    eventually("it is there", || keys(&server).len() == 3).await;
    proxy.cut();
    proxy.pass();
    let second = entering.await.unwrap().expect("entered after all");
    assert_eq!(second.fencing_token(), first.fencing_token());
    assert_eq!(keys(&server).len(), 3, "a head and two entries");
    second.unlock().await.expect("released");
    assert_eq!(keys(&server).len(), 2);
    first.unlock().await.expect("released");
    assert!(keys(&server).is_empty());
}

/// One of an owner's entries is adopted by another process and relabelled; the other entry stays inside.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_several_entries_is_adopted_and_relabelled() {
    let server = EtcdServer::start();
    let [one, two, third] = lockers(&server, 2);
    let enter = |locker: &Locker| locker.lock("a").owner("order-7").reentrant();
    let (stays, old) = (enter(&two).await.unwrap(), enter(&one).await.unwrap());
    assert_eq!(keys(&server).len(), 3, "the head and two entries");
    let new = third.adopt(&old.export()).await.expect("taken over");
    assert_eq!((new.fencing_token(), new.mode()), (old.fencing_token(), old.mode()));
    assert_eq!(timeout(secs(10), old.lost()).await.expect("notified"), LossReason::Adopted);
    assert_eq!(keys(&server).len(), 3, "one for the other");
    new.relabel("half way").await.expect("changed");
    let shown = one.inspect().get("a").await.unwrap().expect("held");
    let labels = shown.holders.iter().map(|holder| holder.record.as_ref().and_then(|record| record.label.as_deref()));
    assert_eq!(labels.collect::<Vec<_>>(), [None, Some("half way")], "the other keeps its own");
    // It is attached to the lease of its new process, which renews it.
    tokio::time::sleep(secs(4)).await;
    new.check().expect("it is renewed in its new place");
    stays.check().expect("untouched");
    stays.unlock().await.unwrap();
    assert!(one.try_lock("a").await.unwrap().is_none(), "one is inside");
    new.unlock().await.unwrap();
    assert!(keys(&server).is_empty());
}

/// Several tasks of each of several clients, in every mode, while processes are killed and connections cut.
#[tokio::test(flavor = "multi_thread")]
async fn f09_operations_under_kills_and_cancels_keep_a_clean_history() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let clients: [Locker; 3] = std::array::from_fn(|_| locker_at(&[proxy.address()], secs(2)));
    let lockers = clients.iter().cycle().take(12).cloned().collect();
    let turns = Turns { lockers, rounds: 30, hurry: ms(10) };
    turns.expect_clean_history(&format!("etcd://{}", server.address()), || proxy.cut()).await;
    eventually("nothing is left", || keys(&server).is_empty()).await;
}
