//! One PostgreSQL server.

use distlock::Config;
use distlock_testkit::clock_shim::{ClockShim, ShiftedClock};
use distlock_testkit::servers::PostgresServer;

use super::Arena;
use crate::fault::Fault;
use crate::links::Links;

/// The server, the links to it, and its clock.
pub(crate) struct Postgres {
    server: PostgresServer,
    links: Links,
    clock: ClockShim,
}

impl Postgres {
    pub(crate) fn start() -> Postgres {
        let clock = ClockShim::new();
        // A server that must keep its data has to write them to disk before it replies.
        let server = PostgresServer::options().durable().clock(&clock).start();
        let config = Config::from_url(&server.url()).expect("a URL");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(distlock::set_up(&config)).expect("the schema is made");
        let links = Links::to([server.address()]);
        Postgres { server, links, clock }
    }
}

impl Arena for Postgres {
    fn url(&self, worker: usize) -> String {
        format!("postgres://postgres@{}/postgres", self.links.addresses(worker))
    }

    fn namespace(&self, worker: usize) -> Option<String> {
        self.links.namespace(worker)
    }

    fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::Link { server, side, trouble } => self.links.begin(server, side, trouble),
            Fault::Partition { how, from } => self.links.part(how, from),
            Fault::Freeze { .. } => self.server.freeze(),
            Fault::Restart { .. } => self.server.crash(),
            Fault::ClockBack { by, .. } => self.clock.back(ShiftedClock::Wall, by),
            other => unreachable!("{other:?} does not apply to PostgreSQL"),
        }
    }

    fn end(&mut self, fault: Fault) {
        match fault {
            Fault::Link { server, side, .. } => self.links.end(server, side),
            Fault::Partition { .. } => self.links.heal(),
            Fault::Freeze { .. } => self.server.thaw(),
            Fault::Restart { .. } => self.server.restart(),
            // The clock stays as it was set: correcting it would be another jump.
            _ => {}
        }
    }

    fn leftovers(&mut self) -> Vec<String> {
        // A row without a holder keeps the last token.
        let left = self.server.sql(
            "SELECT 'held ' || name FROM distlock.locks WHERE attempt IS NOT NULL AND expires > clock_timestamp() \
             UNION ALL SELECT 'holder ' || name FROM distlock.holders WHERE expires > clock_timestamp() \
             UNION ALL SELECT 'waiter ' || name FROM distlock.waiters WHERE alive > clock_timestamp()",
        );
        left.lines().map(str::to_owned).collect()
    }
}
