//! The lock protocol: make a key, wait for the one before it, look again, and know the token and the term.

use crate::types::sync::Mutex;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};

use crate::contract::{Attachment, Busy, Claim, Claimed, Grant, Losses};
use crate::engines::etcd::EtcdCompare;
use crate::engines::etcd::error::{Failure, Fault};
use crate::engines::etcd::history::HistoryLease;
use crate::engines::etcd::housekeeping::WATCH_AFTER;
use crate::engines::etcd::protocol::messages::EventType;
use crate::engines::etcd::protocol::names::Names;
use crate::engines::etcd::protocol::queue::{self, Ask, View};
use crate::engines::etcd::protocol::value::{self, Value};
use crate::engines::etcd::reentry::Entries;
use crate::engines::etcd::seen_revision::SeenRevision;
use crate::engines::etcd::shared_lease::{self, SharedLease, SharedLeases};
use crate::engines::etcd::state::attempts::{Attempt, Attempts, Phase, QueueKey};
use crate::engines::etcd::wire::batcher::Batches;
use crate::engines::etcd::wire::client::Client;
use crate::engines::etcd::wire::watches::Watches;
use crate::types::clock::Clock;
use crate::types::error::{Error, Result};
use crate::types::key::Key;
use crate::types::mode::Mode;
use crate::types::owner::Holder;
use crate::types::token::FencingToken;

/// The longest time between two looks at a queue in which somebody waits: the watch is a hint, this is behind it.
const LONGEST_POLL: Duration = Duration::from_secs(20);

/// How often it is tried again to take a slot when the queue has changed in between.
const SEATINGS: usize = 32;
/// Up to so many keys are asked for by name to see whether anything has changed.
const MOST_GLANCED: usize = 32;

/// What all of one client's requests and tasks share.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) client: Client,
    pub(super) clock: Clock,
    pub(super) names: Names,
    pub(super) leases: SharedLeases,
    pub(super) attempts: Attempts,
    pub(super) watches: Watches,
    pub(super) batches: Batches,
    pub(super) entries: Entries,
    pub(super) seen_revision: SeenRevision,
    pub(super) history_lease: HistoryLease,
    pub(super) losses: OnceLock<Losses>,
    dial_timeout: Duration,
    tasks: Mutex<Tasks>,
}

#[derive(Debug, Default)]
struct Tasks {
    set: JoinSet<()>,
    started: bool,
    stopped: bool,
}

impl Engine {
    pub(super) fn new(client: Client, names: Names, dial_timeout: Duration) -> Self {
        Engine {
            client,
            clock: Clock::system(),
            names,
            leases: SharedLeases::default(),
            attempts: Attempts::default(),
            watches: Watches::default(),
            batches: Batches::default(),
            entries: Entries::default(),
            seen_revision: SeenRevision::default(),
            history_lease: HistoryLease::default(),
            losses: OnceLock::new(),
            dial_timeout,
            tasks: Mutex::default(),
        }
    }

    pub(super) fn attach(&self, attachment: Attachment) {
        self.client.run_on(&attachment.keeper_runtime);
        let _ = self.losses.set(attachment.losses);
    }

    /// Reads something that is certainly allowed, and waits for the answer.
    pub(super) async fn ready(&self) -> Result<()> {
        let probe = self.names.all("distlock-probe");
        let answer = tokio::time::timeout(self.dial_timeout, queue::read(&self.client, &probe)).await;
        match answer.unwrap_or_else(|_| Err(Failure::timeout())) {
            Ok(_) => Ok(()),
            // Nothing was asked for that could have been done.
            Err(failure) if failure.fault == Fault::Unknown => Err(failure.into_refusal().into()),
            Err(failure) => Err(failure.into()),
        }
    }

    pub(super) async fn claim(self: &Arc<Self>, claim: &Claim) -> Result<Claimed> {
        match claim.mode() {
            Mode::Reentrant => self.claim_entry(claim).await,
            _ => self.claim_alone(claim).await,
        }
    }

    /// Takes a place in the queue; the lock is ours when nobody is before it, as far as the mode allows.
    pub(super) async fn claim_alone(self: &Arc<Self>, claim: &Claim) -> Result<Claimed> {
        self.start();
        // A lease or a key that went away in the meantime costs one more turn, and the place in the queue.
        for _ in 0..3 {
            let Some(attempt) = self.attempt_of(claim).await? else { continue };
            let (created, session) = {
                let state = attempt.state();
                (state.created, state.session.clone())
            };
            let before = self.seen_revision.now();
            if let Some(busy) = self.glance(&attempt, claim).await? {
                return Ok(Claimed::Busy(busy));
            }
            let view = match created {
                0 => self.make(&attempt, claim).await,
                _ => queue::look(&self.client, &attempt.lock, attempt.mode, &attempt.key, created).await,
            };
            let view = match view {
                Ok(view) => self.seat(&attempt, claim, view).await,
                failed => failed,
            };
            match view {
                Err(failure) if failure.fault == Fault::LeaseGone => self.lease_lost(&session),
                Err(failure) => return Err(failure.into()),
                Ok(view) if view.own.is_none() && (created != 0 || claim.queue) => self.key_lost(&attempt),
                Ok(view) => {
                    self.seen_revision.check(before, view.header)?;
                    if let Some(other) = view.disagreement(&attempt.lock, attempt.mode) {
                        // Whatever comes of it: what is left is deleted by the housekeeping.
                        let _ = self.release_alone(claim).await;
                        return Err(claim.mode().disagrees(other));
                    }
                    if !view.holds {
                        return Ok(Claimed::Busy(self.line(&attempt, claim, view)));
                    }
                    if let Some(grant) = self.grant(&attempt, &view) {
                        return Ok(Claimed::Granted(grant));
                    }
                }
            }
        }
        Err(Error::unavailable("the lease is lost again and again").with_help("ask for a longer ttl"))
    }

    /// The attempt of `claim`, new or as it is. `None`: it cannot be used and was forgotten.
    pub(super) async fn attempt_of(self: &Arc<Self>, claim: &Claim) -> Result<Option<Arc<Attempt>>> {
        let known = self.attempts.get(claim.attempt);
        let session = match &known {
            Some(attempt) => attempt.state().session.clone(),
            None if claim.mode() == Mode::Reentrant => self.head_lease(claim).await?,
            None => self.lease_for(claim.lease()).await?,
        };
        if !self.freshen(&session).await? {
            return Ok(None);
        }
        let keep_until = self.clock.now().after(session.term().ttl.max(claim.lease()));
        if let Some(attempt) = known {
            let mut state = attempt.state();
            state.keep_until = state.keep_until.max(keep_until);
            drop(state);
            return Ok(Some(attempt));
        }
        let lock = self.names.lock(&claim.key);
        let look = self.clock.now().after(WATCH_AFTER);
        Ok(Some(self.attempts.begin(claim, lock, session, keep_until, look)))
    }

    /// A lease for a hold that is taken over.
    pub(super) async fn fresh_lease(self: &Arc<Self>, claim: &Claim) -> Result<Arc<SharedLease>> {
        let session = self.lease_for(claim.lease()).await?;
        match self.freshen(&session).await? {
            true => Ok(session),
            false => self.lease_for(claim.lease()).await,
        }
    }

    /// Renews a lease that should have been renewed by now: nothing is hung on one that is about to end. Answers whether it
    /// is there.
    async fn freshen(self: &Arc<Self>, session: &SharedLease) -> Result<bool> {
        let term = session.term();
        if self.clock.now() < term.start.after(term.ttl / 2) {
            return Ok(true);
        }
        match session.renewed_after(term.start).await {
            Ok(Some(_)) => Ok(true),
            Ok(None) => {
                self.lease_lost(session);
                Ok(false)
            }
            Err(error) => Err(Error::unavailable("the lease cannot be renewed").with_source(error)),
        }
    }

    /// Makes the key. That goes on when the caller's future is dropped: only when its end is known can it be undone.
    async fn make(self: &Arc<Self>, attempt: &Arc<Attempt>, claim: &Claim) -> Result<View, Failure> {
        let making = attempt.making.clone().lock_owned().await;
        let ask = ask_of(attempt, claim);
        let (engine, attempt, queue) = (self.clone(), attempt.clone(), claim.queue);
        self.apart(async move {
            let outcome = engine.join(&attempt, &ask, queue).await;
            {
                let mut state = attempt.state();
                match &outcome {
                    Ok(view) => {
                        state.created = view.own.unwrap_or(0);
                        // It was made by one of the requests that were not answered.
                        let was_there = view.own.is_some() && !view.is_new;
                        state.doubts = state.doubts.saturating_sub(u32::from(was_there));
                    }
                    Err(failure) => state.doubts += u32::from(failure.fault == Fault::Unknown),
                }
            }
            // At once, and not when the caller comes to it: the one before may leave right now.
            if let Ok(view) = &outcome
                && view.own.is_some()
                && !view.before.is_empty()
            {
                engine.attempts.put_behind(&attempt, view.before.clone());
            }
            drop(making);
            outcome
        })
        .await
    }

    async fn join(self: &Arc<Self>, attempt: &Attempt, ask: &Ask, queue: bool) -> Result<View, Failure> {
        let is_fresh = attempt.state().doubts == 0;
        // Another attempt of this client has the lock: who it is need not be asked.
        if queue
            && is_fresh
            && attempt.mode == Mode::Exclusive
            && self.attempts.holder(&attempt.lock).is_some()
            && let Some(view) = queue::line_up(self, &attempt.lock, ask.put(None)).await?
        {
            return Ok(view);
        }
        queue::join(self, ask, queue).await
    }

    /// Takes a slot of a semaphore for one that `view` shows to hold it, and has none yet.
    pub(super) async fn seat(&self, attempt: &Attempt, claim: &Claim, mut view: View) -> Result<View, Failure> {
        let Mode::Slot { of } = attempt.mode else { return Ok(view) };
        let ask = ask_of(attempt, claim);
        // Each further round means that somebody else came in between.
        for _ in 0..SEATINGS {
            let (true, None, Some(created)) = (view.holds, view.slot, view.own) else { return Ok(view) };
            queue::take_slot(&self.client, &ask, of, &mut view).await?;
            if view.slot.is_none() {
                view = queue::look(&self.client, &attempt.lock, attempt.mode, &attempt.key, created).await?;
            }
        }
        Err(Failure::new(Fault::Refused, "the semaphore is too busy"))
    }

    /// The lock is not ours: keeps a place in the queue, or none.
    fn line(&self, attempt: &Attempt, claim: &Claim, view: View) -> Busy {
        let doubts = attempt.state().doubts;
        let holder = self.holder_in(attempt, &view).map(|(_, holder)| holder);
        if claim.queue {
            self.note(attempt, view);
        } else if doubts == 0 {
            self.attempts.remove(attempt);
        }
        busy(holder, claim)
    }

    /// Asks only whether anything has changed for an attempt that waits: reading a long queue costs the server
    /// something, and everybody in it asks from time to time. `None`: read the queue.
    pub(super) async fn glance(&self, attempt: &Attempt, claim: &Claim) -> Result<Option<Busy>> {
        let (own, before, holder) = {
            let state = attempt.state();
            let own = QueueKey { key: attempt.key.clone(), created: state.created };
            match (state.phase, state.before.len(), &state.holder) {
                (Phase::Waiting, 1..=MOST_GLANCED, Some(holder)) => (own, state.before.clone(), holder.clone()),
                _ => return Ok(None),
            }
        };
        let seen_revision = self.seen_revision.now();
        let (are_there, header) = {
            let marks: Vec<_> = [&own, &holder.0].into_iter().chain(&before).collect();
            queue::glance(&self.client, &marks).await?
        };
        self.seen_revision.check(seen_revision, header)?;
        if !are_there {
            return Ok(None);
        }
        let mut state = attempt.state();
        state.revision = state.revision.max(header.revision);
        Ok(Some(busy(Some(holder.1), claim)))
    }

    /// The lock is ours, as `view` shows; `None` when it is known that it was lost or given up since.
    pub(super) fn grant(self: &Arc<Self>, attempt: &Attempt, view: &View) -> Option<Grant> {
        attempt.state().slot = view.slot;
        self.grant_at(attempt, view.header.revision)
    }

    /// The same, as of `revision`.
    pub(super) fn grant_at(self: &Arc<Self>, attempt: &Attempt, revision: i64) -> Option<Grant> {
        let mut state = attempt.state();
        if state.deleted > state.created || state.session.is_gone() {
            drop(state);
            self.key_lost(attempt);
            return None;
        }
        let term = state.session.term();
        match state.phase {
            Phase::Held(_) => {}
            Phase::Waiting => state.phase = Phase::Held(self.clock.now()),
            Phase::Leaving { .. } | Phase::Gone => return None,
        }
        state.revision = state.revision.max(revision);
        state.known_start = term.start;
        state.keep_until = state.keep_until.max(term.start.after(term.ttl));
        let token = FencingToken::new(state.created.unsigned_abs());
        let slot = state.slot;
        drop(state);
        self.attempts.put_behind(attempt, Vec::new());
        self.attempts.set_holder(attempt);
        Some(Grant { token, term: Some(attempt.term_of(term)), slot })
    }

    /// Keeps what was read of the queue for the wait that follows.
    pub(super) fn note(&self, attempt: &Attempt, view: View) {
        let holder = self.holder_in(attempt, &view);
        {
            let mut state = attempt.state();
            state.revision = view.header.revision;
            state.holder = holder;
        }
        self.attempts.put_behind(attempt, view.before);
    }

    /// Who has the lock, by the key of that hold; as this client knows it where the answer does not tell.
    fn holder_in(&self, attempt: &Attempt, view: &View) -> Option<(QueueKey, Holder)> {
        let Some(first) = view.heads.first() else { return self.attempts.holder(&attempt.lock) };
        Some((QueueKey::of(first), holder_of(&first.value, first.create_revision)))
    }

    pub(super) async fn close(&self) -> Result<()> {
        let held = |attempt: Arc<Attempt>| {
            let state = attempt.state();
            let is_held = matches!(state.phase, Phase::Held(_));
            state.leases().filter(|_| is_held).map(|session| session.id).collect::<Vec<_>>()
        };
        // What is still held was kept on purpose, and is left to its lease.
        let kept: Vec<i64> = self.attempts.all().into_iter().flat_map(held).collect();
        let outcome = self.leases.revoke_all_but(&kept, &self.client).await;
        self.stop();
        outcome.map_err(Error::from)
    }

    pub(super) fn compare(&self, key: &Key, token: FencingToken) -> Option<EtcdCompare> {
        let create_revision = i64::try_from(token.get()).ok()?;
        let lock = self.names.lock(key);
        let key = match self.attempts.find(&lock, create_revision) {
            Some(attempt) => attempt.key.clone(),
            None => self.entries.find(&lock, create_revision)?.head.key.clone(),
        };
        Some(EtcdCompare { key, create_revision })
    }

    /// A lease for a lock that asks for `ttl`.
    pub(super) async fn lease_for(self: &Arc<Self>, ttl: Duration) -> Result<Arc<SharedLease>> {
        // Asked for and kept in the background: whoever has asked first need not wait for it.
        let begin = |tell| {
            let engine = self.clone();
            self.run(async move {
                if let Ok(session) = engine.leases.open(ttl, tell, &engine.client, &engine.clock).await {
                    engine.keep(&session).await;
                }
            });
        };
        Ok(self.leases.get(ttl, &self.clock, begin).await?)
    }

    /// Keeps a lease until nobody needs it, or it is gone.
    async fn keep(self: &Arc<Self>, session: &SharedLease) {
        let is_needed = || self.needs(session);
        let is_idle = shared_lease::keep(session, &self.leases, &self.client, &self.clock, is_needed).await;
        // Whoever has come to count on it in this moment is told before it ends.
        self.lease_lost(session);
        if is_idle {
            // Unanswered, it ends by itself.
            let _ = session.revoke(&self.client).await;
        }
    }

    /// Whether anything that is not given up hangs on `session`.
    pub(super) fn needs(&self, session: &SharedLease) -> bool {
        self.attempts.all().iter().any(|attempt| attempt.needs(session)) || self.entries.need(session)
    }

    /// Starts what runs in the background.
    pub(super) fn start(self: &Arc<Self>) {
        let mut tasks = self.tasks.lock();
        if std::mem::replace(&mut tasks.started, true) {
            return;
        }
        drop(tasks);
        let engine = self.clone();
        self.run(async move {
            engine
                .watches
                .follow(&engine.client, &engine.clock, |kind, key, revision| match kind {
                    EventType::Delete => engine.deleted(key, revision),
                    EventType::Put => engine.written(key, revision),
                })
                .await;
        });
        let engine = self.clone();
        self.run(async move { engine.keep_house().await });
    }

    /// What `task` comes to on the keeper's runtime, where it goes on when the caller's future is dropped, or is kept and not
    /// polled any more.
    pub(super) async fn apart<T, E>(&self, task: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Failure> + Send + 'static,
    {
        let (tell, told) = oneshot::channel();
        self.run(async move {
            let _ = tell.send(task.await);
        });
        told.await.unwrap_or_else(|_| Err(Failure::new(Fault::Unknown, "the engine was closed").into()))
    }

    /// Runs `task` on the keeper's runtime until it is done or the engine stops.
    pub(super) fn run(&self, task: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
        let mut tasks = self.tasks.lock();
        while tasks.set.try_join_next().is_some() {}
        // tidy-allow(spawn): what must outlive a caller's future runs on the keeper's runtime
        (!tasks.stopped).then(|| tasks.set.spawn_on(task, self.client.runtime()))
    }

    pub(super) fn stop(&self) {
        let mut tasks = self.tasks.lock();
        tasks.stopped = true;
        tasks.set.abort_all();
    }
}

/// Who has a lock, by the value and the create revision of the first key.
pub(super) fn holder_of(value: &[u8], created: i64) -> Holder {
    Holder::new(
        value::read(value).map(|entry| Arc::new(entry.record)),
        Some(FencingToken::new(created.max(0).unsigned_abs())),
    )
}

/// What is to be made for `claim`.
pub(super) fn ask_of(attempt: &Attempt, claim: &Claim) -> Ask {
    let lease = attempt.state().session.id;
    let (lock, key) = (attempt.lock.clone(), attempt.key.clone());
    Ask { lock, key, mode: attempt.mode, lease, entry: Value::new(claim, lease) }
}

pub(super) fn busy(holder: Option<Holder>, claim: &Claim) -> Busy {
    Busy { holder, poll_after: Some((claim.ttl / 3).min(LONGEST_POLL)) }
}
