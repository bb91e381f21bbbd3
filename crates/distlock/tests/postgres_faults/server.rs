//! A server that dies, hangs, refuses or forgets.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use distlock::backend::postgres::Postgres;
use distlock::{ErrorKind, FencingToken, Locker};
use distlock_testkit::servers::{PgBouncer, PostgresServer};
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, TTL, ms, now, set_up, sleep, warm};

#[tokio::test]
async fn f23_a_killed_server_has_its_locks_when_it_is_back() {
    let mut bench = Bench::of(&PostgresServer::options().durable()).await;
    let locker = bench.direct().await;
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let queued = bench.direct().await;
    let waiter = tokio::spawn(queued.lock("a").into_future());
    bench.until_waiting(1).await;
    let token = guard.fencing_token().to_string();
    bench.server.crash();
    sleep(ms(200)).await;
    bench.server.restart();
    assert_eq!(bench.rows("SELECT token FROM distlock.locks WHERE name = 'a' AND mode = 'x'"), [token]);
    guard.check().expect("the server forgot nothing");
    timeout(TEST_LIMIT, async {
        // A release may meet a connection that is found dead by it.
        let first = guard.fencing_token();
        drop(guard.unlock().await);
        let next = waiter.await.expect("no panic").expect("granted");
        assert!(next.fencing_token() > first);
        next.unlock().await.expect("released");
    })
    .await
    .expect("in time");
}

#[tokio::test]
async fn f39_a_frozen_database_is_unknown_and_thaws_without_harm() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    bench.server.freeze();
    let began = now();
    let error = locker.try_lock("a").ttl(TEST_LIMIT).await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    assert!(now().since(began) < ms(5000), "bounded");
    bench.server.thaw();
    bench.expect_nothing_left().await;
    let guard = locker.lock("a").wait(TEST_LIMIT).await.expect("granted");
    guard.unlock().await.expect("released");
}

#[tokio::test]
async fn f41_a_waiter_is_served_after_its_listening_session_was_ended() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let other = bench.direct().await;
    let waiter = tokio::spawn(other.lock("a").ttl(TEST_LIMIT).into_future());
    bench.until_waiting(1).await;
    let listens = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'";
    bench.until(listens, "1").await;
    let before = bench.server.sql("SELECT channel FROM distlock.waiters");
    bench.server.sql("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'");
    // It listens again, on a channel of the new session, and has told the server of it.
    bench.until(&format!("SELECT count(*) FROM distlock.waiters WHERE channel <> '{before}'"), "1").await;
    let released = now();
    guard.unlock().await.expect("released");
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    assert!(now().since(released) < ms(500), "by a message, not by its slow poll");
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn f42_sessions_that_an_administrator_ends_cost_no_lock() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    let guard = locker.lock("a").ttl(TTL * 3).await.expect("granted");
    for _ in 0..3 {
        bench.server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'distlock'");
        sleep(TTL).await;
        guard.check().expect("renewed over a new connection");
    }
    let released = timeout(TEST_LIMIT, guard.unlock()).await.expect("in time");
    assert!(released.is_ok() || released.is_err_and(|error| error.kind() == ErrorKind::Unknown));
    bench.expect_nothing_left().await;
}

#[tokio::test]
async fn f28_a_statement_that_the_server_gives_up_was_not_carried_out() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    let session = bench.session().await;
    let guard = locker.lock("a").await.expect("granted");
    guard.unlock().await.expect("released");
    // Another program locks the row, as no function of the engine does: the statement waits and is ended by its timeout.
    session.batch_execute("BEGIN; SELECT FROM distlock.locks WHERE name = 'a' FOR UPDATE").await.expect("locked");
    let error = locker.try_lock("a").ttl(TEST_LIMIT).await.expect_err("no grant");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "definite: {error}");
    assert!(error.to_string().contains("57014"), "{error}");
    session.batch_execute("COMMIT").await.expect("unlocked");
    assert_eq!(
        bench.server.sql("SELECT count(*) FROM distlock.locks WHERE mode IS NOT NULL"),
        "0",
        "nothing came of it"
    );
    let guard = locker.lock("a").wait(TEST_LIMIT).await.expect("granted");
    guard.unlock().await.expect("released");
}

#[tokio::test]
async fn f28_a_transaction_that_is_chosen_to_end_a_deadlock_was_not_carried_out() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    // A deadlock or a conflict of snapshots, as the server would report it in the middle of a claim.
    for code in ["40P01", "40001"] {
        bench.server.sql(&format!(
            "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS \
             $$ BEGIN RAISE EXCEPTION 'as the test asked for' USING ERRCODE = '{code}'; END $$"
        ));
        bench.server.sql("CREATE TRIGGER t AFTER UPDATE ON distlock.locks FOR EACH ROW EXECUTE FUNCTION fail()");
        let error = locker.try_lock("warm").await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "definite: {error}");
        assert!(error.to_string().contains(code), "{error}");
        bench.server.sql("DROP TRIGGER t ON distlock.locks");
        assert_eq!(bench.server.sql("SELECT count(*) FROM distlock.locks WHERE mode IS NOT NULL"), "0");
        locker.lock("warm").await.expect("granted").unlock().await.expect("released");
    }
}

#[tokio::test]
async fn f37_a_server_without_connections_left_is_unavailable() {
    let bench =
        Bench::of(&PostgresServer::options().set("max_connections=5").set("superuser_reserved_connections=0")).await;
    let mut sessions = Vec::new();
    for _ in 0..5 {
        sessions.push(bench.session().await);
    }
    let engine = bench.builder(bench.server.port()).build().expect("an engine");
    let locker = Locker::new(engine).expect("a locker");
    let error = locker.try_lock("a").await.expect_err("no connection is left");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("53300"), "{error}");
    sessions.clear();
    let guard = locker.lock("a").wait(TEST_LIMIT).await.expect("granted when there are some");
    guard.unlock().await.expect("released");
}

#[tokio::test]
async fn f27_a_server_that_becomes_read_only_refuses_and_is_left() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    // The transactions of new and old sessions.
    bench.server.sql("ALTER SYSTEM SET default_transaction_read_only = on");
    bench.server.sql("SELECT pg_reload_conf()");
    let refused = async {
        loop {
            match locker.try_lock("a").await {
                Ok(guard) => drop(guard),
                // A busy machine did not reply in time.
                Err(error) if error.kind() == ErrorKind::Unknown => {}
                Err(error) => return error,
            }
            sleep(ms(20)).await;
        }
    };
    let error = timeout(TEST_LIMIT, refused).await.expect("in time");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "definite: {error}");
    bench.server.sql("ALTER SYSTEM RESET default_transaction_read_only");
    bench.server.sql("SELECT pg_reload_conf()");
    let guard = locker.lock("a").wait(TEST_LIMIT).await.expect("granted");
    guard.unlock().await.expect("released");
}

#[tokio::test]
async fn f24_a_schema_that_is_dropped_is_told_and_tokens_rise_when_it_is_back() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    let guard = locker.lock("a").await.expect("granted");
    bench.server.sql("DROP SCHEMA distlock CASCADE");
    timeout(TEST_LIMIT, guard.lost()).await.expect("told");
    let error = locker.try_lock("a").await.expect_err("there is no schema");
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    assert!(error.to_string().contains("distlock setup"), "{error}");
    set_up(&bench.server).await;
    let next = timeout(TEST_LIMIT, async {
        loop {
            match locker.try_lock("a").await {
                Ok(Some(next)) => return next,
                _ => sleep(ms(50)).await,
            }
        }
    });
    let next = next.await.expect("in time");
    assert!(next.fencing_token() > guard.fencing_token());
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn f66_hostile_rows_name_no_owner_and_break_nothing() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    bench.server.sql("UPDATE distlock.locks SET record = repeat('x', 100000), since = 'infinity' WHERE name = 'a'");
    bench.server.sql(
        "INSERT INTO distlock.locks (name, mode, attempt, expires, used_on) \
         VALUES (E'two\\nlines', 'x', 'y', now() + '1 h', now()), ('odd', 'q', NULL, NULL, now()), ('nought', 'p0', NULL, NULL, now())",
    );
    let locks = locker.inspect().list("").await.expect("listed");
    assert!(locks.iter().all(|lock| lock.holder().is_none_or(|holder| holder.record.is_none())), "{locks:?}");
    // Without an end, and with a hold that no number tells.
    bench.server.sql(
        "INSERT INTO distlock.locks (name, token, mode, attempt, used_on) VALUES ('endless', 7, 'x', 'y', now()), \
         ('endless too', 7, 'x', 'y', now())",
    );
    let broken = locker.inspect().force_release("endless", FencingToken::new(7), "a test").await;
    assert_eq!(broken.expect_err("no owner holds it").kind(), ErrorKind::NotHeld);
    for name in ["endless", "endless too"] {
        locker.lock(name).wait(TEST_LIMIT).await.expect("nobody holds it").unlock().await.expect("released");
    }
    for name in ["odd", "nought"] {
        let outcome = locker.lock(name).wait(ms(100)).await;
        if let Ok(guard) = outcome {
            guard.unlock().await.expect("released");
        }
    }
    guard.check().expect("the others are well");
    drop(guard.unlock().await);
}

#[tokio::test]
async fn f67_a_token_from_the_future_is_an_error_and_kept() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    bench.server.sql("UPDATE distlock.locks SET token = 9223372036854775807 WHERE name = 'warm'");
    let error = locker.try_lock("warm").await.expect_err("the fence is not believed");
    assert_eq!(error.kind(), ErrorKind::Foreign, "{error}");
    assert_eq!(bench.server.sql("SELECT token FROM distlock.locks WHERE name = 'warm'"), "9223372036854775807");
}

#[tokio::test]
async fn f36_rights_that_are_withdrawn_are_told() {
    let bench = Bench::start().await;
    bench.server.sql("CREATE USER app; GRANT USAGE ON SCHEMA distlock TO app");
    let engine =
        Postgres::tcp("127.0.0.1", bench.server.port()).user("app").database("postgres").build().expect("an engine");
    let locker = Locker::new(engine).expect("a locker");
    let guard = locker.lock("a").ttl(TTL).await.expect("the least rights suffice");
    bench.server.sql("REVOKE USAGE ON SCHEMA distlock FROM app");
    bench.server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'");
    timeout(TEST_LIMIT, guard.lost()).await.expect("its renewals are refused");
    let error = locker.try_lock("a").await.expect_err("no right");
    assert_eq!(error.kind(), ErrorKind::Auth, "{error}");
}

#[tokio::test]
async fn f41_a_pooler_is_found_out_and_waiters_poll() {
    let bench = Bench::start().await;
    let bouncer = PgBouncer::start(&bench.server, 2);
    let locker = warm(bench.builder(bouncer.port())).await;
    assert!(!locker.capabilities().wakes, "no message passes a pooler");
    assert!(bench.direct().await.capabilities().wakes);
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    let other = warm(bench.builder(bouncer.port())).await;
    let waiter = tokio::spawn(other.lock("a").ttl(TEST_LIMIT).into_future());
    bench.until_waiting(1).await;
    guard.unlock().await.expect("released");
    let next = timeout(TEST_LIMIT, waiter).await.expect("in time").expect("no panic").expect("granted");
    next.unlock().await.expect("released");
    let left = "SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory') + (SELECT count(*) FROM pg_prepared_statements)";
    let session = bench.pooled_session(&bouncer).await;
    // The sessions that were lent are asked one after the other: nothing of ours is left in any.
    for _ in 0..4 {
        let row = session.query_typed_one(left, &[]).await.expect("asked");
        assert_eq!(row.get::<_, i64>(0), 0, "a statement or a lock stayed in a session that others use");
    }
}

#[tokio::test]
async fn f42_connections_that_the_application_opens_are_used_and_opened_again() {
    let bench = Bench::start().await;
    let socket = bench.server.socket_directory().join(format!(".s.PGSQL.{}", bench.server.port()));
    let opened = Arc::new(AtomicUsize::new(0));
    let count = opened.clone();
    let dial = move || {
        count.fetch_add(1, Ordering::Relaxed);
        tokio::net::UnixStream::connect(socket.clone())
    };
    let locker = warm(Postgres::over("the application's", dial).user("postgres").database("postgres")).await;
    let before = opened.load(Ordering::Relaxed);
    assert!(before >= 2, "one for claims and one for renewals");
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    bench.server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'distlock'");
    guard.extend(TEST_LIMIT).await.expect("over a new connection");
    guard.unlock().await.expect("released");
    assert!(opened.load(Ordering::Relaxed) > before, "the old ones were ended");
}

#[tokio::test]
async fn f28_a_session_without_its_prepared_statements_is_replaced() {
    let bench = Bench::start().await;
    let locker = bench.direct().await;
    // As a pooler does that is not found out, when it lends the session to another client.
    bench.server.sql(
        "CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'DEALLOCATE ALL'; RETURN NULL; END $$",
    );
    bench.server.sql("CREATE TRIGGER t AFTER UPDATE ON distlock.locks FOR EACH ROW EXECUTE FUNCTION forget()");
    let guard = locker.lock("warm").ttl(TEST_LIMIT).await.expect("granted");
    bench.server.sql("DROP TRIGGER t ON distlock.locks");
    let error = locker.try_lock("other").await.expect_err("the statement is not there");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "definite: {error}");
    assert!(error.to_string().contains("26000"), "{error}");
    locker.try_lock("other").await.expect("another session").expect("granted").unlock().await.expect("released");
    guard.unlock().await.expect("released");
}
