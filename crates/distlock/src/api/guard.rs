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
use crate::types::mode::Mode;
use crate::types::options::check_ttl;
use crate::types::owner::{Holder, OwnerId, Record, check_text};
use crate::types::span::Span;
use crate::types::ticket::HoldTicket;
use crate::types::token::FencingToken;

/// How often to look who got a lock that was handed over, and the pause between two looks.
const HAND_OVER_LOOKS: u32 = 100;
const HAND_OVER_PAUSE: Duration = Duration::from_millis(10);

/// A lock that is held, and kept by renewal until it is unlocked.
///
/// Dropping the guard releases the lock **in the background**: soon, but not before `drop` returns, and unconfirmed.
/// Only [`unlock`](LockGuard::unlock) confirms. A process that dies keeps the lock until its lease ends.
///
/// A lease can end while the holder believes in it, for no process controls its own pauses. So watch
/// [`lost`](LockGuard::lost), or let [`run`](LockGuard::run) do it, and give
/// [`fencing_token`](LockGuard::fencing_token) to whatever the lock protects.
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard {
    family: Arc<Family>,
    /// `None` only in a guard that was unlocked or detached and is about to be dropped.
    hold: Option<Arc<Hold>>,
    /// The label that it was given since.
    label: Mutex<Option<Arc<str>>>,
}

/// How sure a hold is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HoldState {
    /// The lease is good.
    Held,
    /// The last renewal failed; the lease is good until the deadline, and renewal is tried again.
    AtRisk,
    /// The lock is lost. This is final.
    Lost,
}

impl LockGuard {
    pub(crate) fn new(family: Arc<Family>, hold: Arc<Hold>) -> Self {
        LockGuard { family, hold: Some(hold), label: Mutex::default() }
    }

    /// The lock's name.
    #[must_use]
    pub fn key(&self) -> &Key {
        self.hold().key()
    }

    /// Who holds it.
    #[must_use]
    pub fn owner(&self) -> &OwnerId {
        self.hold().owner()
    }

    /// The number of this grant, higher than that of every grant before: for the protected resource to check. Who
    /// enters again has the number of the first.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.hold().token
    }

    /// Who may hold it at the same time.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.hold().claim.mode()
    }

    /// Which slot of the semaphore it is, from 0 on: at most one holder has it at a time, and its tokens rise. `None`
    /// for everything that is not a semaphore.
    #[must_use]
    pub fn slot(&self) -> Option<u32> {
        self.hold().slot
    }

    /// How sure the hold is right now.
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

    /// Whether the lock is lost, by the clock at this moment. In a forked child it always is: the lock is its parent's.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.family.check_process().is_err() || self.hold().is_lost(self.family.clock.now())
    }

    /// An error of kind `Lost` if the lock is lost: to be asked before each step that must not be done without it.
    ///
    /// # Errors
    /// Kind `Lost`, with the reason.
    pub fn check(&self) -> Result<()> {
        self.family.check_process().map_err(|error| error.with_key(self.key()))?;
        if self.is_lost() { Err(self.loss()) } else { Ok(()) }
    }

    /// Resolves when the lock is lost, to the reason. In a process that runs, a lease that ends is told before another
    /// owner can be granted the lock; a process that was stopped or suspended is told when it goes on, so ask
    /// [`check`](LockGuard::check) before each step that counts. A lock that is taken away before its lease ends, by force or
    /// by a server that lost its data, is told as soon as the engine says so, at the latest with the next renewal: another
    /// owner may have it by then.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect; it can be asked for again.
    pub async fn lost(&self) -> LossReason {
        let mut lost = pin!(self.hold().lost());
        std::future::poll_fn(|context| {
            // The clock first: a timer may be late, as after a suspend.
            self.hold().is_lost(self.family.clock.now());
            lost.as_mut().poll(context).map(LossReason::clone)
        })
        .await
    }

    /// When the lock counts as lost unless a renewal is answered before; `None` when it does not end by time.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        Some(self.hold().end()).filter(|end| *end != Moment::NEVER)
    }

    /// Time until [`deadline`](LockGuard::deadline); zero when the lock is lost.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        let left = self.hold().left(self.family.clock.now());
        if self.is_lost() { left.map(|_| Duration::ZERO) } else { left }
    }

    /// Runs `work` as long as the lock is held. On loss the work is dropped at its next await and not polled again.
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
        let mut lost = pin!(hold.lost());
        std::future::poll_fn(|context| {
            // The clock first: after a pause of the process no step may be taken before it has been looked at.
            if self.is_lost() || lost.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(self.loss()));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// A descriptor that keeps the lock as long as a copy of it is open, for a child process to inherit; `None` on
    /// engines that have no such thing. It is closed on exec until the caller says otherwise.
    ///
    /// # Errors
    /// Kind `Unavailable` when no descriptor is left.
    pub fn descriptor(&self) -> Result<Option<OwnedFd>> {
        self.family.backend.descriptor(&self.hold().claim)
    }

    /// Makes the lease `ttl` long from now on, and renews it at once. A lease never gets shorter than it is.
    ///
    /// # Errors
    /// Kind `Lost` when it is not ours any more; `Unknown` or `Unavailable` when the engine did not answer: the old
    /// deadline stands. `Unsupported` where the engine cannot make it longer: a re-entrant lock on etcd.
    ///
    /// # Cancel safety
    /// When the future is dropped the lease may or may not have been extended; the deadline counts only an answer.
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

    /// Changes the label that others read about the holder.
    ///
    /// # Errors
    /// Kind `Lost` when it is not ours any more; `Unsupported` where the engine cannot change it.
    ///
    /// # Cancel safety
    /// When the future is dropped it may or may not have been changed.
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
            false => {
                let now = self.family.clock.now();
                hold.lose(LossReason::Revoked, now);
                self.family.holds.look_again(hold, Some(now), now);
                Err(self.loss())
            }
        }
    }

    /// What another process needs to go on with this hold, such as this one after a restart: see
    /// [`Locker::adopt`](crate::Locker::adopt). Write it down before it is needed.
    #[must_use]
    pub fn export(&self) -> HoldTicket {
        let Lease { claim, token, .. } = self.hold().lease();
        let mode = claim.mode();
        let label = self.label.lock().clone();
        HoldTicket {
            key: claim.key,
            owner: claim.record.owner.clone(),
            token,
            attempt: claim.attempt,
            ttl: claim.ttl,
            delay: claim.delay,
            mode,
            label: label.or_else(|| claim.record.label.clone()),
        }
    }

    /// Resolves when somebody [asks](crate::Locker::ask) for the lock to be released, to the reason. It is for the
    /// holder to decide.
    ///
    /// # Errors
    /// What the engine says; kind `Unsupported` where it cannot show locks, `Lost` when the lock is lost before.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect; it can be asked for again.
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

    /// Releases the lock once its work has drained, and says who got it: `None` when nobody waited.
    ///
    /// # Errors
    /// As [`unlock`](LockGuard::unlock); kind `Unsupported` where the engine cannot show locks: it is released even so.
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
            // An engine that only wakes the next one: it is about to take it.
            family.sleep_until(family.clock.now().after(HAND_OVER_PAUSE)).await?;
        }
        Ok(None)
    }

    /// Says that the work lives, for a [fed](crate::Watchdog::fed) watchdog.
    pub fn feed(&self) {
        let now = self.family.clock.now();
        if self.hold().feed(now) && self.family.check_process().is_ok() {
            self.family.holds.look_again(self.hold(), Some(now), now);
        }
    }

    /// Releases the lock and says what became of it. After a re-entry, only the last unlock releases.
    ///
    /// # Errors
    /// Kind `Lost`: it was not ours any more. `Unknown`: the reply was lost; releasing goes on in the background until
    /// the lease is over. `Unavailable`: not released yet; releasing goes on likewise. `Config`: polled outside of a tokio
    /// runtime, which the engine needs; it is released in the background.
    ///
    /// # Cancel safety
    /// Once polled, the release goes on in the background when the future is dropped.
    pub async fn unlock(mut self) -> Result<()> {
        // Where nothing can be asked the guard is dropped, which releases in the background.
        self.family.check_caller().map_err(|error| error.with_key(self.key()))?;
        let Some(hold) = self.hold.take() else { return Ok(()) };
        self.family.check_process()?;
        // A closed family has released it already, and says so.
        let _under_way = self.family.holds.begin();
        match self.family.holds.leave(hold.claim.attempt, self.family.clock.now()) {
            Left::Inside if hold.is_lost(self.family.clock.now()) => Err(loss_of(&hold)),
            Left::Inside | Left::Parked => Ok(()),
            Left::Last(hold) => release_now(&self.family, hold).await,
            Left::Gone => Err(loss_of(&hold)),
        }
    }

    /// Gives up the guard but not the lock: it is kept until [`Locker::unlock`](crate::Locker::unlock) is called with
    /// its name, the locker is closed, or its last clone and guard are gone.
    pub fn detach(mut self) {
        self.hold = None;
    }

    fn hold(&self) -> &Arc<Hold> {
        self.hold.as_ref().expect("a guard has its hold until it is consumed")
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
