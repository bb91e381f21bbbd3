//! Jobs that run once per tick: a lock, and notes beside it of the runs that were started and of the one that succeeded.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::api::guard::LockGuard;
use crate::api::once_guard::{OnceGuard, leave, persist, write};
use crate::api::request::{LockRequest, RequestFuture};
use crate::contract::TickNotes;
use crate::core::family::Family;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::key::Key;
use crate::types::options::Options;
use crate::types::owner::{Holder, OwnerId};
use crate::types::tick::{ClockSkew, Tick, TickNote, millis};
use crate::types::token::AttemptId;
use crate::types::watchdog::Watchdog;

/// The shortest period of [`Once::every`], and the shortest time for [`OnceRequest::keep`]: 1 s.
pub const MIN_PERIOD: Duration = Duration::from_secs(1);
/// The longest period of [`Once::every`], and the longest time for [`OnceRequest::keep`]: 366 days.
pub const MAX_PERIOD: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// How long the note of a named tick is kept: a day.
pub const DEFAULT_KEEP: Duration = Duration::from_secs(24 * 60 * 60);

/// How far the clock of a machine may differ from the engine's without a warning.
const MOST_SKEW: Duration = Duration::from_secs(2);
/// The first pause before a look or a claim is repeated.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// How often a look without the lock is repeated.
const LOOKS: u32 = 4;
/// How often a request that does not wait claims a lock that another owner seems to have, where the engine knows no holder.
const MOST_TRIES: u32 = 8;

/// A job that runs once per tick; made by [`Locker::once`](crate::Locker::once).
///
/// A tick is a period of the engine's clock ([`every`](Once::every)) or a text ([`tick`](Once::tick)). A lock says who runs
/// now; the notes beside it say whether the run of three o'clock happened. The first request of a tick gets the lock and
/// runs. Once the run has succeeded, the tick is done for all clients until it ends. If the run fails, its process dies or
/// its lock is lost, the next request runs in the same tick.
///
/// ```
/// use std::time::Duration;
/// use distlock::{Locker, OnceOutcome};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// let locker = Locker::connect("mem://once").await?;
/// let hour = Duration::from_secs(3600);
/// match locker.once("nightly").every(hour).await? {
///     OnceOutcome::Run(run) => {
///         // The work, with run.guard().fencing_token() on each write.
///         run.done().await?;
///     }
///     OnceOutcome::Done { note, .. } => println!("done by {}", note.record),
///     OnceOutcome::Running { .. } | OnceOutcome::Exhausted { .. } => {}
///     # _ => {}
/// }
/// # Ok(()) }
/// ```
///
/// Two runs of a tick never both succeed. *Limit:* effects may happen twice. A run that is killed after its last write and
/// before [`done`](OnceGuard::done) is repeated; the fencing token tells the two runs apart.
#[must_use = "a job has a tick: call every() or tick()"]
pub struct Once {
    request: LockRequest,
    family: Arc<Family>,
    key: Result<Key>,
}

impl Once {
    pub(crate) fn new(family: Arc<Family>, key: Result<Key>, owner: OwnerId, options: Options) -> Once {
        let for_request = key.as_ref().map(Key::clone).map_err(Error::duplicate);
        Once { request: LockRequest::new(family.clone(), for_request, owner, options), family, key }
    }

    /// Makes each period a tick: the time of the engine's clock since the Unix epoch, divided into periods. A day begins at
    /// midnight UTC.
    ///
    /// etcd has no clock, so each machine uses its own there: a period begins when the machine with the fastest clock says
    /// so, and still runs once.
    ///
    /// # Errors
    /// Kind `InvalidInput` when it is awaited, if the period is not from 1 s to 366 days.
    pub fn every(self, period: Duration) -> OnceRequest {
        let ticks = check_length("every", period).map(|()| Ticks::Every(period));
        OnceRequest::new(self, ticks)
    }

    /// Makes this text the tick: a build number, a date, the id of a message.
    ///
    /// ```
    /// # use distlock::{Locker, OnceOutcome};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// # let locker = Locker::connect("mem://tick").await?;
    /// for machine in ["a", "b"] {
    ///     let deploy = locker.once("deploy").tick("build-42").as_new_owner();
    ///     let outcome = deploy.run(async |_| Ok::<_, distlock::Error>(())).await?;
    ///     assert_eq!(matches!(outcome, OnceOutcome::Run(())), machine == "a"); // b is told Done
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Kind `InvalidInput` when it is awaited, if the text is empty, longer than 256 bytes or has control characters.
    pub fn tick(self, name: impl AsRef<str>) -> OnceRequest {
        OnceRequest::new(self, Tick::named(name).map(Ticks::Named))
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Once").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Which ticks a job has.
#[derive(Debug, Clone)]
enum Ticks {
    Every(Duration),
    Named(Tick),
}

impl Ticks {
    /// Returns the tick at `now_ms`.
    fn at(&self, now_ms: u64) -> Tick {
        match self {
            Ticks::Every(period) => Tick::at(now_ms, *period),
            Ticks::Named(tick) => tick.clone(),
        }
    }

    /// Returns the one tick that there is.
    fn only(&self) -> Option<&Tick> {
        match self {
            Ticks::Every(_) => None,
            Ticks::Named(tick) => Some(tick),
        }
    }
}

/// A request to run a job unless its tick is done; made by [`Once::every`] and [`Once::tick`]. Awaiting it returns an
/// [`OnceOutcome`]; [`run`](OnceRequest::run) also does the work.
///
/// # Cancel safety
/// Dropping the future at any point withdraws the claim or releases the lock. A run may have been counted as started by
/// then.
#[must_use = "a request does nothing until it is awaited"]
pub struct OnceRequest {
    request: LockRequest,
    family: Arc<Family>,
    key: Result<Key>,
    ticks: Result<Ticks>,
    keep: Duration,
    attempts: Option<u32>,
    waits: bool,
}

impl OnceRequest {
    fn new(once: Once, ticks: Result<Ticks>) -> OnceRequest {
        let Once { request, family, key } = once;
        let request = request.wait(Duration::ZERO);
        OnceRequest { request, family, key, ticks, keep: DEFAULT_KEEP, attempts: None, waits: false }
    }

    /// Sets how many runs of a tick are started at most; with 1 a run that fails or dies is not repeated.
    ///
    /// # Default
    /// No limit.
    pub fn attempts(mut self, most: u32) -> Self {
        self.attempts = Some(most);
        self
    }

    /// Waits for the end of a run that is under way, at most this long: then its tick is done, or this request runs. After
    /// it the error is of kind `Timeout`, as for [`LockRequest::wait`].
    ///
    /// # Default
    /// Does not wait: the outcome is [`Running`](OnceOutcome::Running).
    pub fn wait(mut self, most: Duration) -> Self {
        self.waits = !most.is_zero();
        self.with(|request| request.wait(most))
    }

    /// Sets how long the note of a named tick is kept after its last change. For periods it has no meaning: their notes are
    /// kept until a period after their end.
    ///
    /// # Default
    /// A day. From 1 s to 366 days.
    pub fn keep(mut self, time: Duration) -> Self {
        self.keep = time;
        self
    }

    /// Sets the length of the lease, as [`LockRequest::ttl`].
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|request| request.ttl(ttl))
    }

    /// Names the owner, as [`LockRequest::owner`].
    pub fn owner(self, id: impl AsRef<str>) -> Self {
        self.with(|request| request.owner(id))
    }

    /// Makes this request an owner of its own, as [`LockRequest::as_new_owner`].
    pub fn as_new_owner(self) -> Self {
        self.with(LockRequest::as_new_owner)
    }

    /// Sets the label, as [`LockRequest::label`]. It stays in the tick's note.
    pub fn label(self, label: impl Into<Arc<str>>) -> Self {
        self.with(|request| request.label(label))
    }

    /// Sets whether the lease is renewed, as [`LockRequest::watchdog`].
    pub fn watchdog(self, watchdog: impl Into<Watchdog>) -> Self {
        self.with(|request| request.watchdog(watchdog))
    }

    /// Sets the longest time to run, as [`LockRequest::max_hold`].
    pub fn max_hold(self, most: Duration) -> Self {
        self.with(|request| request.max_hold(most))
    }

    /// Sets the metrics label, as [`LockRequest::group`].
    #[cfg(feature = "metrics")]
    pub fn group(self, group: &'static str) -> Self {
        self.with(|request| request.group(group))
    }

    /// Runs `work` unless the tick is done, and marks the tick as done when it returns `Ok`. On loss of the lock the work is
    /// dropped at its next await.
    ///
    /// # Errors
    /// The error of the work, of the request, or of [`done`](OnceGuard::done). The tick is not done then, unless the kind is
    /// `Unknown`.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work; the tick is not done.
    pub async fn run<T, E, W>(self, work: W) -> Result<OnceOutcome<T>, E>
    where
        E: From<Error>,
        W: AsyncFnOnce(&OnceGuard) -> Result<T, E>,
    {
        let run = match self.await? {
            OnceOutcome::Run(run) => run,
            OnceOutcome::Done { note, skew } => return Ok(OnceOutcome::Done { note, skew }),
            OnceOutcome::Running { holder, skew } => return Ok(OnceOutcome::Running { holder, skew }),
            OnceOutcome::Exhausted { note, skew } => return Ok(OnceOutcome::Exhausted { note, skew }),
        };
        let value = run.guard.run(work(&run)).await??;
        run.done().await?;
        Ok(OnceOutcome::Run(value))
    }

    fn with(mut self, change: impl FnOnce(LockRequest) -> LockRequest) -> Self {
        self.request = change(self.request);
        self
    }

    /// Refuses what no engine accepts, before anything is sent.
    fn check(self) -> Result<Asked> {
        let OnceRequest { request, family, key, ticks, keep, attempts, waits } = self;
        let key = key?;
        let about = |error: Error| error.with_key(&key);
        let ticks = ticks.map_err(about)?;
        check_length("keep", keep).map_err(about)?;
        if attempts == Some(0) {
            return Err(about(Error::invalid("attempts", "0 runs cannot succeed")));
        }
        request.check()?;
        family.check_caller()?;
        if !family.backend.capabilities().ticks {
            let message = format!("the {} engine cannot keep notes of ticks", family.backend.name());
            let help = "Locker::capabilities() says what an engine can do";
            return Err(about(Error::new(ErrorKind::Unsupported, message).with_help(help)));
        }
        Ok(Asked { request, family, key, ticks, keep, attempts, waits })
    }
}

impl fmt::Debug for OnceRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OnceRequest { request, ticks, attempts, .. } = self;
        let mut out = f.debug_struct("OnceRequest");
        out.field("request", request).field("ticks", ticks).field("attempts", attempts).finish_non_exhaustive()
    }
}

impl IntoFuture for OnceRequest {
    type Output = Result<OnceOutcome>;
    type IntoFuture = RequestFuture<OnceOutcome>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.check()?.decide().await })
    }
}

/// The outcome of a request to run a job once.
#[derive(Debug)]
#[non_exhaustive]
pub enum OnceOutcome<R = OnceGuard> {
    /// This request runs; of [`OnceRequest::run`], it has run and succeeded.
    Run(R),
    /// The tick is done.
    #[non_exhaustive]
    Done {
        /// The run that succeeded.
        note: TickNote,
        /// How far this machine's clock is off, if it is.
        skew: Option<ClockSkew>,
    },
    /// Another owner has the lock: the job runs, or is about to. Only without [`OnceRequest::wait`].
    #[non_exhaustive]
    Running {
        /// The holder, if known.
        holder: Option<Holder>,
        /// How far this machine's clock is off, if it is.
        skew: Option<ClockSkew>,
    },
    /// As many runs as [`OnceRequest::attempts`] allows were started, and none of them succeeded.
    #[non_exhaustive]
    Exhausted {
        /// The last run.
        note: TickNote,
        /// How far this machine's clock is off, if it is.
        skew: Option<ClockSkew>,
    },
}

impl OnceOutcome {
    /// Returns how far this machine's clock is off, if it is by more than 2 s.
    #[must_use]
    pub fn skew(&self) -> Option<ClockSkew> {
        match self {
            OnceOutcome::Run(run) => run.skew,
            OnceOutcome::Done { skew, .. }
            | OnceOutcome::Running { skew, .. }
            | OnceOutcome::Exhausted { skew, .. } => *skew,
        }
    }
}

/// A checked request.
struct Asked {
    request: LockRequest,
    family: Arc<Family>,
    key: Key,
    ticks: Ticks,
    keep: Duration,
    attempts: Option<u32>,
    waits: bool,
}

impl Asked {
    async fn decide(self) -> Result<OnceOutcome> {
        let seen = self.look_again().await?;
        let first = self.ticks.at(seen.found.now_ms);
        if let Some(note) = seen.done(&first) {
            return Ok(OnceOutcome::Done { note, skew: seen.skew });
        }
        let mut tries = 0;
        loop {
            let busy = match self.request.repeat().await {
                Ok(guard) => return self.decide_under(guard, &first).await,
                Err(error) if error.kind() == ErrorKind::Timeout && !self.waits => error,
                Err(error) => return Err(error),
            };
            // The run may have ended, or the holder may have taken the lock only to look.
            let seen = self.look_again().await?;
            if let Some(note) = seen.done(&first) {
                return Ok(OnceOutcome::Done { note, skew: seen.skew });
            }
            let holder = self.holder(&busy).await;
            tries += 1;
            if holder.is_some() || tries == MOST_TRIES {
                return Ok(OnceOutcome::Running { holder, skew: seen.skew });
            }
            // The lock is between two holders, or no claim of several got a quorum. If all gave up now, none would run.
            let pause = FIRST_PAUSE.mul_f64(AttemptId::random().fraction() + 0.5) * tries;
            self.family.sleep_until(self.family.clock.now().after(pause)).await?;
        }
    }

    /// Returns the holder of a lock that was `busy`, if a look at it shows one, too: the reply to a claim may name the owner
    /// of another claim, of which none is granted.
    async fn holder(&self, busy: &Error) -> Option<Holder> {
        let claimed = busy.holder().cloned();
        if !self.family.backend.capabilities().inspects {
            return claimed;
        }
        match self.family.backend.get(&self.key).await {
            Ok(lock) => lock.and_then(|lock| lock.holders.into_iter().next()),
            Err(_) => claimed,
        }
    }

    /// Decides while the lock is held: no other request can start or finish a run then.
    async fn decide_under(self, guard: LockGuard, first: &Tick) -> Result<OnceOutcome> {
        let read_at = self.family.clock.now();
        let seen = persist(&guard, || self.look()).await?;
        let skew = seen.skew;
        let now = self.ticks.at(seen.found.now_ms);
        // The tick may have ended during the wait. If it is done, that was the answer to this request.
        for tick in [first, &now] {
            let note = match (seen.done(tick), seen.unconfirmed(tick)) {
                (Some(note), _) => note,
                (None, Some(note)) => {
                    write(&guard, &note).await?;
                    note
                }
                (None, None) => continue,
            };
            leave(guard).await;
            return Ok(OnceOutcome::Done { note, skew });
        }
        let last = seen.find(&now);
        let starts = last.map_or(0, |note| note.starts);
        if let Some(note) = last.filter(|note| self.attempts.is_some_and(|most| note.starts >= most)).cloned() {
            leave(guard).await;
            return Ok(OnceOutcome::Exhausted { note, skew });
        }
        let record = guard.claim().record.as_ref().clone();
        let note = TickNote::start(now, seen.found.now_ms, self.keep, guard.fencing_token(), record);
        let note = note.with_starts(starts.saturating_add(1));
        // Before anything runs: a run that is not counted could be one too many.
        write(&guard, &note).await?;
        guard.check()?;
        Ok(OnceOutcome::Run(OnceGuard { guard, note, keep: self.keep, read_at, skew }))
    }

    /// Looks without the lock, a few times if there is no reply: a look changes nothing.
    async fn look_again(&self) -> Result<Seen> {
        let mut pause = FIRST_PAUSE;
        for _ in 0..LOOKS {
            match self.look().await {
                Err(error) if error.is_retryable() => {}
                seen => return seen,
            }
            self.family.sleep_until(self.family.clock.now().after(pause)).await?;
            pause *= 2;
        }
        self.look().await
    }

    async fn look(&self) -> Result<Seen> {
        let before = self.family.clock.wall();
        let found = self.family.backend.ticks(&self.key, self.ticks.only()).await;
        let found = found.map_err(|error| error.with_key(&self.key))?;
        let skew = skew(&found, before, self.family.clock.wall());
        if let Some(skew) = skew {
            tracing::warn!(target: "distlock", { lock.name = %self.key }, "{skew}");
        }
        Ok(Seen { found, skew })
    }
}

/// The notes of a lock at one moment.
struct Seen {
    found: TickNotes,
    skew: Option<ClockSkew>,
}

impl Seen {
    fn find(&self, tick: &Tick) -> Option<&TickNote> {
        self.found.notes.iter().find(|note| note.tick == *tick)
    }

    fn done(&self, tick: &Tick) -> Option<TickNote> {
        self.find(tick).filter(|note| note.is_done()).cloned()
    }

    fn unconfirmed(&self, tick: &Tick) -> Option<TickNote> {
        self.found.unconfirmed.iter().find(|note| note.tick == *tick).cloned()
    }
}

/// Compares this machine's clock, which showed `before` and `after` around the reply, with the engine's; where it has none,
/// with those of the machines that have written notes.
fn skew(found: &TickNotes, before: SystemTime, after: SystemTime) -> Option<ClockSkew> {
    let ms = |time: SystemTime| millis(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default());
    let latest = found.notes.iter().map(|note| note.started_ms).max().unwrap_or_default();
    let (earliest, latest) = if found.is_common { (found.now_ms, found.now_ms) } else { (u64::MAX, latest) };
    let ahead = Duration::from_millis(ms(before).saturating_sub(earliest));
    let behind = Duration::from_millis(latest.saturating_sub(ms(after)));
    let ahead = Some(ahead).filter(|by| *by > MOST_SKEW).map(ClockSkew::Ahead);
    ahead.or_else(|| Some(behind).filter(|by| *by > MOST_SKEW).map(ClockSkew::Behind))
}

fn check_length(field: &str, length: Duration) -> Result<()> {
    if (MIN_PERIOD..=MAX_PERIOD).contains(&length) {
        return Ok(());
    }
    Err(Error::invalid(field, format_args!("{length:?} is not from {MIN_PERIOD:?} to {MAX_PERIOD:?}")))
}
