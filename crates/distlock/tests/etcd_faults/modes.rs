//! What must hold when something fails while a lock is shared, counted or taken over.

use std::collections::HashMap;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex};

use distlock::{Locker, LossReason};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::EtcdServer;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::etcd_faults_kit::{Child, eventually, keys, lease_of, locker_at, ms, secs};

fn lockers<const N: usize>(server: &EtcdServer, ttl: u64) -> [Locker; N] {
    std::array::from_fn(|_| locker_at(&[server.address()], secs(ttl)))
}

/// Applied, reply lost: a reader and a permit find their own keys when they ask again.
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

/// A reader whose lease is revoked is told; the writer behind it gets in when the other reader has left, and not before.
#[tokio::test(flavor = "multi_thread")]
async fn f57_readers_lease_revoked_while_a_writer_waits() {
    let server = EtcdServer::start();
    let [one, two, writer] = lockers(&server, 30);
    let revoked = one.read("a").await.unwrap();
    let key = keys(&server).pop().expect("its key");
    assert!(key.ends_with("-shared"), "{key}");
    let stays = two.read("a").await.unwrap();
    let writing = tokio::spawn(writer.write("a").wait(secs(20)).into_future());
    eventually("it queues", || keys(&server).len() == 3).await;
    server.etcdctl().run(&["lease", "revoke", &lease_of(&key)]);
    assert_eq!(timeout(secs(10), revoked.lost()).await.expect("told"), LossReason::Revoked);
    tokio::time::sleep(ms(500)).await;
    assert!(!writing.is_finished(), "a writer is inside with a reader");
    stays.check().expect("its own lease is good");
    stays.unlock().await.unwrap();
    writing.await.unwrap().expect("granted").unlock().await.unwrap();
}

/// A writer whose lease is revoked lets the readers behind it in at once.
#[tokio::test(flavor = "multi_thread")]
async fn f57_writers_lease_revoked_while_readers_wait() {
    let server = EtcdServer::start();
    let [writer, one, two] = lockers(&server, 30);
    let guard = writer.write("a").await.unwrap();
    let key = keys(&server).pop().expect("its key");
    let waiting = [&one, &two].map(|locker| tokio::spawn(locker.read("a").wait(secs(20)).into_future()));
    eventually("they queue", || keys(&server).len() == 3).await;
    server.etcdctl().run(&["lease", "revoke", &lease_of(&key)]);
    timeout(secs(10), guard.lost()).await.expect("told");
    for reader in waiting {
        let reader = timeout(secs(10), reader).await.expect("let in").unwrap().expect("granted");
        assert!(!reader.is_lost());
    }
}

/// Inside one client a lock is handed over by the answer to a release; that of one reader says nothing about the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_leaves_does_not_hand_over_what_another_reads() {
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

/// The permit of a process that was killed comes back after its lease, with its slot.
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

/// However many come at once, a slot has one holder at a time, and its tokens rise.
#[tokio::test(flavor = "multi_thread")]
async fn slots_have_one_holder_each_and_rising_tokens() {
    const SLOTS: u32 = 3;
    let server = EtcdServer::start();
    let clients: [Locker; 4] = lockers(&server, 30);
    // What each slot's last holder had for a token, and whether it is inside.
    let slots: Arc<Mutex<HashMap<u32, (u64, bool)>>> = Arc::default();
    let mut tasks = JoinSet::new();
    for number in 0..12 {
        let (semaphore, slots) = (clients[number % 4].semaphore("a", SLOTS), slots.clone());
        tasks.spawn(async move {
            for round in 0..6 {
                // Some wait in line, and some only look whether there is room.
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

/// Who has lost its hold to another client that took it over cannot harm it: neither by releasing it, nor by using the name
/// of its key again, nor when its lease ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_was_taken_over_is_out_of_reach_for_its_old_holder() {
    let server = EtcdServer::start();
    let [before, after] = lockers(&server, 10);
    let old = before.lock("a").await.unwrap();
    let (key, token) = (keys(&server), old.fencing_token());
    let new = after.adopt(&old.export()).await.expect("taken over");
    assert_eq!((keys(&server), new.fencing_token()), (key.clone(), token), "the same key");
    // At once, before it is told.
    assert!(old.unlock().await.is_err());
    assert_eq!(keys(&server), key);
    let waiting = tokio::spawn(before.lock("a").wait(secs(30)).into_future());
    eventually("it queues", || keys(&server).len() == 2).await;
    server.etcdctl().run(&["lease", "revoke", &lease_of(&key[0])]);
    eventually("it queues again", || keys(&server).len() == 2).await;
    tokio::time::sleep(ms(500)).await;
    new.check().expect("it hangs on another lease");
    assert!(!waiting.is_finished(), "two holders");
    new.unlock().await.expect("it is ours");
    waiting.await.unwrap().expect("granted").unlock().await.unwrap();
}

/// Applied, reply lost: taking over is repeated, and finds that it is done. The old holder is told why.
#[tokio::test(flavor = "multi_thread")]
async fn f01_taking_over_applied_and_its_reply_lost() {
    let server = EtcdServer::start();
    let proxy = Proxy::start(server.address());
    let (before, after) = (locker_at(&[server.address()], secs(10)), locker_at(&[proxy.address()], secs(10)));
    after.lock("warm").await.unwrap().unlock().await.unwrap();
    let old = before.semaphore("a", 2).acquire().await.unwrap();
    let ticket = old.export();
    let adopting = tokio::spawn(async move { (after.adopt(&ticket).await, after) });
    // Its keys are read first: only what is written after that goes unanswered.
    proxy.drop_replies();
    tokio::time::sleep(ms(300)).await;
    proxy.cut();
    proxy.pass();
    let (new, _after) = adopting.await.unwrap();
    let new = new.expect("taken over after all");
    assert_eq!((new.fencing_token(), new.slot()), (old.fencing_token(), Some(0)));
    assert_eq!(timeout(secs(10), old.lost()).await.expect("told"), LossReason::Adopted);
    new.unlock().await.expect("it is ours");
    assert!(keys(&server).is_empty());
}
