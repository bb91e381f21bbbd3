//! Notes of ticks, with replies that are lost, rows of strangers and clocks that differ.

use std::future::IntoFuture;
use std::time::Duration;

use distlock::{ErrorKind, MAX_TICKS, OnceGuard, OnceOutcome, OnceRequest, Tick};
use distlock_testkit::clock_shim::{ClockShim, ShiftedClock};
use distlock_testkit::servers::PostgresServer;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT};

const HOUR: Duration = Duration::from_secs(3600);

async fn expect_run(request: OnceRequest) -> OnceGuard {
    match request.ttl(TEST_LIMIT).await.expect("an outcome") {
        OnceOutcome::Run(run) => run,
        other => panic!("expected to run, not {other:?}"),
    }
}

/// Adds notes to the lock "a" that are forgotten `from_now` milliseconds from now on.
fn add_notes(bench: &Bench, count: usize, from_now: i64) {
    bench.server.sql(&format!(
        "INSERT INTO distlock.ticks SELECT 'a', 'name:' || '{from_now} ' || n, distlock._us(clock_timestamp()) / 1000 + {from_now}, \
         true, '{{}}' FROM generate_series(1, {count}) n"
    ));
}

fn notes_left(bench: &Bench) -> usize {
    bench.server.sql("SELECT count(*) FROM distlock.ticks").parse().expect("a number")
}

#[tokio::test]
async fn f84_a_note_whose_commit_was_not_heard_of_counts_once() {
    let bench = Bench::start().await;
    let locker = bench.behind_proxy().await;
    let run = expect_run(locker.once("a").every(HOUR)).await;
    bench.proxy.drop_replies();
    let ending = tokio::spawn(run.done());
    bench.until("SELECT count(*) FROM distlock.ticks WHERE is_done", "1").await;
    bench.proxy.pass();
    let done = timeout(TEST_LIMIT, ending).await.expect("in time").expect("no panic").expect("found again");
    assert!(done.is_done() && done.starts == 1, "{done:?}");
    match bench.direct().await.once("a").every(HOUR).await.expect("an outcome") {
        OnceOutcome::Done { note, .. } => assert_eq!(note, done),
        other => panic!("a second run: {other:?}"),
    }
}

#[tokio::test]
async fn f84_no_grant_comes_between_the_check_of_a_holder_and_its_note() {
    let bench = Bench::start().await;
    let (locker, session) = (bench.direct().await, bench.session().await);
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let attempt = bench.server.sql("SELECT attempt FROM distlock.locks WHERE name = 'a'");
    let note = "SELECT distlock.note_tick('a', $1, 'name:1', 9e15::bigint, true, '{}', 1000)";
    session.batch_execute("BEGIN").await.expect("begun");
    let stored: String = session.query_one(note, &[&attempt]).await.expect("noted").get(0);
    assert_eq!(stored, "stored");
    // The hold ends before the note is committed; whatever frees the lock or grants it waits for that.
    let released = tokio::spawn(guard.unlock());
    let error = bench.direct().await.try_lock("a").await.expect_err("a grant before the note was committed");
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown), "{error}");
    session.batch_execute("COMMIT").await.expect("committed");
    drop(released.await.expect("no panic"));
    let next = timeout(TEST_LIMIT, locker.lock("a").into_future()).await.expect("in time").expect("granted");
    assert_eq!(bench.server.sql("SELECT count(*) FROM distlock.ticks WHERE is_done"), "1");
    let refused: String =
        session.query_one(&note.replace("name:1", "name:2"), &[&attempt]).await.expect("a reply").get(0);
    assert_eq!(refused, "refused", "it holds the lock no more");
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn f84_ticks_follow_the_databases_clock() {
    let shim = ClockShim::new();
    let bench = Bench::of(&PostgresServer::options().clock(&shim)).await;
    shim.forward(ShiftedClock::Wall, 5 * HOUR);
    let outcome = bench.direct().await.once("a").every(HOUR).ttl(TEST_LIMIT).await.expect("an outcome");
    assert!(outcome.skew().is_some_and(|skew| skew.to_string().contains("behind")), "{outcome:?}");
    let OnceOutcome::Run(run) = outcome else { panic!("expected to run, not {outcome:?}") };
    let started =
        format!("SELECT {} - distlock._us(clock_timestamp()) / 1000 BETWEEN -60000 AND 0", run.note().started_ms);
    assert_eq!(bench.server.sql(&started), "t", "{:?}", run.note());
    assert_eq!(run.note().tick, Tick::at(run.note().started_ms, HOUR));
    run.done().await.expect("done");
    // A new locker does not take the leap for a claim that is late. Set back by a period, the note is still there.
    shim.forward(ShiftedClock::Wall, HOUR);
    let later = bench.direct().await;
    expect_run(later.once("a").every(HOUR)).await.done().await.expect("the next period");
    shim.back(ShiftedClock::Wall, HOUR);
    assert!(matches!(later.once("a").every(HOUR).await.expect("an outcome"), OnceOutcome::Done { .. }));
}

#[tokio::test]
async fn notes_that_are_forgotten_are_swept_a_few_at_a_time() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    add_notes(&bench, 40, -1000);
    add_notes(&bench, 3, 3_600_000);
    let inspect = locker.inspect();
    assert!(inspect.ticks("a").await.expect("notes").is_empty(), "neither what is forgotten nor what is not ours");
    // A start and an end.
    expect_run(locker.once("b").tick("1")).await.done().await.expect("done");
    assert_eq!(notes_left(&bench), 40 - 2 * 16 + 3 + 1);
    expect_run(locker.once("c").tick("1")).await.done().await.expect("done");
    assert_eq!(notes_left(&bench), 3 + 2, "all of them, and no other");
    assert_eq!(inspect.list_ticks("").await.expect("notes").len(), 2);
}

#[tokio::test]
async fn a_lock_has_room_for_many_notes_and_refuses_more() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    add_notes(&bench, MAX_TICKS - 1, 3_600_000);
    expect_run(locker.once("a").tick("1")).await.done().await.expect("there is room for one");
    let error = locker.once("a").tick("2").ttl(TEST_LIMIT).await.map(drop).expect_err("there is no more");
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("1000"), "{error}");
    expect_run(locker.once("b").tick("2")).await.done().await.expect("another lock");
    assert!(matches!(locker.once("a").tick("1").await.expect("an outcome"), OnceOutcome::Done { .. }));
}

#[tokio::test]
async fn f66_notes_of_strangers_are_not_believed() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    expect_run(locker.once("a").tick("1")).await.done().await.expect("done");
    bench.server.sql(
        "INSERT INTO distlock.ticks SELECT 'a', 'name:2', forget_ms, true, repeat('x', 5000000) FROM distlock.ticks; \
         INSERT INTO distlock.ticks SELECT E'two\\nlines', tick, forget_ms, true, note FROM distlock.ticks WHERE tick = 'name:1'",
    );
    assert_eq!(locker.inspect().ticks("a").await.expect("notes").len(), 1);
    assert_eq!(locker.inspect().list_ticks("").await.expect("notes").len(), 1);
    // Of each lock, some are on one page and some on the next.
    bench.server.sql(
        "INSERT INTO distlock.ticks SELECT 'z' || lock, tick || n, forget_ms, true, note \
         FROM distlock.ticks, generate_series(1, 4) lock, generate_series(1, 700) n WHERE name = 'a' AND tick = 'name:1'",
    );
    let listed = locker.inspect().list_ticks("z").await.expect("notes");
    assert_eq!(listed.iter().map(|(_, notes)| notes.len()).collect::<Vec<_>>(), [700; 4]);
    assert_eq!(locker.inspect().list_ticks("z3").await.expect("notes").len(), 1);
}
