//! A server that has forgotten leases, with the restart guard.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use distlock::backend::redis::{Redis, RedisBuilder};
use distlock::{ErrorKind, LockGuard, Locker, Moment};
use distlock_testkit::servers::{Data, RedisServer};
use tokio::net::TcpStream;

use crate::bench::{Bench, PATIENCE, TTL, ms, now, sleep};

/// A locker with the guard, on a server whose first quarantine is over.
async fn guarded(builder: RedisBuilder) -> Locker {
    let engine = builder.restart_guard(true).build().expect("an engine");
    let locker = Locker::builder().default_ttl(TTL).retry_interval(ms(50)).build(engine).expect("a locker");
    let (guard, _) = outlast(&locker, "warm").await;
    guard.unlock().await.expect("released");
    locker
}

/// Tries until the lock is granted; how often the quarantine was in the way.
async fn outlast(locker: &Locker, key: &str) -> (LockGuard, u32) {
    let (until, mut quarantined) = (now().after(PATIENCE), 0);
    loop {
        match locker.try_lock(key).await {
            Ok(Some(guard)) => return (guard, quarantined),
            Ok(None) => {}
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown), "{error}");
                quarantined += u32::from(error.to_string().contains("quarantined for another"));
            }
        }
        assert!(now() < until, "never granted");
        sleep(ms(10)).await;
    }
}

/// The holder is cut off, the server forgets the lock, and somebody else is to have it only after the holder's time.
async fn expect_no_overlap(bench: &mut Bench, forget: impl FnOnce(&mut Bench)) {
    let holder = guarded(Redis::tcp("127.0.0.1", bench.proxy.port())).await;
    // Longer than anything that the other one asks for, which sees that when it connects.
    let guard = holder.lock("a").ttl(TTL * 2).await.expect("granted");
    let other = guarded(Redis::tcp("127.0.0.1", bench.server.port())).await;
    guard.extend(TTL * 2).await.expect("renewed");
    bench.proxy.freeze();
    let deadline = guard.deadline().expect("a lease");
    forget(bench);
    expect_granted_after(&other, &guard, deadline).await;
}

async fn expect_granted_after(other: &Locker, guard: &LockGuard, deadline: Moment) {
    assert!(now() < deadline, "the machine was too slow for this test");
    let (next, quarantined) = outlast(other, "a").await;
    assert!(now() >= deadline, "two holders at once");
    assert!(quarantined > 0, "granted without a quarantine");
    assert!(next.fencing_token() > guard.fencing_token());
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn f23_guarded_a_server_that_restarts_empty_waits_for_the_leases_it_lost() {
    expect_no_overlap(&mut Bench::start(), |bench| bench.server.restart(Data::Lost)).await;
}

#[tokio::test]
async fn f23_guarded_a_server_that_restarts_with_its_data_keeps_the_lock_of_its_holder() {
    let mut bench = Bench::with(RedisServer::options().persistent());
    let locker = guarded(Redis::tcp("127.0.0.1", bench.server.port())).await;
    let guard = locker.lock("a").ttl(PATIENCE).await.expect("granted");
    bench.server.restart(Data::Kept);
    guard.extend(PATIENCE).await.or(guard.extend(PATIENCE).await).expect("renewed in the quarantine");
    let error = loop {
        let tried = locker.try_lock("b").await.expect_err("in quarantine");
        if tried.kind() == ErrorKind::Unavailable && tried.to_string().contains("quarantined") {
            break tried;
        }
    };
    assert!(error.to_string().contains("quarantined for another"), "{error}");
    guard.unlock().await.expect("released in the quarantine");
}

#[tokio::test]
async fn f24_guarded_a_flushed_server_waits_for_the_leases_it_lost() {
    expect_no_overlap(&mut Bench::start(), |bench| drop(bench.command("FLUSHALL"))).await;
}

#[tokio::test]
async fn f25_guarded_a_promoted_replica_waits_for_the_leases_it_never_got() {
    let mut bench = Bench::start();
    let replica = RedisServer::options().replica_of(bench.server.address()).start();
    replica.expect_in_sync();
    let port = Arc::new(AtomicU16::new(bench.server.port()));
    let to = port.clone();
    let follower = || {
        let to = to.clone();
        Redis::over("whoever is master", move || TcpStream::connect(("127.0.0.1", to.load(Ordering::Relaxed))))
    };
    let holder = guarded(Redis::tcp("127.0.0.1", bench.proxy.port())).await;
    replica.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let guard = holder.lock("a").ttl(TTL * 2).await.expect("granted");
    let other = guarded(follower()).await;
    guard.extend(TTL * 2).await.expect("renewed");
    bench.proxy.freeze();
    let deadline = guard.deadline().expect("a lease");
    bench.server.kill9();
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    port.store(replica.port(), Ordering::Relaxed);
    assert_eq!(replica.command(&["EXISTS", "a"]).int(), 0, "the replica never got the lock");
    expect_granted_after(&other, &guard, deadline).await;
}

#[tokio::test]
async fn guarded_locks_are_handed_over_like_others_and_cost_the_unguarded_nothing() {
    let bench = Bench::start();
    let builder = || Redis::tcp("127.0.0.1", bench.server.port());
    let (first, second) = (guarded(builder()).await, guarded(builder()).await);
    let guard = first.lock("a").await.expect("granted");
    let waiter = tokio::spawn(async move { second.lock("a").wait(PATIENCE).await });
    while bench.command("EXISTS {a}:q").int() == 0 {
        sleep(ms(5)).await;
    }
    guard.unlock().await.expect("released");
    waiter.await.expect("no panic").expect("handed over").unlock().await.expect("released");
    let asked = bench.server.calls("info");
    let plain = bench.direct().await;
    plain.lock("b").await.expect("granted").unlock().await.expect("released");
    // The question itself is one.
    assert_eq!(bench.server.calls("info"), asked + 1);
}

#[tokio::test]
async fn guarded_a_waiter_that_was_refused_in_the_quarantine_takes_the_lock_when_its_turn_comes() {
    let bench = Bench::start();
    let builder = || Redis::tcp("127.0.0.1", bench.server.port());
    let (first, second, third) = (guarded(builder()).await, guarded(builder()).await, guarded(builder()).await);
    let guard = first.lock("a").await.expect("granted");
    // Once refused, it would not claim again before its patience is over.
    let request = second.lock("a").retry_interval(PATIENCE * 4).wait(PATIENCE);
    let waiter = tokio::spawn(request.into_future());
    while bench.command("EXISTS {a}:q").int() == 0 {
        sleep(ms(5)).await;
    }
    // The lock and the canary are forgotten, the queue is not.
    bench.command("DEL a {distlock}:g");
    drop(guard);
    // It is refused when it looks again, after a third of its heartbeat; somebody else comes when that is over.
    sleep(TTL).await;
    let behind = tokio::spawn(third.lock("a").wait(PATIENCE).into_future());
    let next = waiter.await.expect("no panic").expect("granted to the first in the queue");
    let token = next.fencing_token();
    next.unlock().await.expect("released");
    let last = behind.await.expect("no panic").expect("granted");
    assert!(last.fencing_token() > token, "out of order");
    last.unlock().await.expect("released");
}
