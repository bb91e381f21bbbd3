//! The commands that the engine sends, and whether they block others.

use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::time::Duration;

use distlock::Locker;

use crate::bench::{Bench, TEST_LIMIT, TTL, now, sleep};

/// Returns the names in a reply of the server, in lower case.
fn names(lines: &str) -> BTreeSet<String> {
    lines.lines().map(str::to_lowercase).collect()
}

/// Returns the commands that the server has executed since its statistics were reset.
fn used(bench: &Bench) -> BTreeSet<String> {
    let stats = bench.command("INFO commandstats").to_string();
    let name = |line: &str| line.strip_prefix("cmdstat_")?.split(':').next().map(str::to_owned);
    stats.lines().filter_map(name).collect()
}

#[tokio::test]
async fn f40_no_command_blocks_a_connection() {
    let bench = Bench::start();
    bench.command("CONFIG RESETSTAT");
    let (holder, other) = (bench.direct().await, bench.direct().await);
    let guard = holder.lock("a").await.expect("granted");
    let waiters: Vec<_> = (0..5).map(|_| tokio::spawn(other.clone().lock("a").into_future())).collect();
    while bench.command("ZCARD {a}:q").int() < 5 {
        sleep(Duration::from_millis(5)).await;
    }
    let blocked = bench.server.info("clients", "blocked_clients");
    assert_eq!(blocked.as_deref(), Some("0"), "five wait, and no connection is blocked");
    sleep(TTL).await;
    holder.inspect().list("").await.expect("listed");
    holder.inspect().force_release("a", guard.fencing_token(), "stuck").await.expect("forced");
    for waiter in waiters {
        waiter.await.expect("no panic").expect("granted").unlock().await.expect("released");
    }
    let blocking = names(&bench.command("COMMAND LIST FILTERBY ACLCAT blocking").to_string());
    assert!(blocking.contains("blpop") && blocking.contains("wait") == blocking.contains("waitaof"), "{blocking:?}");
    let used = used(&bench);
    assert!(used.contains("evalsha") && used.contains("publish") && used.contains("subscribe"), "{used:?}");
    let both: Vec<_> = used.intersection(&blocking).collect();
    assert!(both.is_empty() && !used.contains("wait"), "{both:?}");
}

/// Returns the median time of a lock and unlock.
async fn typical(locker: &Locker) -> Duration {
    let mut times = Vec::new();
    for _ in 0..60 {
        let asked = now();
        locker.lock("free").wait(TEST_LIMIT).await.expect("granted").unlock().await.expect("released");
        times.push(now().since(asked));
    }
    times.sort();
    times[times.len() / 2]
}

#[tokio::test]
async fn f40_waiters_do_not_delay_others_on_the_same_connection() {
    let bench = Bench::start();
    let (holder, locker) = (bench.direct().await, bench.direct().await);
    let guard = holder.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let before = typical(&locker).await;
    let request = || locker.clone().lock("a").ttl(TEST_LIMIT).into_future();
    let waiters: Vec<_> = (0..200).map(|_| tokio::spawn(request())).collect();
    while bench.command("ZCARD {a}:q").int() < 200 {
        sleep(Duration::from_millis(5)).await;
    }
    let beside = typical(&locker).await;
    let after = typical(&locker).await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "they wait all the time");
    // A blocking command would hold the connection for as long as the lock is held, which is thousands of times this.
    let most = before * 10 + Duration::from_millis(20);
    assert!(beside.min(after) < most, "{before:?} alone, {beside:?} and {after:?} beside 200 waiters");
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    guard.unlock().await.expect("released");
}
