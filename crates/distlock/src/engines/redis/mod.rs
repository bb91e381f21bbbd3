//! Locks in Redis or Valkey: FIFO, fenced, and handed from one holder to the next in one command.
//!
//! A lock is the key of its name, so that lockers of other libraries exclude us and are excluded. Its queue stands in
//! keys beside it. Whoever releases the lock gives it to the next waiter in the same script, which tells that waiter's
//! process by a message. See `docs/backends/redis.md`.

mod builder;
mod cluster;
mod combiner;
mod confirming;
mod dial;
pub(in crate::engines) mod doctor;
mod ears;
mod encryption;
mod fault;
mod flood;
mod guard;
mod holding;
mod inspect;
mod journal;
mod link;
mod link_state;
mod names;
pub(in crate::engines) mod node;
pub(crate) mod open;
mod options;
mod outcome;
mod pair;
mod release;
mod renewals;
mod replicas;
pub(in crate::engines) mod script;
mod sentinels;
mod server_clock;
mod servers;
mod session;
mod slots;
mod stragglers;
mod together;
mod value;
mod waiting;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::Value;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

pub use self::builder::RedisBuilder;
use self::cluster::Cluster;
use self::combiner::{Answer, Kind, Request};
use self::dial::Address;
use self::names::Names;
use self::options::Options;
pub use self::options::Protocol;
use self::outcome::{read_busy, read_slot, refusal};
use self::pair::Pair;
use self::renewals::{Item, Renewals};
use self::script::{Reply, garbled};
use self::servers::Servers;
use self::session::Session;
use self::stragglers::Stragglers;
use self::together::Together;
use self::waiting::Waiting;
use crate::contract::{
    Attachment, Backend, Capabilities, Claim, Claimed, ClaimedAll, Grant, Lease, LockInfo, Release, Renewal,
    SHORTEST_HEARTBEAT, Scope, Term, Wake,
};
use crate::engines::shared::listing::{self, Allowance};
use crate::types::clock::{Clock, Moment};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::history::{HistoryEntry, answer_all, by_lock};
use crate::types::key::Key;
use crate::types::token::{AttemptId, FencingToken};

/// The longest time for which a waiter keeps its place without a sign of life.
const LONGEST_HEARTBEAT: Duration = Duration::from_secs(30);
/// A waiter claims again this often in a heartbeat, whatever it hears.
const CLAIMS_PER_HEARTBEAT: u32 = 3;
/// How long a request waits for a connection that is being opened again.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a claim or release is sent again because of dead waiters: each time hundreds of them are dropped.
const MOST_CALLS: u32 = 64;
/// Room for the arguments of a claim beside its record.
const CLAIM_ARGS: usize = 5;
const CLAIM_BYTES: usize = 96;

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
    options: Arc<Options>,
    /// Some nodes of a cluster, if it is one.
    seeds: Vec<Address>,
    links: OnceLock<Links>,
}

/// What is there once the engine is attached.
struct Links {
    clock: Clock,
    waiting: Arc<Waiting>,
    servers: Arc<Servers>,
    renewals: Renewals,
    stragglers: Stragglers,
    /// Listens to the sentinels, if there are any.
    _sentinels: Option<JoinSet<()>>,
}

impl Redis {
    fn new(options: Options, seeds: Vec<Address>) -> Redis {
        Redis { options: Arc::new(options), seeds, links: OnceLock::new() }
    }

    fn start(&self, attachment: &Attachment) -> Links {
        let waiting = Arc::new(Waiting::new(attachment));
        let servers = match self.options.is_cluster {
            false => Servers::One(Arc::new(Pair::alone(&self.options, &waiting, attachment))),
            true => {
                let (seeds, options) = (self.seeds.clone(), self.options.clone());
                Servers::Cluster(Box::new(Cluster::new(seeds, options, waiting.clone(), attachment.clone())))
            }
        };
        let servers = Arc::new(servers);
        let renewals = Renewals::start(servers.clone(), attachment);
        let stragglers = Stragglers::new(servers.clone(), attachment);
        let sentinels = self.options.sentinels.as_ref().map(|sentinels| sentinels.watch(attachment));
        Links { clock: attachment.clock.clone(), waiting, servers, renewals, stragglers, _sentinels: sentinels }
    }

    /// Without a locker the connections run where the first call comes from.
    fn links(&self) -> &Links {
        self.links.get_or_init(|| self.start(&Attachment::standalone(&Handle::current())))
    }

    fn names(&self, key: &Key) -> Result<Names> {
        Names::new(&self.options.prefix, key)
    }

    /// The channel for messages to this process.
    fn wake(&self, hears: bool) -> String {
        if hears { self.options.wake.to_string() } else { "-".into() }
    }

    async fn ask_claim(
        &self,
        session: &Session,
        names: &Names,
        claim: &Claim,
        sent: Moment,
        hears: bool,
    ) -> Result<Answer> {
        let record = value::write_record(&claim.record)?;
        let heartbeat = if claim.queue { millis(heartbeat(claim.ttl)) } else { 0 };
        let how = format!("{} {heartbeat} {}", value::word(&claim.record), millis(claim.delay));
        let mut args = redis::Cmd::with_capacity(CLAIM_ARGS, record.len() + CLAIM_BYTES);
        args.arg(claim.attempt.to_string())
            .arg(millis(claim.lease()))
            .arg(session.not_after(sent))
            .arg(how)
            .arg(record);
        session.gather(Kind::Claim, Request { names: names.clone(), common: Some(self.wake(hears)), args }).await
    }

    /// Asks for the lock. Replicas need not have the grant yet.
    async fn try_claim(&self, claim: &Claim) -> Result<(Claimed, Arc<Pair>)> {
        let links = self.links();
        if let Some(guard) = &self.options.guard {
            guard.note(claim.lease(), links.clock.now());
        }
        let names = self.names(&claim.key)?;
        let mut route = links.servers.route(&names.lock);
        loop {
            let (pair, _) = route.next().await?;
            match self.claim_from(&pair, &names, claim).await {
                Err(error) if route.again(&error, false).await => {}
                outcome => return outcome.map(|claimed| (claimed, pair)),
            }
        }
    }

    async fn claim_from(&self, pair: &Pair, names: &Names, claim: &Claim) -> Result<Claimed> {
        let session = pair.main.session(PATIENCE).await?;
        let hears = pair.hears(&session, names);
        let claimed = self.claim_over(&session, names, claim, hears).await?;
        // Whoever gets the lock at once needs no channel for it.
        let must_wait = claim.queue && matches!(claimed, Claimed::Busy(_));
        match must_wait && !hears && pair.begin_to_hear(names).await {
            true => self.claim_over(&session, names, claim, true).await,
            false => Ok(claimed),
        }
    }

    async fn claim_over(&self, session: &Arc<Session>, names: &Names, claim: &Claim, hears: bool) -> Result<Claimed> {
        for _ in 0..MOST_CALLS {
            if let Some(claimed) = self.claim_once(session, names, claim, hears).await? {
                return Ok(claimed);
            }
        }
        Err(Error::unavailable("redis: too many dead waiters are before it"))
    }

    /// Claims; `None` when the server found dead waiters alone, dropped them, and has more to look at.
    async fn claim_once(
        &self,
        session: &Arc<Session>,
        names: &Names,
        claim: &Claim,
        hears: bool,
    ) -> Result<Option<Claimed>> {
        let links = self.links();
        if claim.queue {
            links.waiting.enlist(claim.attempt);
        }
        let sent = links.clock.now();
        let asked = self.ask_claim(session, names, claim, sent, hears);
        let asked = links.stragglers.follow(std::slice::from_ref(claim), session, asked);
        let Answer { server_us, outcome } = asked.await?;
        session.saw_clock(sent, server_us);
        let granted = |token, slot| {
            let (token, term) = (FencingToken::new(token), Term { start: sent, ttl: claim.ttl });
            Ok(Some(Claimed::Granted(Grant { token, term: Some(term), slot })))
        };
        let mut reply = match outcome {
            Value::Int(token) => return granted(u64::try_from(token).map_err(|_| garbled())?, None),
            Value::Array(parts) => Reply::of(parts),
            _ => return Err(garbled()),
        };
        match reply.word()?.as_str() {
            "granted" => {
                let token = reply.unsigned()?;
                let slot = if reply.is_empty() { None } else { read_slot(&mut reply)? };
                granted(token, slot)
            }
            "busy" => {
                links.waiting.answered(claim.attempt, sent, server_us);
                read_busy(reply, claim, hears, server_us).map(|busy| Some(Claimed::Busy(busy)))
            }
            "more" => Ok(None),
            "disagrees" => Err(claim.mode().disagrees(value::mode_of(&reply.word()?).ok_or_else(garbled)?)),
            word => Err(refusal(word, &mut reply)?),
        }
    }

    async fn try_claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        let links = self.links();
        if let Some(guard) = &self.options.guard {
            claims.iter().for_each(|claim| guard.note(claim.lease(), links.clock.now()));
        }
        let names = claims.iter().map(|claim| self.names(&claim.key)).collect::<Result<Vec<_>>>()?;
        together::check(&names, |lock| links.servers.group(lock))?;
        let Some(first) = names.first() else { return Ok(ClaimedAll::Granted(Vec::new())) };
        let mut route = links.servers.route(&first.lock);
        loop {
            let (pair, _) = route.next().await?;
            let session = pair.main.session(PATIENCE).await?;
            let wake = self.wake(pair.hears(&session, first));
            let asked = together::claim(&session, &names, &wake, claims, links.clock.now());
            match links.stragglers.follow(claims, &session, asked).await {
                Err(error) if route.again(&error, false).await => {}
                Ok(Together::Granted(grants)) => {
                    return self.confirm_all(&pair, &names, claims).await.map(|()| ClaimedAll::Granted(grants));
                }
                Ok(Together::Busy(which)) => {
                    let key = claims[which].key.clone();
                    let holder = self.get(&key).await.ok().flatten().and_then(|lock| lock.holder().cloned());
                    return Ok(ClaimedAll::Busy(key, holder));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Adds lines to the history of one lock.
    async fn append(&self, key: &Key, lines: Result<Vec<String>>, most: u32) -> Result<()> {
        let (names, lines) = (self.names(key)?, lines?);
        let mut route = self.links().servers.route(&names.lock);
        loop {
            let (pair, _) = route.next().await?;
            let session = pair.main.session(PATIENCE).await?;
            match journal::append(&session, &names, &lines, most).await {
                Err(error) if route.again(&error, false).await => {}
                outcome => return outcome,
            }
        }
    }
}

impl Backend for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn needs_runtime(&self) -> bool {
        true
    }

    fn capabilities(&self) -> Capabilities {
        let hears = self.links.get().is_none_or(|links| links.servers.hears());
        let all = Capabilities::new(Scope::Cluster);
        let all = Capabilities { fair: true, leases: true, wakes: hears, inspects: true, breaks: true, ..all };
        let all = Capabilities { shares: true, slots: true, reenters: true, ..all };
        Capabilities { delays: true, amends: true, adopts: true, claim_all: true, history: true, ..all }
    }

    fn attach(&self, attachment: Attachment) {
        let _ = self.links.set(self.start(&attachment));
    }

    async fn ready(&self) -> Result<()> {
        let links = self.links();
        // Dialling itself is bounded; this bounds a runtime that does not run.
        let patience = self.options.dial_timeout + PATIENCE;
        links.servers.first(patience).await
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        let outcome = match self.try_claim(claim).await {
            Ok((claimed, pair)) => self.confirm(&pair, claimed, claim).await,
            Err(error) => Err(error),
        };
        if !matches!(outcome, Ok(Claimed::Busy(_))) {
            self.links().waiting.forget(claim.attempt);
        }
        // A right that is missing in the middle of a script leaves behind what the script did before.
        if claim.queue && outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Auth) {
            drop(self.end(claim).await);
        }
        outcome
    }

    async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        self.try_claim_all(claims).await
    }

    async fn wait(&self, claim: &Claim) -> Wake {
        if !self.links().waiting.is_enlisted(claim.attempt) {
            return self.overhear(claim).await;
        }
        match self.links().waiting.turn(claim.attempt).await {
            Some(grant) if self.is_confirmed(claim).await => Wake::Granted(grant),
            // A grant that is not confirmed is found again by the next claim, which confirms it or gives it back.
            _ => Wake::Retry,
        }
    }

    fn shard(&self, key: &Key) -> u64 {
        match (self.links.get(), self.names(key)) {
            (Some(links), Ok(names)) => links.servers.shard(&names.lock),
            _ => 0,
        }
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let items: Result<Vec<_>> =
            leases.iter().map(|lease| Ok(Item::new(self.names(&lease.claim.key)?, lease))).collect();
        if let Some(guard) = &self.options.guard {
            let now = self.links().clock.now();
            leases.iter().for_each(|lease| guard.note(lease.claim.lease(), now));
        }
        match items {
            Ok(items) => self.links().renewals.renew(items).await,
            Err(error) => leases.iter().map(|_| Err(Error::new(error.kind(), error.to_string()))).collect(),
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Release> {
        let released = self.end(claim).await?;
        self.links().stragglers.released(self.names(&claim.key)?, claim.attempt, &released.over);
        Ok(released.outcome)
    }

    async fn amend(&self, lease: &Lease) -> Result<bool> {
        let names = self.names(&lease.claim.key)?;
        let mut route = self.links().servers.route(&names.lock);
        loop {
            let (pair, _) = route.next().await?;
            let session = pair.main.session(PATIENCE).await?;
            match holding::amend(&session, &names, &lease.claim).await {
                Err(error) if route.again(&error, false).await => {}
                outcome => return outcome,
            }
        }
    }

    async fn adopt(&self, from: AttemptId, token: FencingToken, claim: &Claim) -> Result<Grant> {
        let links = self.links();
        if let Some(guard) = &self.options.guard {
            guard.note(claim.lease(), links.clock.now());
        }
        let names = self.names(&claim.key)?;
        let mut route = links.servers.route(&names.lock);
        loop {
            let (pair, _) = route.next().await?;
            let session = pair.main.session(PATIENCE).await?;
            let wake = self.wake(pair.hears(&session, &names));
            let asked = holding::adopt(&session, &names, &wake, (from, token), claim, links.clock.now());
            match links.stragglers.follow(std::slice::from_ref(claim), &session, asked).await {
                Err(error) if route.again(&error, false).await => {}
                outcome => return outcome,
            }
        }
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let (mut locks, mut allowance) = (Vec::new(), Allowance::new());
        listing::in_time(async {
            for pair in self.links().servers.all().await? {
                let session = pair.main.session(PATIENCE).await?;
                locks.extend(inspect::list(&session, &self.options.prefix, prefix, &mut allowance).await?);
            }
            Ok(())
        })
        .await?;
        locks.sort_by(|one: &LockInfo, other| one.key.cmp(&other.key));
        Ok(locks)
    }

    async fn get(&self, key: &Key) -> Result<Option<LockInfo>> {
        // A name that cannot be a lock here is nobody's.
        let Ok(names) = self.names(key) else { return Ok(None) };
        let mut route = self.links().servers.route(&names.lock);
        loop {
            let (pair, _) = route.next().await?;
            let session = pair.main.session(PATIENCE).await?;
            match inspect::get(&session, &self.options.prefix, key).await {
                Err(error) if route.again(&error, false).await => {}
                outcome => return outcome,
            }
        }
    }

    async fn force_release(&self, key: &Key, token: FencingToken, _reason: &str) -> Result<()> {
        let names = self.names(key)?;
        let mut route = self.links().servers.route(&names.lock);
        loop {
            let (pair, _) = route.next().await?;
            let session = pair.main.session(PATIENCE).await?;
            match inspect::force_release(&session, &names, token).await {
                Err(error) if route.again(&error, false).await => {}
                outcome => return outcome,
            }
        }
    }

    async fn write_history(&self, entries: &[(Key, HistoryEntry)], most: u32) -> Vec<Result<()>> {
        let mut answers: Vec<_> = entries.iter().map(|_| Ok(())).collect();
        let locks: Vec<_> = by_lock(entries).into_iter().collect();
        for some in locks.chunks(inspect::AT_ONCE) {
            let calls = some.iter().map(|(key, places)| {
                let lines = places.iter().map(|place| entries[*place].1.to_line()).collect();
                self.append(key, lines, most)
            });
            for ((_, places), outcome) in some.iter().zip(inspect::together(calls).await) {
                let all = answer_all(&outcome, places.len());
                places.iter().zip(all).for_each(|(place, answer)| answers[*place] = answer);
            }
        }
        answers
    }

    async fn history(&self, key: &Key, most: u32) -> Result<Vec<HistoryEntry>> {
        let names = self.names(key)?;
        let mut route = self.links().servers.route(&names.lock);
        loop {
            let (pair, _) = route.next().await?;
            let session = pair.main.session(PATIENCE).await?;
            match journal::read(&session, &names, most).await {
                Err(error) if route.again(&error, false).await => {}
                outcome => return outcome,
            }
        }
    }

    async fn close(&self) -> Result<()> {
        if let Some(links) = self.links.get() {
            links.stragglers.settle().await;
            links.servers.close();
        }
        Ok(())
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Whole milliseconds for the server, rounded up: its lease is never shorter than ours.
fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// How long a waiter keeps its place without a sign of life: as long as its lease, within bounds.
pub(in crate::engines) fn heartbeat(ttl: Duration) -> Duration {
    ttl.clamp(SHORTEST_HEARTBEAT, LONGEST_HEARTBEAT)
}
