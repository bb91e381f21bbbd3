//! The locks of a store: holders, queues and tokens. Plain data, and time as an argument: no awaits, no clocks.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::contract::{Busy, Claim, Claimed, ClaimedAll, Grant, Lease, LockInfo, Losses, Release, Renewal, Term};
use crate::engines::shared::admission::{self, Admission, Claimant, Occupant};
use crate::types::clock::Moment;
use crate::types::error::Result;
use crate::types::event::LossReason;
use crate::types::key::Key;
use crate::types::mode::{AskedMode, Mode};
use crate::types::owner::Holder;
use crate::types::token::{AttemptId, FencingToken};

/// When a waiter claims again, as a part of its lease. A waiter that does not for a whole lease is dropped.
const CLAIM_AGAIN_AFTER: f64 = 1.0 / 3.0;

/// The lease of a thief.
const STOLEN_FOR: Duration = Duration::from_secs(1);

/// The attempt of a hold that was ended by another, and its client's losses.
pub(super) type EndedHold = (Option<Losses>, AttemptId);

#[derive(Debug, Default)]
pub(super) struct LockTable {
    locks: HashMap<Key, LockState>,
    /// One counter for all locks: a lock that is free leaves nothing behind, and its tokens still rise.
    last_token: u64,
}

#[derive(Debug, Default)]
struct LockState {
    /// In the order in which they were granted.
    held: Vec<MemoryHold>,
    queue: VecDeque<QueuedClaim>,
}

#[derive(Debug)]
struct MemoryHold {
    /// `None`: [stolen](LockTable::steal) for a holder that is no client.
    claim: Option<Claim>,
    token: FencingToken,
    slot: Option<u32>,
    since: Moment,
    expires: Moment,
    losses: Option<Losses>,
    /// Set from the handoff until its new holder receives it.
    handover: Option<Handover>,
}

/// The client that sent a claim, and when by its own clock.
#[derive(Debug, Clone)]
pub(super) struct Sender {
    pub(super) sent: Moment,
    pub(super) losses: Option<Losses>,
}

#[derive(Debug)]
struct QueuedClaim {
    claim: Claim,
    sender: Sender,
    /// The store's clock at the reply to that claim.
    replied: Moment,
    alive_until: Moment,
    notify: Arc<Notify>,
}

#[derive(Debug)]
struct Handover {
    sent: Moment,
    replied: Moment,
    notify: Arc<Notify>,
}

impl LockTable {
    /// Returns an empty table, whose tokens will be higher than `last_token`.
    pub(super) fn after(last_token: u64) -> LockTable {
        LockTable { last_token, ..LockTable::default() }
    }

    /// Returns the highest token that was granted.
    pub(super) fn last_token(&self) -> u64 {
        self.last_token
    }

    pub(super) fn claim(&mut self, claim: &Claim, sender: Sender, now: Moment) -> Result<Claimed> {
        let lock = self.locks.entry(claim.key.clone()).or_default();
        lock.settle(now, &mut self.last_token);
        if let Some(held) = lock.held.iter_mut().find(|held| held.is(claim.attempt)) {
            // A retry, or the claim by which the waiter learns of a handoff.
            held.handover = None;
            held.expires = held.expires.max(now.after(claim.lease()));
            return Ok(Claimed::Granted(held.grant(sender.sent, claim.ttl)));
        }
        if let Some(other) = admission::disagreement(claim.asked(), lock.modes()) {
            return Err(claim.mode().disagrees(other));
        }
        let ahead = lock.queue.iter().take_while(|waiter| waiter.claim.attempt != claim.attempt).count();
        if let Some(admission) = lock.admission(claim, ahead) {
            let held = lock.let_in(claim.clone(), admission, sender.losses, now, &mut self.last_token);
            return Ok(Claimed::Granted(held.grant(sender.sent, claim.ttl)));
        }
        Ok(Claimed::Busy(lock.busy(claim, sender, now)))
    }

    /// Grants all of `claims`, or none.
    pub(super) fn claim_all(&mut self, claims: &[Claim], sender: &Sender, now: Moment) -> ClaimedAll {
        for claim in claims {
            let Some(lock) = self.locks.get_mut(&claim.key) else { continue };
            lock.settle(now, &mut self.last_token);
            if !lock.is_free() && !lock.held.iter().any(|held| held.is(claim.attempt)) {
                return ClaimedAll::Busy(claim.key.clone(), lock.held.first().map(|held| held.holder(now)));
            }
        }
        ClaimedAll::Granted(claims.iter().map(|claim| self.grant(claim, sender, now)).collect())
    }

    /// Grants a lock that is free or already held by the claim.
    fn grant(&mut self, claim: &Claim, sender: &Sender, now: Moment) -> Grant {
        let lock = self.locks.entry(claim.key.clone()).or_default();
        let place = lock.held.iter().position(|held| held.is(claim.attempt));
        let held = match place {
            Some(place) => &mut lock.held[place],
            None => {
                // A free lock admits every claim, so there is an admission.
                let admission = lock.admission(claim, 0).unwrap_or_default();
                lock.let_in(claim.clone(), admission, sender.losses.clone(), now, &mut self.last_token)
            }
        };
        held.expires = held.expires.max(now.after(claim.lease()));
        held.grant(sender.sent, claim.ttl)
    }

    /// Returns what notifies `claim` of its grant, while it waits and until it has received the handoff.
    pub(super) fn notification(&self, claim: &Claim) -> Option<Arc<Notify>> {
        let lock = self.locks.get(&claim.key)?;
        let queued = lock.queue.iter().find(|waiter| waiter.claim.attempt == claim.attempt).map(|w| &w.notify);
        let handed = || Some(&lock.held.iter().find(|held| held.is(claim.attempt))?.handover.as_ref()?.notify);
        queued.or_else(handed).cloned()
    }

    /// Returns the grant that was handed to `claim` while it waited. On the store's clock its lease began at the
    /// handoff. On the client's clock it began no later than the notification came, and no later than the last claim
    /// plus the time that passed on the store's clock between the reply to that claim and the handoff.
    pub(super) fn take_handover(&mut self, claim: &Claim, received: Moment, drift: f64, now: Moment) -> Option<Grant> {
        let lock = self.locks.get_mut(&claim.key)?;
        lock.settle(now, &mut self.last_token);
        let held = lock.held.iter_mut().find(|held| held.is(claim.attempt))?;
        let Handover { sent, replied, .. } = held.handover.take()?;
        let passed = held.since.since(replied).mul_f64(1.0 - drift);
        Some(held.grant(sent.after(passed).min(received), claim.ttl))
    }

    pub(super) fn renew(&mut self, lease: &Lease, start: Moment, now: Moment) -> Renewal {
        let claim = &lease.claim;
        let Some(lock) = self.locks.get_mut(&claim.key) else { return Renewal::Lost(LossReason::Revoked) };
        lock.settle(now, &mut self.last_token);
        match lock.held.iter_mut().find(|held| held.is(claim.attempt)) {
            Some(held) => {
                held.expires = held.expires.max(now.after(claim.lease()));
                Renewal::Renewed(Some(Term { start, ttl: claim.ttl }))
            }
            None => Renewal::Lost(LossReason::Revoked),
        }
    }

    pub(super) fn release(&mut self, claim: &Claim, now: Moment) -> Release {
        let Entry::Occupied(mut entry) = self.locks.entry(claim.key.clone()) else { return Release::NotOurs };
        let lock = entry.get_mut();
        lock.settle(now, &mut self.last_token);
        let ours = lock.held.iter().position(|held| held.is(claim.attempt));
        match ours {
            Some(place) => drop(lock.held.remove(place)),
            None => lock.queue.retain(|waiter| waiter.claim.attempt != claim.attempt),
        }
        lock.admit(now, &mut self.last_token);
        if lock.is_free() {
            entry.remove();
        }
        if ours.is_some() { Release::Released } else { Release::NotOurs }
    }

    /// Returns whether the attempt holds the lock.
    pub(super) fn is_holder(&mut self, claim: &Claim, now: Moment) -> bool {
        self.hold_of(&claim.key, claim.attempt, now).is_some()
    }

    pub(super) fn amend(&mut self, claim: &Claim, now: Moment) -> bool {
        let Some(held) = self.hold_of(&claim.key, claim.attempt, now) else { return false };
        if let Some(known) = &mut held.claim {
            known.record = claim.record.clone();
        }
        true
    }

    /// Returns the grant, and the losses of the client from which the hold was taken.
    pub(super) fn adopt(
        &mut self,
        from: AttemptId,
        token: FencingToken,
        claim: &Claim,
        sender: &Sender,
        now: Moment,
    ) -> Option<(Grant, Option<Losses>)> {
        if let Some(held) = self.hold_of(&claim.key, claim.attempt, now).filter(|held| held.token == token) {
            // The granted lease begins with this request.
            held.expires = held.expires.max(now.after(claim.lease()));
            return Some((held.grant(sender.sent, claim.ttl), None));
        }
        let held = self.hold_of(&claim.key, from, now).filter(|held| held.token == token)?;
        let AskedMode { mode, resizes } = held.asked().unwrap_or(Mode::default().into());
        let record = claim.record.as_ref().clone().with_mode(mode).with_resizes(resizes);
        held.claim = Some(Claim { record: record.into(), ..claim.clone() });
        held.expires = held.expires.max(now.after(claim.lease()));
        let before = std::mem::replace(&mut held.losses, sender.losses.clone());
        Some((held.grant(sender.sent, claim.ttl), before))
    }

    fn hold_of(&mut self, key: &Key, attempt: AttemptId, now: Moment) -> Option<&mut MemoryHold> {
        let lock = self.locks.get_mut(key)?;
        lock.settle(now, &mut self.last_token);
        lock.held.iter_mut().find(|held| held.is(attempt))
    }

    /// Ends the holds with `token`, and returns for each its client's losses and its attempt.
    pub(super) fn force_release(&mut self, key: &Key, token: FencingToken, now: Moment) -> Vec<EndedHold> {
        let Some(lock) = self.locks.get_mut(key) else { return Vec::new() };
        lock.settle(now, &mut self.last_token);
        let broken: Vec<_> = lock.held.extract_if(.., |held| held.token == token && held.claim.is_some()).collect();
        lock.admit(now, &mut self.last_token);
        self.forget_if_free(key);
        ended(broken)
    }

    /// Ends the holds of `key`.
    pub(super) fn expire(&mut self, key: &Key, now: Moment) -> Vec<EndedHold> {
        let Some(lock) = self.locks.get_mut(key) else { return Vec::new() };
        lock.settle(now, &mut self.last_token);
        let expired = std::mem::take(&mut lock.held);
        lock.admit(now, &mut self.last_token);
        self.forget_if_free(key);
        ended(expired)
    }

    /// Ends the holds of `key`, and gives it to a holder that is no client.
    pub(super) fn steal(&mut self, key: &Key, now: Moment) -> Vec<EndedHold> {
        let token = next(&mut self.last_token);
        let expires = now.after(STOLEN_FOR);
        let thief = MemoryHold { claim: None, token, slot: None, since: now, expires, losses: None, handover: None };
        let lock = self.locks.entry(key.clone()).or_default();
        lock.held.retain(|held| now < held.expires);
        ended(std::mem::replace(&mut lock.held, vec![thief]))
    }

    pub(super) fn list(&mut self, prefix: &str, now: Moment) -> Vec<LockInfo> {
        let mut keys: Vec<_> = self.locks.keys().filter(|key| key.as_str().starts_with(prefix)).cloned().collect();
        keys.sort();
        keys.iter().filter_map(|key| self.get(key, now)).collect()
    }

    pub(super) fn get(&mut self, key: &Key, now: Moment) -> Option<LockInfo> {
        self.locks.get_mut(key)?.settle(now, &mut self.last_token);
        self.forget_if_free(key);
        let lock = self.locks.get(key)?;
        let waiters = lock.queue.iter().map(|waiter| waiter.claim.record.clone()).collect();
        Some(LockInfo::new(key.clone(), lock.held.iter().map(|held| held.holder(now)), waiters))
    }

    pub(super) fn is_empty(&mut self, now: Moment) -> bool {
        self.list("", now).is_empty()
    }

    fn forget_if_free(&mut self, key: &Key) {
        if self.locks.get(key).is_some_and(LockState::is_free) {
            self.locks.remove(key);
        }
    }
}

impl LockState {
    fn is_free(&self) -> bool {
        self.held.is_empty() && self.queue.is_empty()
    }

    /// Ends expired leases, drops waiters that no longer claim, and admits the next ones.
    fn settle(&mut self, now: Moment, last_token: &mut u64) {
        self.queue.retain(|waiter| now < waiter.alive_until);
        self.held.retain(|held| now < held.expires);
        self.admit(now, last_token);
    }

    /// Grants the lock to every waiter that may enter now, and notifies it.
    fn admit(&mut self, now: Moment, last_token: &mut u64) {
        while let Some((place, admission)) = self.next_to_enter()
            && let Some(QueuedClaim { claim, sender, replied, notify, .. }) = self.queue.remove(place)
        {
            notify.notify_one();
            let held = self.let_in(claim, admission, sender.losses, now, last_token);
            held.handover = Some(Handover { sent: sender.sent, replied, notify });
        }
    }

    fn next_to_enter(&self) -> Option<(usize, Admission)> {
        let mut queue = self.queue.iter().enumerate();
        queue.find_map(|(place, waiter)| Some((place, self.admission(&waiter.claim, place)?)))
    }

    /// Returns how `claim` enters the lock when the first `ahead` waiters came before it; `None`: it has to wait.
    fn admission(&self, claim: &Claim, ahead: usize) -> Option<Admission> {
        let inside = self.held.iter().map(MemoryHold::occupant);
        admission::admit(claimant(claim), inside, self.queue.iter().take(ahead).map(|waiter| waiter.claim.mode()))
    }

    fn let_in(
        &mut self,
        claim: Claim,
        admission: Admission,
        losses: Option<Losses>,
        now: Moment,
        last_token: &mut u64,
    ) -> &mut MemoryHold {
        let Admission { slot, reentered } = admission;
        let token = reentered.unwrap_or_else(|| next(last_token));
        let expires = now.after(claim.lease());
        if self.held.is_empty() {
            // Most locks have one holder, and there may be many locks.
            self.held.reserve_exact(1);
        }
        let place = self.held.len();
        self.held.push(MemoryHold { claim: Some(claim), token, slot, since: now, expires, losses, handover: None });
        &mut self.held[place]
    }

    /// Returns the modes of all holders and waiters.
    fn modes(&self) -> impl Iterator<Item = AskedMode> {
        self.held.iter().filter_map(MemoryHold::asked).chain(self.queue.iter().map(|waiter| waiter.claim.asked()))
    }

    /// Returns why `claim` has to wait, and takes or keeps its place in the queue if it asks for one.
    fn busy(&mut self, claim: &Claim, sender: Sender, now: Moment) -> Busy {
        let holder = self.held.first().map(|held| held.holder(now));
        if !claim.queue {
            return Busy { holder, poll_after: None };
        }
        let alive_until = now.after(claim.ttl);
        let place = self.queue.iter().position(|waiter| waiter.claim.attempt == claim.attempt);
        match place.and_then(|place| self.queue.get_mut(place)) {
            Some(waiter) => {
                waiter.alive_until = alive_until;
                waiter.sender = sender;
                waiter.replied = now;
            }
            None => {
                let notify = Arc::new(Notify::new());
                self.queue.push_back(QueuedClaim { claim: claim.clone(), sender, replied: now, alive_until, notify });
            }
        }
        let heartbeat = claim.ttl.mul_f64(CLAIM_AGAIN_AFTER);
        // Only the first in the queue claims when a lease ends: no other waiter could be granted the lock then.
        let is_first = self.queue.front().is_some_and(|first| first.claim.attempt == claim.attempt);
        let lease_end = self.held.iter().filter(|_| is_first).map(|held| held.expires.since(now)).min();
        Busy { holder, poll_after: Some(lease_end.map_or(heartbeat, |end| heartbeat.min(end))) }
    }
}

impl MemoryHold {
    fn is(&self, attempt: AttemptId) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.attempt == attempt)
    }

    fn asked(&self) -> Option<AskedMode> {
        self.claim.as_ref().map(Claim::asked)
    }

    fn occupant(&self) -> Occupant<'_> {
        Occupant { claimant: self.claim.as_ref().map(claimant), token: self.token, slot: self.slot }
    }

    fn grant(&self, start: Moment, ttl: Duration) -> Grant {
        Grant { token: self.token, term: Some(Term { start, ttl }), slot: self.slot }
    }

    fn holder(&self, now: Moment) -> Holder {
        Holder::new(self.claim.as_ref().map(|claim| claim.record.clone()), Some(self.token))
            .with_ttl_left(Some(self.expires.since(now)))
            .with_held_for(Some(now.since(self.since)))
    }
}

fn ended(holds: Vec<MemoryHold>) -> Vec<EndedHold> {
    holds.into_iter().filter_map(|held| Some((held.losses, held.claim?.attempt))).collect()
}

fn claimant(claim: &Claim) -> Claimant<'_> {
    Claimant { asked: claim.asked(), owner: &claim.record.owner }
}

fn next(last_token: &mut u64) -> FencingToken {
    *last_token += 1;
    FencingToken::new(*last_token)
}
