//! A server that lost its leases, with the restart guard.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use distlock::backend::redis::{Redis, RedisBuilder};
use distlock::backend::{Backend, Claim, Claimed, ClaimedAll, Grant};
use distlock::{Clock, ErrorKind, Key, LockGuard, Locker, Mode, Moment, OwnerId, Process, Record};
use distlock_testkit::clock_shim::{ClockShim, ShiftedClock};
use distlock_testkit::servers::{Data, RedisServer};
use tokio::net::TcpStream;

use crate::bench::{Bench, TEST_LIMIT, TTL, ms, now, sleep};

/// Returns a locker with the guard, on a server whose first quarantine is over.
async fn guarded(builder: RedisBuilder) -> Locker {
    let engine = builder.restart_guard(true).build().expect("an engine");
    let locker = Locker::builder().default_ttl(TTL).retry_interval(ms(50)).build(engine).expect("a locker");
    let (guard, _) = outlast(&locker, "warm").await;
    guard.unlock().await.expect("released");
    locker
}

/// Retries until the lock is granted; returns how often the quarantine refused it.
async fn outlast(locker: &Locker, key: &str) -> (LockGuard, u32) {
    let (until, mut quarantined) = (now().after(TEST_LIMIT), 0);
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

/// The holder is cut off, the server loses the lock, and the next client must be granted it only after the holder's
/// deadline.
async fn expect_no_overlap(bench: &mut Bench, forget: impl FnOnce(&mut Bench)) {
    let holder = guarded(Redis::tcp("127.0.0.1", bench.proxy.port())).await;
    // Longer than any lease that the other client requests; it learns this when it connects.
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
async fn f23_guarded_a_server_restarted_empty_waits_for_its_lost_leases() {
    expect_no_overlap(&mut Bench::start(), |bench| bench.server.restart(Data::Lost)).await;
}

#[tokio::test]
async fn f23_guarded_a_server_restarted_with_its_data_keeps_the_lock() {
    let mut bench = Bench::with(RedisServer::options().persistent());
    let locker = guarded(Redis::tcp("127.0.0.1", bench.server.port())).await;
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    bench.server.restart(Data::Kept);
    guard.extend(TEST_LIMIT).await.or(guard.extend(TEST_LIMIT).await).expect("renewed in the quarantine");
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
async fn f24_guarded_a_flushed_server_waits_for_its_lost_leases() {
    expect_no_overlap(&mut Bench::start(), |bench| drop(bench.command("FLUSHALL"))).await;
}

#[tokio::test]
async fn f25_guarded_a_promoted_replica_waits_for_the_leases_it_lacks() {
    let mut bench = Bench::start();
    let replica = RedisServer::options().replica_of(bench.server.address()).start();
    replica.expect_in_sync();
    let port = Arc::new(AtomicU16::new(bench.server.port()));
    let to = port.clone();
    let follower = || {
        let to = to.clone();
        Redis::over("the current master", move || TcpStream::connect(("127.0.0.1", to.load(Ordering::Relaxed))))
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
async fn guarded_locks_are_handed_over_and_unguarded_clients_send_no_more() {
    let bench = Bench::start();
    let builder = || Redis::tcp("127.0.0.1", bench.server.port());
    let (first, second) = (guarded(builder()).await, guarded(builder()).await);
    let guard = first.lock("a").await.expect("granted");
    let waiter = tokio::spawn(async move { second.lock("a").wait(TEST_LIMIT).await });
    while bench.command("EXISTS {a}:q").int() == 0 {
        sleep(ms(5)).await;
    }
    guard.unlock().await.expect("released");
    waiter.await.expect("no panic").expect("handed over").unlock().await.expect("released");
    let asked = bench.server.calls("info");
    let plain = bench.direct().await;
    plain.lock("b").await.expect("granted").unlock().await.expect("released");
    // The `INFO` of this check itself is one.
    assert_eq!(bench.server.calls("info"), asked + 1);
}

#[tokio::test]
async fn guarded_a_waiter_refused_in_the_quarantine_keeps_its_place() {
    let bench = Bench::start();
    let builder = || Redis::tcp("127.0.0.1", bench.server.port());
    let (first, second, third) = (guarded(builder()).await, guarded(builder()).await, guarded(builder()).await);
    let guard = first.lock("a").await.expect("granted");
    // Once refused, it would not claim again within its wait.
    let request = second.lock("a").retry_interval(TEST_LIMIT * 4).wait(TEST_LIMIT);
    let waiter = tokio::spawn(request.into_future());
    while bench.command("EXISTS {a}:q").int() == 0 {
        sleep(ms(5)).await;
    }
    // The lock and the canary key are deleted, the queue is not.
    bench.command("DEL a {distlock}:g");
    drop(guard);
    // Its poll after a third of its heartbeat is refused; another client comes when the quarantine is over.
    sleep(TTL).await;
    let behind = tokio::spawn(third.lock("a").wait(TEST_LIMIT).into_future());
    let next = waiter.await.expect("no panic").expect("granted to the first in the queue");
    let token = next.fencing_token();
    next.unlock().await.expect("released");
    let last = behind.await.expect("no panic").expect("granted");
    assert!(last.fencing_token() > token, "out of order");
    last.unlock().await.expect("released");
}

/// Returns the server's replication id.
fn history(server: &RedisServer) -> String {
    server.info("replication", "master_replid").expect("it says so")
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let latest = now().after(TEST_LIMIT * 3);
    while !is_so() {
        assert!(now() < latest, "never: {what}");
        sleep(ms(20)).await;
    }
}

/// Waits until the server has dropped its backlog, which must be its only change.
async fn outlast_backlog(server: &RedisServer) {
    let before = history(server);
    until("the end of the backlog", || history(server) != before).await;
    let second = server.info("replication", "master_replid2").expect("it says so");
    assert!(second.bytes().all(|digit| digit == b'0'), "{second}");
}

#[tokio::test]
async fn f76_an_attached_replica_or_an_ended_backlog_is_no_restart() {
    let bench = Bench::start();
    bench.command("CONFIG SET repl-backlog-ttl 1");
    let locker = guarded(Redis::tcp("127.0.0.1", bench.server.port())).await;
    let kept = locker.lock("kept").ttl(TEST_LIMIT * 3).await.expect("granted");
    for key in ["a", "b"] {
        let before = history(&bench.server);
        let replica = RedisServer::options().replica_of(bench.server.address()).start();
        replica.expect_in_sync();
        assert_ne!(history(&bench.server), before, "a replica attached to a master without a backlog");
        locker.try_lock(key).await.expect("no quarantine").expect("free").unlock().await.expect("released");
        drop(replica);
        outlast_backlog(&bench.server).await;
        locker.try_lock(key).await.expect("no quarantine").expect("free").unlock().await.expect("released");
    }
    kept.unlock().await.expect("released");
}

#[tokio::test]
async fn f76_a_master_that_was_a_replica_waits_despite_a_new_replication_id() {
    let bench = Bench::start();
    bench.command("CONFIG SET repl-backlog-ttl 1");
    let locker = guarded(Redis::tcp("127.0.0.1", bench.server.port())).await;
    let mut other = RedisServer::options().replica_of(bench.server.address()).start();
    other.expect_in_sync();
    other.command(&["REPLICAOF", "NO", "ONE"]);
    // The other server never gets this lock: it is lost when the first becomes its replica.
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    bench.command(&format!("REPLICAOF 127.0.0.1 {}", other.port()));
    bench.server.expect_in_sync();
    bench.command("REPLICAOF NO ONE");
    other.kill9();
    outlast_backlog(&bench.server).await;
    assert_eq!(bench.command("EXISTS a").int(), 0);
    let fresh = guarded_unheld(&bench);
    let error = loop {
        match fresh.try_lock("a").await {
            Ok(granted) => panic!("granted: {granted:?}"),
            Err(error) if error.to_string().contains("quarantined") => break error,
            Err(_) => sleep(ms(10)).await,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    drop(guard);
}

/// Returns a locker with the guard that has not taken any lock yet.
fn guarded_unheld(bench: &Bench) -> Locker {
    let engine = Redis::tcp("127.0.0.1", bench.server.port()).restart_guard(true).build().expect("an engine");
    Locker::builder().default_ttl(TTL).retry_interval(ms(50)).build(engine).expect("a locker")
}

/// Returns the longest lease that counts, according to the server's canary key.
fn longest_ms(bench: &Bench) -> u64 {
    let canary = bench.command("GET {distlock}:g").to_string();
    canary.rsplit(' ').next().expect("a number").parse().expect("a number")
}

#[tokio::test]
async fn f76_a_released_lease_of_a_day_causes_no_quarantine_of_a_day() {
    let shim = ClockShim::new();
    let options =
        shim.environment().iter().fold(RedisServer::options(), |options, (name, value)| options.env(name, value));
    let mut bench = Bench::with(options);
    let day = Duration::from_secs(86_400);
    let locker = guarded(Redis::tcp("127.0.0.1", bench.server.port())).await;
    locker.lock("day").ttl(day).await.expect("granted").unlock().await.expect("released");
    assert_eq!(longest_ms(&bench), 86_400_000, "others may have one that long");
    locker.close().await.expect("closed");
    shim.forward(ShiftedClock::Wall, day * 2);
    let fresh = guarded(Redis::tcp("127.0.0.1", bench.server.port())).await;
    assert!(longest_ms(&bench) < 60_000, "{}", longest_ms(&bench));
    fresh.close().await.expect("closed");
    bench.server.restart(Data::Lost);
    let last = guarded_unheld(&bench);
    let (guard, quarantined) = outlast(&last, "a").await;
    assert!(quarantined > 0, "granted without a quarantine");
    guard.unlock().await.expect("released");
}

#[tokio::test]
async fn f76_a_possibly_live_lease_of_a_day_causes_a_quarantine_of_a_day() {
    let mut bench = Bench::with(RedisServer::options().persistent());
    let day = Duration::from_secs(86_400);
    let holder = guarded(Redis::tcp("127.0.0.1", bench.server.port())).await;
    let guard = holder.lock("day").ttl(TTL).await.expect("granted");
    // By a renewal, which starts no quarantine where nothing was lost.
    guard.extend(day).await.expect("renewed");
    assert_eq!(longest_ms(&bench), 86_400_000);
    holder.try_lock("a").await.expect("no quarantine").expect("free").unlock().await.expect("released");
    bench.server.restart(Data::Kept);
    let error = loop {
        match guarded_unheld(&bench).try_lock("a").await {
            Ok(granted) => panic!("granted: {granted:?}"),
            Err(error) if error.to_string().contains("quarantined") => break error,
            Err(_) => sleep(ms(10)).await,
        }
    };
    // In seconds.
    assert!(error.to_string().contains("quarantined for another 86"), "{error}");
    drop(guard);
}

#[tokio::test]
async fn f76_a_canary_of_an_older_version_is_understood() {
    let bench = Bench::start();
    let first = guarded(Redis::tcp("127.0.0.1", bench.server.port())).await;
    let canary = bench.command("GET {distlock}:g").to_string();
    let identity = canary.split(' ').next().expect("an identity");
    // Like a canary key that has never had a hash beside it, long after its quarantine.
    bench.command("DEL {distlock}:l:g");
    bench.server.command(&["SET", "{distlock}:g", &format!("{identity} 0 86400000")]);
    first.lock("b").await.expect("no quarantine").unlock().await.expect("released");
    assert_eq!(longest_ms(&bench), 86_400_000, "it may be alive for as long as it says");
    let another = if identity.starts_with('0') { '1' } else { '0' };
    bench.server.command(&["SET", "{distlock}:g", &format!("{another}{} 0 86400000", &identity[1..])]);
    let error = first.try_lock("b").await.expect_err("another server's");
    assert!(error.to_string().contains("quarantined for another 86"), "{error}");
}

/// Retries until the server refuses with the remaining time of its quarantine.
async fn refusal(locker: &Locker, key: &str, ttl: Duration) -> String {
    let latest = now().after(TEST_LIMIT);
    loop {
        match locker.try_lock(key).ttl(ttl).await {
            Ok(granted) => panic!("granted: {granted:?}"),
            Err(error) if error.to_string().contains("quarantined") => return error.to_string(),
            Err(error) => assert!(now() < latest, "never refused by the guard: {error}"),
        }
        sleep(ms(10)).await;
    }
}

#[tokio::test]
async fn f76_a_lease_known_before_a_flush_extends_a_quarantine_of_another_client() {
    let bench = Bench::start();
    let day = Duration::from_secs(86_400);
    let holder = guarded(Redis::tcp("127.0.0.1", bench.proxy.port())).await;
    let knows = guarded(Redis::tcp("127.0.0.1", bench.server.port())).await;
    let guard = holder.lock("day").ttl(day).await.expect("granted");
    bench.proxy.freeze();
    // The remaining client reads the canary key every second.
    let looks = async |what: &str| {
        let before = bench.server.calls("get");
        until(what, || bench.server.calls("get") >= before + 2).await;
    };
    looks("a look at the lease of a day").await;
    bench.command("FLUSHALL");
    let fresh = guarded_unheld(&bench);
    let said = refusal(&fresh, "other", TEST_LIMIT * 3).await;
    assert!(!said.contains("quarantined for another 86"), "{said}");
    fresh.close().await.expect("closed");
    looks("a look at the quarantine of another client").await;
    let said = refusal(&knows, "day", TTL).await;
    assert!(said.contains("quarantined for another 86"), "{said}");
    drop(guard);
}

#[tokio::test]
async fn f76_a_renewal_before_the_first_claim_after_a_flush_counts() {
    let bench = Bench::start();
    let day = Duration::from_secs(86_400);
    let holder = guarded(Redis::tcp("127.0.0.1", bench.server.port())).await;
    let guard = holder.lock("day").ttl(day).await.expect("granted");
    bench.command("FLUSHALL");
    // It fails, because the lock is gone, and reports that there may be other leases that long.
    guard.extend(day).await.expect_err("lost");
    assert_eq!(bench.command("EXISTS {distlock}:g {distlock}:l:g").int(), 1);
    let said = refusal(&guarded_unheld(&bench), "other", TTL).await;
    assert!(said.contains("quarantined for another 86"), "{said}");
    drop(guard);
}

#[tokio::test]
async fn f76_the_longest_lease_of_an_older_version_expires() {
    let shim = ClockShim::new();
    let options =
        shim.environment().iter().fold(RedisServer::options(), |options, (name, value)| options.env(name, value));
    let bench = Bench::with(options);
    let day = Duration::from_secs(86_400);
    let first = guarded(Redis::tcp("127.0.0.1", bench.server.port())).await;
    first.close().await.expect("closed");
    let canary = bench.command("GET {distlock}:g").to_string();
    let identity = canary.split(' ').next().expect("an identity");
    bench.command("DEL {distlock}:l:g");
    bench.server.command(&["SET", "{distlock}:g", &format!("{identity} 0 86400000")]);
    for longest in [86_400_000, 86_400_000, 60_000] {
        let locker = guarded(Redis::tcp("127.0.0.1", bench.server.port())).await;
        assert!(longest_ms(&bench) <= longest, "{} ms", longest_ms(&bench));
        locker.close().await.expect("closed");
        shim.forward(ShiftedClock::Wall, day);
    }
}

/// Returns a claim of the lock `a` with a lease of a minute.
fn minute(mode: Mode) -> Claim {
    let record = Record::new(OwnerId::random(), Process::current(), None, Clock::system().wall());
    Claim::new(Key::new("a").expect("a name"), TEST_LIMIT * 3, true, Arc::new(record.with_mode(mode)))
}

async fn claimed(engine: &Redis, claim: &Claim) -> Grant {
    let latest = now().after(TEST_LIMIT * 6);
    loop {
        match engine.claim(claim).await {
            Ok(Claimed::Granted(grant)) => return grant,
            other => assert!(now() < latest, "never granted: {other:?}"),
        }
        sleep(ms(20)).await;
    }
}

#[tokio::test]
async fn f76_repeats_and_adoptions_are_noted_like_grants() {
    let bench = Bench::start();
    guarded(Redis::tcp("127.0.0.1", bench.server.port())).await.close().await.expect("closed");
    let canary = bench.command("GET {distlock}:g").to_string();
    let identity = canary.split(' ').next().expect("an identity").to_owned();
    let forget = || {
        bench.command("DEL {distlock}:l:g");
        bench.server.command(&["SET", "{distlock}:g", &format!("{identity} 0 1000")]);
    };
    for mode in [Mode::Exclusive, Mode::Shared] {
        let engine = Redis::tcp("127.0.0.1", bench.server.port()).restart_guard(true).build().expect("an engine");
        let (claim, heir) = (minute(mode), minute(mode));
        let length = i64::try_from(claim.lease().as_millis()).expect("short");
        let expect_noted = |what: &str| {
            assert_eq!(i64::try_from(longest_ms(&bench)).expect("short"), length, "{what} of {mode:?}");
            forget();
        };
        forget();
        let grant = claimed(&engine, &claim).await;
        expect_noted("a grant");
        claimed(&engine, &claim).await;
        expect_noted("a repeat");
        engine.adopt(claim.attempt, grant.token, &heir).await.expect("adopted");
        expect_noted("an adoption");
        if mode == Mode::Exclusive {
            let all = engine.claim_all(std::slice::from_ref(&heir)).await.expect("an answer");
            assert!(matches!(all, ClaimedAll::Granted(_)), "{all:?}");
            expect_noted("a repeat of several");
        }
        engine.release(&heir).await.expect("released");
    }
}
