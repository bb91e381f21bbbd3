//! A lock that is held.

use crate::types::sync::Mutex;
use std::fmt;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::api::ask::{LOOK_EVERY, asking_for};
use crate::contract::{Claim, Lease, Renewal};
use crate::core::family::Family;
use crate::core::hold::Hold;
use crate::core::holds::Left;
use crate::core::release::{loss_of, release_now};
use crate::types::clock::Moment;
use crate::types::error::{Error, Result};
use crate::types::event::LossReason;
use crate::types::key::Key;
use crate::types::mode::{AskedMode, Mode};
use crate::types::options::check_ttl;
use crate::types::owner::{Holder, OwnerId, Record, check_text};
use crate::types::span::Span;
use crate::types::ticket::HoldTicket;
use crate::types::token::FencingToken;

/// How many times to poll for the next holder after a handover, and the pause between two polls.
const HAND_OVER_LOOKS: u32 = 100;
const HAND_OVER_PAUSE: Duration = Duration::from_millis(10);

/// A held lock. The keeper renews it until it is unlocked.
///
/// ```
/// # use distlock::Locker;
/// # async fn charge(_: distlock::FencingToken) -> u32 { 1 }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// # let locker = Locker::connect("mem://guard").await?;
/// let guard = locker.lock("invoice:42").await?;
/// let receipt = guard.run(charge(guard.fencing_token())).await?; // dropped if the lock is lost
/// guard.unlock().await?; // confirms the release
/// # assert_eq!(receipt, 1);
/// # Ok(()) }
/// ```
///
/// Dropping the guard releases the lock **in the background**: soon, but not before `drop` returns, and without
/// confirmation. Only [`unlock`](LockGuard::unlock) confirms. If the process dies, the lock stays held until its
/// lease ends.
///
/// A lease can end while the holder still works, because no process controls its own pauses. So watch
/// [`lost`](LockGuard::lost), or use [`run`](LockGuard::run), and pass [`fencing_token`](LockGuard::fencing_token) to
/// the resource that the lock protects.
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard {
    family: Arc<Family>,
    /// `None` only in a guard that was unlocked or detached and is about to be dropped.
    hold: Option<Arc<Hold>>,
    /// The label of the last `relabel`.
    label: Mutex<Option<Arc<str>>>,
}

/// The state of a hold; returned by [`LockGuard::state`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum HoldState {
    /// The lease is valid.
    Held,
    /// The last renewal failed. The lease is valid until the deadline, and the renewal is retried.
    AtRisk,
    /// The lock is lost. This is final.
    Lost,
}

impl HoldState {
    /// Returns the word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            HoldState::Held => "held",
            HoldState::AtRisk => "at_risk",
            HoldState::Lost => "lost",
        }
    }
}

/// Writes [`HoldState::as_str`].
impl fmt::Display for HoldState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl LockGuard {
    pub(crate) fn new(family: Arc<Family>, hold: Arc<Hold>) -> Self {
        LockGuard { family, hold: Some(hold), label: Mutex::default() }
    }

    /// Returns the lock's name.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.hold().key()
    }

    /// Returns the owner of the hold.
    #[must_use]
    pub fn owner(&self) -> &OwnerId {
        self.hold().owner()
    }

    /// Returns the fencing token of this grant, higher than that of every earlier grant of the lock. A re-entry has the
    /// token of the first grant.
    ///
    /// Pass it with each write to the protected resource, which refuses a token lower than the last one: see
    /// [`fencing`](crate::fencing).
    ///
    /// ```
    /// # use distlock::Locker;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// # let locker = Locker::connect("mem://token").await?;
    /// let guard = locker.lock("account:7").await?;
    /// let sql = "UPDATE account SET balance = $1, token = $2 WHERE id = $3 AND token <= $2";
    /// let token = i64::try_from(guard.fencing_token())?; // for a BIGINT column
    /// # assert!(sql.contains("<=") && token > 0);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.hold().token
    }

    /// Returns the mode of the hold.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.hold().claim.mode()
    }

    /// Returns the number of the semaphore slot, from 0 on. At most one holder has a slot at a time, and the tokens
    /// of a slot rise. `None` if the lock is not a semaphore.
    #[must_use]
    pub fn slot(&self) -> Option<u32> {
        self.hold().slot
    }

    /// Returns the current state of the hold.
    #[must_use]
    pub fn state(&self) -> HoldState {
        if self.is_lost() {
            HoldState::Lost
        } else if self.hold().is_at_risk() {
            HoldState::AtRisk
        } else {
            HoldState::Held
        }
    }

    /// Returns whether the lock is lost, by the clock at this moment. In a forked child process it always is: the
    /// lock belongs to the parent.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.family.check_process().is_err() || self.hold().is_lost(self.family.clock.now())
    }

    /// Returns an error if the lock is lost. Call it before each step that must not happen without the lock.
    ///
    /// It reads the clock and sends nothing. What it returns is true at that moment: work that takes long belongs into
    /// [`run`](LockGuard::run).
    ///
    /// # Errors
    /// Kind `Lost`, with the reason.
    pub fn check(&self) -> Result<()> {
        self.family.check_process().map_err(|error| error.with_key(self.key()))?;
        if self.is_lost() { Err(self.loss()) } else { Ok(()) }
    }

    /// Completes with the reason when the lock is lost.
    ///
    /// ```
    /// use distlock::{Locker, LossReason, backend::memory::{Memory, Store}};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// let store = Store::new(); // the memory engine can end a lease for a test
    /// let guard = Locker::new(Memory::on(&store))?.lock("invoice:42").await?;
    /// store.expire("invoice:42").tell_holders();
    ///
    /// tokio::select! {
    ///     reason = guard.lost() => assert_eq!(reason, LossReason::Revoked),
    ///     () = std::future::pending() => {} // the work
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// In a running process it completes before another owner can be
    /// granted the lock. A process that was stopped or suspended learns of the loss when it resumes, so call
    /// [`check`](LockGuard::check) before each critical step. If the lock is taken away before its lease ends, by
    /// force or because a server lost its data, it completes as soon as the engine reports that, at the latest with
    /// the next renewal: another owner may hold the lock by then.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect; the method can be called again.
    pub async fn lost(&self) -> LossReason {
        let mut lost = pin!(self.hold().lost());
        let told = std::future::poll_fn(|context| {
            // Reads the clock first: a timer may be late, for example after a suspend.
            self.hold().is_lost(self.family.clock.now());
            lost.as_mut().poll(context).map(LossReason::clone)
        });
        self.family.clock.tracked(pin!(told)).await
    }

    /// Returns the moment at which the lock counts as lost unless a renewal succeeds before; `None` if the hold has
    /// no lease.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        Some(self.hold().end()).filter(|end| *end != Moment::NEVER)
    }

    /// Returns the time until [`deadline`](LockGuard::deadline); zero if the lock is lost.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        let left = self.hold().left(self.family.clock.now());
        if self.is_lost() { left.map(|_| Duration::ZERO) } else { left }
    }

    /// Runs `work` while the lock is held, and returns its result. On loss the work is dropped at its next await and not
    /// polled again. What it has sent by then is not undone.
    ///
    /// ```
    /// use distlock::{ErrorKind, Locker, backend::memory::{Memory, Store}};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// let store = Store::new();
    /// let guard = Locker::new(Memory::on(&store))?.lock("import").await?;
    /// assert_eq!(guard.run(async { 6 * 7 }).await?, 42);
    ///
    /// store.expire("import").tell_holders();
    /// let lost = guard.run(std::future::pending::<()>()).await.unwrap_err();
    /// assert_eq!(lost.kind(), ErrorKind::Lost);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Kind `Lost`, with the reason.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and nothing else.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let hold = self.hold();
        let span = Span::hold(hold.key(), hold.owner(), hold.token);
        let mut work = pin!(span.around(work));
        let lost = pin!(hold.lost());
        let mut lost = pin!(self.family.clock.tracked(lost));
        std::future::poll_fn(|context| {
            // Reads the clock first: after a pause of the process no step of the work may run before the deadline is
            // checked.
            if self.is_lost() || lost.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(self.loss()));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Runs fallible `work` while the lock is held, like [`run`](LockGuard::run), with one error for both: the work's own,
    /// or the loss of the lock turned into it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locker = distlock::Locker::connect("mem://").await?;
    /// let guard = locker.lock("invoice:42").await?;
    /// let number = guard.try_run::<_, Box<dyn std::error::Error>>(async { Ok("42".parse::<u32>()?) }).await?;
    /// # assert_eq!(number, 42);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The error of the work; of a loss, [`Error`] of kind `Lost`, converted.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and nothing else.
    pub async fn try_run<T, E: From<Error>>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.run(work).await?
    }

    /// Returns a file descriptor that keeps the lock while any copy of it is open, for a child process to inherit;
    /// `None` if the engine has none. It has close-on-exec set until the caller clears it.
    ///
    /// # Errors
    /// Kind `Unavailable` if the process has no free descriptor.
    pub fn descriptor(&self) -> Result<Option<OwnedFd>> {
        self.family.backend.descriptor(&self.hold().claim)
    }

    /// Sets the TTL to `ttl` and renews the lease at once. A lease is never shortened.
    ///
    /// Most programs do not need it: the lease is renewed anyway. It is for a hold without a
    /// [watchdog](crate::LockRequest::watchdog), and for a longer lease before a planned interruption.
    ///
    /// ```
    /// use std::time::Duration;
    /// # use distlock::Locker;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// # let locker = Locker::connect("mem://extend").await?;
    /// let guard = locker.lock("migration").watchdog(false).await?;
    /// guard.extend(Duration::from_secs(120)).await?;
    /// assert!(guard.remaining() > Some(Duration::from_secs(60)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Kind `Lost` if the lock is lost; `Unknown` or `Unavailable` if the engine did not reply: the old deadline
    /// stays. `Unsupported` if the engine cannot extend the lease: a re-entrant lock on etcd.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lease may or may not have been extended; only a reply moves the deadline.
    pub async fn extend(&self, ttl: Duration) -> Result<()> {
        let hold = self.hold();
        check_ttl(ttl).map_err(|error| error.with_key(hold.key()))?;
        self.family.check_caller()?;
        self.check()?;
        let mut lease = hold.lease();
        lease.claim = Claim { ttl, ..lease.claim };
        hold.ask_for(ttl);
        let answer = self.family.backend.renew(std::slice::from_ref(&lease)).await.pop();
        let now = self.family.clock.now();
        match answer.unwrap_or_else(|| Err(Error::unknown("the engine gave no answer"))) {
            Ok(Renewal::Renewed(term)) => {
                hold.set_ttl(ttl);
                if hold.renewed(term, now) {
                    self.family.holds.look_again(hold, None, now);
                }
            }
            Ok(Renewal::Lost(reason)) => {
                hold.lose(reason, now);
                self.family.holds.look_again(hold, Some(now), now);
            }
            Err(error) => return Err(error.with_key(hold.key())),
        }
        self.check()
    }

    /// Replaces the label that others read about the holder, for example to show progress.
    ///
    /// # Errors
    /// Kind `Lost` if the lock is lost; `Unsupported` if the engine cannot replace a record.
    ///
    /// # Cancel safety
    /// If the future is dropped, the label may or may not have been replaced.
    pub async fn relabel(&self, label: impl Into<Arc<str>>) -> Result<()> {
        let (hold, label) = (self.hold(), label.into());
        check_text("label", &label).map_err(|error| error.with_key(hold.key()))?;
        self.family.check_caller()?;
        self.check()?;
        let mut lease = hold.lease();
        lease.claim.record = Arc::new(Record { label: Some(label.clone()), ..Record::clone(&lease.claim.record) });
        match self.family.backend.amend(&lease).await.map_err(|error| error.with_key(hold.key()))? {
            true => {
                *self.label.lock() = Some(label);
                Ok(())
            }
            false => Err(self.taken_away()),
        }
    }

    /// Returns a ticket with which another process can take over this hold, for example this service after a restart:
    /// see [`Locker::adopt`](crate::Locker::adopt), which has the example. Store it before it is needed.
    #[must_use]
    pub fn export(&self) -> HoldTicket {
        let Lease { claim, token, .. } = self.hold().lease();
        let AskedMode { mode, resizes } = claim.asked();
        let label = self.label.lock().clone();
        HoldTicket {
            key: claim.key,
            owner: claim.record.owner.clone(),
            token,
            attempt: claim.attempt,
            ttl: claim.ttl,
            delay: claim.delay,
            mode,
            resizes,
            label: label.or_else(|| claim.record.label.clone()),
        }
    }

    /// Completes with the reason when another client [asks](crate::Locker::ask) for the lock. The holder decides
    /// whether to release it. It looks four times a second; the example is at [`AskRequest`](crate::AskRequest).
    ///
    /// # Errors
    /// The engine's error; kind `Unsupported` if it cannot show locks, `Lost` if the lock is lost first.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect; the method can be called again.
    pub async fn asked(&self) -> Result<String> {
        self.family.check_caller()?;
        let question = asking_for(self.key(), self.fencing_token())?;
        loop {
            self.check()?;
            let asker = self.family.backend.get(&question).await?.and_then(|lock| lock.holders.into_iter().next());
            if let Some(record) = asker.and_then(|asker| asker.record) {
                return Ok(record.label.as_deref().unwrap_or_default().to_owned());
            }
            let clock = &self.family.clock;
            self.family.sleep_until(clock.now().after(LOOK_EVERY)).await?;
        }
    }

    /// Releases the lock and returns the next holder: `None` if no client waited, or none was granted the lock within a
    /// second.
    ///
    /// # Errors
    /// As [`unlock`](LockGuard::unlock); kind `Unsupported` if the engine cannot show locks: the lock is released
    /// nevertheless.
    ///
    /// # Cancel safety
    /// As [`unlock`](LockGuard::unlock).
    pub async fn hand_over(self) -> Result<Option<Holder>> {
        let (family, key, token) = (self.family.clone(), self.key().clone(), self.fencing_token());
        self.unlock().await?;
        for _ in 0..HAND_OVER_LOOKS {
            let Some(lock) = family.backend.get(&key).await.map_err(|error| error.with_key(&key))? else { break };
            let waits = !lock.waiters.is_empty();
            let next = lock.holders.into_iter().find(|holder| holder.token > Some(token));
            if next.is_some() || !waits {
                return Ok(next);
            }
            // Some engines only wake the next waiter, which is about to claim.
            family.sleep_until(family.clock.now().after(HAND_OVER_PAUSE)).await?;
        }
        Ok(None)
    }

    /// Feeds a [fed](crate::Watchdog::fed) watchdog: reports that the work is alive.
    pub fn feed(&self) {
        let now = self.family.clock.now();
        if self.hold().feed(now) && self.family.check_process().is_ok() {
            self.family.holds.look_again(self.hold(), Some(now), now);
        }
    }

    /// Releases the lock and confirms it. After a re-entry, only the last unlock releases.
    ///
    /// ```
    /// # use distlock::{ErrorKind, Locker};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// # let guard = Locker::connect("mem://unlock-guard").await?.lock("invoice:42").await?;
    /// match guard.unlock().await {
    ///     Ok(()) => {}                                                             // free
    ///     Err(error) if error.kind() == ErrorKind::Lost => return Err(error),      // it was not ours any more
    ///     Err(error) => eprintln!("released in the background, at the latest with its lease: {error}"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Kind `Lost`: the lock was lost before. `Unknown`: the reply was lost; the release is retried in the background
    /// until the lease ends. `Unavailable`: not released yet; the release is retried likewise. `Config`: polled
    /// outside a tokio runtime that the engine needs; the lock is released in the background.
    ///
    /// # Cancel safety
    /// Once polled, the release continues in the background if the future is dropped.
    pub async fn unlock(mut self) -> Result<()> {
        // If the engine cannot be called from here, the guard is dropped, which releases in the background.
        self.family.check_caller().map_err(|error| error.with_key(self.key()))?;
        let Some(hold) = self.hold.take() else { return Ok(()) };
        // A closed family has released it already: `leave` returns `Gone`.
        let _under_way = self.family.holds.begin();
        let now = self.family.clock.now();
        match self.family.holds.leave(hold.claim.attempt, now) {
            Left::Inside if hold.is_lost(now) => Err(loss_of(&hold)),
            Left::Inside | Left::Parked => Ok(()),
            Left::Last(hold) => release_now(&self.family, hold, now).await,
            Left::Gone => Err(loss_of(&hold)),
        }
    }

    /// Consumes the guard without releasing the lock. The lock is held until
    /// [`Locker::unlock`](crate::Locker::unlock) is called with its name, the locker is closed, or its last clone and
    /// guard are dropped.
    pub fn detach(mut self) {
        self.hold = None;
    }

    fn hold(&self) -> &Arc<Hold> {
        self.hold.as_ref().expect("a guard has its hold until it is consumed")
    }

    /// Returns the claim that the hold became.
    pub(crate) fn claim(&self) -> Claim {
        self.hold().lease().claim
    }

    pub(crate) fn family(&self) -> &Arc<Family> {
        &self.family
    }

    /// Marks the hold as lost, because the engine has said that it is not this attempt's any more.
    pub(crate) fn taken_away(&self) -> Error {
        let (hold, now) = (self.hold(), self.family.clock.now());
        hold.lose(LossReason::Revoked, now);
        self.family.holds.look_again(hold, Some(now), now);
        self.loss()
    }

    fn loss(&self) -> Error {
        loss_of(self.hold())
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.family.leave_in_background(&hold);
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("LockGuard");
        if let Some(hold) = &self.hold {
            out.field("key", hold.key()).field("token", &hold.token).field("state", &self.state());
        }
        out.finish_non_exhaustive()
    }
}
