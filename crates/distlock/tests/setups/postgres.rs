//! PostgreSQL servers in several configurations, each a set-up of the conformance suite.

#[path = "client_pool.rs"]
mod client_pool;

use std::time::Duration;

use distlock::backend::postgres::Postgres;
use distlock_testkit::Setup;
use distlock_testkit::servers::{PgBouncer, PostgresOptions, PostgresServer};

use self::client_pool::ClientPool;

/// A server with the engine's schema, and a session to look at it.
pub(crate) struct Server {
    server: PostgresServer,
    session: tokio_postgres::Client,
    /// The schema's name, quoted.
    schema: &'static str,
}

impl Server {
    async fn start(name: &str, schema: &'static str) -> Server {
        Server::of(&PostgresServer::options(), name, schema).await
    }

    async fn of(options: &PostgresOptions, name: &str, schema: &'static str) -> Server {
        let server = options.start();
        let engine = Postgres::unix(server.socket_directory(), server.port()).user("postgres").schema(name);
        engine.build().expect("an engine").setup().await.expect("the schema is made");
        let address = format!("host={} port={} user=postgres", server.socket_directory().display(), server.port());
        let (session, connection) = tokio_postgres::connect(&address, tokio_postgres::NoTls).await.expect("a session");
        tokio::spawn(connection);
        Server { server, session, schema }
    }

    /// Returns live holds and live waiters. A row without them keeps the lock's last token.
    async fn left(&self) -> Vec<String> {
        let schema = self.schema;
        let left = format!(
            "SELECT 'held ' || name FROM {schema}.locks WHERE attempt IS NOT NULL AND expires > clock_timestamp() \
             UNION ALL SELECT 'holder ' || name FROM {schema}.holders WHERE expires > clock_timestamp() \
             UNION ALL SELECT 'waiter ' || name FROM {schema}.waiters WHERE alive > clock_timestamp()"
        );
        let rows = self.session.query_typed(&left, &[]).await.expect("what is left");
        rows.iter().map(|row| row.get(0)).collect()
    }
}

/// A server, directly. The locks' user has the least rights, and the schema is another user's.
pub(crate) struct Plain(Server);

/// The schema's name needs quotes.
const SCHEMA: &str = "Our \"locks\"";
const QUOTED: &str = "\"Our \"\"locks\"\"\"";

impl Setup for Plain {
    type Engine = Postgres;

    async fn start() -> Self {
        let server = Server::start(SCHEMA, QUOTED).await;
        let grant = format!("CREATE USER app; GRANT USAGE ON SCHEMA {QUOTED} TO app");
        server.session.batch_execute(&grant).await.expect("the least rights");
        Plain(server)
    }

    async fn client(&self) -> Postgres {
        let builder = Postgres::tcp("127.0.0.1", self.0.server.port()).user("app").database("postgres");
        builder.schema(SCHEMA).prefix("it's %_ours:").build().expect("an engine")
    }

    async fn leftovers(&self) -> Vec<String> {
        self.0.left().await
    }
}

/// Behind a pooler in transaction mode: waiters poll.
pub(crate) struct Pooled {
    server: Server,
    bouncer: PgBouncer,
}

impl Setup for Pooled {
    type Engine = Postgres;

    async fn start() -> Self {
        let server = Server::start("distlock", "distlock").await;
        let bouncer = PgBouncer::start(&server.server, 4);
        Pooled { server, bouncer }
    }

    async fn client(&self) -> Postgres {
        let builder = Postgres::tcp("127.0.0.1", self.bouncer.port()).user("postgres").database("postgres");
        builder.pooled().build().expect("an engine")
    }

    async fn leftovers(&self) -> Vec<String> {
        self.server.left().await
    }
}

/// With the connections of a pool that has two: waiters poll.
pub(crate) struct Lent(Server);

impl Setup for Lent {
    type Engine = Postgres;

    async fn start() -> Self {
        Lent(Server::start("distlock", "distlock").await)
    }

    async fn client(&self) -> Postgres {
        let address = format!("host=127.0.0.1 port={} user=postgres", self.0.server.port());
        let pool = ClientPool::new(&address, 2);
        let lend = move || {
            let pool = pool.clone();
            async move { pool.get().await }
        };
        Postgres::from_pool(lend, |lent| lent).build().expect("an engine")
    }

    async fn leftovers(&self) -> Vec<String> {
        self.0.left().await
    }
}

/// A primary whose grants count when its streaming replica has them. The replica is named first, so that the primary is looked for.
pub(crate) struct Replicated {
    primary: Server,
    replica: PostgresServer,
}

impl Setup for Replicated {
    type Engine = Postgres;

    async fn start() -> Self {
        let primary = Server::start("distlock", "distlock").await;
        let replica = PostgresServer::options().replica_of(&primary.server).start();
        for setting in ["ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"] {
            primary.session.batch_execute(setting).await.expect("set");
        }
        let is_synchronous =
            "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync'";
        while primary.session.query_typed_one(is_synchronous, &[]).await.expect("asked").get::<_, i64>(0) != 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Replicated { primary, replica }
    }

    async fn client(&self) -> Postgres {
        let servers = [&self.replica, &self.primary.server].map(|server| ("127.0.0.1", server.port()));
        Postgres::any_of(servers).user("postgres").database("postgres").build().expect("an engine")
    }

    async fn leftovers(&self) -> Vec<String> {
        self.primary.left().await
    }
}

/// Encrypted, with a password (SCRAM).
#[cfg(feature = "tls")]
pub(crate) struct Tls {
    server: Server,
    certs: distlock_testkit::servers::Certs,
}

#[cfg(feature = "tls")]
impl Setup for Tls {
    type Engine = Postgres;

    async fn start() -> Self {
        let certs = distlock_testkit::servers::Certs::new();
        let options = PostgresServer::options().tls(&certs).password("s3cret");
        Tls { server: Server::of(&options, "distlock", "distlock").await, certs }
    }

    async fn client(&self) -> Postgres {
        let ca = std::fs::read(self.certs.ca()).expect("a certificate");
        let builder = Postgres::tcp("localhost", self.server.server.port()).user("postgres").password("s3cret");
        builder.tls(Some(ca)).build().expect("an engine")
    }

    async fn leftovers(&self) -> Vec<String> {
        self.server.left().await
    }
}
