//! Interactions of the primitives on top of the lock: losses during `lock_all`, requests to release and the next
//! holder, tickets and delays.

use std::future::IntoFuture;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use distlock::backend::file::FileBackend;
use distlock::backend::memory::{Fault, Memory, Operation, Store};
use distlock::{Asked, ErrorKind, Locker};
use distlock_testkit::servers::Directory;
use distlock_testkit::{Calls, Turns, Wire};
use tokio::time::timeout;

distlock_testkit::child!();

/// A generous limit for what must happen soon in real time.
const TEST_LIMIT: Duration = Duration::from_secs(20);
/// A time in which something must not happen: several polls of a holder.
const A_WHILE: Duration = Duration::from_millis(900);

fn lockers<const N: usize>() -> (Store, [Locker; N]) {
    let store = Store::new();
    let lockers = std::array::from_fn(|_| Locker::new(Memory::on(&store)).expect("a locker"));
    (store, lockers)
}

#[tokio::test]
async fn lock_all_stops_waiting_when_one_lock_is_lost() {
    let (_store, [locker, other]) = lockers();
    let taken = other.lock("b").await.unwrap();
    let all = tokio::spawn(locker.lock_all(["a", "b"]).into_future());
    let holder = async {
        loop {
            match other.inspect().get("a").await.unwrap().and_then(|lock| lock.holder().cloned()) {
                Some(holder) => break holder,
                None => tokio::task::yield_now().await,
            }
        }
    };
    let token = timeout(TEST_LIMIT, holder).await.expect("the first is taken").token.unwrap();
    other.inspect().force_release("a", token, "a test").await.unwrap();
    let outcome = timeout(TEST_LIMIT, all).await.expect("returned while the second is still held").unwrap();
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
    taken.unlock().await.unwrap();
}

/// A lost request may still arrive, and take a lock that no client would release.
#[tokio::test]
async fn a_failed_claim_all_is_withdrawn_only_if_its_outcome_is_unknown() {
    let store = Store::new();
    let calls = Arc::new(Calls::default());
    let locker = Locker::new(Wire::new(Memory::on(&store), calls.clone())).unwrap();
    let other = Locker::new(Memory::on(&store)).unwrap();
    let _taken = other.lock("b").await.unwrap();
    let refused = || locker.lock_all(["a", "b"]).wait(Duration::ZERO).into_future();

    assert_eq!(refused().await.unwrap_err().kind(), ErrorKind::Timeout);
    assert_eq!(calls.claims.load(Ordering::SeqCst), 1);
    store.script(Operation::Claim, Fault::LoseRequest);
    let error = refused().await.unwrap_err();
    assert_eq!((error.kind(), error.key().map(|key| key.as_str())), (ErrorKind::Timeout, Some("b")), "asked again");
    let withdrawn = async {
        while calls.releases.load(Ordering::SeqCst) < 2 {
            tokio::task::yield_now().await;
        }
    };
    timeout(TEST_LIMIT, withdrawn).await.expect("both claims are withdrawn");

    (0..2).for_each(|_| store.script(Operation::Claim, Fault::LoseReply));
    let error = refused().await.unwrap_err();
    assert_eq!((error.kind(), error.key().map(|key| key.as_str())), (ErrorKind::Unknown, Some("a")), "{error}");
    locker.close().await.unwrap();
    assert_eq!(calls.releases.load(Ordering::SeqCst), 4, "and nothing of the first, which was refused");
}

#[tokio::test]
async fn unlocking_several_returns_the_first_failure() {
    let (store, [locker]) = lockers();
    let all = locker.lock_all(["a", "b"]).await.unwrap();
    store.script(Operation::Release, Fault::Refuse);
    store.script(Operation::Release, Fault::LoseReply);
    let error = all.unlock().await.unwrap_err();
    assert_eq!((error.kind(), error.key().map(|key| key.as_str())), (ErrorKind::Unavailable, Some("b")));
}

#[tokio::test]
async fn a_request_to_release_does_not_reach_the_next_holder() {
    let (_store, [first, second, asker]) = lockers();
    let guard = first.lock("k").await.unwrap();
    let mut asking = pin!(asker.ask("k", "deploy").into_future());
    tokio::select! {
        done = &mut asking => panic!("{done:?}"),
        reason = timeout(TEST_LIMIT, guard.asked()) => assert_eq!(reason.expect("heard").unwrap(), "deploy"),
    }
    // The asker is not polled, so it still asks while the next client holds the lock.
    guard.unlock().await.unwrap();
    let next = second.lock("k").await.unwrap();
    assert!(timeout(A_WHILE, next.asked()).await.is_err(), "the next holder took the question for its own");
    assert!(matches!(asking.await.unwrap(), Asked::Released(_)));
    next.unlock().await.unwrap();
}

#[tokio::test]
async fn a_request_to_release_survives_the_first_asker() {
    let (_store, [holder, one, two, observer]) = lockers();
    let guard = holder.lock("k").await.unwrap();
    let mut first = Box::pin(one.ask("k", "first").into_future());
    let mut second = Box::pin(two.ask("k", "second").into_future());
    let a_moment = Duration::from_millis(200);
    assert!(timeout(a_moment, &mut first).await.is_err(), "it asks");
    assert!(timeout(a_moment, &mut second).await.is_err(), "it asks too");
    drop(first);
    let gone = async {
        while observer.inspect().list("k?").await.unwrap().iter().any(|lock| lock.holder().is_some()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TEST_LIMIT, gone).await.expect("the first question is taken back");
    tokio::select! {
        done = &mut second => panic!("{done:?}"),
        reason = timeout(TEST_LIMIT, guard.asked()) => assert_eq!(reason.expect("heard").unwrap(), "second"),
    }
}

#[tokio::test]
async fn an_adopted_hold_keeps_its_lock_delay() {
    let (_store, [before, after]) = lockers();
    let delay = Duration::from_secs(100);
    let old = before.lock("k").lock_delay(delay).await.unwrap();
    let new = after.adopt(&old.export()).await.unwrap();
    new.extend(Duration::from_secs(300)).await.unwrap();
    let lock = before.inspect().get("k").await.unwrap().unwrap();
    let left = lock.holder().and_then(|holder| holder.ttl_left).unwrap();
    assert!(left > Duration::from_secs(350), "{left:?}");
    new.unlock().await.unwrap();
}

#[test]
fn observing_leaders_without_a_pause_yields() {
    let (done, is_done) = std::sync::mpsc::channel();
    // On its own thread: a task that never yields cannot be timed out.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (_store, [locker]) = lockers();
            let election = locker.election("k");
            let mut leaders = election.observe(Duration::ZERO);
            assert_eq!(leaders.next().await.unwrap(), None);
            assert!(timeout(Duration::from_millis(50), leaders.next()).await.is_err(), "nothing changes");
        });
        done.send(()).unwrap();
    });
    is_done.recv_timeout(TEST_LIMIT).expect("others run");
}

#[tokio::test(flavor = "multi_thread")]
async fn operations_on_files_under_kills_and_cancels_keep_a_clean_history() {
    let directory = Directory::new();
    let locker = || Locker::new(FileBackend::in_dir(directory.path()).unwrap()).unwrap();
    let turns = Turns { lockers: (0..12).map(|_| locker()).collect(), rounds: 60, hurry: Duration::from_millis(1) };
    turns.expect_clean_history(&format!("file://{}", directory.path().display()), || {}).await;
}
