//! A primary that is lost, and its replica that is promoted.

use distlock::backend::postgres::Postgres;
use distlock::{ErrorKind, Locker};
use distlock_testkit::servers::PostgresServer;
use tokio::time::timeout;

use crate::bench::{Bench, TEST_LIMIT, ms, sleep, warm};

fn both(one: &PostgresServer, other: &PostgresServer) -> Locker {
    let engine = Postgres::any_of([("127.0.0.1", one.port()), ("127.0.0.1", other.port())])
        .user("postgres")
        .database("postgres")
        .build()
        .expect("an engine");
    Locker::builder().retry_interval(ms(50)).build(engine).expect("a locker")
}

async fn until_streaming(bench: &Bench, state: &str) {
    bench.until("SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'", state).await;
}

#[tokio::test]
async fn f25_a_replica_that_lacks_the_lock_grants_it_with_a_higher_token() {
    let mut bench = Bench::start().await;
    let replica = PostgresServer::options().replica_of(&bench.server).start();
    until_streaming(&bench, "async").await;
    let locker = both(&replica, &bench.server);
    let early = locker.lock("early").await.expect("the primary is the second of the two");
    // Nothing of what follows reaches the replica.
    replica.sql("ALTER SYSTEM SET primary_conninfo = ''");
    replica.sql("SELECT pg_reload_conf()");
    bench.until("SELECT count(*) FROM pg_stat_replication", "0").await;
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    bench.server.crash();
    replica.promote();
    let next = timeout(TEST_LIMIT, async {
        loop {
            match locker.clone().try_lock("a").await {
                Ok(Some(next)) => return next,
                _ => sleep(ms(50)).await,
            }
        }
    });
    let next = next.await.expect("granted by the replica");
    assert!(next.fencing_token() > guard.fencing_token(), "tokens rise");
    timeout(TEST_LIMIT, guard.lost()).await.expect("the former holder is told");
    early.check().expect("what the replica has is kept");
    next.unlock().await.expect("released");
}

#[tokio::test]
async fn f25_a_synchronous_replica_has_every_lock() {
    let mut bench = Bench::start().await;
    let replica = PostgresServer::options().replica_of(&bench.server).start();
    bench.server.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
    bench.server.sql("SELECT pg_reload_conf()");
    until_streaming(&bench, "sync").await;
    let locker = both(&bench.server, &replica);
    let guard = locker.lock("a").ttl(TEST_LIMIT).await.expect("granted");
    bench.server.crash();
    replica.promote();
    let other = warm(Postgres::tcp("127.0.0.1", replica.port()).user("postgres").database("postgres")).await;
    assert!(other.try_lock("a").await.expect("no failure").is_none(), "the lock was lost");
    guard.check().expect("held");
    timeout(TEST_LIMIT, async { while guard.extend(TEST_LIMIT).await.is_err() {} }).await.expect("renewed there");
    drop(guard.unlock().await);
}

#[tokio::test]
async fn f27_a_replica_alone_is_refused() {
    let bench = Bench::start().await;
    let replica = PostgresServer::options().replica_of(&bench.server).start();
    let locker = both(&replica, &replica);
    let error = locker.try_lock("a").await.expect_err("it cannot be written to");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("replica"), "{error}");
}
