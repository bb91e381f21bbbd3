//! Taking a lock: claim, wait, claim again, within the caller's bounds.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::{Busy, Claim, Claimed, ClaimedAll, Grant, Wake};
use crate::core::attempt::{Accepted, Attempt, bounded};
use crate::core::family::Family;
use crate::core::hold::Hold;
use crate::core::holds::HoldHash;
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::{EventKind, LossReason};
use crate::types::key::Key;
use crate::types::mode::Mode;
use crate::types::options::Options;
use crate::types::owner::{Holder, OwnerId, Record};
use crate::types::span::{self, Span};
use crate::types::ticket::HoldTicket;
use crate::types::token::AttemptId;

/// The longest pause while the engine is unavailable.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long the reply to the last claim is awaited once the caller's time is over, at least: twice as long where the reply
/// before took longer, at most [`LONGEST_LAST_REPLY`]. Without it a slow reply could not be told from a dead engine.
const LAST_REPLY: Duration = Duration::from_millis(250);
const LONGEST_LAST_REPLY: Duration = Duration::from_secs(1);
/// A busy reply that is younger than this is still the engine's word when the last claim is not answered in time.
const FRESH: Duration = Duration::from_secs(1);
/// The help for a claim that may have been carried out.
const WITHDRAWN: &str = "the attempt is withdrawn in the background, at the latest its lease ends it";
/// How many grants in a row may arrive after their own deadline before the engine counts as too slow for the lease.
const STALE_GRANTS: u32 = 3;

/// Acquires `key` for `owner`; `None` when another owner has it and the caller does not wait.
///
/// Runs in the caller's future. Dropping it at any point hands the attempt to the keeper, which withdraws it.
pub(crate) async fn acquire(
    family: &Arc<Family>,
    key: Key,
    owner: OwnerId,
    options: &Options,
) -> Result<Option<Arc<Hold>>> {
    family.check_caller()?;
    let _under_way = family.holds.begin()?;
    let (hash, started) = (family.holds.hash(&owner, &key), family.clock.now());
    if let Some(hold) = enter_again(family, &key, &owner, options, hash, started)? {
        return Ok(Some(hold));
    }
    let claim = claim_for(family, key, owner, options)?;
    let span = Span::acquire(&claim.key, &claim.record.owner, family.reporter.backend);
    span.around(take(family, claim, options, hash, started)).await
}

/// Returns the claim of a request, if the engine can do what it asks for.
fn claim_for(family: &Family, key: Key, owner: OwnerId, options: &Options) -> Result<Claim> {
    let able = family.backend.capabilities();
    let mode = match options.mode {
        // Where the engine has no re-entry by owner, re-entry stays within the family.
        Mode::Exclusive if options.reentrant && able.reenters => Mode::Reentrant,
        mode if able.allows(mode) => mode,
        mode => {
            let message = format!("the {} engine cannot be asked for {mode}", family.backend.name());
            let help = "Locker::capabilities() says what an engine can do";
            return Err(Error::new(ErrorKind::Unsupported, message).with_help(help).with_key(&key));
        }
    };
    if !options.delay.is_zero() && !able.delays {
        let message = format!("the {} engine cannot keep a lock after its loss", family.backend.name());
        return Err(Error::new(ErrorKind::Unsupported, message).with_key(&key));
    }
    let mut record = Record::new(owner, family.process.clone(), options.label.clone(), family.clock.wall());
    (record.mode, record.resizes, record.lapses) = (mode, options.resizes, options.lapses());
    let queue = options.wait != Some(Duration::ZERO) && options.max_attempts != Some(1);
    Ok(Claim { delay: options.delay, ..Claim::new(key, options.ttl, queue, Arc::new(record)) })
}

/// Claims once, which is all that a free lock takes. Only what follows any other reply needs the whole of [`Acquire`], in a
/// box of its own: this future is made and moved for every lock. An `async fn` would have room for its arguments twice.
fn take<'a>(
    family: &'a Arc<Family>,
    claim: Claim,
    options: &'a Options,
    hash: HoldHash,
    started: Moment,
) -> impl Future<Output = Result<Option<Arc<Hold>>>> + Send + 'a {
    let mut attempt = Attempt::new(family, claim, options, hash, started);
    async move {
        attempt.sent = true;
        let until = last_reply_by(attempt.until, Duration::ZERO);
        let answer = bounded(family, until, family.backend.claim(&attempt.claim)).await;
        if let Ok(Some(Ok(Claimed::Granted(grant)))) = answer
            && let Accepted::Held(hold) = attempt.accept(grant, options, family.clock.now())
        {
            let end = Ok(Some(hold));
            attempt.meter.ends(&end);
            span::acquired(&end);
            return end;
        }
        let mut rest = Box::pin(Acquire::new(attempt, options).run(answer));
        family.clock.tracked(rest.as_mut()).await
    }
}

/// Claims all of `keys` in one step; `None` when the engine cannot do that, or one is taken and the caller waits.
///
/// Runs in the caller's future. Dropping it at any point hands the attempts to the keeper, which withdraws them.
pub(crate) async fn claim_all(
    family: &Arc<Family>,
    keys: &BTreeSet<Key>,
    owner: &OwnerId,
    options: &Options,
) -> Result<Option<Vec<Arc<Hold>>>> {
    family.check_caller()?;
    let _under_way = family.holds.begin()?;
    if !family.backend.capabilities().claim_all {
        return Ok(None);
    }
    let started = family.clock.now();
    for key in keys {
        enter_again(family, key, owner, options, family.holds.hash(owner, key), started)?;
    }
    let record = Record::new(owner.clone(), family.process.clone(), options.label.clone(), family.clock.wall());
    let record = Arc::new(Record { lapses: options.lapses(), ..record });
    let claims: Vec<_> = keys.iter().map(|key| Claim::new(key.clone(), options.ttl, false, record.clone())).collect();
    let attempt =
        |claim: &Claim| Attempt::new(family, claim.clone(), options, family.holds.hash(owner, &claim.key), started);
    let mut all: Vec<_> = claims.iter().map(|claim| Acquire::new(attempt(claim), options)).collect();
    let [first, ..] = all.as_slice() else { return Ok(None) };
    let until = first.last_reply_by();
    all.iter_mut().for_each(|acquire| acquire.attempt.sent = true);
    let mut answer = bounded(family, until, family.backend.claim_all(&claims)).await?;
    let waits = options.wait != Some(Duration::ZERO);
    let is_over = matches!(&answer, Some(Err(error)) if error.is_attempt_over());
    let is_doubtful = !is_over && matches!(&answer, Some(Err(error)) if error.may_be_applied());
    if is_doubtful {
        // An idempotent retry of the same claims may tell their outcome.
        answer = bounded(family, until, family.backend.claim_all(&claims)).await?;
    }
    let is_refused = match &answer {
        Some(Ok(ClaimedAll::Busy(..))) => true,
        // A caller that waits claims each lock with a new attempt.
        Some(Err(error)) => !error.may_be_applied() || is_over && waits,
        Some(Ok(ClaimedAll::Granted(_))) | None => false,
    };
    if is_refused && !is_doubtful && !is_over {
        // The engine has nothing of them. A request without a reply may still arrive, so it is withdrawn.
        all.iter_mut().for_each(|acquire| acquire.attempt.sent = false);
    }
    let taken = match answer {
        Some(Ok(ClaimedAll::Granted(grants))) => accept_all(&mut all, grants).map(Some),
        Some(Ok(ClaimedAll::Busy(..))) if waits => Ok(None),
        Some(Ok(ClaimedAll::Busy(key, holder))) => {
            Err(Error::new(ErrorKind::Timeout, "another owner has it").with_holder(holder).with_key(&key))
        }
        Some(Err(error)) if is_refused && (error.is_retryable() || error.kind() == ErrorKind::Unsupported) => Ok(None),
        Some(Err(error)) if error.may_be_applied() => {
            all[0].in_doubt = true;
            Err(all[0].out_of_reach(error).with_key(&claims[0].key))
        }
        Some(Err(error)) => Err(error.with_key(&claims[0].key)),
        None => Err(all[0].no_reply(started).with_key(&claims[0].key)),
    };
    for acquire in &mut all {
        match &taken {
            // Each lock is claimed again, and counted then.
            Ok(None) => acquire.attempt.meter.forget(),
            end => acquire.attempt.meter.ends(end),
        }
    }
    if let Err(error) = &taken {
        all[0].report_failure(error);
    }
    taken
}

/// Turns all grants into holds, or leaves none of them.
fn accept_all(all: &mut [Acquire<'_>], grants: Vec<Grant>) -> Result<Vec<Arc<Hold>>> {
    let mut holds = Vec::with_capacity(all.len());
    for (acquire, grant) in all.iter_mut().zip(grants) {
        let failed = match acquire.accept(grant) {
            ControlFlow::Break(Ok(Some(hold))) => {
                holds.push(hold);
                continue;
            }
            ControlFlow::Break(Err(error)) => error,
            _ => Error::lost(LossReason::Expired),
        };
        holds.iter().for_each(|hold| acquire.family().leave_in_background(hold));
        return Err(failed.with_key(&acquire.attempt.claim.key));
    }
    Ok(holds)
}

/// Takes over the hold of `ticket`.
///
/// Runs in the caller's future. Dropping it at any point hands the new attempt to the keeper, which withdraws it.
pub(crate) async fn adopt(family: &Arc<Family>, ticket: &HoldTicket, options: &Options) -> Result<Arc<Hold>> {
    family.check_caller()?;
    let _under_way = family.holds.begin()?;
    let refused = |error: Error| error.with_key(&ticket.key);
    if !family.backend.capabilities().adopts {
        let message = format!("the {} engine cannot take a hold over", family.backend.name());
        return Err(refused(Error::new(ErrorKind::Unsupported, message)));
    }
    let (hash, started) = (family.holds.hash(&ticket.owner, &ticket.key), family.clock.now());
    enter_again(family, &ticket.key, &ticket.owner, options, hash, started)?;
    let label = options.label.clone().or_else(|| ticket.label.clone());
    let record = Record::new(ticket.owner.clone(), family.process.clone(), label, family.clock.wall());
    let record = Record { lapses: options.lapses(), ..record }.with_mode(ticket.mode).with_resizes(ticket.resizes);
    let record = Arc::new(record);
    let claim = Claim { delay: ticket.delay, ..Claim::new(ticket.key.clone(), options.ttl, false, record) };
    let mut acquire = Acquire::new(Attempt::new(family, claim, options, hash, started), options);
    let adopted = match acquire.adopt(ticket).await.map(|grant| acquire.accept(grant)) {
        Ok(ControlFlow::Break(Ok(Some(hold)))) => Ok(Some(hold)),
        Ok(ControlFlow::Break(Err(error))) | Err(error) => Err(error),
        Ok(_) => Err(Error::lost(LossReason::Expired)),
    };
    acquire.attempt.meter.ends(&adopted);
    adopted.transpose().unwrap_or_else(|| Err(Error::lost(LossReason::Expired))).map_err(refused)
}

/// Returns what an owner gets that already has the lock: its hold again, or an error at once, never a self-deadlock.
fn enter_again(
    family: &Family,
    key: &Key,
    owner: &OwnerId,
    options: &Options,
    hash: HoldHash,
    now: Moment,
) -> Result<Option<Arc<Hold>>> {
    // Slots of a semaphore are never found: an owner may have several.
    let has = if options.reentrant {
        family.holds.reenter(owner, key, hash, options.mode, now)
    } else {
        family.holds.held(owner, key, hash, now).map(Err)
    };
    let hold = match has {
        None => return Ok(None),
        Some(Ok(hold)) => return Ok(Some(hold)),
        Some(Err(hold)) => hold,
    };
    let holder = Holder::new(Some(hold.claim.record.clone()), Some(hold.token))
        .with_held_for(Some(now.since(hold.acquired)))
        .with_ttl_left(hold.left(now));
    Err(Error::new(ErrorKind::AlreadyHeld, "this owner has the lock already")
        .with_holder(Some(holder))
        .with_help("give each task its own owner with .as_new_owner() or locker.clone(), or ask for .reentrant()")
        .with_key(key))
}

/// An acquisition that is not over with its first claim.
struct Acquire<'a> {
    attempt: Attempt<'a>,
    options: &'a Options,
    attempts: u32,
    failures: u32,
    stale_grants: u32,
    /// Whether the wait was reported to observers.
    waits: bool,
    /// The last reply, when it said that another owner has the lock.
    busy: Option<BusyReply>,
    /// The last failure, unless a reply followed it.
    failure: Option<Error>,
    /// Whether a claim since the last reply may have been carried out.
    in_doubt: bool,
    /// How long the last reply took.
    round_trip: Duration,
}

/// The engine said that another owner has the lock.
struct BusyReply {
    holder: Option<Holder>,
    at: Moment,
}

impl BusyReply {
    /// The holder, with its times as of `now`.
    fn holder_at(&self, now: Moment) -> Option<Holder> {
        let age = now.since(self.at);
        self.holder.clone().map(|holder| {
            let (held, left) = (holder.held_for, holder.ttl_left);
            holder.with_held_for(held.map(|held| held + age)).with_ttl_left(left.map(|left| left.saturating_sub(age)))
        })
    }
}

/// What to do after a reply: end, or claim again.
type Step = ControlFlow<Result<Option<Arc<Hold>>>>;

/// What a reply requires.
enum Heeded {
    /// Nothing more.
    Ended(Step),
    /// To wait for the lock.
    Busy(Busy),
    /// To pause, or to give up.
    Failed(Error),
}

/// The reply to a claim, if there was one, unless the family closed.
type Answer = Result<Option<Result<Claimed>>>;

impl<'a> Acquire<'a> {
    fn new(attempt: Attempt<'a>, options: &'a Options) -> Self {
        Acquire {
            attempt,
            options,
            attempts: 0,
            failures: 0,
            stale_grants: 0,
            waits: false,
            busy: None,
            failure: None,
            in_doubt: false,
            round_trip: Duration::ZERO,
        }
    }

    /// Goes on after the first claim, to which `answer` is the reply. An `async fn` would have room for its arguments twice,
    /// and futures inside of futures for what each of them needs: all waiting is done here.
    fn run(mut self, mut answer: Answer) -> impl Future<Output = Result<Option<Arc<Hold>>>> + Send + 'a {
        let (mut sent_before, mut asked) = (false, self.attempt.started);
        async move {
            loop {
                let step = match self.heed(answer, sent_before, asked) {
                    Heeded::Ended(step) => step,
                    Heeded::Busy(busy) => self.wait_for_turn(busy).await,
                    Heeded::Failed(error) => self.pause_after(error).await,
                };
                if let ControlFlow::Break(end) = step {
                    self.attempt.meter.ends(&end);
                    span::acquired(&end);
                    if let Err(error) = &end {
                        self.report_failure(error);
                    }
                    return end.map_err(|error| error.with_key(&self.attempt.claim.key));
                }
                sent_before = std::mem::replace(&mut self.attempt.sent, true);
                asked = self.family().clock.now();
                answer = self.bounded(self.last_reply_by(), self.family().backend.claim(&self.attempt.claim)).await;
            }
        }
    }

    /// Takes the reply to a claim of the moment `asked`.
    fn heed(&mut self, answer: Answer, sent_before: bool, asked: Moment) -> Heeded {
        let answer = match answer {
            Ok(Some(answer)) => answer,
            Ok(None) => return Heeded::Ended(self.unanswered(asked)),
            Err(closed) => return Heeded::Ended(ControlFlow::Break(Err(closed))),
        };
        self.attempts += 1;
        self.round_trip = self.family().clock.now().since(asked);
        match answer {
            Ok(Claimed::Granted(grant)) => Heeded::Ended(self.accept(grant)),
            Ok(Claimed::Busy(busy)) => {
                // Without a queue a busy reply leaves nothing behind, unless the engine says so.
                self.attempt.sent = sent_before || self.attempt.claim.queue || self.is_left_behind();
                (self.failures, self.failure, self.in_doubt) = (0, None, false);
                Heeded::Busy(busy)
            }
            Err(error) => {
                self.attempt.sent = sent_before || error.may_be_applied() || self.is_left_behind();
                self.in_doubt |= error.may_be_applied();
                if error.is_attempt_over() {
                    self.attempt.begin_anew();
                }
                Heeded::Failed(error)
            }
        }
    }

    /// Returns whether the engine may still have something of the attempt, although its claim was not granted.
    fn is_left_behind(&self) -> bool {
        self.family().backend.late_until(&self.attempt.claim).is_some()
    }

    /// Asks the engine to give the hold to this attempt, and again while the outcome is unknown.
    async fn adopt(&mut self, ticket: &HoldTicket) -> Result<Grant> {
        loop {
            self.attempt.sent = true;
            let claim = &self.attempt.claim;
            let asked = self.family().backend.adopt(ticket.attempt, ticket.token, claim);
            match self.bounded(Moment::NEVER, asked).await?.unwrap_or_else(|| Err(Error::closed())) {
                Ok(grant) => return Ok(grant),
                Err(error) if error.may_be_applied() && self.failures < self.options.max_retries => {
                    self.failures += 1;
                }
                Err(error) => {
                    self.attempt.sent = self.failures > 0 || error.may_be_applied();
                    return Err(error);
                }
            }
        }
    }

    /// The engine granted the lock. From here to the guard there is no await.
    fn accept(&mut self, grant: Grant) -> Step {
        let now = self.family().clock.now();
        match self.attempt.accept(grant, self.options, now) {
            Accepted::Held(hold) => ControlFlow::Break(Ok(Some(hold))),
            Accepted::Late => self.refuse_stale(now),
            Accepted::Closed => ControlFlow::Break(Err(Error::closed())),
        }
    }

    /// Handles a grant that arrived after its own deadline. Claims are idempotent, so claiming again renews it.
    fn refuse_stale(&mut self, now: Moment) -> Step {
        self.stale_grants += 1;
        // The holder that was seen before has released the lock.
        self.busy = None;
        if now >= self.attempt.until || self.is_spent() {
            return self.time_out();
        }
        if self.stale_grants < STALE_GRANTS {
            return ControlFlow::Continue(());
        }
        let ttl = self.options.ttl;
        ControlFlow::Break(Err(Error::unavailable(format!("every grant came later than its lease of {ttl:?} lasts"))
            .with_help("ask for a longer ttl")))
    }

    async fn wait_for_turn(&mut self, busy: Busy) -> Step {
        let now = self.family().clock.now();
        self.busy = Some(BusyReply { holder: busy.holder, at: now });
        self.stale_grants = 0;
        if self.options.wait == Some(Duration::ZERO) || now >= self.attempt.until || self.is_spent() {
            // The holder may be another task of the same owner.
            return match self.look_inside() {
                ControlFlow::Continue(()) if self.options.once => ControlFlow::Break(Ok(None)),
                ControlFlow::Continue(()) => self.time_out(),
                end => end,
            };
        }
        if !std::mem::replace(&mut self.waits, true) {
            self.attempt.meter.waits();
            self.report(EventKind::Waiting { holder: self.busy.as_ref().and_then(|busy| busy.holder.as_ref()) });
        }
        let poll = now.after(busy.poll_after.unwrap_or(self.options.retry_interval));
        let wake = self.bounded(poll.min(self.attempt.until), self.family().backend.wait(&self.attempt.claim)).await;
        match wake {
            Ok(Some(Wake::Granted(grant))) => self.accept(grant),
            // After the caller's time, too: a last claim tells whether the engine is reachable and who has the lock now.
            Ok(Some(Wake::Retry) | None) => self.look_inside(),
            Err(closed) => ControlFlow::Break(Err(closed)),
        }
    }

    /// Checks whether another task of the same owner has taken the lock meanwhile.
    fn look_inside(&self) -> Step {
        let Attempt { family, claim: Claim { key, record, .. }, hash, .. } = &self.attempt;
        match enter_again(family, key, &record.owner, self.options, *hash, family.clock.now()) {
            Ok(None) => ControlFlow::Continue(()),
            end => ControlFlow::Break(end),
        }
    }

    /// Claims again after a growing pause, or gives up, when the engine has failed.
    async fn pause_after(&mut self, error: Error) -> Step {
        self.failures += 1;
        let is_try = self.options.wait == Some(Duration::ZERO);
        // A try does not wait, but retries once to learn an unknown outcome. Only the same attempt can learn it.
        let is_unknown = error.may_be_applied() && !error.is_attempt_over();
        let most_failures = if is_try { u32::from(is_unknown) } else { self.options.max_retries };
        if !error.is_retryable() || self.failures > most_failures || self.is_spent() {
            return ControlFlow::Break(Err(self.give_up(error)));
        }
        if is_try {
            return ControlFlow::Continue(());
        }
        let now = self.family().clock.now();
        let resume = now.after(back_off(self.options.retry_interval, self.failures));
        match self.bounded(resume.min(self.attempt.until), self.grant_in_pause()).await {
            Err(closed) => ControlFlow::Break(Err(closed)),
            Ok(Some(grant)) => self.accept(grant),
            Ok(None) if self.family().clock.now() >= self.attempt.until => {
                ControlFlow::Break(Err(self.out_of_reach(error)))
            }
            Ok(None) => {
                self.failure = Some(error);
                ControlFlow::Continue(())
            }
        }
    }

    /// Resolves if the lock is granted during the pause: the place in the queue may have outlived the failure. Hints to claim
    /// again are ignored, to spare the engine until the pause has passed.
    async fn grant_in_pause(&self) -> Grant {
        let Attempt { claim, sent, .. } = &self.attempt;
        if *sent
            && claim.queue
            && let Wake::Granted(grant) = self.family().backend.wait(claim).await
        {
            return grant;
        }
        std::future::pending().await
    }

    /// Returns the final error: an unknown outcome stays unknown, whatever failed last.
    fn give_up(&self, error: Error) -> Error {
        if self.in_doubt && !error.may_be_applied() && error.is_retryable() {
            return Error::unknown("a claim was not answered and the engine is out of reach now")
                .with_help(WITHDRAWN)
                .with_source(error);
        }
        error
    }

    /// Returns the error for a wait that ended while `failure` was the last thing known of the engine.
    fn out_of_reach(&self, failure: Error) -> Error {
        let waited = self.family().clock.now().since(self.attempt.started).as_secs_f64();
        let message = format!("the engine did not serve the claim within {waited:.3} s: {failure}");
        match self.in_doubt {
            true => Error::unknown(message).with_help(WITHDRAWN),
            false => Error::new(failure.kind(), message),
        }
        .with_source(failure)
    }

    /// Ends a wait whose claim, sent at `asked`, has no reply.
    fn unanswered(&mut self, asked: Moment) -> Step {
        let now = self.family().clock.now();
        if self.failure.is_none() && self.busy.as_ref().is_some_and(|busy| now.since(busy.at) < FRESH) {
            return self.time_out();
        }
        ControlFlow::Break(Err(self.no_reply(asked)))
    }

    /// Returns the error for a wait whose claim, sent at `asked`, has no reply and may have been carried out.
    fn no_reply(&mut self, asked: Moment) -> Error {
        let silence = self.family().clock.now().since(asked).as_secs_f64();
        self.in_doubt = true;
        let failure = self.failure.take();
        self.out_of_reach(failure.unwrap_or_else(|| Error::unknown(format!("no reply for {silence:.3} s"))))
    }

    /// Returns until when a reply counts: a little longer than the caller waits.
    fn last_reply_by(&self) -> Moment {
        last_reply_by(self.attempt.until, self.round_trip)
    }

    fn time_out(&self) -> Step {
        let now = self.family().clock.now();
        let waited = now.since(self.attempt.started);
        self.report(EventKind::TimedOut { waited });
        let message = match (self.options.wait, self.attempts) {
            (Some(Duration::ZERO), _) => "another owner has it".to_owned(),
            (_, 1) => format!("not granted within {:.3} s (1 attempt)", waited.as_secs_f64()),
            (_, attempts) => format!("not granted within {:.3} s ({attempts} attempts)", waited.as_secs_f64()),
        };
        let holder = self.busy.as_ref().and_then(|busy| busy.holder_at(now));
        ControlFlow::Break(Err(Error::new(ErrorKind::Timeout, message).with_holder(holder)))
    }

    /// Reports that the acquisition ended because the engine could not be reached.
    fn report_failure(&self, error: &Error) {
        if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) {
            let waited = self.family().clock.now().since(self.attempt.started);
            self.report(EventKind::Failed { error, waited });
        }
    }

    async fn bounded<T>(&self, until: Moment, future: impl Future<Output = T>) -> Result<Option<T>> {
        bounded(self.family(), until, future).await
    }

    fn is_spent(&self) -> bool {
        self.options.max_attempts.is_some_and(|most| self.attempts >= most)
    }

    fn family(&self) -> &Arc<Family> {
        self.attempt.family
    }

    fn report(&self, kind: EventKind<'_>) {
        let Claim { key, record, .. } = &self.attempt.claim;
        self.family().reporter.emit(key, &record.owner, None, kind);
    }
}

/// Returns until when the reply to a claim counts that may wait until `until`, if the reply before took `round_trip`.
fn last_reply_by(until: Moment, round_trip: Duration) -> Moment {
    until.after((round_trip * 2).clamp(LAST_REPLY, LONGEST_LAST_REPLY))
}

/// Returns the pause after so many failures: it doubles from the retry interval on, with jitter, so that clients do not
/// retry at the same moment.
fn back_off(interval: Duration, failures: u32) -> Duration {
    let full = interval.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_PAUSE.max(interval));
    full.mul_f64(0.5 + 0.5 * AttemptId::random().fraction())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_within_its_bounds_and_differs_each_time() {
        let interval = Duration::from_millis(100);
        for (failures, full) in [(1, 100), (2, 200), (4, 800), (7, 5_000), (u32::MAX, 5_000)] {
            let full = Duration::from_millis(full);
            let pauses: Vec<_> = (0..20).map(|_| back_off(interval, failures)).collect();
            assert!(pauses.iter().all(|pause| (full / 2..=full).contains(pause)), "{failures}: {pauses:?}");
            assert!(pauses.iter().any(|pause| *pause != pauses[0]));
        }
    }
}
