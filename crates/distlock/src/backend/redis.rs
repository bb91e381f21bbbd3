//! Locks in Redis or Valkey: FIFO, fenced, and handed from one holder to the next in one command.
//!
//! A lock is the key of its name, so that lockers of other libraries exclude us and are excluded. Its queue stands in
//! keys beside it. Whoever releases the lock gives it to the next waiter in the same script, which tells that waiter's
//! process by a message. See `docs/backends/redis.md`.

mod builder;
mod dial;
mod fault;
mod inspect;
mod link;
mod names;
mod options;
mod renewals;
mod script;
mod server_clock;
mod session;
mod value;
mod waiting;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::Handle;

pub use self::builder::RedisBuilder;
use self::link::Link;
use self::names::Names;
use self::options::Options;
pub use self::options::Protocol;
use self::renewals::{Item, Renewals};
use self::script::{CLAIM, RELEASE, Reply, garbled};
use self::session::Session;
use self::waiting::Waiting;
use crate::backend::{
    Attachment, Backend, Busy, Capabilities, Claim, Claimed, Grant, Lease, LockInfo, Release, Renewal, Scope, Term,
    Wake,
};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::options::DEFAULT_RETRY_INTERVAL;
use crate::token::FencingToken;

/// How long a waiter keeps its place without a sign of life: as long as its lease, within these bounds.
const SHORTEST_HEARTBEAT: Duration = Duration::from_secs(3);
const LONGEST_HEARTBEAT: Duration = Duration::from_secs(30);
/// A waiter claims again this often in a heartbeat, whatever it hears.
const CLAIMS_PER_HEARTBEAT: u32 = 3;
/// How long a request waits for a connection that is being opened again.
const PATIENCE: Duration = Duration::from_secs(1);

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
    links: OnceLock<Links>,
}

/// What is there once the engine is attached.
struct Links {
    clock: Clock,
    waiting: Arc<Waiting>,
    /// Claims, releases and messages.
    main: Link,
    /// Renewals, and releases when the other one is down: they never wait behind claims.
    reserved: Arc<Link>,
    renewals: Renewals,
}

impl Redis {
    fn new(options: Options) -> Redis {
        Redis { options: Arc::new(options), links: OnceLock::new() }
    }

    fn start(&self, attachment: &Attachment) -> Links {
        // The callers' runtime, if there is one. Should it end or block, the link moves to the keeper's.
        let home = attachment.home.as_ref().unwrap_or(&attachment.runtime).clone();
        let waiting = Arc::new(Waiting::new(attachment));
        let main = Link::start(self.options.clone(), Some(waiting.clone()), attachment, home);
        let reserved = Link::start(self.options.clone(), None, attachment, attachment.runtime.clone());
        let reserved = Arc::new(reserved);
        let renewals = Renewals::start(reserved.clone(), attachment);
        Links { clock: attachment.clock.clone(), waiting, main, reserved, renewals }
    }

    /// Without a locker the connections run where the first call comes from.
    fn links(&self) -> &Links {
        self.links.get_or_init(|| self.start(&Attachment::standalone(&Handle::current())))
    }

    fn names(&self, key: &Key) -> Result<Names> {
        Names::new(&self.options.prefix, key)
    }

    async fn ask_claim(&self, session: &Session, claim: &Claim, sent: Moment) -> Result<Reply> {
        let Names { lock, queue, waiters, fence } = self.names(&claim.key)?;
        let record = value::write_record(&claim.record)?;
        let wake = if session.hears { self.options.wake.to_string() } else { "-".into() };
        let heartbeat = if claim.queue { millis(heartbeat(claim.ttl)) } else { 0 };
        let not_after = session.not_after(sent);
        session
            .run(&CLAIM, |command, nonce| {
                command.arg(4).arg(&lock).arg(&queue).arg(&waiters).arg(&fence).arg(nonce);
                command.arg(claim.attempt.to_string()).arg(millis(claim.ttl)).arg(&record).arg(&wake);
                command.arg(heartbeat).arg(not_after);
            })
            .await
    }

    async fn try_claim(&self, claim: &Claim) -> Result<Claimed> {
        let links = self.links();
        let session = links.main.session(PATIENCE).await?;
        if claim.queue {
            links.waiting.enlist(claim.attempt);
        }
        let sent = links.clock.now();
        let mut reply = self.ask_claim(&session, claim, sent).await?;
        let server_us = reply.unsigned()?;
        session.saw_clock(sent, server_us);
        match reply.word()?.as_str() {
            "granted" => {
                let token = FencingToken::new(reply.unsigned()?);
                Ok(Claimed::Granted(Grant::new(token, Some(Term { start: sent, ttl: claim.ttl }))))
            }
            "busy" => {
                links.waiting.answered(claim.attempt, sent, server_us);
                read_busy(reply, claim, session.hears, server_us).map(Claimed::Busy)
            }
            "late" => Err(Error::unavailable("redis: the claim arrived after its time and was refused")),
            "fence" => Err(Error::new(ErrorKind::Foreign, "redis: the fence of the lock is more than a day ahead")
                .with_help("somebody wrote it by hand, or the server's clock went back by days; delete the key")),
            "foreign" => {
                let key = reply.word()?;
                Err(Error::new(ErrorKind::Foreign, format!("redis: {key:?} is not a queue of ours")))
            }
            _ => Err(garbled()),
        }
    }

    /// The connection for a release: the one its claim went over, so that it comes after it; the reserved one when that
    /// is not there.
    async fn release_session(&self) -> Result<Arc<Session>> {
        let links = self.links();
        match links.main.now().or_else(|| links.reserved.now()) {
            Some(session) => Ok(session),
            None => links.main.session(PATIENCE).await,
        }
    }
}

impl Backend for Redis {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn capabilities(&self) -> Capabilities {
        let hears = self.links.get().and_then(|links| links.main.now()).is_none_or(|session| session.hears);
        let all = Capabilities::new(Scope::Cluster);
        Capabilities { fair: true, leases: true, wakes: hears, inspects: true, breaks: true, ..all }
    }

    fn attach(&self, attachment: Attachment) {
        let _ = self.links.set(self.start(&attachment));
    }

    async fn ready(&self) -> Result<()> {
        let links = self.links();
        // Dialling itself is bounded; this bounds a runtime that does not run.
        let patience = self.options.dial_timeout + PATIENCE;
        links.main.first(patience).await?;
        links.reserved.first(patience).await
    }

    async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        let outcome = self.try_claim(claim).await;
        if !matches!(outcome, Ok(Claimed::Busy(_))) {
            self.links().waiting.forget(claim.attempt);
        }
        // A right that is missing in the middle of a script leaves behind what the script did before.
        if claim.queue && outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Auth) {
            drop(self.release(claim).await);
        }
        outcome
    }

    async fn wait(&self, claim: &Claim) -> Wake {
        self.links().waiting.turn(claim.attempt).await.map_or(Wake::Retry, Wake::Granted)
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let items: Result<Vec<_>> =
            leases.iter().map(|lease| Ok(Item::new(self.names(&lease.claim.key)?.lock, lease))).collect();
        match items {
            Ok(items) => self.links().renewals.renew(items).await,
            Err(error) => leases.iter().map(|_| Err(Error::new(error.kind(), error.to_string()))).collect(),
        }
    }

    async fn release(&self, claim: &Claim) -> Result<Release> {
        self.links().waiting.forget(claim.attempt);
        let Names { lock, queue, waiters, fence } = self.names(&claim.key)?;
        let session = self.release_session().await?;
        let fill = |command: &mut redis::Cmd, nonce| {
            command.arg(4).arg(&lock).arg(&queue).arg(&waiters).arg(&fence);
            command.arg(nonce).arg(claim.attempt.to_string());
        };
        let mut reply = session.run(&RELEASE, fill).await?;
        let outcome = match reply.word()?.as_str() {
            "released" => Release::Released,
            "not ours" => Release::NotOurs,
            _ => return Err(garbled()),
        };
        // One of our own that only polls need not wait for its next look.
        if let Ok(next) = reply.word()?.parse() {
            self.links().waiting.wake(next);
        }
        Ok(outcome)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let session = self.links().main.session(PATIENCE).await?;
        inspect::list(&session, &self.options.prefix, prefix).await
    }

    async fn get(&self, key: &Key) -> Result<Option<LockInfo>> {
        let session = self.links().main.session(PATIENCE).await?;
        inspect::get(&session, &self.options.prefix, key).await
    }

    async fn force_release(&self, key: &Key, token: FencingToken, _reason: &str) -> Result<()> {
        let session = self.links().main.session(PATIENCE).await?;
        inspect::force_release(&session, &self.names(key)?, token).await
    }

    async fn close(&self) -> Result<()> {
        if let Some(links) = self.links.get() {
            links.main.close();
            links.reserved.close();
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

fn heartbeat(ttl: Duration) -> Duration {
    ttl.clamp(SHORTEST_HEARTBEAT, LONGEST_HEARTBEAT)
}

/// Reads `pttl_ms, place, value, type`.
fn read_busy(mut reply: Reply, claim: &Claim, hears: bool, server_us: u64) -> Result<Busy> {
    let ttl_left = u64::try_from(reply.int()?).ok().map(Duration::from_millis);
    let place = reply.int()?;
    let held = reply.bytes()?;
    let is_held = reply.word()? != "none";
    let holder = is_held.then(|| value::holder(&held, ttl_left, server_us));
    let is_ours = holder.as_ref().is_some_and(|holder| holder.record.is_some());
    let beat = heartbeat(claim.ttl) / CLAIMS_PER_HEARTBEAT;
    let poll_after = match (place, ttl_left) {
        // Nobody will tell: the caller's own retry interval. Whoever is not ours does not tell us, either.
        _ if !claim.queue => None,
        (0, _) if !hears || !is_ours => None,
        // Without messages, the more rarely the further behind.
        (place, _) if !hears => Some(beat.min(DEFAULT_RETRY_INTERVAL * u32::try_from(place).unwrap_or(u32::MAX))),
        // A millisecond later than the lease, so as not to come a moment too early.
        (0, Some(left)) => Some(beat.min(left + Duration::from_millis(1))),
        _ => Some(beat),
    };
    Ok(Busy { holder, poll_after })
}
