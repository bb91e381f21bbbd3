//! Locks on a majority of independent Redis nodes, with fencing tokens that rise.
//!
//! The token is a ballot: a node votes for a claim only with a higher ballot than any it has voted for, so two grants
//! never share one. See `docs/backends/redlock.md`.

mod attempts;
mod builder;
mod claiming;
mod crew;
mod doctor;
mod gate;
mod healing;
mod inspecting;
pub(crate) mod open;
mod quarantine;
mod race;
mod releasing;
mod renewing;
mod scripts;
mod volley;
mod vote;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;

use self::builder::Options;
pub use self::builder::RedlockBuilder;
use self::crew::Crew;
use self::race::Race;
use crate::contract::{
    Attachment, Backend, Capabilities, Claim, Claimed, Lease, LockInfo, Release, Renewal, Scope, Wake,
};
use crate::engines::redis::node::Lane;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::history::HistoryEntry;
use crate::types::key::Key;
use crate::types::token::FencingToken;

/// How long a request waits for a majority to be connected.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a waiter that one node has told waits for the others to tell, so as not to come before they are free.
const CHORUS: Duration = Duration::from_millis(10);

/// The Redlock engine: a lock is held when a majority of the nodes keeps it.
///
/// Two connections to each node: one for claims, releases and wake-ups, driven by the runtime in which the locker was
/// made; one for renewals, driven by the keeper.
///
/// ```no_run
/// use distlock::Locker;
/// use distlock::backend::redis::Redis;
/// use distlock::backend::redlock::Redlock;
///
/// # async fn f() -> distlock::Result<()> {
/// let nodes = ["a", "b", "c"].map(|host| Redis::tcp(host, 6379));
/// let locker = Locker::new(Redlock::of(nodes).prefix("app:").build()?)?;
/// let guard = locker.lock("invoice:42").await?;
/// # guard.unlock().await }
/// ```
pub struct Redlock {
    options: Arc<Options>,
    crew: OnceLock<Arc<Crew>>,
}

impl Redlock {
    fn new(options: Arc<Options>) -> Redlock {
        Redlock { options, crew: OnceLock::new() }
    }

    /// Without a locker the connections run where the first call comes from.
    fn crew(&self) -> &Arc<Crew> {
        self.crew.get_or_init(|| Arc::new(Crew::start(&self.options, &Attachment::standalone(&Handle::current()))))
    }

    fn forget(&self, claim: &Claim) {
        self.crew().nodes.iter().for_each(|member| member.node.forget(claim.attempt));
    }
}

impl Backend for Redlock {
    fn name(&self) -> &'static str {
        "redlock"
    }

    fn needs_runtime(&self) -> bool {
        true
    }

    fn capabilities(&self) -> Capabilities {
        let deaf = self.crew.get().is_some_and(|crew| {
            let deaf = |connection: Option<crate::engines::redis::node::Connection>| {
                connection.is_some_and(|connection| !connection.hears())
            };
            crew.nodes.iter().filter(|member| deaf(member.node.now(Lane::Main))).count() >= crew.quorum()
        });
        let all = Capabilities::new(Scope::Cluster);
        Capabilities { fair: false, leases: true, wakes: !deaf, inspects: true, breaks: true, ..all }
    }

    fn attach(&self, attachment: Attachment) {
        let _ = self.crew.set(Arc::new(Crew::start(&self.options, &attachment)));
    }

    async fn ready(&self) -> Result<()> {
        let (crew, patience) = (self.crew(), self.options.dial_timeout + PATIENCE);
        crew.gather(Lane::Main, patience).await?;
        crew.gather(Lane::Reserved, patience).await
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        let crew = self.crew();
        let _passage = crew.gates.pass(&claim.key).await;
        crew.gather(Lane::Main, PATIENCE).await?;
        let outcome = claiming::claim(crew, claim).await;
        if !matches!(outcome, Ok(Claimed::Busy(_))) {
            self.forget(claim);
        } else if !claim.queue {
            crew.attempts.forget(claim.attempt);
        }
        outcome
    }

    async fn wait(&self, claim: &Claim) -> Wake {
        let crew = self.crew();
        let mut race = Race::new(crew.nodes.iter().enumerate().map(|(at, member)| {
            let (member, attempt) = (member.clone(), claim.attempt);
            (at, async move { member.node.hint(attempt).await })
        }));
        race.next().await;
        // One node is free. The others are about to be, and without a majority of them there is nothing to claim.
        let mut told = 1;
        race.run(CHORUS, Duration::ZERO, |_, ()| {
            told += 1;
            told >= crew.quorum()
        })
        .await;
        Wake::Retry
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        renewing::renew(self.crew(), leases).await
    }

    async fn release(&self, claim: &Claim) -> Result<Release> {
        self.forget(claim);
        releasing::release(self.crew(), claim).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        inspecting::list(self.crew(), prefix).await
    }

    async fn get(&self, key: &Key) -> Result<Option<LockInfo>> {
        inspecting::get(self.crew(), key).await
    }

    async fn force_release(&self, key: &Key, token: FencingToken, _reason: &str) -> Result<()> {
        inspecting::force_release(self.crew(), key, token).await
    }

    async fn history(&self, _key: &Key, _most: u32) -> Result<Vec<HistoryEntry>> {
        let message = "the redlock engine cannot keep a history: none of its servers sees every hold";
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    async fn close(&self) -> Result<()> {
        if let Some(crew) = self.crew.get() {
            crew.close().await;
        }
        Ok(())
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock").field("options", &self.options).finish_non_exhaustive()
    }
}
