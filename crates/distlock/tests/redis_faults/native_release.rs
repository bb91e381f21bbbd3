//! Releases by a native compare-and-delete: what they end, and what they leave to the scripts.

use std::future::IntoFuture;

use distlock::backend::redis::{Protocol, Redis};
use distlock::{Config, ErrorKind, LockGuard, Locker};
use distlock_testkit::conformance::record_skip;
use distlock_testkit::servers::{RedisCluster, RedisServer};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, connected, locker_of, ms, now, sleep};
use crate::natives::listed;

/// Returns the native command of a server, in the lower case of its statistics; records `test` as skipped where it has
/// none.
fn native_of(server: &RedisServer, test: &str) -> Option<String> {
    let native = listed(server).map(str::to_lowercase);
    if native.is_none() {
        record_skip(&format!("redis_faults/{test}: a server with a native compare-and-delete"));
    }
    native
}

/// A server with a native command, and that command; `None` where the server has none.
fn start(test: &str) -> Option<(Bench, String)> {
    let bench = Bench::start();
    let native = native_of(&bench.server, test)?;
    Some((bench, native))
}

/// Returns a lock that no renewal or expiry touches during a test.
async fn hold(locker: &Locker, key: &str) -> LockGuard {
    locker.lock(key).ttl(TEST_LIMIT * 3).watchdog(false).await.expect("granted")
}

/// Unlocks, and returns how many native commands and how many scripts that took.
async fn unlock(bench: &Bench, native: &str, guard: LockGuard) -> (u64, u64) {
    let calls = || (bench.server.calls(native), bench.server.calls("evalsha") + bench.server.calls("eval"));
    let before = calls();
    guard.unlock().await.expect("released");
    let after = calls();
    (after.0 - before.0, after.1 - before.1)
}

#[tokio::test]
async fn a_lock_without_waiters_is_released_by_the_native_command_alone() {
    let Some((bench, native)) = start("a_lock_without_waiters_is_released_by_the_native_command_alone") else { return };
    let port = bench.server.port();
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let locker = locker_of(Redis::tcp("127.0.0.1", port).protocol(protocol).build().expect("an engine")).await;
        let long = |key: &str| locker.lock(key).ttl(TEST_LIMIT * 3).watchdog(false);
        let mut guards = vec![
            long("plain").await.expect("granted"),
            long("labelled").label("\"eod\" {}").await.expect("granted"),
            long("delayed").lock_delay(ms(100)).await.expect("granted"),
        ];
        guards[0].extend(TEST_LIMIT * 4).await.expect("extended");
        let former = long("adopted").await.expect("granted");
        guards.push(connected(port).await.adopt(&former.export()).await.expect("adopted"));
        for guard in guards {
            let key = guard.key().to_owned();
            assert_eq!(unlock(&bench, &native, guard).await, (1, 0), "{key}, {protocol:?}");
        }
        let together = locker.lock_all(["x", "y"]).ttl(TEST_LIMIT * 3).await.expect("granted");
        let before = bench.server.calls("evalsha");
        together.unlock().await.expect("released");
        assert!(bench.server.calls("evalsha") <= before + 1, "the second may be a script, beside the first");
        bench.expect_nothing_left().await;
    }
}

#[tokio::test]
async fn releases_of_one_moment_share_a_script() {
    let Some((bench, native)) = start("releases_of_one_moment_share_a_script") else { return };
    let locker = bench.behind_proxy().await;
    let mut guards = Vec::new();
    for number in 0..32 {
        guards.push(hold(&locker, &format!("lock:{number}")).await);
    }
    let before = (bench.server.calls(&native), bench.server.calls("evalsha"));
    bench.proxy.delay(ms(50));
    let mut tasks = JoinSet::new();
    for guard in guards {
        tasks.spawn(async move { guard.unlock().await.expect("released") });
    }
    timeout(TEST_LIMIT, tasks.join_all()).await.expect("in time");
    let natives = bench.server.calls(&native) - before.0;
    assert!(natives < 8, "{natives} of 32 releases were sent alone");
    assert!(bench.server.calls("evalsha") - before.1 < 16, "the others did not share calls");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f05_a_native_release_spares_a_lock_that_is_not_as_it_was_granted() {
    let test = "f05_a_native_release_spares_a_lock_that_is_not_as_it_was_granted";
    let Some((bench, native)) = start(test) else { return };
    let (locker, other) = (bench.direct().await, bench.direct().await);
    let gone = "DEL e";
    // A lock of its own for each: one that was taken away counts as contended for a moment.
    for taken in ["SET a x", "SET b x PX 60000", "LPUSH c x", "HSET d x y", gone] {
        let key = taken.split(' ').nth(1).expect("a key");
        let guard = hold(&locker, key).await;
        bench.command(&format!("DEL {key}"));
        bench.command(taken);
        let look = || bench.command(&format!("DUMP {key}"));
        let (before, calls) = (look(), bench.server.calls(&native));
        let error = guard.unlock().await.expect_err("it was taken away");
        assert_eq!(error.kind(), ErrorKind::Lost, "{taken}: {error}");
        assert_eq!(look(), before, "{taken}");
        assert_eq!(bench.server.calls(&native), calls + 1, "{taken}: the script decided after the native command");
        bench.command(&format!("DEL {key}"));
    }
    let guard = hold(&locker, "f").await;
    bench.command("DEL f");
    let next = hold(&other, "f").await;
    let value = bench.command("GET f").text();
    guard.unlock().await.expect_err("another holder has it");
    assert_eq!(bench.command("GET f").text(), value);
    next.unlock().await.expect("the other hold is as it was");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn a_native_release_leaves_a_lock_with_waiters_to_the_script_that_hands_it_over() {
    let test = "a_native_release_leaves_a_lock_with_waiters_to_the_script_that_hands_it_over";
    let Some((bench, native)) = start(test) else { return };
    let (locker, other) = (bench.direct().await, bench.direct().await);
    let guard = hold(&locker, "a").await;
    let waiting = tokio::spawn(other.lock("a").ttl(TEST_LIMIT * 3).into_future());
    let until = now().after(TEST_LIMIT);
    while bench.command("GETRANGE a 32 32").text() != "+" {
        assert!(now() < until, "no waiter has marked the lock");
        sleep(ms(5)).await;
    }
    assert_eq!(unlock(&bench, &native, guard).await.0, 1, "its holder does not know of the waiter");
    let next = timeout(TEST_LIMIT, waiting).await.expect("in time").expect("no panic").expect("handed over");
    assert!(bench.command("GET a").text().contains(&format!(" {} ", next.fencing_token())));
    next.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn a_relabelled_lock_is_released() {
    let Some((bench, native)) = start("a_relabelled_lock_is_released") else { return };
    let guard = hold(&bench.direct().await, "a").await;
    guard.relabel("another").await.expect("relabelled");
    let calls = unlock(&bench, &native, guard).await;
    assert_eq!(calls, (1, 1), "its value is not the one that the claim wrote, so a script follows");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f04_a_native_release_with_a_lost_reply_is_repeated_without_harm() {
    let Some((bench, native)) = start("f04_a_native_release_with_a_lost_reply_is_repeated_without_harm") else {
        return;
    };
    let locker = bench.behind_proxy().await;
    let guard = hold(&locker, "a").await;
    let before = bench.server.calls(&native);
    bench.proxy.drop_replies();
    let error = guard.unlock().await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert!(bench.server.calls(&native) > before, "the native command was carried out");
    let other = bench.direct().await;
    let next = hold(&other, "a").await;
    let held = bench.command("GET a").text();
    // The script that follows a repeat reads whose the lock is; nothing else does here.
    let (looks, until) = (bench.server.calls("getrange"), now().after(TEST_LIMIT));
    bench.proxy.pass();
    while bench.server.calls("getrange") == looks {
        assert!(now() < until, "the release is not repeated");
        sleep(ms(10)).await;
    }
    assert_eq!(bench.command("GET a").text(), held, "the repeated release does not end the next hold");
    next.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn a_user_without_the_right_to_the_native_command_releases_by_scripts() {
    let test = "a_user_without_the_right_to_the_native_command_releases_by_scripts";
    let bench = Bench::with(RedisServer::options().user("app", "secret", "~* &* +@all"));
    let Some(native) = native_of(&bench.server, test) else { return };
    let connect = || {
        let engine = Redis::tcp("127.0.0.1", bench.server.port()).username("app").password("secret");
        locker_of(engine.build().expect("an engine"))
    };
    let refused = || {
        let stats = bench.server.info("commandstats", &format!("cmdstat_{native}")).unwrap_or_default();
        let number = stats.split(',').find_map(|part| part.strip_prefix("rejected_calls=")?.parse::<u64>().ok());
        number.unwrap_or(0)
    };
    let locker = connect().await;
    assert_eq!(unlock(&bench, &native, hold(&locker, "a").await).await, (1, 0));
    bench.command(&format!("ACL SETUSER app -{native}"));
    let before = refused();
    // One refusal is enough to know it.
    for _ in 0..3 {
        assert_eq!(unlock(&bench, &native, hold(&locker, "a").await).await, (0, 1));
    }
    assert_eq!(refused(), before + 1);
    // The right is missing from the start: two connections try it, and no release.
    let late = connect().await;
    let before = refused();
    assert_eq!(unlock(&bench, &native, hold(&late, "a").await).await, (0, 1));
    assert_eq!(refused(), before);
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn the_locks_of_a_cluster_are_released_by_the_native_command() {
    let cluster = RedisCluster::start();
    let test = "the_locks_of_a_cluster_are_released_by_the_native_command";
    let Some(native) = native_of(&cluster.nodes()[0], test) else { return };
    let config = Config::from_url(&cluster.url()).expect("a good URL");
    let locker = Locker::from_config(&config).await.expect("connected");
    let mut guards = Vec::new();
    for number in 0..12 {
        guards.push(hold(&locker, &format!("lock:{number}")).await);
    }
    let calls = |command: &str| cluster.nodes().iter().map(|node| node.calls(command)).sum::<u64>();
    let before = (calls(&native), calls("evalsha"));
    for guard in guards {
        guard.unlock().await.expect("released");
    }
    assert_eq!((calls(&native) - before.0, calls("evalsha") - before.1), (12, 0));
    // A node that is not asked any more redirects the release.
    let guard = hold(&locker, "a").await;
    let slot = cluster.slot("a");
    let (from, to) = (cluster.owner(slot), (cluster.owner(slot) + 1) % cluster.nodes().len());
    cluster.move_slot(slot, to);
    guard.unlock().await.expect("released on the other node");
    assert_eq!([from, to].map(|node| cluster.nodes()[node].command(&["EXISTS", "a"]).to_string() == "1"), [false; 2]);
}
