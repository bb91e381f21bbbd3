//! The engine, and what it shares between its verbs once it is attached.

use std::fmt;
use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::contract::{Attachment, Claim};
use crate::engines::postgres::protocol::requests::{Statement, Statements};
use crate::engines::postgres::state::first_leases::FirstLeases;
use crate::engines::postgres::state::known_names::KnownNames;
use crate::engines::postgres::state::sending::LATEST;
use crate::engines::postgres::state::server_clock::ServerClock;
use crate::engines::postgres::wire::batcher::Batcher;
use crate::engines::postgres::wire::claims::ClaimSender;
use crate::engines::postgres::wire::link::Link;
use crate::engines::postgres::wire::links::{CONNECT_WAIT, Links};
use crate::engines::postgres::wire::listener::Listener;
use crate::engines::postgres::wire::options::Options;
use crate::engines::postgres::wire::releases::ReleaseSender;
use crate::engines::postgres::wire::renewals::Renewals;
use crate::engines::shared::contention::Contention;
use crate::engines::shared::late_claims::LateClaims;
use crate::engines::shared::waiting::Waiting;
use crate::types::clock::Clock;
use crate::types::error::Result;
use crate::types::key::Key;

/// How many claims or releases one statement carries: a few milliseconds of the server's time.
const MOST_REQUESTS: usize = 64;

/// The PostgreSQL engine.
///
/// Two connections: one for claims and releases, driven by the runtime in which the locker was made; one for renewals,
/// driven by the keeper, so that an application that blocks its runtime keeps its locks. From the first waiter on there is
/// a third, on which messages for waiters come in.
///
/// ```no_run
/// use distlock::Locker;
/// use distlock::backend::postgres::Postgres;
///
/// # async fn f() -> distlock::Result<()> {
/// let locker = Locker::new(Postgres::tcp("127.0.0.1", 5432).user("app").database("shop").build()?)?;
/// let guard = locker.lock("invoice:42").await?;
/// # guard.unlock().await }
/// ```
pub struct Postgres {
    pub(super) options: Arc<Options>,
    client: OnceLock<Client>,
}

/// What the verbs share once the engine is attached.
pub(super) struct Client {
    pub(super) options: Arc<Options>,
    pub(super) clock: Clock,
    pub(super) waiting: Arc<Waiting>,
    pub(super) late_claims: LateClaims,
    pub(super) contention: Contention,
    pub(super) first_leases: FirstLeases,
    pub(super) known_names: KnownNames,
    pub(super) links: Arc<Links>,
    pub(super) claims: Batcher<ClaimSender>,
    pub(super) releases: Batcher<ReleaseSender>,
    pub(super) renewals: Renewals,
}

impl Postgres {
    pub(super) fn new(options: Options) -> Postgres {
        Postgres { options: Arc::new(options), client: OnceLock::new() }
    }

    pub(super) fn start(&self, attachment: &Attachment) {
        self.client.get_or_init(|| Client::start(&self.options, attachment));
    }

    /// Returns the client. Without a locker its connections run where the first call comes from.
    pub(super) fn client(&self) -> &Client {
        self.client.get_or_init(|| Client::start(&self.options, &Attachment::standalone(&Handle::current())))
    }

    /// Returns the client if the engine is attached.
    pub(super) fn attached(&self) -> Option<&Client> {
        self.client.get()
    }
}

impl Client {
    fn start(options: &Arc<Options>, attachment: &Attachment) -> Client {
        let keeper = &attachment.keeper_runtime;
        let caller = attachment.caller_runtime.as_ref().unwrap_or(keeper);
        // A pool may open a connection when it is asked for one, and that must not end with the keeper.
        let renewing = if options.lender.is_some() { caller } else { keeper };
        let clock = Arc::new(ServerClock::new(attachment.clock.clone(), attachment.drift));
        let waiting = Arc::new(Waiting::new(attachment));
        let links = Arc::new(Links {
            main: Link::new(options, &clock, caller, |options| {
                let Statements { lean_claim, lean_release, claim, release, .. } = &options.statements;
                vec![lean_claim, lean_release, claim, release]
            }),
            reserved: Link::new(options, &clock, renewing, |options| vec![&options.statements.renew]),
            listener: Listener::new(options, &clock, &waiting, keeper),
        });
        let (clock, options) = (attachment.clock.clone(), options.clone());
        let claims = ClaimSender { links: links.clone(), options: options.clone(), clock: clock.clone() };
        let releases = ReleaseSender { links: links.clone(), options: options.clone() };
        Client {
            late_claims: LateClaims::new(LATEST),
            contention: Contention::new(),
            first_leases: FirstLeases::default(),
            known_names: KnownNames::new(),
            claims: Batcher::new(claims, caller, MOST_REQUESTS),
            // The keeper's: releases go on when the caller's runtime has ended.
            releases: Batcher::new(releases, keeper, MOST_REQUESTS),
            renewals: Renewals::start(&links, &options, &clock, keeper),
            options,
            clock,
            waiting,
            links,
        }
    }

    /// Returns when the server can be used or could not be reached.
    pub(super) async fn ready(&self) -> Result<()> {
        let wait = self.options.longest_dial() + CONNECT_WAIT;
        self.links.main.connection(wait).await?;
        self.links.reserved.connection(wait).await.map(drop)
    }

    /// Returns the name of a lock's row.
    pub(super) fn name(&self, key: &Key) -> String {
        [&self.options.prefix, key.as_str()].concat()
    }

    /// Returns whether a lean statement is likely to serve the lock with this name.
    pub(super) fn is_lean(&self, claim: &Claim, name: &str) -> bool {
        claim.mode().is_exclusive() && self.known_names.has(name) && !self.contention.is_recent(name, self.clock.now())
    }

    /// Sends a statement over the main connection, and returns its rows.
    pub(super) async fn query(&self, statement: &Statement, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        self.links.for_release().await?.query(statement, parameters).await
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("options", &self.options).finish_non_exhaustive()
    }
}
