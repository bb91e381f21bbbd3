//! The orders in which transactions lock rows: none waits for another that waits for it.

use tokio::time::timeout;
use tokio_postgres::Client;

use crate::bench::{Bench, TEST_LIMIT};

/// Claims locks in one statement, in the session's transaction if it has one.
async fn claim(session: &Client, names: &str, attempts: &str, modes: &str) -> Vec<String> {
    let claim = format!(
        "SELECT o_outcome FROM distlock.claim(NULL, 9e15::bigint, '{{{names}}}', '{{{attempts}}}', '{{{modes}}}', \
         array_fill(60000::bigint, '{{{0}}}'), array_fill(0::bigint, '{{{0}}}'), array_fill(0::bigint, '{{{0}}}'), \
         array_fill('{{}}'::text, '{{{0}}}'))",
        names.split(',').count()
    );
    let rows = session.query_typed(&claim, &[]).await;
    rows.unwrap_or_else(|error| panic!("{names}: {error}")).iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn a_sweep_of_old_locks_and_claims_of_several_do_not_wait_for_each_other() {
    let bench = Bench::start().await;
    let (one, other) = (bench.session().await, bench.session().await);
    bench.server.sql(
        "INSERT INTO distlock.locks (name, used_on, token) VALUES ('known', current_date, 1), ('old', current_date - 9, 1)",
    );
    // Two claims of several locks, as far as their first. The new name in the other statement has old rows swept.
    other.batch_execute("BEGIN").await.expect("begun");
    assert_eq!(claim(&other, "known", "x", "x").await, ["granted"]);
    let claims = tokio::spawn(async move { claim(&one, "a new name,known", "y,z", "x,x").await });
    bench.until("SELECT count(*) FROM pg_locks WHERE NOT granted", "1").await;
    let second = timeout(TEST_LIMIT, claim(&other, "old", "v", "x")).await.expect("in time");
    assert_eq!(second, ["granted"]);
    other.batch_execute("COMMIT").await.expect("committed");
    let outcomes = timeout(TEST_LIMIT, claims).await.expect("in time").expect("one of the two was undone");
    assert_eq!(outcomes, ["granted", "busy"]);
}

#[tokio::test]
async fn a_renewal_of_re_entries_and_a_forced_release_do_not_wait_for_each_other() {
    let bench = Bench::start().await;
    let (renewing, breaking) = (bench.session().await, bench.session().await);
    // In the order that is not that of the attempts.
    for attempt in ["2", "1"] {
        assert_eq!(claim(&renewing, "a", attempt, "rff").await, ["granted"]);
    }
    let token: i64 = bench.server.sql("SELECT token FROM distlock.locks WHERE name = 'a'").parse().expect("a token");
    let renew = "SELECT o_renewed FROM distlock.renew('{a}', $1::text[], '{60000}')";
    renewing.batch_execute("BEGIN").await.expect("begun");
    renewing.execute(renew, &[&["1"].as_slice()]).await.expect("renewed");
    let broken = tokio::spawn(async move {
        let row = breaking.query_one("SELECT distlock.force_release('a', $1)", &[&token]).await.expect("released");
        row.get::<_, bool>(0)
    });
    bench.until("SELECT count(*) FROM pg_locks WHERE NOT granted", "1").await;
    let second = timeout(TEST_LIMIT, renewing.execute(renew, &[&["2"].as_slice()])).await.expect("in time");
    second.expect("renewed");
    renewing.batch_execute("COMMIT").await.expect("committed");
    assert!(timeout(TEST_LIMIT, broken).await.expect("in time").expect("one of the two was undone"));
    assert_eq!(bench.rows("SELECT count(*) FROM distlock.holders"), ["0"]);
}
