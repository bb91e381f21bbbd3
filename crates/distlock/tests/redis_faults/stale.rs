//! Stale holders: a fork of the process, and a process that was paused between its check and its write.

use distlock_testkit::child::{Child, Outcome};
use distlock_testkit::servers::{RedisServer, Reply};

use crate::bench::{Bench, TEST_LIMIT, TTL, sleep};

#[tokio::test]
async fn f13_a_fork_cannot_use_or_release_its_parents_locks() {
    let bench = Bench::start();
    let mut child = Child::start();
    child.connect(&bench.server.url());
    assert!(child.lock("a", TTL).token() > 0);
    let before = bench.command("GET a").text();
    let seen = child.fork("a").outcome;
    assert_eq!(seen, Outcome::State("Lost Closed Closed Closed Closed".into()));
    // The fork has dropped its guard and its locker, and has ended with all its connections. More than one lease
    // later:
    sleep(TTL * 2).await;
    assert_eq!(bench.command("GET a").text(), before, "the same hold");
    assert_eq!(child.state("a").outcome, Outcome::State("Held".into()), "renewed over the same connections");
    assert_eq!(child.unlock("a").outcome, Outcome::Done);
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f13_a_fork_draws_other_attempt_ids_than_its_parent() {
    let mut child = Child::start();
    // One before the fork, then 100 in each process.
    assert_eq!(child.fork_and_draw().outcome, Outcome::State("201 201".into()));
}

/// A resource that remembers the highest token it has seen, and refuses lower ones. KEYS: data, highest; ARGV: token,
/// data.
const FENCED_WRITE: &str = "
    if tonumber(ARGV[1]) < tonumber(redis.call('GET', KEYS[2]) or 0) then return 'stale' end
    redis.call('SET', KEYS[2], ARGV[1])
    redis.call('SET', KEYS[1], ARGV[2])
    return 'written'";

fn write(resource: &RedisServer, token: u64, data: &str) -> Reply {
    resource.command(&["EVAL", FENCED_WRITE, "2", "data", "highest", &token.to_string(), data])
}

#[tokio::test]
async fn f16_a_holder_paused_between_its_check_and_its_write_is_refused_by_the_resource() {
    let (bench, resource) = (Bench::start(), RedisServer::start());
    let mut child = Child::start();
    child.connect(&bench.server.url());
    let stale = child.lock("a", TTL).token();
    assert_eq!(write(&resource, stale, "first").text(), "written");
    // It checks, finds the lock valid, and stands still before it writes.
    assert_eq!(child.state("a").outcome, Outcome::State("Held".into()));
    child.stop();
    let locker = bench.direct().await;
    let next = locker.lock("a").wait(TEST_LIMIT).await.expect("the lease ended");
    assert_eq!(write(&resource, next.fencing_token().get(), "second").text(), "written");
    child.cont();
    assert_eq!(write(&resource, stale, "late").text(), "stale", "tokens rise from holder to holder");
    assert_eq!(resource.command(&["GET", "data"]).text(), "second");
    next.check().expect("and the lock is still the other's");
    next.unlock().await.expect("released");
}
