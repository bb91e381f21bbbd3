//! A server with the engine's schema, behind a proxy.

use std::time::Duration;

use distlock::backend::postgres::{Postgres, PostgresBuilder};
use distlock::{Clock, ErrorKind, LockGuard, Locker, Moment};
use distlock_testkit::proxy::Proxy;
use distlock_testkit::servers::{PgBouncer, PostgresOptions, PostgresServer};
use tokio_postgres::NoTls;

pub(crate) const TTL: Duration = Duration::from_millis(900);
/// A generous limit for what must happen.
pub(crate) const TEST_LIMIT: Duration = Duration::from_secs(20);

pub(crate) fn ms(number: u64) -> Duration {
    Duration::from_millis(number)
}

pub(crate) fn now() -> Moment {
    Clock::system().now()
}

pub(crate) async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Runs what blocks on another thread.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("no panic")
}

pub(crate) struct Bench {
    pub(crate) server: PostgresServer,
    pub(crate) proxy: Proxy,
}

impl Bench {
    pub(crate) async fn start() -> Bench {
        Bench::of(&PostgresServer::options()).await
    }

    pub(crate) async fn of(options: &PostgresOptions) -> Bench {
        let server = options.start();
        set_up(&server).await;
        let proxy = Proxy::start(server.address());
        Bench { server, proxy }
    }

    pub(crate) fn builder(&self, port: u16) -> PostgresBuilder {
        Postgres::tcp("127.0.0.1", port).user("postgres").database("postgres")
    }

    /// A locker past the proxy.
    pub(crate) async fn direct(&self) -> Locker {
        warm(self.builder(self.server.port())).await
    }

    pub(crate) async fn behind_proxy(&self) -> Locker {
        warm(self.builder(self.proxy.port())).await
    }

    /// Returns what a query returns, row by row.
    pub(crate) fn rows(&self, sql: &str) -> Vec<String> {
        self.server.sql(sql).lines().map(str::to_owned).collect()
    }

    /// Waits until a query returns `expected`.
    pub(crate) async fn until(&self, sql: &str, expected: &str) {
        let until = now().after(TEST_LIMIT);
        loop {
            let found = self.server.sql(sql);
            if found == expected {
                return;
            }
            assert!(now() < until, "{sql}: {found}, not {expected}");
            sleep(ms(10)).await;
        }
    }

    pub(crate) async fn until_waiting(&self, count: usize) {
        self.until("SELECT count(*) FROM distlock.waiters", &count.to_string()).await;
    }

    /// Waits until neither holds nor waiters are left.
    pub(crate) async fn expect_nothing_left(&self) {
        let left = "SELECT (SELECT count(*) FROM distlock.locks WHERE mode IS NOT NULL AND expires > clock_timestamp()) + \
                    (SELECT count(*) FROM distlock.holders WHERE expires > clock_timestamp()) + \
                    (SELECT count(*) FROM distlock.waiters WHERE alive > clock_timestamp())";
        self.until(left, "0").await;
    }

    /// A session of the application, without any lock.
    pub(crate) async fn session(&self) -> tokio_postgres::Client {
        self.session_at(self.server.port()).await
    }

    /// A session that a pooler lends by the transaction.
    pub(crate) async fn pooled_session(&self, bouncer: &PgBouncer) -> tokio_postgres::Client {
        self.session_at(bouncer.port()).await
    }

    async fn session_at(&self, port: u16) -> tokio_postgres::Client {
        let config = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
        let (client, connection) = tokio_postgres::connect(&config, NoTls).await.expect("a session");
        tokio::spawn(connection);
        client
    }
}

pub(crate) async fn set_up(server: &PostgresServer) {
    let engine = Postgres::unix(server.socket_directory(), server.port()).user("postgres").build().expect("an engine");
    engine.setup().await.expect("the schema is made");
}

/// Returns a locker after one full cycle, so that a fault affects the intended request and not the dialling.
pub(crate) async fn warm(builder: PostgresBuilder) -> Locker {
    let engine = builder.build().expect("an engine");
    let locker = Locker::builder().default_ttl(TTL).retry_interval(ms(50)).build(engine).expect("a locker");
    // A busy machine may not reply in time at first.
    for _ in 0..5 {
        let guard = locker.lock("warm").await.expect("granted");
        let is_extended = guard.extend(TTL).await.is_ok();
        if guard.unlock().await.is_ok() && is_extended {
            return locker;
        }
    }
    panic!("no lock was taken, extended and released without a failure");
}

/// Extends a hold, repeatedly while its session is being ended or opened.
pub(crate) async fn extend(guard: &LockGuard) {
    let until = now().after(TEST_LIMIT);
    while let Err(error) = guard.extend(TEST_LIMIT).await {
        assert!(matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable) && now() < until, "{error}");
    }
    guard.check().expect("held");
}
