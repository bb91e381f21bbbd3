//! Entries of one owner from several processes: see `docs/decisions/0008-etcd-reentry.md`.
//!
//! The first entry makes a key in the queue, as every attempt does, but on a lease of its own: the *head*. Each entry
//! of the owner keeps that lease alive, so the head stays as long as one of them lives. Each has a key of its own
//! beside the queue, on the lease of its process; the last one out deletes the head with it.

use std::sync::Arc;

use super::claim::busy;
use super::engine::Engine;
use super::error::{Failure, Fault};
use super::losses::LATE_KEY_PAUSES;
use super::protocol::messages::KeyValue;
use super::protocol::names::Names;
use super::protocol::queue;
use super::protocol::queue_key::QueueKey;
use super::protocol::reentry_requests::{self, NewEntry, Out};
use super::protocol::value::{self, Value};
use super::shared_lease::{self, SharedLease};
use super::state::entry::{Entry, EntryChore, EntryLost};
use super::state::phase::Leaving;
use super::wire::client::Client;
use crate::contract::{Claim, Claimed, Grant, Lease, Release, Renewal, Wake};
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::LossReason;
use crate::types::mode::Mode;
use crate::types::token::{AttemptId, FencingToken};

/// How often the head is read again when it has changed in between.
const ROUNDS: usize = 8;

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
                    let Some(entry) = self.enter(claim, &lock, &head).await? else { continue };
                    // Its candidate in the queue is not needed any more.
                    self.withdraw(claim.attempt).await;
                    if let Some(grant) = self.grant_entry(&entry) {
                        return Ok(Claimed::Granted(grant));
                    }
                    continue;
                }
                Some(head) if !claim.queue => {
                    return Ok(Claimed::Busy(busy(Some(value::holder_of(&head.value, head.create_revision)), claim)));
                }
                _ => {}
            }
            let candidate = self.entries.candidate(claim);
            if let Claimed::Busy(busy) = self.claim(&candidate).await? {
                return Ok(Claimed::Busy(busy));
            }
        }
        Err(Error::unavailable("the owner's entries come and go too quickly"))
    }

    pub(super) async fn wait_entry(self: &Arc<Self>, claim: &Claim) -> Wake {
        let candidate = self.entries.candidate_of(claim.attempt);
        if let Some(candidate) = candidate {
            // The candidate may be the first now, or another of the same owner: the claim that follows enters.
            let _ = self.wait(&candidate).await;
        }
        Wake::Retry
    }

    /// Makes an entry below `head`; `None` when that is not there any more. It goes on when the caller's future is
    /// dropped.
    async fn enter(self: &Arc<Self>, claim: &Claim, lock: &[u8], head: &KeyValue) -> Result<Option<Arc<Entry>>> {
        let mark = QueueKey::of(head);
        let entry = match self.entries.get(claim.attempt) {
            Some(entry) if *entry.head() == mark && entry.is_good() => entry,
            Some(stale) => {
                // It is in the way until it is out.
                self.go_out(&stale).await?;
                return Ok(None);
            }
            None => match self.begin(claim, lock, head).await? {
                Some(entry) => entry,
                None => return Ok(None),
            },
        };
        let value = Value::new(claim, entry.own().id).to_value();
        let (engine, entering) = (self.clone(), entry.clone());
        let entered = self.finish(async move {
            let _making = entering.making().lock().await;
            if !engine.awaits(&entering) {
                return Ok(None);
            }
            let entered = reentry_requests::enter(&engine.client, &new_entry(&entering, value)).await;
            match &entered {
                Ok(Some(revision)) => entering.state().made(*revision),
                Ok(None) => engine.entries.remove(&entering),
                Err(failure) if failure.fault == Fault::Unknown => entering.state().unanswered(),
                Err(_) => {}
            }
            entered
        });
        match entered.await {
            Ok(revision) => Ok(revision.map(|_| entry)),
            Err(failure) if failure.fault == Fault::LeaseGone => {
                self.lease_lost(entry.own());
                Ok(None)
            }
            Err(failure) => Err(failure.into()),
        }
    }

    /// Whether an entry may still be made: it was not given up before it came to that. A key made after that would
    /// belong to no entry.
    fn awaits(&self, entry: &Entry) -> bool {
        self.entries.has(entry) && entry.is_good()
    }

    /// Takes an entry in that is to be made; `None` when the head is gone.
    async fn begin(self: &Arc<Self>, claim: &Claim, lock: &[u8], head: &KeyValue) -> Result<Option<Arc<Entry>>> {
        let own = self.fresh_lease(claim).await?;
        let mark = QueueKey::of(head);
        // The candidate of this claim may be the head, with its lease.
        let candidate = self.entries.candidate_of(claim.attempt);
        let candidate = candidate.and_then(|candidate| self.attempts.get(candidate.attempt));
        let candidate = candidate.filter(|ours| ours.own_key().as_ref() == Some(&mark));
        let shared = match candidate {
            Some(ours) => ours.lease(),
            None => match shared_lease::known(head.lease, &self.client, &self.clock).await? {
                Some(shared) => self.keep_for_others(shared),
                None => return Ok(None),
            },
        };
        Ok(Some(self.entries.begin(claim, lock, mark, (own, shared), self.clock.now())))
    }

    /// Grants an entry that is made; `None` when it is known that it, or its head, was lost since or given up.
    fn grant_entry(self: &Arc<Self>, entry: &Arc<Entry>) -> Option<Grant> {
        if !entry.is_good() {
            self.entry_lost(entry, LossReason::Revoked);
            return None;
        }
        let term = entry.granted(self.clock.now())?;
        Some(Grant::new(FencingToken::new(entry.head().created.unsigned_abs()), Some(term)))
    }

    /// Returns a lease for a candidate in the queue: later entries keep it alive, also when this client is gone.
    pub(super) async fn head_lease(self: &Arc<Self>, claim: &Claim) -> Result<Arc<SharedLease>> {
        Ok(self.keep_for_others(shared_lease::private(claim.lease(), &self.client, &self.clock).await?))
    }

    fn keep_for_others(self: &Arc<Self>, lease: Arc<SharedLease>) -> Arc<SharedLease> {
        let (engine, kept) = (self.clone(), lease.clone());
        self.run(async move {
            shared_lease::keep_for_others(&kept, &engine.client, &engine.clock, || engine.needs(kept.id)).await;
            let concerned = |entry: &Arc<Entry>| Arc::ptr_eq(entry.shared(), &kept);
            for entry in engine.entries.all().into_iter().filter(concerned) {
                engine.entry_lost(&entry, LossReason::Revoked);
            }
            engine.attempts_lost(&kept);
        });
        lease
    }

    pub(super) async fn renew_entry(self: &Arc<Self>, lease: &Lease) -> Result<Renewal> {
        let lost = Ok(Renewal::Lost(LossReason::Revoked));
        let Some(entry) = self.entries.get(lease.claim.attempt) else { return lost };
        let Some(known) = entry.state().known_terms() else { return lost };
        entry.check_length(lease.claim.lease())?;
        let (own, shared) = tokio::join!(entry.own().renewed_after(known.0), entry.shared().renewed_after(known.1));
        if own?.is_none() || shared?.is_none() {
            self.entry_lost(&entry, LossReason::Revoked);
            return lost;
        }
        match self.grant_entry(&entry) {
            Some(grant) => Ok(Renewal::Renewed(grant.term)),
            None => lost,
        }
    }

    pub(super) async fn release_entry(self: &Arc<Self>, claim: &Claim) -> Result<Release> {
        let (engine, id) = (self.clone(), claim.attempt);
        let out = self.finish(async move {
            let out = match engine.entries.get(id) {
                Some(entry) => engine.go_out(&entry).await,
                None => Ok(Release::NotOurs),
            };
            engine.withdraw(id).await;
            out
        });
        Ok(out.await?)
    }

    /// Ends what stands in the queue for a claim. If that is the head, it belongs to all entries: it is deleted only
    /// if no entry was made.
    async fn withdraw(self: &Arc<Self>, id: AttemptId) {
        let Some(candidate) = self.entries.withdraw(id) else { return };
        let Some(attempt) = self.attempts.get(candidate.attempt) else { return };
        let lease = attempt.lease();
        let became_head = self.entries.get(id).is_some_and(|entry| attempt.own_key().as_ref() == Some(entry.head()));
        if became_head {
            self.attempts.remove(&attempt);
            return;
        }
        // Its lease is not kept alive any more, so the key goes with it if this is not answered.
        let _ = self.release(&candidate).await;
        lease.lose();
    }

    /// Deletes an entry, and the head if it is the last one.
    async fn go_out(self: &Arc<Self>, entry: &Arc<Entry>) -> Result<Release, Failure> {
        let _made = entry.making().lock().await;
        if !self.entries.has(entry) {
            // It is out, and what has its key now is not this one.
            return Ok(Release::NotOurs);
        }
        let (Leaving { was_held, repeated }, in_doubt) = entry.state().leave();
        entry.shared().lose();
        let out = delete_entry(&self.client, entry).await;
        if in_doubt || out.as_ref().is_err_and(|failure| failure.fault == Fault::Unknown) {
            // Before it is forgotten: from then on its attempt may come in again, and what comes late must not meet
            // that one's key on the same lease.
            entry.own().retire();
        }
        let out = out?;
        self.entries.remove(entry);
        if out.was_last {
            // The lease is empty now. Unanswered, it ends by itself.
            let (engine, shared) = (self.clone(), entry.shared().clone());
            self.run(async move {
                let _ = shared.revoke(&engine.client).await;
            });
        }
        if in_doubt {
            self.delete_again(entry.clone());
        }
        let by_us = out.deleted || (repeated && !entry.own().is_gone());
        Ok(if was_held && by_us { Release::Released } else { Release::NotOurs })
    }

    /// A request that makes the key may still be on its way: deletes it when it comes.
    fn delete_again(self: &Arc<Self>, entry: Arc<Entry>) {
        let engine = self.clone();
        self.run(async move {
            for pause in LATE_KEY_PAUSES {
                engine.clock.sleep_until(engine.clock.now().after(pause)).await;
                // Whatever comes of it: there may be several such requests.
                let _ = delete_entry(&engine.client, &entry).await;
            }
        });
    }

    /// An entry is not there any more, or its head: tells its holder, and deletes what is left of it.
    pub(super) fn entry_lost(self: &Arc<Self>, entry: &Arc<Entry>, reason: LossReason) {
        {
            let mut state = entry.state();
            let EntryLost::Delete { tell } = state.lost() else { return };
            // Under the lock: a renewal that finds the entry gone must not report another reason first.
            if tell {
                self.tell_loss(entry.id(), reason);
            }
        }
        let (engine, entry) = (self.clone(), entry.clone());
        self.run(async move {
            let _ = engine.go_out(&entry).await;
        });
    }

    /// Deletes an entry whose time is over.
    fn delete_over(self: &Arc<Self>, entry: &Arc<Entry>) {
        if entry.making().try_lock().is_err() {
            // An earlier deletion is on its way.
            return;
        }
        let (engine, entry) = (self.clone(), entry.clone());
        self.run(async move {
            // Unanswered, it is repeated at the next tick until its lease is over.
            let _ = engine.go_out(&entry).await;
        });
    }

    /// Does for each entry what is to be done now.
    pub(super) fn look_after_entries(self: &Arc<Self>, now: Moment) {
        for entry in self.entries.all() {
            let chore = entry.state().due(now);
            if let EntryChore::Keep | EntryChore::Watch { .. } = chore {
                entry.own().touch(now);
                entry.shared().touch(now);
            }
            match chore {
                EntryChore::Rest | EntryChore::Keep => {}
                EntryChore::Forget => self.entries.remove(&entry),
                EntryChore::Delete => self.delete_over(&entry),
                EntryChore::Watch { revision } => {
                    let head = self.watches.watch(entry.lock(), revision.saturating_add(1), now);
                    let own = self.watches.watch(&entry.area(), revision.saturating_add(1), now);
                    if head.misses(revision) || own.misses(revision) {
                        self.look_for_entry(entry);
                    }
                }
            }
        }
    }

    /// A watch may have missed the end of an entry: looks whether it is there, and its head.
    fn look_for_entry(self: &Arc<Self>, entry: Arc<Entry>) {
        let engine = self.clone();
        self.run(async move {
            let Ok((head, _)) = queue::read(&engine.client, &entry.head().key).await else { return };
            let Ok((own, revision)) = queue::read(&engine.client, entry.key()).await else { return };
            let is_ours = own.is_some_and(|own| own.lease == entry.own().id);
            match is_ours && head.is_some_and(|head| QueueKey::of(&head) == *entry.head()) {
                true => entry.state().found(revision),
                false => engine.entry_lost(&entry, LossReason::Revoked),
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
            || Error::new(ErrorKind::NotHeld, format!("no owner holds it by that ticket, with token {token}"));
        let lock = self.names.lock(&claim.key);
        let (head, _) = queue::head(&self.client, &lock).await?;
        let head = head.filter(|head| head.create_revision.unsigned_abs() == token.get());
        let Some(head) = head.filter(|head| is_open_to(&lock, head, claim)) else { return Err(not_held()) };
        let entry = match self.entries.get(claim.attempt) {
            Some(entry) => entry,
            None => self.begin(claim, &lock, &head).await?.ok_or_else(not_held)?,
        };
        let old = [entry.area(), from.to_string().into_bytes()].concat();
        let value = Value::new(claim, entry.own().id).to_value();
        let (engine, adopter) = (self.clone(), entry.clone());
        let swapped = self.finish(async move {
            let _making = adopter.making().lock().await;
            if !engine.awaits(&adopter) {
                return Ok(None);
            }
            let swapped = reentry_requests::swap(&engine.client, &new_entry(&adopter, value), &old).await;
            match &swapped {
                Ok(Some(revision)) => {
                    adopter.state().made(*revision);
                    engine.entries.get(from).iter().for_each(|old| engine.entry_lost(old, LossReason::Adopted));
                }
                Ok(None) => engine.entries.remove(&adopter),
                Err(failure) if failure.fault == Fault::Unknown => adopter.state().unanswered(),
                Err(_) => {}
            }
            swapped
        });
        swapped.await?.ok_or_else(not_held)?;
        self.grant_entry(&entry).ok_or_else(not_held)
    }

    /// Writes what is known about a holder anew: in its own key, and in the head, which other owners see.
    pub(super) async fn amend_entry(&self, lease: &Lease) -> Result<bool> {
        let Some(entry) = self.entries.get(lease.claim.attempt) else { return Ok(false) };
        let value = |on: &SharedLease| Value::new(&lease.claim, on.id).to_value();
        let head = (entry.head(), value(entry.shared()));
        Ok(reentry_requests::amend(&self.client, head, (entry.key(), value(entry.own())), entry.own().id).await?)
    }
}

fn new_entry(entry: &Entry, value: Vec<u8>) -> NewEntry<'_> {
    NewEntry { head: entry.head(), key: entry.key(), value, lease: entry.own().id }
}

/// Deletes the key of `entry`, and no other one of that name.
async fn delete_entry(client: &Client, entry: &Entry) -> Result<Out, Failure> {
    reentry_requests::go_out(client, entry.head(), &entry.area(), (entry.key(), entry.own().id)).await
}

/// Whether `claim` enters a lock whose first key is `head`.
fn is_open_to(lock: &[u8], head: &KeyValue, claim: &Claim) -> bool {
    let owner = value::read(&head.value).map(|value| value.record.owner);
    Names::mode(lock, &head.key) == Mode::Reentrant && owner.as_ref() == Some(&claim.record.owner)
}

#[cfg(test)]
mod tests;
