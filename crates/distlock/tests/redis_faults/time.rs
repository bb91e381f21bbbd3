//! Processes that stop, clocks that jump.

use std::future::IntoFuture;

use distlock::{HistoryKind, LossReason};
use distlock_testkit::child::{Child, Outcome};
use distlock_testkit::clock_shim::{ClockShim, ShiftedClock};
use distlock_testkit::servers::RedisServer;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, TTL, ms, now, sleep};

/// On another thread, because a child's answers block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("no panic")
}

fn child_of(bench: &Bench) -> Child {
    let mut child = Child::start();
    child.connect(&bench.server.url());
    child
}

#[tokio::test]
async fn f12_a_killed_holder_blocks_until_its_lease_ends_and_no_longer() {
    let bench = Bench::start();
    let mut child = child_of(&bench);
    let deadline = child.lock("a", TTL).deadline();
    let locker = bench.direct().await;
    let waiter = tokio::spawn(locker.lock("a").into_future());
    sleep(ms(100)).await;
    child.kill9();
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    let late = now().since(deadline);
    assert!(now() > deadline, "two holders");
    // The deadline is the holder's own: 0.1 % and 2 ms before the server's.
    assert!(late < TTL + ms(400), "{late:?} after the last renewal's deadline at the earliest");
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn f12_a_killed_waiter_is_skipped_at_once() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let mut child = child_of(&bench);
    child.send(format_args!("lock a {}", TEST_LIMIT.as_millis()));
    while bench.command("ZCARD {a}:q").int() < 1 {
        sleep(ms(5)).await;
    }
    let other = bench.direct().await;
    let waiter = tokio::spawn(other.lock("a").into_future());
    while bench.command("ZCARD {a}:q").int() < 2 {
        sleep(ms(5)).await;
    }
    child.kill9();
    sleep(ms(100)).await;
    let released = now();
    guard.unlock().await.expect("released");
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    assert!(now().since(released) < ms(500), "the message had no receiver, so the next waiter is served");
    next.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f15_a_holder_stopped_past_its_lease_knows_it_on_waking() {
    let bench = Bench::start();
    let mut child = child_of(&bench);
    let first = child.lock("a", TTL);
    child.stop();
    let locker = bench.direct().await;
    let next = locker.lock("a").wait(TEST_LIMIT).await.expect("the lease ended");
    assert!(next.fencing_token().get() > first.token());
    child.cont();
    let (state, unlocked) = blocking(move || (child.state("a").outcome, child.unlock("a").outcome)).await;
    assert_eq!(state, Outcome::State("Lost".into()));
    assert!(matches!(unlocked, Outcome::Failed { kind, .. } if kind == "Lost" || kind == "NotHeld"));
    next.check().expect("it took nothing from the next holder");
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn f15_a_stopped_waiter_delays_by_a_first_lease_only() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let mut child = child_of(&bench);
    child.send(format_args!("lock a {}", TEST_LIMIT.as_millis()));
    while bench.command("ZCARD {a}:q").int() < 1 {
        sleep(ms(5)).await;
    }
    child.stop();
    let waiter = tokio::spawn(bench.direct().await.lock("a").into_future());
    while bench.command("ZCARD {a}:q").int() < 2 {
        sleep(ms(5)).await;
    }
    let released = now();
    guard.unlock().await.expect("released");
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    assert!(now().since(released) < ms(3000), "{:?}", now().since(released));
    // The message was in the stopped process's socket all the time: it must not be believed now.
    child.cont();
    sleep(ms(200)).await;
    next.check().expect("two holders");
    let token = next.fencing_token().get();
    next.unlock().await.expect("released");
    let theirs = blocking(move || child.receive()).await;
    assert!(theirs.token() > token, "it was granted the lock anew");
}

#[tokio::test]
async fn a_handed_over_lock_lasts_its_whole_lease_without_a_watchdog() {
    let bench = Bench::start();
    let (locker, other) = (bench.direct().await, bench.direct().await);
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let waiter = tokio::spawn(other.lock("a").ttl(TTL * 2).watchdog(false).into_future());
    while bench.command("ZCARD {a}:q").int() < 1 {
        sleep(ms(5)).await;
    }
    guard.unlock().await.expect("released");
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    let granted = now();
    assert_eq!(timeout(TEST_LIMIT, next.lost()).await.expect("it is not renewed again"), LossReason::Expired);
    let lasted = now().since(granted);
    assert!(lasted > TTL * 2 - ms(50), "only {lasted:?}: the first lease of a handover");
}

#[tokio::test]
async fn f17_a_suspended_machine_does_not_keep_its_lock() {
    let bench = Bench::start();
    let shim = ClockShim::new();
    let mut child = Child::start_with(|command| {
        command.envs(shim.environment());
    });
    child.connect(&bench.server.url());
    assert!(child.lock("a", TEST_LIMIT).token() > 0);
    shim.forward(ShiftedClock::Boot, TEST_LIMIT * 2);
    let state = blocking(move || child.state("a").outcome).await;
    assert_eq!(state, Outcome::State("Lost".into()));
}

#[tokio::test]
async fn f18_a_forward_jump_of_the_server_clock_loses_the_lock_and_repeats_no_token() {
    let shim = ClockShim::new();
    let options =
        shim.environment().iter().fold(RedisServer::options(), |options, (name, value)| options.env(name, value));
    let bench = Bench::with(options);
    let locker = bench.direct().await;
    let guard = locker.lock("a").await.expect("granted");
    shim.forward(ShiftedClock::Wall, TEST_LIMIT * 3);
    let other = bench.direct().await;
    let next = other.lock("a").wait(TEST_LIMIT).await.expect("the server has expired it");
    assert!(next.fencing_token() > guard.fencing_token());
    assert_eq!(timeout(TEST_LIMIT, guard.lost()).await.expect("notified"), LossReason::Revoked);
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn f19_tokens_rise_when_the_server_clock_jumps_back() {
    let shim = ClockShim::new();
    let options =
        shim.environment().iter().fold(RedisServer::options(), |options, (name, value)| options.env(name, value));
    let bench = Bench::with(options);
    let locker = bench.direct().await;
    let guard = locker.lock("a").await.expect("granted");
    let before = guard.fencing_token();
    shim.back(ShiftedClock::Wall, TEST_LIMIT * 180);
    sleep(TTL).await;
    guard.check().expect("renewed");
    guard.unlock().await.expect("released");
    let next = locker.lock("a").await.expect("granted");
    assert!(next.fencing_token() > before, "{} after {before}", next.fencing_token());
}

#[tokio::test]
async fn f15_a_holder_stalled_past_its_lease_gets_one_reason() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    // Either its keeper or its own task may notice the loss first, so this is repeated.
    for round in 0..5 {
        let name = format!("a{round}");
        let mut child = Child::start();
        child.connect(&format!("{}?history=10", bench.server.url()));
        let token = child.lock(&name, TTL).token();
        // It is ordered to unlock as soon as it continues.
        child.stop();
        child.send(format_args!("unlock {name}"));
        let next = locker.lock(name.as_str()).wait(TEST_LIMIT).await.expect("its lease ends");
        child.cont();
        let (told, _alive) = blocking(move || (child.receive().outcome, child)).await;
        let Outcome::Failed { kind, message } = told else { panic!("it has lost the lock: {told:?}") };
        assert_eq!(kind, "Lost", "{message}");
        let until = now().after(TEST_LIMIT);
        let written = loop {
            let history = locker.inspect().history(name.as_str(), 10).await.expect("read");
            if let Some(entry) = history.into_iter().find(|entry| entry.kind == HistoryKind::Lost) {
                break entry;
            }
            assert!(now() < until, "the loss was never written down");
            sleep(ms(10)).await;
        };
        assert_eq!(written.token.get(), token);
        let reason = written.reason.expect("a loss has a reason");
        assert!(message.contains(&reason), "returned {message:?}, recorded {reason:?}");
        next.unlock().await.expect("released");
    }
}
