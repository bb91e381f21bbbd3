//! A server that restarts, refuses, is frozen or unreachable.

use std::future::IntoFuture;

use distlock::backend::redis::Redis;
use distlock::{ErrorKind, HoldState, Locker, LossReason};
use distlock_testkit::servers::{Data, RedisServer};
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, TTL, connected, locker_of, ms, now, sleep};

/// Returns the kind and text of the failure of one try.
async fn try_fails(locker: &Locker, key: &str) -> (ErrorKind, String) {
    let error = locker.try_lock(key).await.expect_err("refused");
    (error.kind(), error.to_string())
}

#[tokio::test]
async fn f23_a_server_restarted_empty_loses_the_lock_and_tokens_rise() {
    let mut bench = Bench::start();
    let locker = bench.direct().await;
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    bench.server.restart(Data::Lost);
    let reason = timeout(TEST_LIMIT, guard.lost()).await.expect("notified by the next renewal");
    assert_eq!(reason, LossReason::Revoked);
    let next = locker.lock("a").wait(TEST_LIMIT).await.expect("reconnected");
    assert!(next.fencing_token() > guard.fencing_token());
}

#[tokio::test]
async fn f23_a_server_restarted_with_its_data_keeps_the_lock() {
    let mut bench = Bench::with(RedisServer::options().persistent());
    let locker = bench.direct().await;
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    bench.server.restart(Data::Kept);
    guard.extend(TEST_LIMIT).await.or(guard.extend(TEST_LIMIT).await).expect("renewed on a new connection");
    assert_eq!(guard.state(), HoldState::Held);
    guard.unlock().await.expect("released");
}

#[tokio::test]
async fn f24_a_flushed_server_loses_the_lock_and_tokens_rise() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let guard = locker.lock("a").await.expect("granted");
    bench.command("FLUSHALL");
    assert_eq!(timeout(TEST_LIMIT, guard.lost()).await.expect("notified"), LossReason::Revoked);
    let next = locker.lock("a").wait(TEST_LIMIT).await.expect("granted");
    assert!(next.fencing_token() > guard.fencing_token());
}

#[tokio::test]
async fn f27_a_demoted_master_refuses_definitely_and_serves_when_promoted() {
    let (bench, master) = (Bench::start(), RedisServer::start());
    let locker = bench.direct().await;
    let guard = locker.lock("held").await.expect("granted");
    bench.command(&format!("REPLICAOF 127.0.0.1 {}", master.port()));
    let (kind, text) = try_fails(&locker, "a").await;
    assert_eq!(kind, ErrorKind::Unavailable, "{text}");
    assert!(matches!(
        timeout(TEST_LIMIT, guard.lost()).await.expect("notified"),
        LossReason::Expired | LossReason::Revoked
    ));
    bench.command("REPLICAOF NO ONE");
    locker.lock("a").wait(TEST_LIMIT).await.expect("it is a master again").unlock().await.expect("released");
}

#[tokio::test]
async fn f28_a_busy_server_refuses_definitely() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let mut busy = bench.server.client().expect("a connection");
    bench.command("CONFIG SET busy-reply-threshold 50");
    let looping = std::thread::spawn(move || busy.command(&["EVAL", "while true do end", "0"]));
    sleep(ms(200)).await;
    let until = now().after(ms(800));
    while now() < until {
        let (kind, text) = try_fails(&locker, "a").await;
        assert_eq!(kind, ErrorKind::Unavailable, "{text}");
        assert!(text.contains("BUSY"), "{text}");
    }
    let asked = now();
    let error = locker.lock("a").wait(ms(300)).await.expect_err("busy");
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Timeout), "{error}");
    assert!(now().since(asked) < ms(2500), "given up after {:?}", now().since(asked));
    bench.command("SCRIPT KILL");
    let _ = looping.join().expect("no panic");
    assert_eq!(bench.keys(), [""; 0], "something was done after all");
    locker.lock("a").wait(TEST_LIMIT).await.expect("it serves again").unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f28_a_loading_server_refuses_definitely_and_serves_afterwards() {
    let slow = RedisServer::options().persistent().config("key-load-delay 1000");
    // It replies once per this many bytes while it loads.
    let mut bench = Bench::with(slow.config("loading-process-events-interval-bytes 1024"));
    let locker = bench.direct().await;
    bench.command("DEBUG POPULATE 2500");
    bench.command("BGREWRITEAOF");
    while bench.server.info("persistence", "aof_rewrite_in_progress").as_deref() != Some("0") {
        sleep(ms(20)).await;
    }
    bench.server.relaunch(Data::Kept);
    let is_loading = |text: &str| text.to_lowercase().contains("loading");
    // A request over the old connection may be unknown; a refusal of the loading server is not.
    let kind = loop {
        let (kind, text) = try_fails(&locker, "a").await;
        if is_loading(&text) {
            break kind;
        }
    };
    assert_eq!(kind, ErrorKind::Unavailable);
    let guard = locker.lock("a").wait(TEST_LIMIT).await.expect("it has loaded");
    assert_eq!(bench.server.info("persistence", "loading").as_deref(), Some("0"));
    guard.unlock().await.expect("released");
}

#[tokio::test]
async fn f30_flushed_scripts_are_sent_again() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    for _ in 0..5 {
        bench.command("SCRIPT FLUSH");
        let guard = locker.lock("a").await.expect("granted");
        bench.command("SCRIPT FLUSH");
        guard.extend(TTL).await.expect("renewed");
        bench.command("SCRIPT FLUSH");
        guard.unlock().await.expect("released");
    }
    assert!(bench.server.calls("eval") > 5, "no script was sent again");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f31_without_memory_claims_fail_definitely_but_renewals_and_releases_work() {
    let bench = Bench::start();
    let (locker, other) = (bench.direct().await, bench.direct().await);
    let (guard, contended) = (locker.lock("a").await.expect("granted"), locker.lock("b").await.expect("granted"));
    let waiter = tokio::spawn(other.lock("b").into_future());
    while bench.command("EXISTS {b}:q").int() == 0 {
        sleep(ms(5)).await;
    }
    bench.command("CONFIG SET maxmemory 1");
    let (kind, text) = try_fails(&locker, "c").await;
    assert_eq!(kind, ErrorKind::Unavailable, "{text}");
    assert!(text.contains("OOM"), "{text}");
    sleep(TTL * 2).await;
    assert_eq!(guard.state(), HoldState::Held, "renewed without memory");
    guard.unlock().await.expect("released without memory");
    contended.unlock().await.expect("released without memory, with a waiter");
    bench.command("CONFIG SET maxmemory 0");
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    next.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f32_an_evicted_lock_is_lost_and_its_holder_notified() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    // Keys without a TTL stay, so the server can only evict locks.
    bench.command("CONFIG SET maxmemory-policy volatile-lru");
    bench.command(&format!("SET film {}", "x".repeat(4_000_000)));
    bench.command("CONFIG SET maxmemory 3mb");
    let until = now().after(TEST_LIMIT / 4);
    while bench.command("EXISTS a").int() == 1 {
        assert!(now() < until, "never evicted");
        // Memory is checked at every command that needs some.
        bench.command("SETNX film y");
        sleep(ms(5)).await;
    }
    assert!(bench.server.info("stats", "evicted_keys").is_some_and(|keys| keys != "0"));
    assert_eq!(timeout(TEST_LIMIT, guard.lost()).await.expect("notified by the next renewal"), LossReason::Revoked);
    assert!(guard.deadline().is_some_and(|deadline| now() < deadline), "notified only when its lease had ended");
}

#[tokio::test]
async fn f33_too_few_replicas_refuse_definitely() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    bench.command("CONFIG SET min-replicas-to-write 1");
    let (kind, text) = try_fails(&locker, "a").await;
    assert_eq!(kind, ErrorKind::Unavailable, "{text}");
    assert!(text.contains("NOREPLICAS") || text.contains("replicas"), "{text}");
    assert_eq!(bench.keys(), [""; 0]);
}

#[tokio::test]
async fn f36_revoked_rights_are_an_auth_error_and_the_lock_is_lost_at_its_deadline() {
    let bench = Bench::with(RedisServer::options().user("app", "secret", "~* &* +@all"));
    let engine = Redis::tcp("127.0.0.1", bench.server.port()).username("app").password("secret").build().unwrap();
    let locker = locker_of(engine).await;
    let guard = locker.lock("a").await.expect("granted");
    bench.command("ACL SETUSER app -evalsha -eval");
    let (kind, text) = try_fails(&locker, "b").await;
    assert_eq!(kind, ErrorKind::Auth, "{text}");
    assert!(text.contains("evalsha"), "it names the command: {text}");
    assert_eq!(timeout(TEST_LIMIT, guard.lost()).await.expect("notified"), LossReason::Expired);
}

#[tokio::test]
async fn f36_a_right_missing_halfway_in_a_script_leaves_no_queue_place() {
    let bench = Bench::with(RedisServer::options().user("app", "secret", "~* &* +@all -setrange"));
    let engine = Redis::tcp("127.0.0.1", bench.server.port()).username("app").password("secret").build().unwrap();
    let locker = locker_of(engine).await;
    let guard = bench.direct().await.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let error = locker.lock("a").wait(TEST_LIMIT).await.expect_err("no right to record the waiter");
    assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
    assert_eq!(bench.keys(), ["a"]);
    guard.unlock().await.expect("released");
}

#[tokio::test]
async fn f36_a_wrong_password_is_an_auth_error_at_once() {
    let bench = Bench::with(RedisServer::options().password("right"));
    let url = |password: &str| format!("redis://:{password}@127.0.0.1:{}/", bench.server.port());
    let asked = now();
    let error = Locker::connect(&url("wrong")).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
    assert!(now().since(asked) < ms(2000));
    assert!(!format!("{error} {error:?}").contains("wrong"));
    assert!(!format!("{error:?}").contains("right"));
    Locker::connect(&url("right")).await.expect("connected");
}

#[tokio::test]
async fn f37_a_server_at_its_client_limit_serves_its_connected_clients() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let guard = locker.lock("a").await.expect("granted");
    let mut control = bench.server.client().expect("a connection");
    control.command(&["CONFIG", "SET", "maxclients", "3"]).expect("set");
    let url = format!("redis://127.0.0.1:{}/", bench.server.port());
    let error = Locker::connect(&url).await.expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    sleep(TTL).await;
    guard.unlock().await.expect("renewed and released");
    control.command(&["CONFIG", "SET", "maxclients", "1000"]).expect("set");
    Locker::connect(&url).await.expect("room again");
}

#[tokio::test]
async fn f38_a_half_open_connection_is_replaced_within_half_a_second() {
    let bench = Bench::start();
    let locker = bench.behind_proxy().await;
    let guard = locker.lock("held").ttl(ms(3000)).await.expect("granted");
    let deadline = guard.deadline().expect("a lease");
    let before = bench.proxy.counts().accepted;
    bench.proxy.freeze();
    let frozen = now();
    let waiting = tokio::spawn(locker.lock("a").into_future());
    while bench.proxy.counts().accepted == before {
        assert!(now().since(frozen) < TEST_LIMIT, "never dialled again");
        sleep(ms(5)).await;
    }
    let noticed = now().since(frozen);
    assert!(noticed < ms(900), "noticed after {noticed:?}");
    bench.proxy.pass();
    let next = timeout(TEST_LIMIT, waiting).await.expect("in time").expect("no panic").expect("granted");
    next.unlock().await.expect("released");
    // Its first lease passes, and the lock is kept.
    while now() < deadline {
        sleep(ms(50)).await;
    }
    guard.unlock().await.expect("renewed in time and released");
}

#[tokio::test]
async fn f39_a_claim_executed_by_a_thawed_server_is_withdrawn() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let until = now().after(TEST_LIMIT);
    // The claim is granted only if it is not too old by then; on a slow machine it is repeated.
    let fence = || bench.command("GET {distlock}:f").text();
    let before = fence();
    while fence() == before {
        assert!(now() < until, "every claim came too late");
        bench.server.stop();
        // With a lease that outlasts the test: only a withdrawal frees it.
        let claim = timeout(ms(150), locker.lock("a").ttl(TEST_LIMIT * 2).into_future()).await;
        assert!(claim.is_err(), "no reply, and the claim was dropped");
        bench.server.cont();
        bench.expect_nothing_left().await;
    }
    let next = bench.direct().await.lock("a").wait(TEST_LIMIT).await.expect("free");
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn f39_a_server_that_thaws_in_time_loses_no_lock() {
    let bench = Bench::start();
    let (locker, other) = (bench.direct().await, bench.direct().await);
    let guard = locker.lock("held").ttl(ms(9000)).await.expect("granted");
    let deadline = guard.deadline();
    bench.server.stop();
    // With a lease that outlasts the test: only a withdrawal frees it, or a refusal as too late.
    let error = other.try_lock("a").ttl(TEST_LIMIT * 2).await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    while guard.state() == HoldState::Held {
        sleep(ms(10)).await;
    }
    assert_eq!(guard.state(), HoldState::AtRisk, "a renewal was not answered");
    bench.server.cont();
    while guard.deadline() == deadline {
        guard.check().expect("renewed before its lease ends");
        sleep(ms(10)).await;
    }
    assert_eq!(guard.state(), HoldState::Held);
    let next = other.lock("a").wait(TEST_LIMIT).await.expect("nothing of the unanswered claim is left");
    next.unlock().await.expect("released");
    guard.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f39_a_lock_on_a_server_frozen_past_its_lease_is_lost_in_time() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let guard = locker.lock("a").await.expect("granted");
    bench.server.stop();
    let reason = timeout(TTL * 2, guard.lost()).await.expect("notified at the deadline, without any reply");
    assert_eq!(reason, LossReason::Expired);
    assert!(now() >= guard.deadline().expect("a lease"));
    bench.server.cont();
}

#[tokio::test]
async fn f41_a_lost_subscription_is_renewed_and_its_waiters_claim_again() {
    let bench = Bench::start();
    let (holder, other) = (bench.direct().await, bench.direct().await);
    let guard = holder.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let waiter = tokio::spawn(other.lock("a").ttl(TEST_LIMIT).into_future());
    while bench.command("EXISTS {a}:q").int() == 0 {
        sleep(ms(5)).await;
    }
    bench.command("CLIENT KILL TYPE pubsub");
    sleep(ms(500)).await;
    let released = now();
    guard.unlock().await.expect("released");
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    assert!(now().since(released) < ms(1500), "notified after {:?}", now().since(released));
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn f41_a_message_missed_without_a_subscription_is_found_by_a_new_claim() {
    let bench = Bench::start();
    let (holder, other) = (bench.direct().await, bench.direct().await);
    let guard = holder.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let waiter = tokio::spawn(other.lock("a").ttl(TEST_LIMIT).into_future());
    while bench.command("EXISTS {a}:q").int() == 0 {
        sleep(ms(5)).await;
    }
    bench.command("CLIENT KILL TYPE pubsub");
    // At once: no waiter receives the message that it is free.
    let released = now();
    drop(guard.unlock().await);
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    // The fallback poll comes after a third of the heartbeat of 20 s.
    assert!(now().since(released) < ms(4000), "after {:?}", now().since(released));
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn f41_a_lost_message_delays_until_the_next_poll_at_most() {
    let bench = Bench::start();
    let (holder, other) = (bench.direct().await, bench.behind_proxy().await);
    let guard = holder.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let waiter = tokio::spawn(other.lock("a").ttl(ms(3000)).into_future());
    while bench.command("EXISTS {a}:q").int() == 0 {
        sleep(ms(5)).await;
    }
    bench.proxy.drop_replies();
    let before = guard.fencing_token();
    guard.unlock().await.expect("released");
    sleep(ms(30)).await;
    bench.proxy.pass();
    let next = timeout(TEST_LIMIT / 2, waiter).await.expect("in time").expect("no panic").expect("granted");
    assert!(next.fencing_token() > before);
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn f42_killed_connections_are_replaced() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let guard = locker.lock("held").await.expect("granted");
    for _ in 0..5 {
        bench.command("CLIENT KILL TYPE normal SKIPME yes");
        bench.command("CLIENT KILL TYPE pubsub");
        locker.lock("a").wait(TEST_LIMIT).await.expect("granted").unlock().await.expect("released");
    }
    assert!(!guard.is_lost());
    guard.unlock().await.expect("released");
}

#[tokio::test]
async fn f69_a_blocked_application_thread_keeps_its_lock() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let guard = locker.lock("a").await.expect("granted");
    // Not a sleep of the runtime: none of its tasks run in the meantime.
    std::thread::sleep(TTL * 2);
    assert!(!guard.is_lost(), "renewed by the keeper");
    guard.unlock().await.expect("released");
    let guard = locker.lock("a").wait(TEST_LIMIT).await.expect("the connection moved and serves");
    guard.unlock().await.expect("released");
}

#[tokio::test]
async fn f69_an_extension_that_is_never_polled_again_delays_no_renewal() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let (extended, renewed) = (locker.lock("a").await.expect("granted"), locker.lock("b").await.expect("granted"));
    // The second of two extensions in a row is held back for a moment: it is not sent when it is polled once.
    extended.extend(TTL).await.expect("extended");
    let mut extension = Box::pin(extended.extend(TTL));
    assert!(poll_once(extension.as_mut()).await.is_none(), "it waits");
    std::thread::sleep(TTL * 2);
    assert!(!renewed.is_lost(), "renewed by the keeper");
    drop(extension);
    renewed.unlock().await.expect("released");
}

/// Polls a future once. Returns its output if it is ready.
async fn poll_once<F: Future + Unpin>(mut future: F) -> Option<F::Output> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut future).poll(context) {
            std::task::Poll::Ready(output) => Some(output),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[tokio::test]
async fn an_unreachable_server_is_an_error_at_once() {
    let port = distlock_testkit::servers::Port::free().number();
    let asked = now();
    let error = Locker::connect(&format!("redis://127.0.0.1:{port}/")).await.expect_err("no server listens");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(now().since(asked) < ms(2000));
    assert!(error.to_string().contains(&port.to_string()), "{error}");
}

#[tokio::test]
async fn a_unix_socket_and_a_url_work() {
    let bench = Bench::start();
    let locker = Locker::connect(&format!("{}?db=2&prefix=app:", bench.server.unix_url())).await.expect("connected");
    let other = Locker::connect(&format!("valkey://127.0.0.1:{}/2?prefix=app:&protocol=2", bench.server.port())).await;
    let guard = locker.lock("a").await.expect("granted");
    assert!(other.expect("connected").try_lock("a").await.expect("no failure").is_none());
    assert_eq!(bench.command("DBSIZE").int(), 0, "database 0 is not theirs");
    guard.unlock().await.expect("released");
    assert!(connected(bench.server.port()).await.try_lock("a").await.expect("no failure").is_some());
}

#[tokio::test]
async fn a_history_expires_and_foreign_keys_are_kept() {
    let bench = Bench::start();
    let locker = Locker::connect(&format!("{}?history=10", bench.server.url())).await.unwrap();
    bench.command("SET {b}:j mine");
    for key in ["a", "b"] {
        locker.lock(key).await.expect("granted").unlock().await.expect("whatever stands beside it");
    }
    locker.close().await.expect("closed");
    assert_eq!(bench.command("XLEN {a}:j").int(), 2);
    let left = bench.command("PTTL {a}:j").int();
    assert!((6 * 24 * 3_600_000..=7 * 24 * 3_600_000).contains(&left), "{left} ms");
    assert_eq!(bench.command("GET {b}:j").text(), "mine");
    let error = bench.direct().await.inspect().history("b", 10).await.expect_err("not ours");
    assert!(!error.may_be_applied(), "{error}");
}
