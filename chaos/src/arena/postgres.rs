//! A PostgreSQL server with a synchronous replica, which is promoted when the server is lost.

use distlock::Config;
use distlock_testkit::clock_shim::{ClockShim, ShiftedClock};
use distlock_testkit::servers::{PostgresOptions, PostgresServer, eventually};

use super::Arena;
use crate::fault::Fault;
use crate::links::Links;

/// The primary and its replica, the links to them, and their clock.
pub(crate) struct Postgres {
    servers: [PostgresServer; 2],
    /// The index of the primary.
    primary: usize,
    links: Links,
    clock: ClockShim,
}

impl Postgres {
    pub(crate) fn start() -> Postgres {
        let clock = ClockShim::new();
        let primary = options(&clock).start();
        let replica = options(&clock).replica_of(&primary).start();
        let config = Config::from_url(&primary.url()).expect("a URL");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(distlock::set_up(&config)).expect("the schema is made");
        let links = Links::to([primary.address(), replica.address()]);
        Postgres { servers: [primary, replica], primary: 0, links, clock }
    }

    fn replica(&self) -> usize {
        1 - self.primary
    }

    /// Kills the primary. Only when its replica is synchronous: no other replica may be promoted.
    fn lose_primary(&mut self) {
        let primary = &self.servers[self.primary];
        eventually("the replica to be synchronous", || {
            let state = primary.try_sql("SELECT sync_state FROM pg_stat_replication").ok()?;
            (state == "sync").then_some(())
        });
        self.servers[self.primary].crash();
    }

    /// Promotes the replica and starts a new one in place of the lost server.
    fn promote(&mut self) {
        let (promoted, lost) = (self.replica(), self.primary);
        self.servers[promoted].promote();
        self.primary = promoted;
        let replica = options(&self.clock).replica_of(&self.servers[promoted]).start();
        self.links.retarget(lost, replica.address());
        self.servers[lost] = replica;
    }
}

/// Returns the options of both servers: each of them may be the primary.
fn options(clock: &ClockShim) -> PostgresOptions {
    // A server that must keep its data has to write them to disk before it replies, and have them written by its replica.
    // Requests that wait for a replica keep their connections.
    PostgresServer::options()
        .durable()
        .set("synchronous_standby_names=*")
        .set("wal_retrieve_retry_interval=100ms")
        .set("max_connections=300")
        .clock(clock)
}

impl Arena for Postgres {
    fn url(&self, worker: usize) -> String {
        format!("postgres://postgres@{}/postgres?target_session_attrs=read-write", self.links.addresses(worker))
    }

    fn namespace(&self, worker: usize) -> Option<String> {
        self.links.namespace(worker)
    }

    fn begin(&mut self, fault: Fault) {
        match fault {
            // The replica can be reached meanwhile, and must not be taken for the primary.
            Fault::Link { side, trouble, .. } => self.links.begin(self.primary, side, trouble),
            Fault::Partition { how, from } => self.links.part(how, from),
            Fault::Freeze { .. } => self.servers[self.primary].freeze(),
            Fault::FreezeFollowers { .. } => self.servers[self.replica()].freeze(),
            Fault::Restart { .. } => self.servers[self.primary].crash(),
            Fault::Promote => self.lose_primary(),
            Fault::ClockBack { by, .. } => self.clock.back(ShiftedClock::Wall, by),
            other => unreachable!("{other:?} does not apply to PostgreSQL"),
        }
    }

    fn end(&mut self, fault: Fault) {
        match fault {
            Fault::Link { side, .. } => self.links.end(self.primary, side),
            Fault::Partition { .. } => self.links.heal(),
            Fault::Freeze { .. } => self.servers[self.primary].thaw(),
            Fault::FreezeFollowers { .. } => self.servers[self.replica()].thaw(),
            Fault::Restart { .. } => self.servers[self.primary].restart(),
            Fault::Promote => self.promote(),
            // The clock stays as it was set: correcting it would be another jump.
            _ => {}
        }
    }

    fn leftovers(&mut self) -> Vec<String> {
        // A row without a holder keeps the last token.
        let left = self.servers[self.primary].sql(
            "SELECT 'held ' || name FROM distlock.locks WHERE attempt IS NOT NULL AND expires > clock_timestamp() \
             UNION ALL SELECT 'holder ' || name FROM distlock.holders WHERE expires > clock_timestamp() \
             UNION ALL SELECT 'waiter ' || name FROM distlock.waiters WHERE alive > clock_timestamp()",
        );
        left.lines().map(str::to_owned).collect()
    }
}
