//! Grants that must reach replicas (`wait_replicas`).

use std::future::IntoFuture;

use distlock::{Config, ErrorKind, Locker};
use distlock_testkit::servers::RedisServer;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, TTL, locker_of, ms, now, sleep};
use crate::links::Relays;

/// Returns a server with a replica in sync, and a locker that requires `needed` replicas for each grant.
async fn replicated(needed: u32) -> (Bench, RedisServer, Locker) {
    let bench = Bench::start();
    let replica = RedisServer::options().replica_of(bench.server.address()).start();
    replica.expect_in_sync();
    let locker = wanting(&bench, needed).await;
    (bench, replica, locker)
}

async fn wanting(bench: &Bench, needed: u32) -> Locker {
    let url = format!("redis://127.0.0.1:{}/?wait_replicas={needed}", bench.server.port());
    let mut config = Config::from_url(&url).expect("a good URL");
    (config.default_ttl, config.max_retries) = (Some(TTL * 20), Some(100));
    config.retry_interval = Some(ms(50));
    Locker::from_config(&config).await.expect("connected")
}

#[tokio::test]
async fn f25_a_grant_counts_when_enough_replicas_have_it() {
    let (bench, replica, locker) = replicated(1).await;
    let guard = locker.lock("a").await.expect("granted");
    assert_eq!(replica.command(&["GET", "a"]).text(), bench.command("GET a").text(), "the replica has it, too");
    guard.unlock().await.expect("released");

    // The same for shared locks.
    let reader = locker.read("a").await.expect("granted");
    assert_eq!(replica.command(&["EXISTS", "a"]).int(), 1);
    reader.unlock().await.expect("released");

    // A lagging replica: the grant counts only when it has caught up.
    replica.stop();
    let waiting = tokio::spawn(locker.lock("b").into_future());
    let until = now().after(TEST_LIMIT);
    while bench.server.calls("wait") < 3 && bench.server.command(&["EXISTS", "b"]).int() == 0 {
        assert!(now() < until, "never claimed");
        sleep(ms(5)).await;
    }
    sleep(ms(100)).await;
    assert!(!waiting.is_finished(), "granted though no replica has it");
    replica.cont();
    let guard = timeout(TEST_LIMIT, waiting).await.expect("in time").expect("no panic").expect("granted");
    assert_eq!(replica.command(&["EXISTS", "b"]).int(), 1);
    guard.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f25_a_grant_on_too_few_replicas_is_released() {
    let (bench, replica, locker) = replicated(1).await;
    replica.stop();
    let error = locker.try_lock("a").await.expect_err("the replica does not answer");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("0 of 1 replicas acknowledged"), "{error}");
    assert_eq!(bench.keys(), [""; 0], "given back before it was said");
    replica.cont();
    locker.lock("a").wait(TEST_LIMIT).await.expect("granted again").unlock().await.expect("released");

    let greedy = wanting(&bench, 2).await;
    let error = greedy.try_lock("a").await.expect_err("there is only one");
    assert!(error.to_string().contains("1 of 2 replicas acknowledged"), "{error}");
    assert_eq!(bench.keys(), [""; 0]);
}

#[tokio::test]
async fn f25_a_handed_over_lock_must_reach_replicas() {
    let (bench, replica, locker) = replicated(1).await;
    let plain = bench.direct().await;
    let guard = plain.lock("a").ttl(TEST_LIMIT * 2).await.expect("granted");
    let waiter = tokio::spawn(locker.lock("a").wait(TEST_LIMIT).into_future());
    let until = now().after(TEST_LIMIT);
    while bench.command("EXISTS {a}:q").int() == 0 {
        assert!(now() < until, "no waiter is queued");
        sleep(ms(5)).await;
    }
    replica.stop();
    guard.unlock().await.expect("released");
    sleep(ms(600)).await;
    assert!(!waiter.is_finished(), "handed over though no replica has it");
    replica.cont();
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    next.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

/// Holds the release of a grant that did not count in the proxy until the locker holds the lock. Returns whether the
/// proxy stopped it in time.
async fn hold_release_up<T, F>(bench: &Bench, replica: &RedisServer, lock: impl FnOnce(&Locker) -> F) -> bool
where
    F: Future<Output = distlock::Result<T>> + Send + 'static,
    T: Send + 'static,
{
    let (relays, engine) = Relays::engine(bench.proxy.port());
    let locker = locker_of(engine.wait_replicas(1).build().expect("an engine")).await;
    let other = bench.direct().await;
    let confirmed = bench.server.calls("pexpire");
    replica.stop();
    let waiting = tokio::spawn(lock(&locker));
    let until = now().after(TEST_LIMIT);
    while bench.server.calls("pexpire") == confirmed {
        assert!(now() < until, "never granted");
        sleep(ms(1)).await;
    }
    // The server waits for the replica; the release comes after that.
    bench.proxy.hold_requests();
    while bench.proxy.counts().requests.held() < 200 {
        assert!(now() < until, "never released");
        sleep(ms(1)).await;
    }
    let is_caught = bench.command("EXISTS a").int() == 1;
    replica.cont();
    relays.break_all(bench.server.port());
    let guard = timeout(TEST_LIMIT, waiting).await.expect("in time").expect("no panic").expect("granted");
    let (held, scripts) = (bench.command("GET a").text(), bench.server.calls("evalsha"));
    bench.proxy.pass();
    while is_caught && bench.server.calls("evalsha") == scripts {
        assert!(now() < until.after(TEST_LIMIT), "the release never came");
        sleep(ms(1)).await;
    }
    assert_eq!(bench.command("GET a").text(), held, "a release of an earlier grant ended the hold");
    assert!(other.try_lock("a").await.expect("no failure").is_none(), "two have it");
    drop(guard);
    bench.expect_nothing_left().await;
    is_caught
}

/// Retries until the release was stopped in time.
#[tokio::test]
async fn f74_a_stuck_release_does_not_end_a_later_grant() {
    let (bench, replica, _) = replicated(1).await;
    let mut tries = 0..5;
    let one = |locker: &Locker| locker.lock("a").ttl(TEST_LIMIT * 10).into_future();
    while !hold_release_up(&bench, &replica, one).await {
        assert!(tries.next().is_some(), "no release was stopped on its way");
    }
}

#[tokio::test]
async fn f74_a_stuck_release_does_not_end_a_later_grant_of_several() {
    let (bench, replica, _) = replicated(1).await;
    let mut tries = 0..5;
    let all = |locker: &Locker| locker.lock_all(["a", "b"]).ttl(TEST_LIMIT * 10).into_future();
    while !hold_release_up(&bench, &replica, all).await {
        assert!(tries.next().is_some(), "no release was stopped on its way");
    }
}
