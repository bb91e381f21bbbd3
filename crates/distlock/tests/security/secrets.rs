//! Passwords appear in no log line.

use std::time::Duration;

use distlock::Locker;
use distlock::backend::postgres::Postgres;
use distlock_testkit::servers::{Data, EtcdServer, PostgresServer, RedisServer};

use crate::in_time;
use crate::log_kit::Log;

const PASSWORD: &str = "hunter2-s3cret";

/// Takes a lock, loses the server and asks again; returns all output about it.
async fn life(url: &str, fail: impl FnOnce()) -> String {
    let mut said = String::new();
    match in_time(url, Locker::connect(url)).await {
        Ok(locker) => {
            said += &format!("{locker:?}");
            let guard = locker.lock("a").ttl(Duration::from_secs(3)).await;
            said += &format!("{guard:?}");
            fail();
            let later = locker.try_lock("b").await;
            said += &format!("{later:?}");
            if let Ok(guard) = guard {
                let reason = in_time(url, guard.lost()).await;
                said += &format!("{reason:?} {:?}", guard.unlock().await);
            }
        }
        Err(error) => said += &format!("{error} {error:?} {:?}", std::error::Error::source(&error)),
    }
    said
}

#[tokio::test(flavor = "multi_thread")]
async fn no_password_is_in_any_log_line_error_or_debug_output() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_ansi(false);
    subscriber.with_writer(move || writer.clone()).init();

    let mut redis = RedisServer::options().password(PASSWORD).start();
    let url = redis.url();
    let mut said = life(&url, || redis.kill9()).await;
    redis.restart(Data::Lost);
    said += &life(&url.replace(PASSWORD, &format!("{PASSWORD}-wrong")), || {}).await;
    let mut etcd = EtcdServer::options().auth(PASSWORD).start();
    let url = etcd.url();
    said += &life(&url, || etcd.kill9()).await;
    said += &life(&url, || {}).await;
    etcd.restart(Data::Kept);
    said += &life(&url.replace(PASSWORD, &format!("{PASSWORD}-wrong")), || {}).await;
    let mut postgres = PostgresServer::options().password(PASSWORD).start();
    let url = postgres.url();
    let config = distlock::Config::from_url(&url).expect("a URL");
    in_time(&url, distlock::set_up(&config)).await.expect("made");
    said += &life(&url, || postgres.crash()).await;
    said += &format!("{:?}", in_time(&url, distlock::set_up(&config)).await);
    postgres.restart();
    said += &life(&url.replace(PASSWORD, &format!("{PASSWORD}-wrong")), || {}).await;
    let builder = || Postgres::tcp("127.0.0.1", postgres.port()).user("postgres").password(PASSWORD);
    let engine = builder().build().expect("an engine");
    said += &format!("{config:?} {:?} {engine:?} {:?}", builder(), engine.handle());

    let log = log.text();
    assert!(log.contains("lock lost") && log.contains("lock renewal failed"), "there is something to look at: {log}");
    // Including the output of the client crates.
    for line in log.lines().chain(said.lines()) {
        assert!(!line.contains("hunter2"), "{line}");
    }
}
