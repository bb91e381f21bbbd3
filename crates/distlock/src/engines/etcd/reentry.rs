//! Entries of one owner from several processes: see `docs/decisions/0008-etcd-reentry.md`.
//!
//! Who is first makes a key in the queue as everybody does, but on a lease of its own: the *head*. Whoever of the same owner
//! is inside keeps that lease alive, so the head stays as long as one of them lives. Each has a key of its own beside the
//! queue, on the lease of its process; the last one out deletes the head with it.

use crate::types::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::{Claim, Claimed, Grant, Lease, Release, Renewal, Term, Wake};
use crate::engines::etcd::engine::{Engine, busy, holder_of};
use crate::engines::etcd::error::{Failure, Fault};
use crate::engines::etcd::housekeeping::{AGAIN, WATCH_AFTER};
use crate::engines::etcd::protocol::messages::KeyValue;
use crate::engines::etcd::protocol::names::Names;
use crate::engines::etcd::protocol::queue;
use crate::engines::etcd::protocol::reentry_requests::{self, Out, Wanted};
use crate::engines::etcd::protocol::value::{self, Value};
use crate::engines::etcd::shared_lease::{self, SharedLease};
use crate::engines::etcd::state::attempts::QueueKey;
use crate::engines::etcd::wire::client::Client;
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::LossReason;
use crate::types::mode::Mode;
use crate::types::token::{AttemptId, FencingToken};

/// How often the head is looked for when it has changed in between.
const ROUNDS: usize = 8;
/// How long an entry that is over is tried to delete.
const FORGET: Duration = Duration::from_secs(60);

/// One entry.
#[derive(Debug)]
pub(super) struct Entry {
    id: AttemptId,
    pub(super) lock: Vec<u8>,
    key: Vec<u8>,
    pub(super) head: QueueKey,
    /// The lease of this process, which the entry hangs on.
    own: Arc<SharedLease>,
    /// That of the head.
    shared: Arc<SharedLease>,
    /// What was asked for when it entered.
    lease: Duration,
    delay: Duration,
    /// Held while the key is being made or deleted: it is deleted only when it is known whether it is there.
    making: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    phase: Phase,
    /// Both keys were there at this revision.
    revision: i64,
    /// The start of the terms that the core knows: of our own lease, and of the head's.
    known: (Moment, Moment),
    /// After that the key is deleted.
    keep_until: Moment,
    /// A request to make the key was not answered.
    in_doubt: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Entering,
    Held(Moment),
    Leaving { was_held: bool },
}

impl Entry {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether it may be inside: neither lost nor given up, and both leases are there.
    fn is_good(&self) -> bool {
        let is_given_up = matches!(self.state().phase, Phase::Leaving { .. });
        !is_given_up && !self.own.is_gone() && !self.shared.is_gone()
    }

    /// What its holder can count on: whichever of the two leases ends first.
    fn term(&self) -> Term {
        let (own, shared) = (self.own.term(), self.shared.term());
        let end = |term: Term| term.start.after(term.ttl);
        let term = if end(own) <= end(shared) { own } else { shared };
        Term { ttl: term.ttl.saturating_sub(self.delay), ..term }
    }

    /// Refuses a longer lease than it has entered with: the head cannot go to another one, for all others who are inside keep
    /// alive the one that it hangs on.
    fn check_length(&self, lease: Duration) -> Result<()> {
        if lease <= self.lease || (self.own.covers(lease) && self.shared.covers(lease)) {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Unsupported, "on etcd the lease of a re-entrant lock cannot be made longer");
        Err(error.with_help("ask for the longer ttl when you take it"))
    }

    fn area(&self) -> Vec<u8> {
        Names::inside(&self.lock, self.head.created)
    }

    fn wanted(&self, value: Vec<u8>) -> Wanted<'_> {
        Wanted { head: &self.head, key: &self.key, value, lease: self.own.id }
    }

    /// Deletes its key, and no other one of that name.
    async fn delete(&self, client: &Client) -> Result<Out, Failure> {
        reentry_requests::go_out(client, &self.head, &self.area(), (&self.key, self.own.id)).await
    }
}

/// All entries of a client, and what it has in the queues for those that are not inside yet.
#[derive(Debug, Default)]
pub(super) struct Entries(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    inside: HashMap<AttemptId, Arc<Entry>>,
    candidates: HashMap<AttemptId, Claim>,
}

impl Table {
    /// Whether this very entry is here: another may have come with its id since it was forgotten.
    fn has(&self, inside: &Entry) -> bool {
        self.inside.get(&inside.id).is_some_and(|other| std::ptr::eq(&raw const **other, inside))
    }
}

impl Entries {
    fn get(&self, id: AttemptId) -> Option<Arc<Entry>> {
        self.table().inside.get(&id).cloned()
    }

    fn all(&self) -> Vec<Arc<Entry>> {
        self.table().inside.values().cloned().collect()
    }

    fn remove(&self, inside: &Entry) {
        let mut table = self.table();
        if table.has(inside) {
            table.inside.remove(&inside.id);
        }
    }

    /// The claim that stands in the queue for `claim`.
    fn candidate(&self, claim: &Claim) -> Claim {
        let fresh = || Claim { attempt: AttemptId::random(), ..claim.clone() };
        self.table().candidates.entry(claim.attempt).or_insert_with(fresh).clone()
    }

    /// The one whose head has this create revision.
    pub(super) fn find(&self, lock: &[u8], created: i64) -> Option<Arc<Entry>> {
        self.table().inside.values().find(|inside| inside.lock == lock && inside.head.created == created).cloned()
    }

    /// Whether one that is not given up hangs on `session`, or its head does.
    pub(super) fn need(&self, session: &SharedLease) -> bool {
        self.table().inside.values().any(|inside| {
            let is_given_up = matches!(inside.state().phase, Phase::Leaving { .. });
            !is_given_up && [&inside.own, &inside.shared].iter().any(|other| other.id == session.id)
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock()
    }
}

impl Engine {
    pub(super) async fn claim_entry(self: &Arc<Self>, claim: &Claim) -> Result<Claimed> {
        self.start();
        let lock = self.names.lock(&claim.key);
        for _ in 0..ROUNDS {
            let before = self.seen_revision.now();
            let (head, header) = queue::head(&self.client, &lock).await?;
            self.seen_revision.check(before, header)?;
            match head {
                Some(head) if is_open_to(&lock, &head, claim) => {
                    let Some(inside) = self.enter(claim, &lock, &head).await? else { continue };
                    // What it has in the queue is not needed any more.
                    self.withdraw(claim.attempt).await;
                    if let Some(grant) = self.grant_entry(&inside) {
                        return Ok(Claimed::Granted(grant));
                    }
                    continue;
                }
                Some(head) if !claim.queue => {
                    return Ok(Claimed::Busy(busy(Some(holder_of(&head.value, head.create_revision)), claim)));
                }
                _ => {}
            }
            let candidate = self.entries.candidate(claim);
            if let Claimed::Busy(busy) = self.claim_alone(&candidate).await? {
                return Ok(Claimed::Busy(busy));
            }
        }
        Err(Error::unavailable("the owner's entries come and go too quickly"))
    }

    pub(super) async fn wait_entry(self: &Arc<Self>, claim: &Claim) -> Wake {
        let candidate = self.entries.table().candidates.get(&claim.attempt).cloned();
        if let Some(candidate) = candidate {
            // It may be the first now, or another of the same owner: the claim that follows enters.
            let _ = self.wait_alone(&candidate).await;
        }
        Wake::Retry
    }

    /// Makes an entry below `head`; `None` when that is not there any more. It goes on when the caller's future is dropped.
    async fn enter(self: &Arc<Self>, claim: &Claim, lock: &[u8], head: &KeyValue) -> Result<Option<Arc<Entry>>> {
        let mark = QueueKey::of(head);
        let inside = match self.entries.get(claim.attempt) {
            Some(inside) if inside.head == mark && inside.is_good() => inside,
            Some(stale) => {
                // It is in the way until it is out.
                self.go_out(&stale).await?;
                return Ok(None);
            }
            None => match self.begin(claim, lock, head).await? {
                Some(inside) => inside,
                None => return Ok(None),
            },
        };
        let value = Value::new(claim, inside.own.id).to_value();
        let (engine, entering) = (self.clone(), inside.clone());
        let entered = self.apart(async move {
            let _making = entering.making.lock().await;
            if !engine.awaits(&entering) {
                return Ok(None);
            }
            let entered = reentry_requests::enter(&engine.client, &entering.wanted(value)).await;
            match &entered {
                Ok(Some(revision)) => entering.state().revision = *revision,
                Ok(None) => engine.entries.remove(&entering),
                Err(failure) => entering.state().in_doubt |= failure.fault == Fault::Unknown,
            }
            entered
        });
        match entered.await {
            Ok(revision) => Ok(revision.map(|_| inside)),
            Err(failure) if failure.fault == Fault::LeaseGone => {
                self.lease_lost(&inside.own);
                Ok(None)
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Whether an entry may still be made: it was not given up before it came to that. Then it would be nobody's.
    fn awaits(&self, inside: &Entry) -> bool {
        self.entries.table().has(inside) && inside.is_good()
    }

    /// Takes an entry in that is to be made; `None` when the head is gone.
    async fn begin(self: &Arc<Self>, claim: &Claim, lock: &[u8], head: &KeyValue) -> Result<Option<Arc<Entry>>> {
        let own = self.fresh_lease(claim).await?;
        let mark = QueueKey::of(head);
        // What stood in the queue for this claim may be the head, with its lease.
        let candidate = self.entries.table().candidates.get(&claim.attempt).map(|candidate| candidate.attempt);
        let candidate =
            candidate.and_then(|id| self.attempts.get(id)).filter(|ours| ours.mark().as_ref() == Some(&mark));
        let shared = match candidate {
            Some(ours) => ours.state().session.clone(),
            None => match shared_lease::known(head.lease, &self.client, &self.clock).await? {
                Some(shared) => self.keep_for_others(shared),
                None => return Ok(None),
            },
        };
        let now = self.clock.now();
        let key = [Names::inside(lock, mark.created), claim.attempt.to_string().into_bytes()].concat();
        let state = State {
            phase: Phase::Entering,
            revision: 0,
            known: (own.term().start, shared.term().start),
            keep_until: now.after(claim.lease()),
            in_doubt: false,
        };
        let inside = Arc::new(Entry {
            id: claim.attempt,
            lock: lock.to_vec(),
            key,
            head: mark,
            own,
            shared,
            lease: claim.lease(),
            delay: claim.delay,
            making: tokio::sync::Mutex::default(),
            state: Mutex::new(state),
        });
        self.entries.table().inside.insert(claim.attempt, inside.clone());
        Ok(Some(inside))
    }

    /// It is inside; `None` when it is known that it, or its head, was lost since or given up.
    fn grant_entry(self: &Arc<Self>, inside: &Arc<Entry>) -> Option<Grant> {
        if !inside.is_good() {
            self.lose_entry(inside, LossReason::Revoked);
            return None;
        }
        let term = inside.term();
        let mut state = inside.state();
        match state.phase {
            Phase::Entering => state.phase = Phase::Held(self.clock.now()),
            Phase::Held(_) => {}
            Phase::Leaving { .. } => return None,
        }
        state.known = (inside.own.term().start, inside.shared.term().start);
        state.keep_until = state.keep_until.max(term.start.after(term.ttl).after(inside.delay));
        Some(Grant::new(FencingToken::new(inside.head.created.unsigned_abs()), Some(term)))
    }

    /// A lease for what stands in the queue: who is inside later keeps it alive, also when this client is gone.
    pub(super) async fn head_lease(self: &Arc<Self>, claim: &Claim) -> Result<Arc<SharedLease>> {
        Ok(self.keep_for_others(shared_lease::private(claim.lease(), &self.client, &self.clock).await?))
    }

    fn keep_for_others(self: &Arc<Self>, session: Arc<SharedLease>) -> Arc<SharedLease> {
        let (engine, kept) = (self.clone(), session.clone());
        self.run(async move {
            shared_lease::keep_for_others(&kept, &engine.client, &engine.clock, || engine.needs(&kept)).await;
            let concerned = |inside: &Arc<Entry>| Arc::ptr_eq(&inside.shared, &kept);
            for inside in engine.entries.all().into_iter().filter(concerned) {
                engine.lose_entry(&inside, LossReason::Revoked);
            }
            engine.attempts_lost(&kept);
        });
        session
    }

    pub(super) async fn renew_entry(self: &Arc<Self>, lease: &Lease) -> Result<Renewal> {
        let lost = Ok(Renewal::Lost(LossReason::Revoked));
        let Some(inside) = self.entries.get(lease.claim.attempt) else { return lost };
        let State { phase: Phase::Held(_), known, .. } = *inside.state() else { return lost };
        inside.check_length(lease.claim.lease())?;
        let (own, shared) = tokio::join!(inside.own.renewed_after(known.0), inside.shared.renewed_after(known.1));
        if own?.is_none() || shared?.is_none() {
            self.lose_entry(&inside, LossReason::Revoked);
            return lost;
        }
        match self.grant_entry(&inside) {
            Some(grant) => Ok(Renewal::Renewed(grant.term)),
            None => lost,
        }
    }

    pub(super) async fn release_entry(self: &Arc<Self>, claim: &Claim) -> Result<Release> {
        let (engine, id) = (self.clone(), claim.attempt);
        let out = self.apart(async move {
            let out = match engine.entries.get(id) {
                Some(inside) => engine.go_out(&inside).await,
                None => Ok(Release::NotOurs),
            };
            engine.withdraw(id).await;
            out
        });
        Ok(out.await?)
    }

    /// Ends what stands in the queue for a claim. If that is the head, it belongs to all who are inside: it is deleted only
    /// if nobody has entered.
    async fn withdraw(self: &Arc<Self>, id: AttemptId) {
        let candidate = self.entries.table().candidates.remove(&id);
        let Some(candidate) = candidate else { return };
        let Some(attempt) = self.attempts.get(candidate.attempt) else { return };
        let session = attempt.state().session.clone();
        let became_head = self.entries.get(id).is_some_and(|inside| attempt.mark().as_ref() == Some(&inside.head));
        if became_head {
            self.attempts.remove(&attempt);
            return;
        }
        // Its lease is not kept alive any more, so the key goes with it if this is not answered.
        let _ = self.release_alone(&candidate).await;
        session.lose();
    }

    /// Deletes an entry, and the head if it is the last one.
    async fn go_out(self: &Arc<Self>, inside: &Arc<Entry>) -> Result<Release, Failure> {
        let _made = inside.making.lock().await;
        if !self.entries.table().has(inside) {
            // It is out, and what has its key now is not this one.
            return Ok(Release::NotOurs);
        }
        let (was_held, repeated, in_doubt) = {
            let mut state = inside.state();
            let repeated = matches!(state.phase, Phase::Leaving { .. });
            let was_held = matches!(state.phase, Phase::Held(_) | Phase::Leaving { was_held: true });
            state.phase = Phase::Leaving { was_held };
            (was_held, repeated, state.in_doubt)
        };
        inside.shared.lose();
        let out = inside.delete(&self.client).await;
        if in_doubt || out.as_ref().is_err_and(|failure| failure.fault == Fault::Unknown) {
            // Before it is forgotten: from then on its attempt may come in again, and what comes late must not meet that one's
            // key on the same lease.
            inside.own.retire();
        }
        let out = out?;
        self.entries.remove(inside);
        if out.was_last {
            // The lease is empty now. Unanswered, it ends by itself.
            let (engine, shared) = (self.clone(), inside.shared.clone());
            self.run(async move {
                let _ = shared.revoke(&engine.client).await;
            });
        }
        if in_doubt {
            self.delete_again(inside.clone());
        }
        let by_us = out.deleted || (repeated && !inside.own.is_gone());
        Ok(if was_held && by_us { Release::Released } else { Release::NotOurs })
    }

    /// A request that makes the key may still be on its way: deletes it when it comes.
    fn delete_again(self: &Arc<Self>, inside: Arc<Entry>) {
        let engine = self.clone();
        self.run(async move {
            for pause in AGAIN {
                engine.clock.sleep_until(engine.clock.now().after(pause)).await;
                // Whatever comes of it: there may be several such requests.
                let _ = inside.delete(&engine.client).await;
            }
        });
    }

    /// An entry is not there any more, or its head: tells its holder, and deletes what is left of it.
    pub(super) fn lose_entry(self: &Arc<Self>, inside: &Arc<Entry>, reason: LossReason) {
        {
            let mut state = inside.state();
            match state.phase {
                Phase::Held(_) => self.tell_loss(inside.id, reason),
                Phase::Entering => {}
                Phase::Leaving { .. } => return,
            }
            state.phase = Phase::Leaving { was_held: false };
        }
        let (engine, inside) = (self.clone(), inside.clone());
        self.run(async move {
            let _ = engine.go_out(&inside).await;
        });
    }

    /// Deletes an entry whose time is over.
    fn see_out(self: &Arc<Self>, inside: &Arc<Entry>) {
        if inside.making.try_lock().is_err() {
            // The one before is still at it.
            return;
        }
        let (engine, inside) = (self.clone(), inside.clone());
        self.run(async move {
            // Unanswered, it is repeated at the next tick until its lease is over.
            let _ = engine.go_out(&inside).await;
        });
    }

    /// A key was deleted: whose entry it was, or whose head, has lost the lock.
    pub(super) fn entry_deleted(self: &Arc<Self>, key: &[u8], revision: i64) {
        for inside in self.entries.all() {
            let State { phase, revision: known, .. } = *inside.state();
            if let Phase::Leaving { .. } = phase {
                continue;
            }
            let head_is_gone = inside.head.key == key && inside.head.created < revision;
            if inside.key == key && known < revision {
                self.lose_entry(&inside, LossReason::Adopted);
            } else if head_is_gone && phase == Phase::Entering {
                // Nobody counts on it yet, and nobody may from now on.
                self.lose_entry(&inside, LossReason::Revoked);
            } else if head_is_gone {
                let engine = self.clone();
                self.run(async move {
                    let QueueKey { key, created } = &inside.head;
                    let broken = queue::was_broken(&engine.client, key, *created, revision).await;
                    engine.lose_entry(&inside, if broken { LossReason::Broken } else { LossReason::Revoked });
                });
            }
        }
    }

    /// The lease of this process is gone, and with it its entries.
    pub(super) fn entries_lost(self: &Arc<Self>, session: &SharedLease) {
        for inside in self.entries.all().into_iter().filter(|inside| inside.own.id == session.id) {
            self.lose_entry(&inside, LossReason::Revoked);
        }
    }

    /// Does for each entry what is to be done now.
    pub(super) fn look_after_entries(self: &Arc<Self>, now: Moment) {
        for inside in self.entries.all() {
            let State { phase, keep_until, revision, .. } = *inside.state();
            match phase {
                Phase::Leaving { .. } if now < keep_until => {}
                // Its keys are gone with their leases.
                _ if now >= keep_until.after(FORGET) => self.entries.remove(&inside),
                // The core has not asked for it again: its release was not answered, or nobody renews it.
                _ if now >= keep_until => self.see_out(&inside),
                Phase::Held(since) if now.since(since) >= WATCH_AFTER => {
                    inside.own.touch(now);
                    inside.shared.touch(now);
                    let head = self.watches.watch(&inside.lock, revision.saturating_add(1), now);
                    let own = self.watches.watch(&inside.area(), revision.saturating_add(1), now);
                    if head.misses(revision) || own.misses(revision) {
                        self.look_inside(inside);
                    }
                }
                _ => {
                    inside.own.touch(now);
                    inside.shared.touch(now);
                }
            }
        }
    }

    /// A watch may have missed the end of an entry: looks whether it is there, and its head.
    fn look_inside(self: &Arc<Self>, inside: Arc<Entry>) {
        let engine = self.clone();
        self.run(async move {
            let Ok((head, _)) = queue::read(&engine.client, &inside.head.key).await else { return };
            let Ok((own, revision)) = queue::read(&engine.client, &inside.key).await else { return };
            let is_ours = own.is_some_and(|own| own.lease == inside.own.id);
            match is_ours && head.is_some_and(|head| QueueKey::of(&head) == inside.head) {
                true => {
                    let mut state = inside.state();
                    state.revision = state.revision.max(revision);
                }
                false => engine.lose_entry(&inside, LossReason::Revoked),
            }
        });
    }

    /// Takes over the entry that `from` has: its key goes and ours comes, in one transaction.
    pub(super) async fn adopt_entry(
        self: &Arc<Self>,
        from: AttemptId,
        token: FencingToken,
        claim: &Claim,
    ) -> Result<Grant> {
        self.start();
        let not_held =
            || Error::new(ErrorKind::NotHeld, format!("nobody is inside by that ticket, with token {token}"));
        let lock = self.names.lock(&claim.key);
        let (head, _) = queue::head(&self.client, &lock).await?;
        let head = head.filter(|head| head.create_revision.unsigned_abs() == token.get());
        let Some(head) = head.filter(|head| is_open_to(&lock, head, claim)) else { return Err(not_held()) };
        let inside = match self.entries.get(claim.attempt) {
            Some(inside) => inside,
            None => self.begin(claim, &lock, &head).await?.ok_or_else(not_held)?,
        };
        let old = [inside.area(), from.to_string().into_bytes()].concat();
        let value = Value::new(claim, inside.own.id).to_value();
        let (engine, adopter) = (self.clone(), inside.clone());
        let swapped = self.apart(async move {
            let _making = adopter.making.lock().await;
            if !engine.awaits(&adopter) {
                return Ok(None);
            }
            let swapped = reentry_requests::swap(&engine.client, &adopter.wanted(value), &old).await;
            match &swapped {
                Ok(Some(revision)) => {
                    adopter.state().revision = *revision;
                    engine.entries.get(from).iter().for_each(|old| engine.lose_entry(old, LossReason::Adopted));
                }
                Ok(None) => engine.entries.remove(&adopter),
                Err(failure) => adopter.state().in_doubt |= failure.fault == Fault::Unknown,
            }
            swapped
        });
        swapped.await?.ok_or_else(not_held)?;
        self.grant_entry(&inside).ok_or_else(not_held)
    }

    /// Writes what is known about a holder anew: in its own key, and in the head, which is what those see who do not get in.
    pub(super) async fn amend_entry(&self, lease: &Lease) -> Result<bool> {
        let Some(inside) = self.entries.get(lease.claim.attempt) else { return Ok(false) };
        let value = |session: &SharedLease| Value::new(&lease.claim, session.id).to_value();
        let head = (&inside.head, value(&inside.shared));
        Ok(reentry_requests::amend(&self.client, head, (&inside.key, value(&inside.own)), inside.own.id).await?)
    }
}

/// Whether `claim` enters a lock whose first key is `head`.
fn is_open_to(lock: &[u8], head: &KeyValue, claim: &Claim) -> bool {
    let owner = value::read(&head.value).map(|entry| entry.record.owner);
    Names::mode(lock, &head.key) == Mode::Reentrant && owner.as_ref() == Some(&claim.record.owner)
}

#[cfg(test)]
mod tests;
