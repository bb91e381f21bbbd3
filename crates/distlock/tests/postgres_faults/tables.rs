//! What the tables are like after much use, or none.

use std::future::IntoFuture;
use std::time::Duration;

use distlock::Locker;
use distlock_testkit::servers::PostgresServer;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT};

#[tokio::test]
async fn rows_unused_for_a_week_are_swept_a_few_at_a_time() {
    let bench = Bench::start().await;
    // Forty locks of eight days ago; one is held, one has a waiter, one a reader. And one of six days ago.
    bench.server.sql(
        "INSERT INTO distlock.locks (name, used_on) SELECT 'old ' || i, current_date - 8 FROM generate_series(1, 40) i; \
         INSERT INTO distlock.locks (name, used_on) VALUES ('young', current_date - 6); \
         UPDATE distlock.locks SET mode = 'x', attempt = 'a', expires = now() + interval '1 h' WHERE name = 'old 1'; \
         UPDATE distlock.locks SET queued = true, ticket = 1 WHERE name = 'old 2'; \
         INSERT INTO distlock.waiters VALUES ('old 2', 1, 'w', 'x', 1000, 0, now() + interval '1 h', NULL, '{}'); \
         UPDATE distlock.locks SET mode = 's' WHERE name = 'old 3'; \
         INSERT INTO distlock.holders (name, attempt, token, since, expires, handed, record) \
         VALUES ('old 3', 'r', 1, now(), now() + interval '1 h', false, '{}')",
    );
    let locker = Locker::connect(&bench.server.url()).await.expect("connected");
    let left = || bench.rows("SELECT count(*) FROM distlock.locks WHERE name LIKE 'old %'")[0].clone();
    for (number, expected) in [(1, "36"), (2, "32")] {
        locker.lock(format!("new {number}")).await.expect("granted").unlock().await.expect("released");
        assert_eq!(left(), expected, "a claim of a new name sweeps four");
    }
    locker.lock("new 1").await.expect("granted").unlock().await.expect("released");
    assert_eq!(left(), "32", "a claim of a known name sweeps none");
    for number in 3..20 {
        locker.lock(format!("new {number}")).await.expect("granted").unlock().await.expect("released");
    }
    let names = "SELECT name FROM distlock.locks WHERE name NOT LIKE 'new %' ORDER BY name";
    assert_eq!(bench.rows(names), ["old 1", "old 2", "old 3", "young"], "what is in use stays");
}

#[tokio::test]
async fn tables_do_not_grow_with_the_number_of_cycles() {
    let bench = Bench::start().await;
    let cycles = |count: u32| {
        bench.server.sql(&format!(
            "DO $$ BEGIN FOR i IN 1 .. {count} LOOP \
             PERFORM distlock.claim(NULL, 9e15::bigint, '{{a}}', '{{x}}', '{{x}}', '{{60000}}', '{{0}}', '{{0}}', ARRAY[repeat('r', 90)]); COMMIT; \
             PERFORM distlock.renew('{{a}}', '{{x}}', '{{60000}}'); COMMIT; \
             PERFORM distlock.release(NULL, '{{a}}', '{{x}}'); COMMIT; END LOOP; END $$"
        ));
        bench.rows("SELECT sum(pg_relation_size(oid)) FROM pg_class WHERE relnamespace = 'distlock'::regnamespace")
    };
    let early = cycles(200);
    assert_eq!(cycles(10_000), early, "old versions of a row make room for new ones");
    assert_eq!(bench.rows("SELECT token > 0 AND mode IS NULL FROM distlock.locks WHERE name = 'a'"), ["t"]);
}

#[tokio::test]
async fn a_handover_is_two_statements() {
    const WAITERS: usize = 24;
    const LEASE: Duration = Duration::from_secs(60);
    let bench = Bench::of(&PostgresServer::options().set("track_functions=all")).await;
    let locker = Locker::connect(&bench.server.url()).await.expect("connected");
    let guard = locker.lock("a").ttl(LEASE).await.expect("granted");
    let mut turns = JoinSet::new();
    for count in 1..=WAITERS {
        let request = locker.lock("a").as_new_owner().ttl(LEASE);
        turns.spawn(async { request.await.expect("granted").unlock().await.expect("released") });
        // One after the other: claims of the same moment would share a statement, and not be counted.
        bench.until_waiting(count).await;
    }
    guard.unlock().await.expect("released");
    timeout(TEST_LIMIT, turns.join_all()).await.expect("in time");
    locker.close().await.expect("closed");
    // A session reports its counts at its end at the latest.
    bench.until("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'distlock'", "0").await;
    let calls = |name: &str| -> usize {
        let calls = format!("SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname = '{name}'");
        bench.rows(&calls)[0].parse().expect("a number")
    };
    let (claims, releases) = (calls("claim"), calls("release"));
    // Each waiter claims once, when it comes, and the first once more, when this process listens.
    assert!((WAITERS..=WAITERS + 3).contains(&claims), "{claims} claims of {WAITERS} waiters");
    assert_eq!(releases, WAITERS + 1, "one statement releases and hands over");
}

#[tokio::test]
async fn the_token_of_a_lock_is_kept_for_a_week_after_it_was_held() {
    let bench = Bench::start().await;
    let locker = Locker::connect(&bench.server.url()).await.expect("connected");
    // Claimed nine days ago and renewed since; one lease ended by itself yesterday, one more than a week ago.
    bench.server.sql(
        "INSERT INTO distlock.locks (name, used_on, token, mode, attempt, since, expires, record) \
         SELECT name, current_date - 9, 1, 'x', name, now(), now() + ends * interval '1 day', '{}' \
         FROM (VALUES ('rule', 1), ('function', 1), ('ended', -1), ('forgotten', -8)) AS l (name, ends); \
         INSERT INTO distlock.locks (name, used_on, token, mode) VALUES ('group', current_date - 9, 1, 's'); \
         INSERT INTO distlock.holders (name, attempt, token, since, expires, handed, record) \
         VALUES ('group', 'r', 1, now(), now() - interval '1 day', false, '{}')",
    );
    for release in [
        "UPDATE distlock.lean_release SET name = 'rule', attempt = 'rule' RETURNING is_released",
        "SELECT o_released FROM distlock.release(NULL, '{function}', '{function}')",
    ] {
        assert_eq!(bench.rows(release), ["t"]);
    }
    for number in 0..3 {
        locker.lock(format!("new {number}")).await.expect("granted").unlock().await.expect("released");
    }
    let left = bench.rows("SELECT name FROM distlock.locks WHERE name NOT LIKE 'new %' ORDER BY name");
    assert_eq!(left, ["ended", "function", "group", "rule"]);
}

#[tokio::test]
async fn what_is_left_of_a_row_that_was_deleted_by_hand_is_not_the_new_rows() {
    let bench = Bench::start().await;
    let (locker, other) = (bench.direct().await, bench.direct().await);
    let reader = locker.read("a").ttl(TEST_LIMIT * 2).await.expect("granted");
    let waiter = tokio::spawn(other.lock("a").ttl(TEST_LIMIT * 2).into_future());
    bench.until_waiting(1).await;
    // As the error about a token from the future advises.
    bench.server.sql("DELETE FROM distlock.locks WHERE name = 'a'");
    let guard = timeout(TEST_LIMIT, bench.direct().await.lock("a").ttl(TEST_LIMIT * 2).into_future()).await;
    let guard = guard.expect("in time").expect("a new row");
    let refused = bench.server.try_sql(&format!("SELECT distlock.hold('a', {})", reader.fencing_token()));
    assert!(refused.is_err(), "two holders");
    timeout(TEST_LIMIT, reader.lost()).await.expect("told");
    let last = tokio::spawn(bench.direct().await.lock("a").into_future());
    bench.until_waiting(2).await;
    guard.unlock().await.expect("released");
    for next in [waiter, last] {
        let next = timeout(TEST_LIMIT, next).await.expect("in time").expect("no panic").expect("granted");
        next.unlock().await.expect("released");
    }
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn a_place_in_the_queue_does_not_wait_for_the_disk_and_a_grant_does() {
    let bench = Bench::start().await;
    let session = bench.session().await;
    let claim = async |attempt: &str, beat_ms: u32| {
        let claim = format!(
            "SELECT o_outcome FROM distlock.claim(NULL, 9e15::bigint, '{{a}}', '{{{attempt}}}', '{{x}}', '{{60000}}', '{{0}}', \
             '{{{beat_ms}}}', '{{\"{{}}\"}}')"
        );
        session.batch_execute("BEGIN").await.expect("begun");
        let outcome: String = session.query_typed_one(&claim, &[]).await.expect("claimed").get(0);
        let waits: String = session.query_typed_one("SHOW synchronous_commit", &[]).await.expect("shown").get(0);
        session.batch_execute("COMMIT").await.expect("committed");
        [outcome, waits]
    };
    assert_eq!(claim("x", 0).await, ["granted", "on"]);
    assert_eq!(claim("y", 0).await, ["busy", "off"], "nothing is stored");
    assert_eq!(claim("z", 60_000).await, ["busy", "off"], "a place is taken");
    assert_eq!(claim("z", 60_000).await, ["busy", "off"], "and kept");
    bench.server.sql("UPDATE distlock.locks SET expires = now() WHERE name = 'a'");
    assert_eq!(claim("y", 60_000).await, ["busy", "on"], "a hold has ended");
    assert_eq!(claim("z", 60_000).await, ["granted", "on"]);
}
