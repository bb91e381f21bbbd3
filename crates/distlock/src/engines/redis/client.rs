//! The engine, and what it shares between its verbs once it is attached.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::contract::{Attachment, Claim};
use crate::engines::redis::protocol::names::Names;
use crate::engines::redis::state::sending::{LATEST, Sending};
use crate::engines::redis::wire::cluster::Cluster;
use crate::engines::redis::wire::connection::Connection;
use crate::engines::redis::wire::dial::Address;
use crate::engines::redis::wire::options::Options;
use crate::engines::redis::wire::renewals::Renewals;
use crate::engines::redis::wire::server_connections::ServerConnections;
use crate::engines::redis::wire::servers::{Moving, Servers};
use crate::engines::shared::contention::Contention;
use crate::engines::shared::late_claims::LateClaims;
use crate::engines::shared::waiting::Waiting;
use crate::types::clock::Clock;
use crate::types::error::Result;
use crate::types::key::Key;

/// How long a request waits for a connection that is being opened again.
pub(super) const CONNECT_WAIT: Duration = Duration::from_secs(1);

/// The Redis engine.
///
/// Two connections: one for claims, releases and wake-ups, driven by the runtime in which the locker was made; one for
/// renewals, driven by the keeper, so that an application that blocks its runtime keeps its locks.
///
/// ```no_run
/// use distlock::Locker;
/// use distlock::backend::redis::Redis;
///
/// # async fn f() -> distlock::Result<()> {
/// let locker = Locker::new(Redis::tcp("127.0.0.1", 6379).prefix("app:").build()?)?;
/// let guard = locker.lock("invoice:42").await?;
/// # guard.unlock().await }
/// ```
pub struct Redis {
    pub(super) options: Arc<Options>,
    /// Some nodes of a cluster, if it is one.
    pub(super) seeds: Vec<Address>,
    client: OnceLock<Client>,
}

/// What the verbs share once the engine is attached.
pub(super) struct Client {
    pub(super) options: Arc<Options>,
    pub(super) clock: Clock,
    pub(super) waiting: Arc<Waiting>,
    pub(super) servers: Arc<Servers>,
    pub(super) late_claims: LateClaims,
    pub(super) contention: Contention,
    pub(super) renewals: Renewals,
    /// Listens to the sentinels, if there are any.
    _sentinels: Option<JoinSet<()>>,
}

impl Redis {
    pub(super) fn new(options: Options, seeds: Vec<Address>) -> Redis {
        Redis { options: Arc::new(options), seeds, client: OnceLock::new() }
    }

    pub(super) fn start(&self, attachment: &Attachment) {
        self.client.get_or_init(|| Client::start(&self.options, &self.seeds, attachment));
    }

    /// Returns the client. Without a locker its connections run where the first call comes from.
    pub(super) fn client(&self) -> &Client {
        self.client
            .get_or_init(|| Client::start(&self.options, &self.seeds, &Attachment::standalone(&Handle::current())))
    }

    /// Returns the client if the engine is attached.
    pub(super) fn attached(&self) -> Option<&Client> {
        self.client.get()
    }
}

impl Client {
    fn start(options: &Arc<Options>, seeds: &[Address], attachment: &Attachment) -> Client {
        let waiting = Arc::new(Waiting::new(attachment));
        let servers = match options.is_cluster {
            false => Servers::One(Arc::new(ServerConnections::alone(options, &waiting, attachment))),
            true => {
                let (seeds, options) = (seeds.to_vec(), options.clone());
                Servers::Cluster(Box::new(Cluster::new(seeds, options, waiting.clone(), attachment.clone())))
            }
        };
        let (clock, servers) = (attachment.clock.clone(), Arc::new(servers));
        let renewals = Renewals::start(servers.clone(), attachment);
        Client {
            options: options.clone(),
            waiting,
            servers,
            late_claims: LateClaims::new(LATEST),
            contention: Contention::new(),
            renewals,
            _sentinels: options.sentinels.as_ref().map(|sentinels| sentinels.watch(attachment)),
            clock,
        }
    }

    /// Returns when the servers can be used or could not be reached.
    pub(super) async fn ready(&self) -> Result<()> {
        // Dialling itself is bounded; this bounds a runtime that does not run.
        self.servers.first(self.options.dial_timeout + CONNECT_WAIT).await
    }

    pub(super) fn names(&self, key: &Key) -> Result<Names> {
        Names::new(&self.options.prefix, key)
    }

    /// Returns the channel for messages to this process; `-` where none come in.
    pub(super) fn wake_channel(&self, hears: bool) -> String {
        if hears { self.options.wake.to_string() } else { "-".into() }
    }

    /// Tells the restart guard that leases are about to be asked for.
    pub(super) fn note_leases<'a>(&self, claims: impl IntoIterator<Item = &'a Claim>) {
        if let Some(guard) = &self.options.guard {
            let now = self.clock.now();
            claims.into_iter().for_each(|claim| guard.note(claim.lease(), now));
        }
    }

    /// Sends a request about one lock over the main connection of the server that serves it.
    pub(super) async fn on_main<T, F: Future<Output = Result<T>>>(
        &self,
        names: &Names,
        request: impl Fn(Arc<ServerConnections>, Arc<Connection>) -> F,
    ) -> Result<T> {
        let request = &request;
        // A server without a connection is not a reason to learn the hash slots anew: claims and renewals do that.
        let routed = |server: Arc<ServerConnections>, _| async move {
            match server.main.connection(CONNECT_WAIT).await {
                Ok(connection) => request(server, connection).await.map(Ok),
                Err(error) => Ok(Err(error)),
            }
        };
        self.servers.routed(&names.lock, Moving::Wait, routed).await?
    }

    /// Sends a request by which `claims` may get what they ask for over one connection, and notes them as late unless it
    /// is answered.
    pub(super) async fn follow<T>(
        &self,
        claims: &[Claim],
        over: &Connection,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let sending = Sending::new(&self.late_claims, claims, self.clock.now(), over.id);
        let outcome = request.await;
        sending.ended(&outcome);
        outcome
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("options", &self.options).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::types::owner::{OwnerId, Process, Record};

    /// The largest allocation that the C library's allocator serves from a cache of the thread.
    const CACHED: usize = 1032;

    #[tokio::test]
    async fn the_futures_of_a_claim_and_a_release_are_small() {
        let engine = Redis::tcp("127.0.0.1", 1).build().unwrap();
        let owner = OwnerId::new("req-7").unwrap();
        let record = Arc::new(Record::new(owner, Process::current(), None, SystemTime::now()));
        let claim = Claim::new(Key::new("a").unwrap(), Duration::from_secs(10), true, record);
        let client = engine.client();
        let sizes = [size_of_val(&client.claim(&claim)), size_of_val(&client.release(&claim))];
        // With room for what the core puts around them.
        assert!(sizes.iter().all(|size| *size <= CACHED - 128), "{sizes:?}: something large is not boxed");
        let (claim_fully, release_fully) = (client.claim_fully(&claim), client.release_fully(&claim));
        let sizes = [size_of_val(&claim_fully), size_of_val(&release_fully), size_of_val(&client.wait(&claim))];
        assert!(sizes.iter().all(|size| *size <= CACHED), "{sizes:?}: under contention something large is not boxed");
    }
}
