//! Masters that change according to their sentinels.

use std::future::IntoFuture;

use distlock::backend::redis::Redis;
use distlock::{Config, ErrorKind, HoldState, Locker};
use distlock_testkit::servers::{RedisServer, SentinelSetup};
use tokio::time::timeout;

use crate::bench::{TEST_LIMIT, TTL, ms, now, sleep};

async fn connected(setup: &SentinelSetup) -> Locker {
    let mut config = Config::from_url(&setup.url()).expect("a good URL");
    (config.default_ttl, config.max_retries) = (Some(TTL), Some(100));
    let locker = Locker::from_config(&config).await.expect("connected");
    locker.lock("warm").await.expect("granted").unlock().await.expect("released");
    locker
}

async fn expect_queue(server: &RedisServer) {
    let until = now().after(TEST_LIMIT);
    while server.command(&["EXISTS", "{a}:q"]).int() == 0 {
        assert!(now() < until, "no waiter is queued");
        sleep(ms(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f25_a_failover_that_loses_the_lock_is_reported_and_tokens_rise() {
    let mut setup = SentinelSetup::start();
    let (locker, other) = (connected(&setup).await, connected(&setup).await);
    // Stopped and cut off: later writes of the master never reach them.
    setup.servers()[1..].iter().for_each(|replica| replica.stop());
    setup.servers()[0].command(&["CLIENT", "KILL", "TYPE", "replica"]);
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let waiter = tokio::spawn(other.lock("a").wait(TEST_LIMIT).into_future());
    expect_queue(&setup.servers()[0]).await;
    setup.servers_mut()[0].kill9();
    setup.servers()[1..].iter().for_each(|replica| replica.cont());
    timeout(TEST_LIMIT, guard.lost()).await.expect("notified by the new master");
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("claimed again");
    assert!(next.fencing_token() > guard.fencing_token());
    next.unlock().await.expect("released");
}

#[tokio::test(flavor = "multi_thread")]
async fn f27_the_client_moves_to_the_new_master_and_keeps_the_lock() {
    let setup = SentinelSetup::start();
    let (locker, other) = (connected(&setup).await, connected(&setup).await);
    let guard = locker.lock("a").await.expect("granted");
    let waiter = tokio::spawn(other.lock("a").wait(TEST_LIMIT).into_future());
    expect_queue(&setup.servers()[0]).await;
    let new = tokio::task::block_in_place(|| setup.failover());
    let until = now().after(TEST_LIMIT);
    while setup.servers()[new].calls("evalsha") + setup.servers()[new].calls("eval") == 0 {
        assert!(now() < until, "no client came to the new master");
        sleep(ms(5)).await;
    }
    assert_eq!(guard.state(), HoldState::Held, "the lock moved with its data");
    guard.unlock().await.expect("released on the new master");
    timeout(TEST_LIMIT, waiter)
        .await
        .expect("in time")
        .expect("no panic")
        .expect("granted")
        .unlock()
        .await
        .expect("released");
    assert_eq!(setup.servers()[new].command(&["EXISTS", "a"]).int(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_that_names_another_master_is_outvoted() {
    let (setup, other) = (SentinelSetup::start(), RedisServer::start());
    let [liar, honest @ ..] = setup.sentinels() else { panic!("no sentinels") };
    liar.command(&["SENTINEL", "REMOVE", "locks"]);
    liar.command(&["SENTINEL", "MONITOR", "locks", "127.0.0.1", &other.port().to_string(), "2"]);
    // It replies first, and the others disagree.
    honest.iter().for_each(|server| server.stop());
    let url = setup.url();
    let connecting = tokio::spawn(async move { Locker::connect(&url).await });
    sleep(ms(300)).await;
    honest.iter().for_each(|server| server.cont());
    let locker = match connecting.await.expect("no panic") {
        Ok(locker) => locker,
        // The machine was so slow that they were given up.
        Err(_) => Locker::connect(&setup.url()).await.expect("two of three agree"),
    };
    let guard = locker.lock("a").wait(TEST_LIMIT).await.expect("granted");
    assert_eq!(other.command(&["EXISTS", "a"]).int(), 0, "one of three was believed");
    assert_eq!(setup.servers()[0].command(&["EXISTS", "a"]).int(), 1);
    guard.unlock().await.expect("released");
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_with_a_password_get_it() {
    let setup = SentinelSetup::start();
    for sentinel in setup.sentinels() {
        sentinel.command(&["ACL", "SETUSER", "watcher", "on", ">s3cret", "~*", "&*", "+@all"]);
        sentinel.command(&["ACL", "SETUSER", "default", "off"]);
    }
    let ports: Vec<u16> = setup.sentinels().iter().map(RedisServer::port).collect();
    let builder = || Redis::sentinel(ports.iter().map(|port| ("127.0.0.1", *port)), "locks");
    let known = builder().sentinel_login(Some("watcher"), "s3cret").build().expect("an engine");
    let locker = Locker::new(known).expect("a locker");
    locker.lock("a").wait(TEST_LIMIT).await.expect("granted").unlock().await.expect("released");
    for stranger in [builder(), builder().sentinel_login(Some("watcher"), "hunter2")] {
        let locker = Locker::new(stranger.build().expect("an engine")).expect("a locker");
        let error = locker.try_lock("a").await.expect_err("sentinels do not speak to strangers");
        assert!(error.to_string().contains("do not agree on a master"), "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minority_of_sentinels_names_no_master() {
    let mut setup = SentinelSetup::start();
    let url = setup.url();
    setup.sentinels_mut()[..2].iter_mut().for_each(|sentinel| sentinel.kill9());
    let error = Locker::connect(&url).await.expect_err("one of three is no majority");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("do not agree on a master"), "{error}");
    let error = Locker::connect(&url.replace("/locks", "/nobody")).await.expect_err("no such service");
    assert!(error.to_string().contains("does not know the service"), "{error}");
}
