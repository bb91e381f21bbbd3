//! Locks without async.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use distlock::{Blocking, ErrorKind, Locker};
use distlock_testkit::servers::{EtcdServer, RedisServer};

/// Ten threads increment a number that only the lock protects, five times each. Returns the number.
fn count_with(url: &str) -> u32 {
    let locker = Blocking::connect(url).expect("connected");
    let (number, inside) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let threads: Vec<_> = (0..10)
        .map(|_| {
            let (locker, number, inside) = (locker.clone(), number.clone(), inside.clone());
            thread::spawn(move || {
                for _ in 0..5 {
                    let guard = locker.wait(locker.lock("counter").wait(Duration::from_secs(60))).expect("granted");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                    number.store(number.load(Ordering::SeqCst) + 1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    locker.wait(guard.unlock()).expect("released");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no assertion failed"));
    locker.wait(locker.close()).expect("closed");
    let error = locker.wait(locker.lock("counter")).expect_err("closed");
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    number.load(Ordering::SeqCst)
}

#[test]
fn threads_exclude_each_other_in_memory() {
    assert_eq!(count_with("mem://blocking-count"), 50);
}

#[test]
fn threads_exclude_each_other_on_redis() {
    let server = RedisServer::start();
    assert_eq!(count_with(&server.url()), 50);
}

#[test]
fn threads_exclude_each_other_on_etcd() {
    let server = EtcdServer::start();
    assert_eq!(count_with(&server.url()), 50);
}

#[test]
fn a_hold_is_renewed_while_its_thread_blocks() {
    let server = RedisServer::start();
    let locker = Blocking::connect(&format!("redis://{}", server.address())).expect("connected");
    let guard = locker.wait(locker.lock("a").ttl(Duration::from_secs(3))).expect("granted");
    // Longer than the lease: this is the time that the keeper has to renew in.
    thread::sleep(Duration::from_secs(4));
    guard.check().expect("renewed");
    let other = locker.wait(locker.try_lock("a").as_new_owner()).expect("answered");
    assert!(other.is_none(), "it is held");
}

#[tokio::test]
async fn a_blocking_call_inside_a_runtime_is_refused_and_nothing_is_held() {
    let locker = Locker::connect("mem://blocking-inside").await.expect("connected");
    let error = locker.blocking().wait(locker.lock("a")).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("await the request instead"), "{error}");
    assert!(locker.try_lock("a").await.expect("answered").is_some(), "it was not begun");
    assert_eq!(Blocking::connect("mem://").expect_err("refused").kind(), ErrorKind::Config);
}

/// A thread that sleeps on the keeper's runtime is told, although another one closes the locker meanwhile.
#[test]
fn closing_ends_a_wait_of_another_thread() {
    let locker = Blocking::connect("mem://blocking-close").expect("connected");
    let guard = locker.wait(locker.lock("a")).expect("granted");
    let other = locker.clone();
    let waiter = thread::spawn(move || other.wait(guard.asked()).expect_err("closed").kind());
    // Most often the waiter is in its pause by now; either way it must not panic.
    thread::sleep(Duration::from_millis(50));
    locker.wait(locker.close()).expect("closed");
    assert_eq!(waiter.join().expect("no panic"), ErrorKind::Lost);
}
