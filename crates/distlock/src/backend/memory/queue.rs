//! The locks of a store: holders, queues and tokens. Plain data and time passed in; no awaits, no clocks.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::{Busy, Claim, Claimed, Grant, Lease, LockInfo, Losses, Release, Renewal, Term};
use crate::clock::Moment;
use crate::event::LossReason;
use crate::key::Key;
use crate::owner::Holder;
use crate::token::{AttemptId, FencingToken};

/// When a waiter claims again, as a part of its lease: one that has not for a whole lease is dropped.
const CLAIM_AGAIN_AFTER: f64 = 1.0 / 3.0;

#[derive(Debug, Default)]
pub(super) struct Locks {
    locks: HashMap<Key, Lock>,
    /// One counter for all locks: a lock that is free leaves nothing behind, and its tokens still rise.
    last_token: u64,
}

#[derive(Debug, Default)]
struct Lock {
    held: Option<Held>,
    queue: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Held {
    /// `None`: a thief that no client knows.
    claim: Option<Claim>,
    token: FencingToken,
    since: Moment,
    expires: Moment,
    losses: Option<Losses>,
    /// Set when it was handed over and its new holder has not heard of it yet.
    handed: Option<Handed>,
}

/// Who sent a claim, and when by its own clock.
#[derive(Debug, Clone)]
pub(super) struct Sender {
    pub(super) sent: Moment,
    pub(super) losses: Option<Losses>,
}

#[derive(Debug)]
struct Waiter {
    claim: Claim,
    sender: Sender,
    /// The store's clock when that claim was answered.
    answered: Moment,
    alive_until: Moment,
    turn: Arc<Notify>,
}

#[derive(Debug)]
struct Handed {
    sent: Moment,
    answered: Moment,
    turn: Arc<Notify>,
}

impl Locks {
    pub(super) fn claim(&mut self, claim: &Claim, sender: Sender, now: Moment) -> Claimed {
        let lock = self.locks.entry(claim.key.clone()).or_default();
        lock.settle(now, &mut self.last_token);
        if let Some(held) = lock.held.as_mut().filter(|held| held.is(claim.attempt)) {
            // A repeat, or the first the waiter hears of a handoff.
            held.handed = None;
            held.expires = held.expires.max(now.after(claim.ttl));
            return Claimed::Granted(held.grant(sender.sent, claim.ttl));
        }
        // A lock that is free has no waiters: it would have been handed to the first of them.
        if lock.held.is_none() {
            let token = next(&mut self.last_token);
            let granted = Grant { token, term: Some(Term { start: sender.sent, ttl: claim.ttl }) };
            lock.held = Some(Held::new(claim.clone(), token, now, sender.losses));
            return Claimed::Granted(granted);
        }
        Claimed::Busy(lock.busy(claim, sender, now))
    }

    pub(super) fn turn_of(&self, claim: &Claim) -> Option<Arc<Notify>> {
        let lock = self.locks.get(&claim.key)?;
        let queued = lock.queue.iter().find(|waiter| waiter.claim.attempt == claim.attempt).map(|w| &w.turn);
        let handed = || Some(&lock.held.as_ref().filter(|held| held.is(claim.attempt))?.handed.as_ref()?.turn);
        queued.or_else(handed).cloned()
    }

    /// The grant that was handed to `claim` while it waited. Its lease began on the store's clock when it was handed
    /// over; on the client's clock no later than the message came, and no later than the last claim plus the time that
    /// has passed on the store's clock since.
    pub(super) fn handed(&mut self, claim: &Claim, received: Moment, drift: f64, now: Moment) -> Option<Grant> {
        let lock = self.locks.get_mut(&claim.key)?;
        lock.settle(now, &mut self.last_token);
        let held = lock.held.as_mut().filter(|held| held.is(claim.attempt))?;
        let Handed { sent, answered, .. } = held.handed.take()?;
        let passed = held.since.since(answered).mul_f64(1.0 - drift);
        Some(held.grant(sent.after(passed).min(received), claim.ttl))
    }

    pub(super) fn renew(&mut self, lease: &Lease, start: Moment, now: Moment) -> Renewal {
        let Claim { key, attempt, ttl, .. } = &lease.claim;
        let Some(lock) = self.locks.get_mut(key) else { return Renewal::Lost(LossReason::Revoked) };
        lock.settle(now, &mut self.last_token);
        match lock.held.as_mut().filter(|held| held.is(*attempt)) {
            Some(held) => {
                held.expires = held.expires.max(now.after(*ttl));
                Renewal::Renewed(Some(Term { start, ttl: *ttl }))
            }
            None => Renewal::Lost(LossReason::Revoked),
        }
    }

    pub(super) fn release(&mut self, claim: &Claim, now: Moment) -> Release {
        let Some(lock) = self.locks.get_mut(&claim.key) else { return Release::NotOurs };
        lock.settle(now, &mut self.last_token);
        let ours = lock.held.as_ref().is_some_and(|held| held.is(claim.attempt));
        if ours {
            lock.hand_over(now, &mut self.last_token);
        } else {
            lock.queue.retain(|waiter| waiter.claim.attempt != claim.attempt);
        }
        self.forget_if_free(&claim.key);
        if ours { Release::Released } else { Release::NotOurs }
    }

    /// Answers the client that lost the lock by this.
    pub(super) fn force_release(
        &mut self,
        key: &Key,
        token: FencingToken,
        now: Moment,
    ) -> Option<(Option<Losses>, AttemptId)> {
        let lock = self.locks.get_mut(key)?;
        lock.settle(now, &mut self.last_token);
        let held = lock.held.take_if(|held| held.token == token && held.claim.is_some())?;
        lock.hand_over(now, &mut self.last_token);
        self.forget_if_free(key);
        held.claim.map(|claim| (held.losses, claim.attempt))
    }

    pub(super) fn expire(&mut self, key: &Key, now: Moment) {
        if let Some(lock) = self.locks.get_mut(key) {
            lock.settle(now, &mut self.last_token);
            lock.hand_over(now, &mut self.last_token);
            self.forget_if_free(key);
        }
    }

    pub(super) fn steal(&mut self, key: &Key, now: Moment) {
        let token = next(&mut self.last_token);
        let expires = now.after(Duration::from_secs(1));
        let thief = Held { claim: None, token, since: now, expires, losses: None, handed: None };
        self.locks.entry(key.clone()).or_default().held = Some(thief);
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
        Some(LockInfo::new(key.clone(), lock.held.as_ref().map(|held| held.holder(now)), waiters))
    }

    pub(super) fn is_empty(&mut self, now: Moment) -> bool {
        self.list("", now).is_empty()
    }

    fn forget_if_free(&mut self, key: &Key) {
        if self.locks.get(key).is_some_and(|lock| lock.held.is_none() && lock.queue.is_empty()) {
            self.locks.remove(key);
        }
    }
}

impl Lock {
    /// Brings the lock up to `now`: a lease that is over ends, waiters that are gone are dropped.
    fn settle(&mut self, now: Moment, last_token: &mut u64) {
        self.queue.retain(|waiter| now < waiter.alive_until);
        if self.held.as_ref().is_some_and(|held| held.expires <= now) {
            self.hand_over(now, last_token);
        }
    }

    /// The next waiter gets the lock, and is told: one wake-up for one release.
    fn hand_over(&mut self, now: Moment, last_token: &mut u64) {
        self.held = self.queue.pop_front().map(|next_up| {
            let Waiter { claim, sender, answered, turn, .. } = next_up;
            turn.notify_one();
            let mut held = Held::new(claim, next(last_token), now, sender.losses);
            held.handed = Some(Handed { sent: sender.sent, answered, turn });
            held
        });
    }

    /// Somebody else has the lock: takes or keeps a place in the queue, if the claim asks for one.
    fn busy(&mut self, claim: &Claim, sender: Sender, now: Moment) -> Busy {
        let holder = self.held.as_ref().map(|held| held.holder(now));
        if !claim.queue {
            return Busy { holder, poll_after: None };
        }
        let alive_until = now.after(claim.ttl);
        let place = self.queue.iter().position(|waiter| waiter.claim.attempt == claim.attempt);
        match place.and_then(|place| self.queue.get_mut(place)) {
            Some(waiter) => {
                waiter.alive_until = alive_until;
                waiter.sender = sender;
                waiter.answered = now;
            }
            None => {
                let turn = Arc::new(Notify::new());
                self.queue.push_back(Waiter { claim: claim.clone(), sender, answered: now, alive_until, turn });
            }
        }
        let heartbeat = claim.ttl.mul_f64(CLAIM_AGAIN_AFTER);
        // Only the first in the queue looks when the lease ends: nobody else could get the lock then.
        let is_first = self.queue.front().is_some_and(|first| first.claim.attempt == claim.attempt);
        let lease_end = self.held.as_ref().filter(|_| is_first).map_or(heartbeat, |held| held.expires.since(now));
        Busy { holder, poll_after: Some(heartbeat.min(lease_end)) }
    }
}

impl Held {
    fn new(claim: Claim, token: FencingToken, now: Moment, losses: Option<Losses>) -> Self {
        let expires = now.after(claim.ttl);
        Held { claim: Some(claim), token, since: now, expires, losses, handed: None }
    }

    fn is(&self, attempt: AttemptId) -> bool {
        self.claim.as_ref().is_some_and(|claim| claim.attempt == attempt)
    }

    fn grant(&self, start: Moment, ttl: Duration) -> Grant {
        Grant { token: self.token, term: Some(Term { start, ttl }) }
    }

    fn holder(&self, now: Moment) -> Holder {
        Holder::new(self.claim.as_ref().map(|claim| claim.record.clone()), Some(self.token))
            .with_ttl_left(Some(self.expires.since(now)))
            .with_held_for(Some(now.since(self.since)))
    }
}

fn next(last_token: &mut u64) -> FencingToken {
    *last_token += 1;
    FencingToken::new(*last_token)
}
