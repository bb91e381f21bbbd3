//! The fence, which all locks behind a prefix share outside clusters.

use std::collections::BTreeMap;
use std::future::IntoFuture;

use distlock::ErrorKind;
use distlock::backend::redis::Redis;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, locker_of, ms};

const FENCE: &str = "{distlock}:f";

#[tokio::test]
async fn locks_of_one_prefix_share_a_fence_and_leave_nothing_else() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let mut last = 0;
    for number in 0..50 {
        let guard = locker.lock(format!("invoice:{number}")).await.expect("granted");
        let token = guard.fencing_token().get();
        assert!(token > last, "tokens rise from lock to lock");
        assert_eq!(bench.command(&format!("GET {FENCE}")).text(), token.to_string());
        last = token;
        guard.unlock().await.expect("released");
    }
    assert_eq!(bench.command("KEYS *").to_string(), FENCE, "one key for all names");
    let prefixed = locker_of(Redis::tcp("127.0.0.1", bench.server.port()).prefix("app:").build().expect("an engine"));
    drop(prefixed.await);
    assert_eq!(bench.command("EXISTS {app:distlock}:f").int(), 1, "each prefix has its own");
}

#[tokio::test]
async fn f67_an_invalid_fence_is_named_and_stops_its_prefix_only() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    let other =
        locker_of(Redis::tcp("127.0.0.1", bench.server.port()).prefix("app:").build().expect("an engine")).await;
    bench.command(&format!("SET {FENCE} 9223372036854775807"));
    for key in ["a", "b"] {
        let error = locker.try_lock(key).await.expect_err("no token can be made");
        assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
        assert!(error.to_string().contains(FENCE), "{error}");
    }
    other.lock("a").await.expect("another prefix").unlock().await.expect("released");
    bench.command(&format!("DEL {FENCE}"));
    locker.lock("a").await.expect("as the message advises").unlock().await.expect("released");
}

#[tokio::test]
async fn grants_of_one_lock_in_one_call_have_different_tokens() {
    let bench = Bench::start();
    let locker = bench.behind_proxy().await;
    // The first goes out alone; while it is on its way the others gather.
    bench.proxy.delay(ms(20));
    let before = bench.server.calls("evalsha");
    let ask = |number: usize| tokio::spawn(locker.clone().read(["a", "b"][number % 2]).into_future());
    let mut tokens = BTreeMap::<_, Vec<_>>::new();
    let mut guards = Vec::new();
    for request in (0..16).map(ask).collect::<Vec<_>>() {
        let guard = timeout(TEST_LIMIT, request).await.expect("in time").expect("no panic").expect("granted");
        tokens.entry(guard.key().clone()).or_default().push(guard.fencing_token());
        guards.push(guard);
    }
    assert!(bench.server.calls("evalsha") - before < 8, "they did not share calls");
    for (key, mut tokens) in tokens {
        tokens.sort();
        tokens.dedup();
        assert_eq!(tokens.len(), 8, "{key}: a token was granted twice");
    }
}
