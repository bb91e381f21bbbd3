//! PostgreSQL servers in several configurations, each a set-up of the conformance suite.

use distlock::backend::postgres::Postgres;
use distlock_testkit::Setup;
use distlock_testkit::servers::{PgBouncer, PostgresServer};

/// Returns what is left on a server: live holds and live waiters. A row without them keeps the lock's last token.
pub(crate) fn left_on(server: &PostgresServer, schema: &str) -> Vec<String> {
    let left = server.sql(&format!(
        "SELECT 'held ' || name FROM {schema}.locks WHERE attempt IS NOT NULL AND expires > clock_timestamp() \
         UNION ALL SELECT 'holder ' || name FROM {schema}.holders WHERE expires > clock_timestamp() \
         UNION ALL SELECT 'waiter ' || name FROM {schema}.waiters WHERE alive > clock_timestamp()"
    ));
    left.lines().map(str::to_owned).collect()
}

async fn set_up(server: &PostgresServer, schema: &str) {
    let engine = Postgres::unix(server.socket_directory(), server.port()).user("postgres").schema(schema);
    engine.build().expect("an engine").setup().await.expect("the schema is made");
}

/// A server, directly. The locks' user has the least rights, and the schema is another user's.
pub(crate) struct Plain(PostgresServer);

/// The schema's name needs quotes.
const SCHEMA: &str = "Our \"locks\"";
const QUOTED: &str = "\"Our \"\"locks\"\"\"";

impl Setup for Plain {
    type Engine = Postgres;

    async fn start() -> Self {
        let server = PostgresServer::start();
        set_up(&server, SCHEMA).await;
        server.sql(&format!("CREATE USER app; GRANT USAGE ON SCHEMA {QUOTED} TO app"));
        Plain(server)
    }

    async fn client(&self) -> Postgres {
        let builder = Postgres::tcp("127.0.0.1", self.0.port()).user("app").database("postgres");
        builder.schema(SCHEMA).prefix("it's %_ours:").build().expect("an engine")
    }

    async fn leftovers(&self) -> Vec<String> {
        left_on(&self.0, QUOTED)
    }
}

/// Behind a pooler in transaction mode: waiters poll.
pub(crate) struct Pooled {
    server: PostgresServer,
    bouncer: PgBouncer,
}

impl Setup for Pooled {
    type Engine = Postgres;

    async fn start() -> Self {
        let server = PostgresServer::start();
        set_up(&server, "distlock").await;
        let bouncer = PgBouncer::start(&server, 4);
        Pooled { server, bouncer }
    }

    async fn client(&self) -> Postgres {
        let builder = Postgres::tcp("127.0.0.1", self.bouncer.port()).user("postgres").database("postgres");
        builder.pooled().build().expect("an engine")
    }

    async fn leftovers(&self) -> Vec<String> {
        left_on(&self.server, "distlock")
    }
}
