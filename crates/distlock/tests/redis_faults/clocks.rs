//! Clocks that jump, disagree, or run at another rate; leases that no clock could keep.

use std::future::IntoFuture;
use std::time::Duration;

use distlock::backend::redis::Redis;
use distlock::{Clock, ErrorKind, Locker, LossReason};
use distlock_testkit::child::Child;
use distlock_testkit::clock_shim::{ClockShim, ShiftedClock};
use distlock_testkit::servers::RedisServer;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, TTL, connected, ms, now, sleep};
use crate::log;
use crate::log_kit::Log;

const HOUR_MS: u64 = 3_600_000;

/// Returns whether `line` reports a jump of about `seconds`; a busy machine reads clocks late, which hides a part of
/// it.
fn tells_of(line: &str, seconds: f64) -> bool {
    let leap = line.split("leap=").nth(1).and_then(|rest| rest.split('s').next()).and_then(|text| text.parse().ok());
    leap.is_some_and(|leap: f64| (leap - seconds).abs() < 60.0)
}

async fn expect_told(log: &Log, seconds: f64) {
    let told = || log::lines(log, "the clock of redis was set").iter().any(|line| tells_of(line, seconds));
    let until = now().after(TEST_LIMIT);
    while !told() {
        assert!(now() < until, "no log line about {seconds} s: {:?}", log::lines(log, "redis"));
        sleep(ms(10)).await;
    }
}

#[tokio::test]
async fn f18_a_jump_of_the_server_clock_is_logged_without_claims() {
    let (log, shim) = (log::begin(), ClockShim::new());
    let bench = Bench::with(RedisServer::options().clock(&shim));
    let locker = bench.direct().await;
    let guard = locker.lock("a").await.expect("granted");
    sleep(TTL).await;
    shim.forward(ShiftedClock::Wall, ms(7 * HOUR_MS));
    expect_told(&log, 7.0 * 3600.0).await;
    assert_eq!(timeout(TEST_LIMIT, guard.lost()).await.expect("notified"), LossReason::Revoked);
    shim.back(ShiftedClock::Wall, ms(3 * HOUR_MS));
    expect_told(&log, -3.0 * 3600.0).await;
}

/// The lean script refuses a claim that is too late by the clock as it was known. The server's reply tells the new time.
#[tokio::test]
async fn f18_a_try_is_granted_just_after_the_server_clock_jumped_forward() {
    let shim = ClockShim::new();
    let bench = Bench::with(RedisServer::options().clock(&shim));
    let locker = bench.direct().await;
    let first = locker.lock("a").await.expect("granted");
    let token = first.fencing_token();
    first.unlock().await.expect("released");
    shim.forward(ShiftedClock::Wall, ms(HOUR_MS));
    let guard = locker.try_lock("a").await.expect("decided by the time of the server").expect("free");
    assert!(guard.fencing_token() > token);
    guard.unlock().await.expect("released");
}

#[tokio::test]
async fn f18_waiters_claim_again_when_the_server_clock_jumps_forward() {
    let shim = ClockShim::new();
    let bench = Bench::with(RedisServer::options().clock(&shim));
    // Not renewed, and no message is sent when it expires.
    let mut child = Child::start();
    child.connect(&bench.server.url());
    let first = child.lock("a", ms(HOUR_MS));
    let locker = bench.direct().await;
    let waiter = tokio::spawn(locker.lock("a").ttl(ms(HOUR_MS)).into_future());
    while bench.command("EXISTS {a}:q").int() == 0 {
        sleep(ms(5)).await;
    }
    child.stop();
    let leapt = now();
    shim.forward(ShiftedClock::Wall, ms(2 * HOUR_MS));
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    // Without a wake-up it would claim again after a third of its heartbeat of 30 s.
    assert!(now().since(leapt) < ms(8000), "after {:?}", now().since(leapt));
    assert!(next.fencing_token().get() > first.token());
}

#[tokio::test]
async fn f19_a_backward_jump_of_the_server_clock_prolongs_leases_until_a_release() {
    let shim = ClockShim::new();
    let bench = Bench::with(RedisServer::options().clock(&shim));
    let (locker, other) = (bench.direct().await, bench.direct().await);
    let guard = locker.lock("kept").await.expect("granted");
    let mut child = Child::start();
    child.connect(&bench.server.url());
    let token = child.lock("orphaned", TTL).token();
    shim.back(ShiftedClock::Wall, ms(HOUR_MS));
    let left = |key: &str| u64::try_from(bench.command(&format!("PTTL {key}")).int()).expect("a lease");
    // Newer servers read their clock once per turn of their event loop: the first command may still have the time before.
    let start = now();
    while left("kept") <= HOUR_MS - 10_000 {
        assert!(now().since(start) < TEST_LIMIT, "the lease is longer by the jump");
        sleep(ms(10)).await;
    }
    // More than two renewals. Decision 2: a renewal never makes a lease shorter, so it does not repair this one.
    sleep(TTL).await;
    assert!(left("kept") > HOUR_MS - 10_000, "a renewal shortened a lease");
    // The holder's own deadline follows its own clock, and is no later than agreed.
    assert!(guard.remaining().expect("a lease") <= TTL);
    guard.unlock().await.expect("released");
    other.try_lock("kept").await.expect("no failure").expect("free at once").unlock().await.expect("released");
    // The lock of a holder that is gone lasts longer by the jump, unless an operator breaks it.
    child.kill9();
    sleep(TTL * 2).await;
    assert!(other.try_lock("orphaned").await.expect("no failure").is_none());
    let shown = other.inspect().get("orphaned").await.expect("shown").expect("held");
    let shown = shown.holder().expect("a holder");
    assert!(shown.ttl_left.expect("a lease") > ms(HOUR_MS - 10_000), "an operator can see that");
    other
        .inspect()
        .force_release("orphaned", shown.token.expect("a token"), "its holder is gone")
        .await
        .expect("forced");
    let next = other.try_lock("orphaned").await.expect("no failure").expect("free");
    assert!(next.fencing_token().get() > token);
}

/// Returns a token and a promoted replica: the master with the lock was in sync with the replica, which has its own
/// clock, and then died.
async fn promoted(shim: &ClockShim) -> (distlock::FencingToken, RedisServer) {
    let mut master = RedisServer::start();
    let replica = RedisServer::options().clock(shim).replica_of(master.address()).start();
    replica.expect_in_sync();
    let locker = connected(master.port()).await;
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    assert_eq!(master.command(&["WAIT", "1", "20000"]).int(), 1, "the replica has the lock");
    master.kill9();
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    let token = guard.fencing_token();
    guard.detach();
    (token, replica)
}

#[tokio::test]
async fn f20_a_promoted_replica_with_a_fast_clock_ends_leases_early_and_tokens_rise() {
    let shim = ClockShim::new();
    shim.forward(ShiftedClock::Wall, TEST_LIMIT * 3);
    let (token, replica) = promoted(&shim).await;
    let next =
        connected(replica.port()).await.try_lock("a").await.expect("no failure").expect("its lease is over there");
    assert!(next.fencing_token() > token, "{} after {token}", next.fencing_token());
}

#[tokio::test]
async fn f20_a_promoted_replica_with_a_slow_clock_keeps_leases_and_tokens_rise() {
    let shim = ClockShim::new();
    shim.back(ShiftedClock::Wall, TEST_LIMIT * 3);
    let (token, replica) = promoted(&shim).await;
    let locker = connected(replica.port()).await;
    assert!(locker.try_lock("a").await.expect("no failure").is_none(), "its lease goes on");
    locker.inspect().force_release("a", token, "the holder's server is gone").await.expect("forced");
    let next = locker.try_lock("a").await.expect("no failure").expect("free");
    assert!(next.fencing_token() > token, "{} after {token}", next.fencing_token());
}

#[tokio::test]
async fn f21_a_clock_slow_within_the_bound_expires_before_the_server() {
    const LEASE: Duration = Duration::from_secs(3);
    let bench = Bench::start();
    let (clock, hand) = Clock::manual();
    // A tenth slower than the server's, where a fifth is allowed for.
    let ramp = tokio::spawn(async move {
        let mut last = now();
        loop {
            sleep(ms(2)).await;
            let (passed, this) = (now().since(last), now());
            last = this;
            hand.jump(passed.mul_f64(0.9));
        }
    });
    let engine = Redis::tcp("127.0.0.1", bench.proxy.port()).build().expect("an engine");
    let locker = Locker::builder().default_ttl(LEASE).clock(clock).clock_drift(0.2).build(engine).expect("a locker");
    let guard = locker.lock("a").await.expect("granted");
    bench.proxy.freeze();
    assert_eq!(timeout(TEST_LIMIT, guard.lost()).await.expect("notified"), LossReason::Expired);
    let left = bench.command("PTTL a").int();
    assert!(left > 0, "the server has let go already");
    assert!(left < 1500, "expired {left} ms before the lease ends, far too early");
    ramp.abort();
}

#[tokio::test]
async fn f22_a_lease_too_short_to_be_renewed_is_refused_before_anything_is_sent() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let guard = locker.lock("held").ttl(TEST_LIMIT).await.expect("granted");
    let calls = || bench.server.calls("evalsha") + bench.server.calls("eval");
    let before = calls();
    for ttl in [0, 1, 99] {
        let refused = [
            locker.lock("a").ttl(ms(ttl)).await.map(drop).expect_err("refused"),
            locker.try_lock("a").ttl(ms(ttl)).await.map(drop).expect_err("refused"),
            guard.extend(ms(ttl)).await.expect_err("refused"),
        ];
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(error.to_string().contains("100ms"), "it names what is accepted: {error}");
        }
    }
    // Renewed when nearly all of it has passed, or all the time: both are mistakes.
    for part in [0.0, 0.9] {
        let error = locker.lock("a").renew_at(part).await.map(drop).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    assert_eq!(calls(), before, "something was sent");
    let nowhere = format!("redis://127.0.0.1:{}/?ttl=99ms", distlock_testkit::servers::Port::free().number());
    let error = Locker::connect(&nowhere).await.expect_err("refused");
    assert!(error.to_string().contains("ttl"), "before it connects: {error}");
    guard.unlock().await.expect("released");
}
