//! Concurrent claims and releases of many tasks.

use std::collections::BTreeSet;
use std::future::IntoFuture;

use distlock::{ErrorKind, Locker};
use distlock_testkit::poll_times;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, ms, sleep};

const TASKS: usize = 64;
const ROUNDS: usize = 20;

fn name(number: usize) -> String {
    format!("lock:{number}")
}

#[tokio::test]
async fn concurrent_locks_share_calls_and_get_their_own_replies() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let before = bench.server.calls("evalsha");
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let locker = locker.clone();
        tasks.spawn(async move {
            let mut tokens = BTreeSet::new();
            for _ in 0..ROUNDS {
                let guard = locker.lock(name(number)).await.expect("granted");
                assert_eq!(guard.key().as_str(), name(number));
                tokens.insert(guard.fencing_token());
                guard.unlock().await.expect("released");
            }
            assert_eq!(tokens.len(), ROUNDS, "a token came twice");
        });
    }
    timeout(TEST_LIMIT, tasks.join_all()).await.expect("in time");
    let calls = bench.server.calls("evalsha") - before;
    let alone = (2 * TASKS * ROUNDS) as u64;
    assert!(calls * 3 < alone, "{calls} calls for {alone} requests");
    bench.expect_nothing_left().await;
}

/// Starts locking `name(0..count)`, the first of them alone and the others in a batch.
fn lock_all(locker: &Locker, count: usize) -> Vec<distlock::RequestFuture<distlock::LockGuard>> {
    // Leases that outlast the test: only a release or a withdrawal ends them.
    (0..count).map(|number| locker.clone().lock(name(number)).ttl(TEST_LIMIT * 3).into_future()).collect()
}

#[tokio::test]
async fn f07_claims_dropped_in_a_batch_fail_no_others_and_leave_nothing() {
    let bench = Bench::start();
    let locker = bench.behind_proxy().await;
    bench.proxy.delay(ms(5));
    // Dropped before they are sent, while they are in flight, and after the reply.
    for (polls, pause) in [(1, 0), (1, 3), (1, 12), (1, 30), (2, 30)] {
        let mut kept = Vec::new();
        let mut dropped = Vec::new();
        for (number, mut request) in lock_all(&locker, TASKS).into_iter().enumerate() {
            match poll_times(polls, &mut request).await {
                Some(granted) => drop(granted.expect("granted")),
                None if number % 3 == 1 => dropped.push(request),
                None => kept.push(tokio::spawn(request)),
            }
        }
        sleep(ms(pause)).await;
        drop(dropped);
        for request in kept {
            let guard = timeout(TEST_LIMIT, request).await.expect("in time").expect("no panic").expect("granted");
            guard.unlock().await.expect("released");
        }
        bench.expect_nothing_left().await;
    }
}

#[tokio::test]
async fn f34_the_error_of_a_request_fails_no_other_in_its_batch() {
    let bench = Bench::start();
    let locker = bench.behind_proxy().await;
    bench.command(&format!("RPUSH {{{}}}:q film", name(5)));
    bench.proxy.delay(ms(20));
    let before = bench.server.calls("evalsha");
    let requests: Vec<_> = lock_all(&locker, 12).into_iter().map(tokio::spawn).collect();
    for (number, request) in requests.into_iter().enumerate() {
        let outcome = timeout(TEST_LIMIT, request).await.expect("in time").expect("no panic");
        match outcome {
            Ok(guard) => assert_ne!(number, 5, "{guard:?}"),
            Err(error) => {
                assert_eq!(number, 5, "{error}");
                assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
            }
        }
    }
    assert!(bench.server.calls("evalsha") - before < 12, "they did not share a call");
}

#[tokio::test]
async fn f42_a_broken_connection_under_many_requests_fails_none() {
    let bench = Bench::start();
    let locker = bench.behind_proxy().await;
    bench.proxy.delay(ms(10));
    let requests: Vec<_> = lock_all(&locker, TASKS).into_iter().map(tokio::spawn).collect();
    sleep(ms(15)).await;
    bench.proxy.cut();
    for request in requests {
        let guard = timeout(TEST_LIMIT, request).await.expect("in time").expect("no panic").expect("granted");
        drop(guard.unlock().await);
    }
    bench.expect_nothing_left().await;
}
