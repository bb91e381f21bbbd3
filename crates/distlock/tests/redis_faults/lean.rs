//! The lean scripts: what they serve, and what they leave to the full ones.

use std::future::IntoFuture;
use std::time::Duration;

use distlock::Locker;
use distlock_testkit::servers::Reply;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, connected, ms, now, sleep};

const CLAIM: &str = include_str!("../../src/engines/redis/protocol/lean_claim.lua");
const RELEASE: &str = include_str!("../../src/engines/redis/protocol/lean_release.lua");
const FENCE: &str = "{distlock}:f";
/// A time at which no request is late.
const NEVER: &str = "9999999999999999";
/// The attempt of the claims, as their value begins.
const MINE: &str = "000102030405060708090a0b0c0d0e0f ";
const OTHER: &str = "ffffffffffffffffffffffffffffffff ";

/// Claims `locks` for a minute. Returns the server's clock, the token, and the list of claims for the full script.
fn claim(bench: &Bench, locks: &[&str], not_after: &str) -> (u64, u64, String) {
    let queues: Vec<_> = locks.iter().map(|lock| format!("{{{lock}}}:q")).collect();
    let keys = (2 * locks.len() + 1).to_string();
    let mut words = vec!["EVAL", CLAIM, &keys];
    words.extend(locks.iter().copied().chain(queues.iter().map(String::as_str)));
    words.extend([FENCE, "7", not_after, "60000"]);
    words.extend(locks.iter().flat_map(|_| [MINE, " - {}"]));
    let reply = bench.server.command(&words).text();
    let mut parts = reply.splitn(3, ' ');
    assert_eq!(parts.next(), Some("7"), "{reply}");
    let times = parts.next().expect("the clock");
    let (clock, token) = times.split_once('/').unwrap_or((times, times));
    (clock.parse().expect("a clock"), token.parse().expect("a token"), parts.next().unwrap_or("").to_owned())
}

/// Releases `locks`. Returns the list of releases for the full script.
fn release(bench: &Bench, locks: &[&str]) -> String {
    let keys = locks.len().to_string();
    let mut words = vec!["EVAL", RELEASE, &keys];
    words.extend(locks);
    words.push("7");
    words.extend(locks.iter().map(|_| MINE));
    let reply = bench.server.command(&words).text();
    reply.strip_prefix('7').unwrap_or_else(|| panic!("{reply}")).trim_start().to_owned()
}

fn dump(bench: &Bench, key: &str) -> (Reply, i64) {
    (bench.command(&format!("DUMP {key}")), bench.command(&format!("PEXPIRETIME {key}")).int())
}

#[tokio::test]
async fn a_lean_claim_writes_what_the_full_script_would() {
    let bench = Bench::start();
    let (clock, token, odd) = claim(&bench, &["a", "b"], NEVER);
    assert_eq!((token, odd.as_str()), (clock, ""), "the token is the clock");
    for lock in ["a", "b"] {
        assert_eq!(bench.command(&format!("GET {lock}")).text(), format!("{MINE}{token} - {{}}"));
        assert!((59_000..=60_000).contains(&bench.command(&format!("PTTL {lock}")).int()));
    }
    assert_eq!(bench.command(&format!("GET {FENCE}")).text(), token.to_string());
    let week_ms = 7 * 24 * 60 * 60 * 1000;
    assert!(bench.command(&format!("PTTL {FENCE}")).int() >= week_ms);
    assert_eq!(release(&bench, &["a", "b"]), "");
    assert!(bench.keys().is_empty());
    assert!(claim(&bench, &["a"], NEVER).1 > token, "tokens rise");
}

#[tokio::test]
async fn f35_a_lean_claim_leaves_every_taken_key_as_it_is() {
    let bench = Bench::start();
    let taken = ["SET b x", "SET b x PX 60000", "LPUSH b x", "HSET b x y", "ZADD b 1 x"];
    for take in taken {
        bench.command(take);
        let before = dump(&bench, "b");
        let (_, token, odd) = claim(&bench, &["a", "b", "c"], NEVER);
        assert_eq!(odd, "2", "{take}");
        assert_eq!(dump(&bench, "b"), before, "{take}");
        let value = format!("{MINE}{token} - {{}}");
        assert_eq!(
            ["a", "c"].map(|lock| bench.command(&format!("GET {lock}")).text()),
            [value.clone(), value],
            "{take}"
        );
        bench.command("DEL a b c");
    }
    assert_eq!(claim(&bench, &["a", "a"], NEVER).2, "2", "the same lock twice has one holder");
}

#[tokio::test]
async fn a_lean_claim_passes_no_queue_by() {
    let bench = Bench::start();
    for queue in ["ZADD {b}:q 1 x", "LPUSH {b}:q x"] {
        bench.command(queue);
        assert_eq!(claim(&bench, &["a", "b"], NEVER).2, "2", "{queue}");
        assert_eq!(["a", "b"].map(|lock| bench.command(&format!("EXISTS {lock}")).int()), [1, 0], "{queue}");
        bench.command("DEL a {b}:q");
    }
}

#[tokio::test]
async fn f14_a_late_lean_claim_writes_nothing() {
    let bench = Bench::start();
    let (clock, ..) = claim(&bench, &["a"], NEVER);
    bench.command("FLUSHALL");
    let (_, _, odd) = claim(&bench, &["a"], &(clock - 1).to_string());
    assert_eq!(odd, "late");
    assert!(bench.command("KEYS *").array().is_empty(), "not even the fence");
    let later = clock + 60_000_000;
    assert_eq!(claim(&bench, &["a"], &later.to_string()).2, "", "in time");
}

#[tokio::test]
async fn f67_a_lean_claim_makes_its_token_as_the_full_script_does() {
    let bench = Bench::start();
    let week_ms = 7 * 24 * 60 * 60 * 1000;
    let (clock, ..) = claim(&bench, &["a"], NEVER);
    bench.command("DEL a");
    // Ahead of the clock, as after it was set back: one more, and never a repeat.
    let ahead = clock + 3_600_000_000;
    bench.command(&format!("SET {FENCE} {ahead}"));
    for more in 1..3 {
        let (now, token, odd) = claim(&bench, &["a"], NEVER);
        assert_eq!((token, odd.as_str()), (ahead + more, ""), "at {now}");
        assert_eq!(bench.command("GET a").text(), format!("{MINE}{token} - {{}}"));
        assert_eq!(bench.command(&format!("GET {FENCE}")).text(), token.to_string());
        bench.command("DEL a");
    }
    for old in ["41", "0000000000000041", "1000000000000000"] {
        bench.command(&format!("SET {FENCE} {old} PX 60000"));
        let (now, token, odd) = claim(&bench, &["a"], NEVER);
        assert_eq!((token, odd.as_str()), (now, ""), "{old}");
        assert!(bench.command(&format!("PTTL {FENCE}")).int() >= week_ms, "{old}: lasts as long as a new one");
        bench.command("DEL a");
    }
}

#[tokio::test]
async fn f67_a_lean_claim_leaves_an_invalid_fence_as_it_is() {
    let bench = Bench::start();
    let (clock, ..) = claim(&bench, &["a"], NEVER);
    bench.command("DEL a");
    let day_ahead = format!("SET {FENCE} {}", clock + 90_000_000_000);
    let fences = ["many", "9223372036854775807", "nan", "1e300", "abcdefghijklmnop", "many PX 600000"];
    let fences = fences.iter().map(|set| format!("SET {FENCE} {set}"));
    for set in fences.chain([day_ahead, format!("LPUSH {FENCE} x"), format!("HSET {FENCE} x y")]) {
        bench.command(&format!("DEL {FENCE}"));
        bench.command(&set);
        let before = dump(&bench, FENCE);
        assert_eq!(claim(&bench, &["a", "b"], NEVER).2, "*", "{set}: the full script says what is wrong");
        assert_eq!(dump(&bench, FENCE), before, "{set}");
        assert!(bench.keys().is_empty(), "{set}");
    }
}

#[tokio::test]
async fn f31_without_memory_a_lean_claim_writes_nothing_and_a_lean_release_works() {
    let bench = Bench::start();
    claim(&bench, &["a"], NEVER);
    let fence = dump(&bench, FENCE);
    bench.command("CONFIG SET maxmemory 1");
    assert_eq!(claim(&bench, &["b"], NEVER).2, "*");
    assert_eq!((bench.keys(), dump(&bench, FENCE)), (vec!["a".to_owned()], fence));
    assert_eq!(release(&bench, &["a"]), "");
    assert!(bench.keys().is_empty());
}

#[tokio::test]
async fn f35_a_lean_release_ends_only_holds_of_its_attempts_without_waiters() {
    let bench = Bench::start();
    let waited = format!("{}+1 - {{}}", MINE.trim());
    let kept = [waited.as_str(), &format!("{OTHER}1 - {{}}"), MINE.trim(), "x", ""];
    for value in kept {
        for lock in ["a", "c"] {
            bench.server.command(&["SET", lock, &format!("{MINE}1 - {{}}")]);
        }
        bench.server.command(&["SET", "b", value]);
        let before = dump(&bench, "b");
        assert_eq!(release(&bench, &["a", "b", "c"]), "2", "{value:?}");
        assert_eq!(dump(&bench, "b"), before, "{value:?}");
        assert_eq!(bench.keys(), ["b"], "{value:?}: the others are released");
        bench.command("DEL b");
    }
    bench.command("LPUSH b x");
    assert_eq!(release(&bench, &["b"]), "1", "a key of another type");
    assert_eq!(bench.command("TYPE b").text(), "list");
    assert_eq!(release(&bench, &["free"]), "1", "the full script says that it is not ours");
}

#[tokio::test]
async fn concurrent_claims_of_different_leases_have_their_own() {
    let bench = Bench::start();
    let locker = bench.behind_proxy().await;
    bench.proxy.delay(ms(20));
    let before = bench.server.calls("evalsha");
    let lease = |number: u64| Duration::from_secs(30 + 30 * (number % 3));
    let mut tasks = JoinSet::new();
    for number in 0..12 {
        let request = locker.clone().lock(format!("lock:{number}")).ttl(lease(number)).into_future();
        tasks.spawn(async move { (number, request.await.expect("granted")) });
    }
    let held = timeout(TEST_LIMIT, tasks.join_all()).await.expect("in time");
    assert!(bench.server.calls("evalsha") - before < 9, "they did not share calls");
    for (number, guard) in &held {
        let left = ms(u64::try_from(bench.command(&format!("PTTL {}", guard.key())).int()).expect("it expires"));
        assert!(left <= lease(*number) && left > lease(*number) - Duration::from_secs(20), "{number}: {left:?}");
    }
}

#[tokio::test]
async fn requests_do_not_wait_for_the_replies_to_earlier_ones() {
    let bench = Bench::start();
    let locker = bench.behind_proxy().await;
    bench.proxy.delay(ms(120));
    let began = now();
    let first = locker.lock("first").ttl(TEST_LIMIT).await.expect("granted");
    let trip = now().since(began);
    let (mut tasks, began) = (JoinSet::new(), now());
    for number in 0..4 {
        let request = locker.clone().lock(format!("lock:{number}")).ttl(TEST_LIMIT).into_future();
        tasks.spawn(async move { request.await.expect("granted") });
        sleep(ms(20)).await;
    }
    let held = timeout(TEST_LIMIT, tasks.join_all()).await.expect("in time");
    // With one call in flight at a time, the third and the fourth would need a second trip.
    let took = now().since(began);
    assert!(took < trip * 8 / 5 + ms(60), "{took:?}, where one trip takes {trip:?}");
    drop(first);
    drop(held);
}

/// Takes and releases one lock `cycles` times by `tasks` tasks.
async fn contend(locker: &Locker, tasks: usize, cycles: usize) {
    let mut contenders = JoinSet::new();
    for _ in 0..tasks {
        let locker = locker.clone();
        contenders.spawn(async move {
            for _ in 0..cycles {
                locker.lock("a").await.expect("granted").unlock().await.expect("released");
            }
        });
    }
    timeout(TEST_LIMIT, contenders.join_all()).await.expect("in time");
}

#[tokio::test]
async fn a_contended_lock_is_not_tried_by_the_lean_scripts() {
    let bench = Bench::start();
    let locker = bench.direct().await;
    contend(&locker, 8, 5).await;
    let before = bench.server.calls("evalsha");
    contend(&locker, 8, 50).await;
    let calls = bench.server.calls("evalsha") - before;
    assert!(calls < 2 * 400 + 200, "{calls} calls for 400 turns; two for each are enough");
}

#[tokio::test]
async fn the_server_has_the_scripts_when_a_connection_is_open() {
    let bench = Bench::start();
    let locker = connected(bench.server.port()).await;
    let until = now().after(TEST_LIMIT);
    while bench.command("INFO memory").to_string().contains("number_of_cached_scripts:0")
        || bench.server.calls("script|load") < 6
    {
        assert!(now() < until, "the scripts are not there");
        sleep(ms(10)).await;
    }
    bench.command("CONFIG RESETSTAT");
    let guard = locker.read("a").await.expect("granted");
    let waiting = tokio::spawn(locker.clone().lock("a").into_future());
    while bench.command("EXISTS {a}:q").int() == 0 {
        sleep(ms(5)).await;
    }
    guard.unlock().await.expect("released");
    waiting.await.expect("no panic").expect("granted").unlock().await.expect("released");
    assert_eq!(bench.server.calls("eval"), 0, "no script had to be sent");
}
