//! The lock protocol: make a key, wait for the one before it, look again, and know the token and the term.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};

use super::attempt::{Attempt, Attempts, Phase};
use super::client::{Client, PATIENCE};
use super::failure::{Failure, Fault};
use super::horizon::Horizon;
use super::housekeeping::WATCH_AFTER;
use super::messages::PutRequest;
use super::names::Names;
use super::queue::{self, View};
use super::session::{self, Session, Sessions};
use super::watches::Watches;
use super::{EtcdCompare, entry};
use crate::backend::{Attachment, Busy, Claim, Claimed, Grant, Lease, Losses, Release, Renewal, Wake};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::event::LossReason;
use crate::key::Key;
use crate::owner::Holder;
use crate::token::FencingToken;

/// The longest time between two looks at a queue in which somebody waits: the watch is a hint, this is behind it.
const LONGEST_POLL: Duration = Duration::from_secs(20);

/// What all of one client's requests and tasks share.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) client: Client,
    pub(super) clock: Clock,
    pub(super) names: Names,
    pub(super) sessions: Sessions,
    pub(super) attempts: Attempts,
    pub(super) watches: Watches,
    losses: OnceLock<Losses>,
    dial_timeout: Duration,
    horizon: Horizon,
    tasks: Mutex<Tasks>,
}

#[derive(Debug, Default)]
struct Tasks {
    set: JoinSet<()>,
    started: bool,
    stopped: bool,
}

/// A task that ends when nobody waits for it any more.
struct Running(AbortHandle);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Engine {
    pub(super) fn new(client: Client, names: Names, dial_timeout: Duration) -> Self {
        Engine {
            client,
            clock: Clock::system(),
            names,
            sessions: Sessions::default(),
            attempts: Attempts::default(),
            watches: Watches::default(),
            losses: OnceLock::new(),
            dial_timeout,
            horizon: Horizon::default(),
            tasks: Mutex::default(),
        }
    }

    pub(super) fn attach(&self, attachment: Attachment) {
        self.client.run_on(&attachment.runtime);
        let _ = self.losses.set(attachment.losses);
    }

    /// Reads something that is certainly allowed, and waits for the answer.
    pub(super) async fn ready(&self) -> Result<()> {
        let probe = self.names.all("distlock-probe");
        let answer = tokio::time::timeout(self.dial_timeout, queue::is_there(&self.client, &probe, 0)).await;
        match answer.unwrap_or_else(|_| Err(Failure::timeout())) {
            Ok(_) => Ok(()),
            // Nothing was asked for that could have been done.
            Err(failure) if failure.fault == Fault::Unknown => Err(failure.into_refusal().into()),
            Err(failure) => Err(failure.into()),
        }
    }

    pub(super) async fn claim(self: &Arc<Self>, claim: &Claim) -> Result<Claimed> {
        self.start();
        // A lease or a key that went away in the meantime costs one more turn, and the place in the queue.
        for _ in 0..3 {
            let Some(attempt) = self.attempt_of(claim).await? else { continue };
            let (created, session) = {
                let state = attempt.state();
                (state.created, state.session.clone())
            };
            let before = self.horizon.now();
            if let Some(busy) = self.glance(&attempt, claim).await? {
                return Ok(Claimed::Busy(busy));
            }
            let view = match created {
                0 => self.make(&attempt, claim).await,
                _ => queue::look(&self.client, &attempt.lock, &attempt.key, created).await,
            };
            match view {
                Err(failure) if failure.fault == Fault::LeaseGone => self.session_lost(&session),
                Err(failure) => return Err(failure.into()),
                Ok(view) if view.own.is_none() && (created != 0 || claim.queue) => self.key_lost(&attempt),
                Ok(view) => {
                    self.horizon.check(before, view.header)?;
                    return Ok(self.answer(&attempt, claim, view));
                }
            }
        }
        Err(Error::unavailable("the lease is lost again and again").with_help("ask for a longer ttl"))
    }

    /// The attempt of `claim`, new or as it is. `None`: it cannot be used and was forgotten.
    async fn attempt_of(self: &Arc<Self>, claim: &Claim) -> Result<Option<Arc<Attempt>>> {
        let known = self.attempts.get(claim.attempt);
        let session = match &known {
            Some(attempt) => attempt.state().session.clone(),
            None => self.session(claim.ttl).await?,
        };
        let term = session.term();
        // It should have been renewed by now: do not hang a lock on a lease that is about to end.
        if self.clock.now() >= term.start.after(term.ttl / 2) {
            match session.renewed_after(term.start).await {
                Ok(Some(_)) => {}
                Ok(None) => {
                    self.session_lost(&session);
                    return Ok(None);
                }
                Err(error) => return Err(Error::unavailable("the lease cannot be renewed").with_source(error)),
            }
        }
        let keep_until = self.clock.now().after(session.term().ttl.max(claim.ttl));
        if let Some(attempt) = known {
            let mut state = attempt.state();
            state.keep_until = state.keep_until.max(keep_until);
            drop(state);
            return Ok(Some(attempt));
        }
        let lock = self.names.lock(&claim.key);
        let key = Names::place(&lock, session.id, claim.attempt);
        let attempt = Arc::new(Attempt::new(claim.attempt, lock, key, session, keep_until));
        self.attempts.insert(&attempt, self.clock.now().after(WATCH_AFTER));
        Ok(Some(attempt))
    }

    /// Makes the key. That goes on when the caller's future is dropped: only when its end is known can it be undone.
    async fn make(self: &Arc<Self>, attempt: &Arc<Attempt>, claim: &Claim) -> Result<View, Failure> {
        let making = attempt.making.clone().lock_owned().await;
        let session = attempt.state().session.clone();
        let ttl_ms = u64::try_from(claim.ttl.as_millis()).unwrap_or(u64::MAX);
        let value = entry::write(&claim.record, claim.attempt, ttl_ms, session.id);
        let put = PutRequest { key: attempt.key.clone(), value, lease: session.id, ignore_value: false };
        let (tell, told) = oneshot::channel();
        let (engine, attempt, queue) = (self.clone(), attempt.clone(), claim.queue);
        self.run(async move {
            let outcome = queue::join(&engine.client, &attempt.lock, put, queue, PATIENCE).await;
            let mut state = attempt.state();
            match &outcome {
                Ok(view) => state.created = view.own.unwrap_or(0),
                Err(failure) => state.doubtful |= failure.fault == Fault::Unknown,
            }
            drop((state, making));
            let _ = tell.send(outcome);
        });
        told.await.unwrap_or_else(|_| Err(Failure::new(Fault::Unknown, "the engine was closed")))
    }

    /// What the queue means for the claim.
    fn answer(&self, attempt: &Attempt, claim: &Claim, view: View) -> Claimed {
        if view.is_ours(&attempt.key) {
            return Claimed::Granted(self.grant(attempt, &view));
        }
        let holder = holder_in(&view).map(|(_, holder)| holder);
        let doubtful = attempt.state().doubtful;
        if claim.queue {
            self.note(attempt, view);
        } else if !doubtful {
            self.attempts.remove(attempt);
        }
        Claimed::Busy(busy(holder, claim))
    }

    /// Asks only whether anything has changed for an attempt that waits: reading a long queue costs the server
    /// something, and everybody in it asks from time to time. `None`: read the queue.
    async fn glance(&self, attempt: &Attempt, claim: &Claim) -> Result<Option<Busy>> {
        let (created, before, holder) = {
            let state = attempt.state();
            match (state.phase, &state.before, &state.holder) {
                (Phase::Waiting, Some(before), Some(holder)) => (state.created, before.clone(), holder.clone()),
                _ => return Ok(None),
            }
        };
        let horizon = self.horizon.now();
        let others = [before.as_slice(), holder.0.as_slice()];
        let (own, others, header) = queue::glance(&self.client, &attempt.key, created, others).await?;
        self.horizon.check(horizon, header)?;
        if !own || others != [true, true] {
            return Ok(None);
        }
        let mut state = attempt.state();
        state.revision = state.revision.max(header.revision);
        Ok(Some(busy(Some(holder.1), claim)))
    }

    /// The lock is ours.
    fn grant(&self, attempt: &Attempt, view: &View) -> Grant {
        let mut state = attempt.state();
        let term = state.session.term();
        if !matches!(state.phase, Phase::Held(_)) {
            state.phase = Phase::Held(self.clock.now());
        }
        state.revision = state.revision.max(view.header.revision);
        state.known_start = term.start;
        state.keep_until = state.keep_until.max(term.start.after(term.ttl));
        let token = FencingToken::new(state.created.unsigned_abs());
        drop(state);
        self.attempts.put_behind(attempt, None);
        Grant::new(token, Some(term))
    }

    /// Keeps what was read of the queue for the wait that follows.
    fn note(&self, attempt: &Attempt, view: View) {
        {
            let mut state = attempt.state();
            state.revision = view.header.revision;
            state.holder = holder_in(&view);
        }
        self.attempts.put_behind(attempt, view.before);
    }

    /// Waits on the keeper's runtime, where the watch and the connection are: between the end of one hold and the
    /// beginning of the next there is no other thread to wake.
    pub(super) async fn wait(self: &Arc<Self>, claim: &Claim) -> Wake {
        let Some(attempt) = self.attempts.get(claim.attempt) else { return Wake::Retry };
        let (tell, told) = oneshot::channel();
        let (engine, claim) = (self.clone(), claim.clone());
        let waiting = self.run(async move {
            let _ = tell.send(engine.wait_for_turn(&attempt, &claim).await);
        });
        let _waiting = waiting.map(Running);
        told.await.unwrap_or(Wake::Retry)
    }

    async fn wait_for_turn(&self, attempt: &Attempt, claim: &Claim) -> Wake {
        loop {
            let (revision, created, before) = {
                let state = attempt.state();
                if state.phase != Phase::Waiting || state.created == 0 {
                    return Wake::Retry;
                }
                (state.revision, state.created, state.before.clone())
            };
            let mut sight = self.watches.watch(&attempt.lock, 0, self.clock.now());
            let is_my_turn = before.is_none_or(|before| self.watches.saw_deletion(&attempt.lock, &before));
            if !is_my_turn && sight.misses(revision) {
                // The watch began after we looked.
                match self.glance(attempt, claim).await {
                    Ok(Some(_)) => continue,
                    Ok(None) => {}
                    Err(_) => return Wake::Retry,
                }
            } else if !is_my_turn {
                tokio::select! {
                    () = attempt.turn.notified() => {}
                    () = sight.missed(revision) => continue,
                }
                if attempt.state().phase != Phase::Waiting {
                    return Wake::Retry;
                }
            }
            let horizon = self.horizon.now();
            match queue::look(&self.client, &attempt.lock, &attempt.key, created).await {
                Ok(view) if self.horizon.check(horizon, view.header).is_err() => return Wake::Retry,
                Ok(view) if view.is_ours(&attempt.key) => return Wake::Granted(self.grant(attempt, &view)),
                Ok(view) if view.own.is_some() => self.note(attempt, view),
                // The claim that follows finds out what to do about it.
                Ok(_) | Err(_) => return Wake::Retry,
            }
        }
    }

    pub(super) async fn renew(self: &Arc<Self>, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let mut answers = Vec::with_capacity(leases.len());
        for lease in leases {
            answers.push(self.renew_one(lease).await);
        }
        answers
    }

    /// Renews one hold: its lease was renewed since it last asked, or is now, for all that hang on it.
    async fn renew_one(self: &Arc<Self>, lease: &Lease) -> Result<Renewal> {
        let attempt = self.attempts.get(lease.claim.attempt);
        let Some(attempt) = attempt.filter(|attempt| matches!(attempt.state().phase, Phase::Held(_))) else {
            return Ok(Renewal::Lost(LossReason::Revoked));
        };
        let (session, known) = {
            let state = attempt.state();
            (state.session.clone(), state.known_start)
        };
        let session = match session.covers(lease.claim.ttl) {
            true => session,
            false => match self.move_to_longer(&attempt, lease).await? {
                Some(longer) => longer,
                None => return Ok(Renewal::Lost(LossReason::Revoked)),
            },
        };
        let renewed = match session.term() {
            term if term.start > known && !session.is_gone() => Some(term),
            _ => session.renewed_after(known).await?,
        };
        let Some(term) = renewed else {
            self.session_lost(&session);
            return Ok(Renewal::Lost(LossReason::Revoked));
        };
        let mut state = attempt.state();
        if !matches!(state.phase, Phase::Held(_)) {
            return Ok(Renewal::Lost(LossReason::Revoked));
        }
        state.known_start = term.start;
        state.keep_until = state.keep_until.max(term.start.after(term.ttl));
        Ok(Renewal::Renewed(Some(term)))
    }

    /// Hangs a hold on a lease that is long enough; `None` when the hold is gone.
    async fn move_to_longer(self: &Arc<Self>, attempt: &Attempt, lease: &Lease) -> Result<Option<Arc<Session>>> {
        let session = self.session(lease.claim.ttl).await?;
        let created = attempt.state().created;
        // Until the answer it may hang on either.
        attempt.state().next_session = Some(session.clone());
        if !queue::attach(&self.client, &attempt.key, created, session.id).await? {
            self.key_lost(attempt);
            return Ok(None);
        }
        let mut state = attempt.state();
        state.next_session = None;
        state.session = session.clone();
        Ok(Some(session))
    }

    pub(super) async fn release(self: &Arc<Self>, claim: &Claim) -> Result<Release> {
        let Some(attempt) = self.attempts.get(claim.attempt) else { return Ok(Release::NotOurs) };
        let _made = attempt.making.lock().await;
        let (created, was_held, repeated) = {
            let mut state = attempt.state();
            let repeated = matches!(state.phase, Phase::Leaving { .. });
            let was_held = matches!(state.phase, Phase::Held(_) | Phase::Leaving { was_held: true });
            state.phase = Phase::Leaving { was_held };
            (state.created, was_held, repeated)
        };
        let deleted = queue::leave(&self.client, &attempt.key, created).await?;
        let doubtful = attempt.state().doubtful && created == 0;
        if doubtful && !deleted {
            // The request that makes the key may still be on its way: housekeeping deletes it when it comes.
            let mut state = attempt.state();
            let now = self.clock.now();
            state.again.get_or_insert((now, now));
            state.session.retire();
        } else {
            self.attempts.remove(&attempt);
        }
        // Deleted by the first try, whose answer was lost: nobody else deletes a key while its lease is good.
        let by_us = deleted || (repeated && !attempt.state().session.is_gone());
        Ok(if was_held && by_us { Release::Released } else { Release::NotOurs })
    }

    pub(super) async fn close(&self) -> Result<()> {
        let held = |attempt: &Arc<Attempt>| {
            let state = attempt.state();
            matches!(state.phase, Phase::Held(_)).then_some(state.session.id)
        };
        // What is still held was kept on purpose, and is left to its lease.
        let kept: Vec<i64> = self.attempts.all().iter().filter_map(held).collect();
        let outcome = self.sessions.revoke_all_but(&kept, &self.client).await;
        self.stop();
        outcome.map_err(Error::from)
    }

    pub(super) fn compare(&self, key: &Key, token: FencingToken) -> Option<EtcdCompare> {
        let create_revision = i64::try_from(token.get()).ok()?;
        let attempt = self.attempts.find(&self.names.lock(key), create_revision)?;
        Some(EtcdCompare { key: attempt.key.clone(), create_revision })
    }

    /// A lease for a lock that asks for `ttl`.
    async fn session(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Session>> {
        let begin = |session: &Arc<Session>| {
            let (engine, session) = (self.clone(), session.clone());
            self.run(async move {
                session::keep(&session, &engine.sessions, &engine.client, &engine.clock).await;
                engine.session_lost(&session);
            });
        };
        Ok(self.sessions.get(ttl, &self.client, &self.clock, begin).await?)
    }

    /// A lease is gone, and with it every key that hung on it: all are told at once.
    pub(super) fn session_lost(&self, session: &Session) {
        session.lose();
        self.sessions.forget(session);
        for attempt in self.attempts.all() {
            if attempt.state().session.id == session.id {
                self.key_lost(&attempt);
            }
        }
    }

    /// The key of an attempt is gone.
    pub(super) fn key_lost(&self, attempt: &Attempt) {
        let phase = std::mem::replace(&mut attempt.state().phase, Phase::Gone);
        self.attempts.remove(attempt);
        match phase {
            Phase::Held(_) => {
                if let Some(losses) = self.losses.get() {
                    losses.push(attempt.id, LossReason::Revoked);
                }
            }
            Phase::Waiting => attempt.turn.notify_one(),
            Phase::Leaving { .. } | Phase::Gone => {}
        }
    }

    /// A watch saw that a key was deleted.
    fn deleted(&self, key: &[u8], revision: i64) {
        let Some(attempt) = self.attempts.deleted(key) else { return };
        // An older key of the same name says nothing about this one.
        let is_this_one = { (1..revision).contains(&attempt.state().created) };
        if is_this_one {
            self.key_lost(&attempt);
        }
    }

    /// Starts what runs in the background.
    fn start(self: &Arc<Self>) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut tasks.started, true) {
            return;
        }
        drop(tasks);
        let engine = self.clone();
        self.run(async move {
            engine.watches.follow(&engine.client, &engine.clock, |key, revision| engine.deleted(key, revision)).await;
        });
        let engine = self.clone();
        self.run(async move { engine.keep_house().await });
    }

    /// Runs `task` on the keeper's runtime until it is done or the engine stops.
    pub(super) fn run(&self, task: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.set.try_join_next().is_some() {}
        // tidy-allow(spawn): what must outlive a caller's future runs on the keeper's runtime
        (!tasks.stopped).then(|| tasks.set.spawn_on(task, self.client.runtime()))
    }

    pub(super) fn stop(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.stopped = true;
        tasks.set.abort_all();
    }
}

/// Who has a lock, by the value and the create revision of the first key.
pub(super) fn holder_of(value: &[u8], created: i64) -> Holder {
    Holder::new(entry::read(value), Some(FencingToken::new(created.max(0).unsigned_abs())))
}

fn holder_in(view: &View) -> Option<(Vec<u8>, Holder)> {
    view.first.as_ref().map(|first| (first.key.clone(), holder_of(&first.value, first.create_revision)))
}

fn busy(holder: Option<Holder>, claim: &Claim) -> Busy {
    Busy { holder, poll_after: Some((claim.ttl / 3).min(LONGEST_POLL)) }
}
