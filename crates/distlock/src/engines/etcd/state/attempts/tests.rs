use std::time::SystemTime;

use super::*;
use crate::types::key::Key;
use crate::types::owner::{OwnerId, Process};

const LOCK: &[u8] = b"a/";

fn at(ms: u64) -> Moment {
    Moment::from_nanos(0).after(Duration::from_millis(ms))
}

/// An attempt whose key was made at `created`.
fn made(attempts: &Attempts, created: i64) -> Arc<Attempt> {
    let ttl = Duration::from_secs(10);
    let record =
        Record::new(OwnerId::new("o").unwrap(), Process::current(), Some("test".into()), SystemTime::UNIX_EPOCH);
    let claim = Claim::new(Key::new("a").unwrap(), ttl, true, Arc::new(record));
    let lease = Arc::new(SharedLease::new(7, 10, Term { start: at(0), ttl }, at(0)));
    let attempt = attempts.begin(&claim, LOCK.to_vec(), lease, at(10_000), at(250));
    attempt.state().made(Some(created), true);
    attempt
}

async fn is_woken(attempt: &Attempt) -> bool {
    tokio::time::timeout(Duration::ZERO, attempt.turn.notified()).await.is_ok()
}

#[tokio::test]
async fn one_that_a_watch_has_woken_is_woken_again_by_its_turn() {
    let attempts = Attempts::default();
    let (first, second) = (made(&attempts, 1), made(&attempts, 2));
    attempts.put_behind(&second, vec![first.own_key().unwrap()]);
    attempts.deleted(&first.key, 3);
    assert!(is_woken(&second).await && !is_woken(&second).await);
    assert!(!second.handed_over(1, 3), "that was another key");
    assert!(second.handed_over(2, 3));
    assert!(is_woken(&second).await, "it would wait for nothing");
}

/// The watch is faster than the reply to the release, which does not show the next key.
#[tokio::test]
async fn one_that_waits_for_the_reply_to_our_release_is_woken_by_it() {
    let attempts = Attempts::default();
    let (first, second) = (made(&attempts, 1), made(&attempts, 2));
    let awaited = first.own_key().unwrap();
    attempts.put_behind(&second, vec![awaited.clone()]);
    first.state().leave();
    attempts.deleted(&first.key, 3);
    assert!(is_woken(&second).await && attempts.is_leaving(&awaited));
    attempts.remember_left(awaited.clone());
    attempts.remove(&first);
    assert!(is_woken(&second).await, "it would wait for a reply that has come");
    assert!(attempts.has_left(&awaited) && !attempts.has_left(&second.own_key().unwrap()));
}

#[test]
fn attempts_of_one_lock_are_counted() {
    let attempts = Attempts::default();
    let first = made(&attempts, 1);
    assert!(!attempts.has_company(&first));
    let second = made(&attempts, 2);
    assert!(attempts.has_company(&first) && attempts.has_company(&second));
    attempts.remove(&second);
    assert!(!attempts.has_company(&first));
    attempts.remove(&first);
    assert!(attempts.table().by_lock.is_empty());
}

#[test]
fn a_lock_is_passed_on_as_long_as_a_release_is_near() {
    let attempts = Attempts::default();
    let (first, second, third) = (made(&attempts, 1), made(&attempts, 2), made(&attempts, 3));
    let is_passed_on = |ms| attempts.is_passed_on(LOCK, at(ms));
    let term = Term { start: at(0), ttl: Duration::from_secs(10) };
    attempts.set_holder(&first);
    first.state().granted(4, false, term, at(0));
    assert!(!is_passed_on(0), "no release handed it to the first");
    assert!(second.handed_over(2, 4));
    attempts.set_holder(&second);
    assert!(is_passed_on(100), "it was handed over just now");
    second.state().granted(4, false, term, at(100));
    assert!(is_passed_on(104) && !is_passed_on(105), "a longer hold may be a long one");
    second.state().leave();
    assert!(!is_passed_on(106), "no waiter comes after it");
    attempts.put_behind(&third, vec![second.own_key().unwrap()]);
    assert!(is_passed_on(106), "the next one will release it too");
}
