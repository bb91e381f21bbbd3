//! Lost replies and late requests.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::SystemTime;

use distlock::backend::{Attachment, Backend, Claim, Claimed};
use distlock::{ErrorKind, HoldState, Key, LossReason, OwnerId, Process, Record};
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, TTL, ms, now, sleep};

#[tokio::test]
async fn f01_a_claim_whose_commit_was_not_heard_of_is_found_again() {
    let bench = Bench::start().await;
    let locker = bench.behind_proxy().await;
    bench.proxy.drop_replies();
    let waiting = tokio::spawn(locker.lock("a").ttl(TEST_LIMIT).into_future());
    bench.until("SELECT count(*) FROM distlock.locks WHERE name = 'a' AND mode = 'x'", "1").await;
    let stored = bench.server.sql("SELECT token FROM distlock.locks WHERE name = 'a'");
    bench.proxy.pass();
    let guard = timeout(TEST_LIMIT, waiting).await.expect("in time").expect("no panic").expect("granted");
    assert_eq!(guard.fencing_token().to_string(), stored, "another grant than the first");
    guard.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f01_a_try_whose_commit_was_not_heard_of_leaves_nothing() {
    let bench = Bench::start().await;
    let locker = bench.behind_proxy().await;
    bench.proxy.drop_replies();
    // Leases that would outlast the test: only withdrawals end them in time.
    let error = locker.try_lock("a").ttl(TEST_LIMIT * 2).await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    let error = locker.read("b").ttl(TEST_LIMIT * 2).wait(ms(10)).await.expect_err("no answer");
    assert!(matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable), "{error}");
    bench.proxy.pass();
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f03_a_renewal_whose_commit_was_not_heard_of_keeps_the_old_deadline() {
    let bench = Bench::start().await;
    let locker = bench.behind_proxy().await;
    let guard = locker.lock("a").await.expect("granted");
    bench.proxy.drop_replies();
    let deadline = guard.deadline().expect("a lease");
    let reason = timeout(TEST_LIMIT, guard.lost()).await.expect("notified");
    assert_eq!(reason, LossReason::Expired);
    assert_eq!(guard.deadline(), Some(deadline), "renewals may have arrived, but no reply came back");
    assert!(now() >= deadline && now().since(deadline) < ms(500));
}

#[tokio::test]
async fn f03_a_renewal_is_repeated_on_a_new_connection() {
    let bench = Bench::start().await;
    let locker = bench.behind_proxy().await;
    let guard = locker.lock("a").ttl(TTL * 4).await.expect("granted");
    bench.proxy.drop_replies();
    while guard.state() == HoldState::Held {
        sleep(ms(5)).await;
    }
    assert_eq!(guard.state(), HoldState::AtRisk);
    bench.proxy.pass();
    timeout(TTL * 3, async {
        while guard.state() != HoldState::Held {
            sleep(ms(5)).await;
        }
    })
    .await
    .expect("renewed on a new connection");
    drop(guard.unlock().await);
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f04_a_release_whose_commit_was_not_heard_of_is_unknown_and_spares_the_next() {
    let bench = Bench::start().await;
    let locker = bench.behind_proxy().await;
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    bench.proxy.drop_replies();
    let error = guard.unlock().await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    let next = bench.direct().await.try_lock("a").ttl(TEST_LIMIT).await.expect("no failure").expect("it was released");
    bench.proxy.pass();
    locker.close().await.expect("the release is repeated until it is confirmed");
    next.check().expect("the repeated release does not end the next hold");
    next.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f14_a_statement_that_arrives_after_its_time_limit_grants_nothing() {
    let bench = Bench::start().await;
    let locker = bench.behind_proxy().await;
    bench.proxy.hold_requests();
    let error = locker.try_lock("late").ttl(TEST_LIMIT * 2).await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    sleep(ms(300)).await;
    bench.proxy.pass();
    // Whether the server reads what was held, or finds the connection closed: the lock is not granted.
    locker.close().await.expect("closed");
    assert_eq!(bench.server.sql("SELECT count(*) FROM distlock.locks WHERE name = 'late' AND mode IS NOT NULL"), "0");
    bench.expect_nothing_left().await;
}

fn claim(name: &str, queue: bool) -> Claim {
    let record = Record::new(OwnerId::random(), Process::current(), None, SystemTime::now());
    Claim::new(Key::new(name).expect("a name"), TEST_LIMIT, queue, Arc::new(record))
}

#[tokio::test]
async fn f14_a_claim_is_refused_by_the_time_on_the_servers_clock() {
    let bench = Bench::start().await;
    let engine = bench.builder(bench.server.port()).build().expect("an engine");
    engine.attach(Attachment::standalone(&tokio::runtime::Handle::current()));
    assert!(matches!(engine.claim(&claim("a", false)).await, Ok(Claimed::Granted(_))));
    // As the engine's statement, with a time that is over.
    let sql = "SELECT o_outcome FROM distlock.claim(NULL, distlock._us(clock_timestamp()) - 1, '{b}', '{x}', '{x}', '{1000}', \
               '{0}', '{3000}', '{\"{}\"}')";
    assert_eq!(bench.server.sql(sql), "late");
    assert_eq!(
        bench.server.sql("SELECT count(*) FROM distlock.locks WHERE name = 'b' AND (mode IS NOT NULL OR queued)"),
        "0"
    );
}

#[tokio::test]
async fn f06_a_connection_cut_at_any_byte_of_the_conversation_grants_once() {
    let bench = Bench::start().await;
    for bytes in [0, 1, 5, 20, 60, 90] {
        let locker = bench.behind_proxy().await;
        bench.proxy.cut_after(distlock_testkit::proxy::Direction::Replies, bytes);
        let guard = timeout(TEST_LIMIT, locker.lock("a").ttl(TEST_LIMIT).into_future()).await;
        let guard = guard.expect("in time").expect("granted on another connection");
        let held = bench.rows("SELECT token FROM distlock.locks WHERE name = 'a' AND mode = 'x'");
        assert_eq!(held, [guard.fencing_token().to_string()], "cut after {bytes} bytes");
        drop(guard.unlock().await);
        bench.expect_nothing_left().await;
    }
}

/// Returns the statement that counts the locks with these names that are held exclusively.
fn held(names: &str) -> String {
    format!("SELECT count(*) FROM distlock.locks WHERE name = ANY ('{{{names}}}') AND mode = 'x'")
}

#[tokio::test]
async fn f01_a_claim_of_several_whose_commit_was_not_heard_of_is_found_again() {
    let bench = Bench::start().await;
    let locker = bench.behind_proxy().await;
    bench.proxy.drop_replies();
    let waiting = tokio::spawn(locker.lock_all(["b", "a"]).ttl(TEST_LIMIT * 2).into_future());
    bench.until(&held("a,b"), "2").await;
    let stored = bench.rows("SELECT token FROM distlock.locks WHERE name IN ('a', 'b') ORDER BY name");
    bench.proxy.pass();
    let both = timeout(TEST_LIMIT, waiting).await.expect("in time").expect("no panic").expect("granted");
    let tokens = ["a", "b"].map(|name| both.fencing_token(name).expect("held").to_string());
    assert_eq!(Vec::from(tokens), stored, "another grant than the first");
    both.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f01_a_place_whose_commit_was_not_heard_of_is_kept() {
    let bench = Bench::start().await;
    let (holder, locker) = (bench.direct().await, bench.behind_proxy().await);
    let [first, second] = ["a", "b"].map(|name| holder.lock(name).ttl(TEST_LIMIT * 2).into_future());
    let (first, second) = (first.await.expect("granted"), second.await.expect("granted"));
    // Its process listens from its first waiter on, so the next claim takes a place at once.
    let listening = tokio::spawn(locker.lock("b").as_new_owner().into_future());
    bench.until_waiting(1).await;
    bench.proxy.drop_replies();
    let waiting = tokio::spawn(locker.lock("a").as_new_owner().into_future());
    let place = "SELECT ticket FROM distlock.waiters WHERE name = 'a'";
    bench.until(place, "1").await;
    let before = bench.server.sql("SELECT alive FROM distlock.waiters WHERE name = 'a'");
    bench.proxy.pass();
    // It is kept over another connection, and another waiter is behind it.
    bench.until(&format!("{place} AND alive > '{before}' AND distlock._listens(channel)"), "1").await;
    let other = bench.direct().await;
    let behind = tokio::spawn(other.lock("a").into_future());
    bench.until(&format!("{place} ORDER BY ticket"), "1\n2").await;
    first.unlock().await.expect("released");
    let next = timeout(TEST_LIMIT, waiting).await.expect("in time").expect("no panic").expect("granted");
    assert!(!behind.is_finished(), "it was overtaken");
    drop(next.unlock().await);
    let last = timeout(TEST_LIMIT, behind).await.expect("in time").expect("no panic").expect("granted");
    last.unlock().await.expect("released");
    drop(second.unlock().await);
    drop(timeout(TEST_LIMIT, listening).await.expect("in time").expect("no panic").expect("granted").unlock().await);
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f04_a_handover_whose_commit_was_not_heard_of_is_made_once() {
    let bench = Bench::start().await;
    let (locker, other) = (bench.behind_proxy().await, bench.direct().await);
    let guard = locker.lock("a").ttl(TEST_LIMIT * 2).await.expect("granted");
    let waiter = tokio::spawn(other.lock("a").ttl(TEST_LIMIT).into_future());
    bench.until_waiting(1).await;
    // Once it knows of the waiter, it releases by the statement that hands over.
    assert!(locker.try_lock("a").as_new_owner().await.expect("no failure").is_none());
    bench.proxy.drop_replies();
    let error = guard.unlock().await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    let last = tokio::spawn(bench.direct().await.lock("a").into_future());
    bench.until_waiting(1).await;
    bench.proxy.pass();
    locker.close().await.expect("the release is repeated until it is confirmed");
    next.check().expect("the repeated release does not end the next hold");
    assert!(!last.is_finished(), "nor hands it over");
    next.unlock().await.expect("released");
    let last = timeout(TEST_LIMIT, last).await.expect("in time").expect("no panic").expect("granted");
    last.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f01_an_adoption_whose_commit_was_not_heard_of_is_found_again() {
    let bench = Bench::start().await;
    let (locker, heir) = (bench.direct().await, bench.behind_proxy().await);
    // Longer than a request may take.
    let guard = locker.lock("a").ttl(TTL * 4).await.expect("granted");
    let (ticket, before) = (guard.export(), bench.server.sql("SELECT attempt FROM distlock.locks WHERE name = 'a'"));
    bench.proxy.drop_replies();
    let adopting = tokio::spawn(async move { heir.adopt(&ticket).await });
    bench.until(&format!("SELECT count(*) FROM distlock.locks WHERE name = 'a' AND attempt <> '{before}'"), "1").await;
    bench.proxy.pass();
    let adopted = timeout(TEST_LIMIT, adopting).await.expect("in time").expect("no panic").expect("adopted");
    assert_eq!(adopted.fencing_token(), guard.fencing_token());
    let told = timeout(TEST_LIMIT, guard.lost()).await.expect("told");
    assert!(matches!(told, LossReason::Adopted | LossReason::Revoked), "by a message or its next renewal: {told:?}");
    adopted.check().expect("held");
    drop(adopted.unlock().await);
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f04_a_forced_release_whose_commit_was_not_heard_of_ends_that_hold_alone() {
    let bench = Bench::start().await;
    let (locker, breaker) = (bench.direct().await, bench.behind_proxy().await);
    let guard = locker.lock("a").await.expect("granted");
    let token = guard.fencing_token();
    bench.proxy.drop_replies();
    let broken = breaker.inspect().force_release("a", token, "a test").await;
    assert_eq!(broken.expect_err("no answer").kind(), ErrorKind::Unknown);
    timeout(TEST_LIMIT, guard.lost()).await.expect("told");
    bench.proxy.pass();
    let next = bench.direct().await.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let again = timeout(TEST_LIMIT, async {
        loop {
            match breaker.inspect().force_release("a", token, "a test").await {
                // The connection without a reply is replaced.
                Err(error) if matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable) => {}
                again => return again,
            }
        }
    });
    assert_eq!(again.await.expect("in time").expect_err("it is over").kind(), ErrorKind::NotHeld);
    next.check().expect("another token's");
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn f03_a_label_whose_commit_was_not_heard_of_is_unknown_and_the_hold_stays() {
    let bench = Bench::start().await;
    let locker = bench.behind_proxy().await;
    let guard = locker.lock("a").ttl(TTL * 4).await.expect("granted");
    bench.proxy.drop_replies();
    let error = guard.relabel("half way").await.expect_err("no reply");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    bench.until("SELECT count(*) FROM distlock.locks WHERE name = 'a' AND record LIKE '%half way%'", "1").await;
    bench.proxy.pass();
    let again = timeout(TEST_LIMIT, async {
        // The connection without a reply is replaced.
        while guard.relabel("done").await.is_err() {
            guard.check().expect("held");
        }
    });
    again.await.expect("in time");
    bench.until("SELECT count(*) FROM distlock.locks WHERE name = 'a' AND record LIKE '%done%'", "1").await;
    guard.unlock().await.expect("released");
    bench.expect_nothing_left().await;
}
