//! Claims: a key in the lock's queue, and a grant once no key is before it, as far as the mode allows.

use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::error::{Failure, Fault};
use super::protocol::queue::{self, KeyRequest, QueueView};
use super::protocol::queue_key::QueueKey;
use super::protocol::value::{self, Value};
use super::state::attempt::WATCH_AFTER;
use super::state::attempts::Attempt;
use super::state::effect::Granted;
use crate::contract::{Busy, Claim, Claimed, Grant};
use crate::types::error::{Error, Result};
use crate::types::mode::Mode;
use crate::types::owner::Holder;
use crate::types::token::FencingToken;

/// The longest time between two reads of a queue by a waiter, behind the hints of the watch.
const LONGEST_POLL: Duration = Duration::from_secs(20);
/// How often taking a semaphore slot is retried when the queue has changed in between.
const SLOT_ROUNDS: usize = 32;
/// Up to so many keys are asked for by name to see whether the queue has changed.
const MOST_ASKED_BY_NAME: usize = 32;
/// How often a claim is retried whose lease or key went away.
const CLAIM_ROUNDS: usize = 3;

impl Engine {
    /// Takes a place in the queue, and the lock if it is free for it.
    pub(super) async fn claim(self: &Arc<Self>, claim: &Claim) -> Result<Claimed> {
        self.start();
        for _ in 0..CLAIM_ROUNDS {
            let Some(attempt) = self.attempt_of(claim).await? else { continue };
            let (created, lease) = {
                let state = attempt.state();
                (state.created(), state.lease().clone())
            };
            let before = self.seen_revision.now();
            if let Some(busy) = self.unchanged(&attempt, claim).await? {
                return Ok(Claimed::Busy(busy));
            }
            let view = match created {
                0 => self.make(&attempt, claim).await,
                _ => queue::look(&self.client, attempt.lock(), attempt.mode(), attempt.key(), created).await,
            };
            let view = match view {
                Ok(view) => self.take_slot(&attempt, claim, view).await,
                failed => failed,
            };
            match view {
                Err(failure) if failure.fault == Fault::LeaseGone => self.lease_lost(&lease),
                Err(failure) => return Err(failure.into()),
                Ok(view) if view.own.is_none() && (created != 0 || claim.queue) => self.key_lost(&attempt),
                Ok(view) => {
                    self.seen_revision.check(before, view.header)?;
                    if let Some(other) = view.disagreement(attempt.lock(), attempt.asked()) {
                        // Whatever the outcome: housekeeping deletes what is left.
                        let _ = self.release(claim).await;
                        return Err(claim.mode().disagrees(other));
                    }
                    let first_at = attempt.state().first_at();
                    if let Some(revision) = first_at {
                        // The predecessor left before this request was answered.
                        if let Some(grant) = self.grant_at(&attempt, revision) {
                            return Ok(Claimed::Granted(grant));
                        }
                    } else if !view.holds {
                        return Ok(Claimed::Busy(self.keep_place(&attempt, claim, view)));
                    } else if let Some(grant) = self.grant(&attempt, &view) {
                        return Ok(Claimed::Granted(grant));
                    }
                }
            }
        }
        Err(Error::unavailable("the lease is lost again and again").with_help("ask for a longer ttl"))
    }

    /// Returns the attempt of `claim`, new or as it is; `None` when its lease is gone and it was forgotten.
    pub(super) async fn attempt_of(self: &Arc<Self>, claim: &Claim) -> Result<Option<Arc<Attempt>>> {
        let known = self.attempts.get(claim.attempt);
        let lease = match &known {
            Some(attempt) => attempt.lease(),
            None if claim.mode() == Mode::Reentrant => self.head_lease(claim).await?,
            None => self.lease_for(claim.lease()).await?,
        };
        if !self.freshen(&lease).await? {
            return Ok(None);
        }
        let keep_until = self.clock.now().after(lease.term().ttl.max(claim.lease()));
        if let Some(attempt) = known {
            attempt.state().asked_again(keep_until);
            return Ok(Some(attempt));
        }
        let lock = self.names.lock(&claim.key);
        let look = self.clock.now().after(WATCH_AFTER);
        Ok(Some(self.attempts.begin(claim, lock, lease, keep_until, look)))
    }

    /// Makes the key. That goes on when the caller's future is dropped: only a key whose making has ended can be
    /// deleted.
    async fn make(self: &Arc<Self>, attempt: &Arc<Attempt>, claim: &Claim) -> Result<QueueView, Failure> {
        let making = attempt.making().clone().lock_owned().await;
        let request = key_request(attempt, claim);
        let is_alone = self.is_alone(attempt);
        let (engine, attempt, queue) = (self.clone(), attempt.clone(), claim.queue);
        self.finish_near(is_alone, async move {
            let in_flight = InFlight(Some(attempt.clone()));
            let outcome = engine.join(&attempt, &request, queue, is_alone).await;
            match &outcome {
                Ok(view) => {
                    in_flight.answered();
                    attempt.state().made(view.own, view.is_new);
                }
                Err(failure) if failure.fault == Fault::Unknown => drop(in_flight),
                Err(_) => in_flight.answered(),
            }
            // At once, and not when the caller's future is polled: the predecessor may leave right now.
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

    async fn join(
        &self,
        attempt: &Attempt,
        request: &KeyRequest,
        queue: bool,
        is_alone: bool,
    ) -> Result<QueueView, Failure> {
        let is_fresh = !attempt.state().has_unanswered();
        if is_alone && is_fresh && queue {
            if let Some(view) = queue::enter_free(&self.batcher, request).await? {
                return Ok(view);
            }
            self.contention.note(attempt.lock(), self.clock.now());
        }
        // Another attempt of this client has the lock: the server need not be asked for the holder.
        if queue
            && is_fresh
            && attempt.mode() == Mode::Exclusive
            && self.attempts.holder(attempt.lock()).is_some()
            && let with_release = self.attempts.is_passed_on(attempt.lock(), self.clock.now())
            && let Some(view) = queue::line_up(&self.batcher, attempt.lock(), request.put(None), with_release).await?
        {
            if let (true, true, Some(created)) = (with_release, view.holds, view.own) {
                attempt.state().came_with_release(created);
            }
            return Ok(view);
        }
        queue::join(&self.client, &self.batcher, request, queue).await
    }

    /// Takes a semaphore slot for an attempt that `view` shows among the holders without one.
    pub(super) async fn take_slot(
        &self,
        attempt: &Attempt,
        claim: &Claim,
        mut view: QueueView,
    ) -> Result<QueueView, Failure> {
        let Mode::Slot { of } = attempt.mode() else { return Ok(view) };
        let request = key_request(attempt, claim);
        // Each further round means that another client wrote to the queue in between.
        for _ in 0..SLOT_ROUNDS {
            let (true, None, Some(created)) = (view.holds, view.slot, view.own) else { return Ok(view) };
            queue::take_slot(&self.client, &request, of, &mut view).await?;
            if view.slot.is_none() {
                view = queue::look(&self.client, attempt.lock(), attempt.mode(), attempt.key(), created).await?;
            }
        }
        Err(Failure::new(Fault::Refused, "the semaphore is too busy"))
    }

    /// The lock is not free: keeps the place in the queue, or forgets an attempt that wants none.
    fn keep_place(&self, attempt: &Attempt, claim: &Claim, view: QueueView) -> Busy {
        self.contention.note(attempt.lock(), self.clock.now());
        let has_unanswered = attempt.state().has_unanswered();
        let holder = self.holder_in(attempt, &view).map(|(_, holder)| holder);
        if claim.queue {
            self.queue_read(attempt, view);
        } else if !has_unanswered {
            self.attempts.remove(attempt);
        }
        busy(holder, claim)
    }

    /// Asks only whether the queue has changed for an attempt that waits: reading a long queue costs the server
    /// something, and each waiter asks from time to time. `None`: read the queue.
    pub(super) async fn unchanged(&self, attempt: &Attempt, claim: &Claim) -> Result<Option<Busy>> {
        let (own, before) = {
            let state = attempt.state();
            if !state.is_waiting() || !(1..=MOST_ASKED_BY_NAME).contains(&state.before().len()) {
                return Ok(None);
            }
            (attempt.key_made_at(state.created()), state.before().to_vec())
        };
        let Some((holder_key, holder)) = attempt.holder_seen() else { return Ok(None) };
        let seen = self.seen_revision.now();
        let (are_there, header) = {
            let keys: Vec<_> = [&own, &holder_key].into_iter().chain(&before).collect();
            queue::are_there(&self.client, &keys).await?
        };
        self.seen_revision.check(seen, header)?;
        if !are_there {
            return Ok(None);
        }
        attempt.state().queue_unchanged(header.revision);
        Ok(Some(busy(Some(holder), claim)))
    }

    /// The lock is held by `attempt`, as `view` shows; `None` when it is known that it was lost or given up since.
    pub(super) fn grant(self: &Arc<Self>, attempt: &Attempt, view: &QueueView) -> Option<Grant> {
        attempt.state().slot_seen(view.slot);
        self.grant_at(attempt, view.header.revision)
    }

    /// The same, as of `revision`.
    pub(super) fn grant_at(self: &Arc<Self>, attempt: &Attempt, revision: i64) -> Option<Grant> {
        let (granted, term) = {
            let mut state = attempt.state();
            let (is_gone, term) = (state.lease().is_gone(), state.lease().term());
            (state.granted(revision, is_gone, term, self.clock.now()), term)
        };
        match granted {
            Granted::Held { created, slot } => {
                self.attempts.put_behind(attempt, Vec::new());
                self.attempts.set_holder(attempt);
                let token = FencingToken::new(created.unsigned_abs());
                Some(Grant { token, term: Some(attempt.term_of(term)), slot })
            }
            Granted::Lost => {
                self.key_lost(attempt);
                None
            }
            Granted::GivenUp => None,
        }
    }

    /// Keeps what was read of the queue for the wait that follows.
    pub(super) fn queue_read(&self, attempt: &Attempt, view: QueueView) {
        attempt.saw_holder(self.holder_in(attempt, &view));
        attempt.state().queue_read(view.header.revision);
        self.attempts.put_behind(attempt, view.before);
    }

    /// Returns the holder, with the key of its hold; as this client knows it where the reply does not tell.
    fn holder_in(&self, attempt: &Attempt, view: &QueueView) -> Option<(QueueKey, Holder)> {
        let Some(first) = view.heads.first() else { return self.attempts.holder(attempt.lock()) };
        Some((QueueKey::of(first), value::holder_of(&first.value, first.create_revision)))
    }
}

/// A request to make a key. Its task may end before the reply, with the runtime that it runs on: then the key may still
/// be made.
struct InFlight(Option<Arc<Attempt>>);

impl InFlight {
    /// The server said what it did.
    fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(attempt) = &self.0 {
            attempt.state().unanswered();
        }
    }
}

/// Returns the key to make for `claim`.
pub(super) fn key_request(attempt: &Attempt, claim: &Claim) -> KeyRequest {
    let lease = attempt.lease().id;
    let (lock, key) = (attempt.lock().to_vec(), attempt.key().to_vec());
    KeyRequest { lock, key, asked: attempt.asked(), lease, value: Value::new(claim, lease) }
}

pub(super) fn busy(holder: Option<Holder>, claim: &Claim) -> Busy {
    Busy { holder, poll_after: Some((claim.ttl / 3).min(LONGEST_POLL)) }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use distlock_testkit::servers::EtcdServer;

    use super::*;
    use crate::contract::Backend;
    use crate::engines::etcd::Etcd;
    use crate::types::key::Key;
    use crate::types::owner::{OwnerId, Process, Record};

    /// A claim has read the queue, and is slow. Meanwhile a later one takes the slot that was free, and leaves.
    #[tokio::test]
    async fn a_slot_is_not_taken_after_a_later_permit_has_had_it() {
        const OF: u32 = 3;
        let server = EtcdServer::start();
        let etcd = Etcd::builder([server.address().to_string()]).build().unwrap();
        let record = Record::new(OwnerId::new("o").unwrap(), Process::current(), None, SystemTime::UNIX_EPOCH);
        let record = Arc::new(record.with_mode(Mode::Slot { of: OF }));
        let claim = || Claim::new(Key::new("a").unwrap(), Duration::from_secs(60), true, record.clone());
        let slot_of = async |claim: &Claim| match etcd.claim(claim).await {
            Ok(Claimed::Granted(grant)) => grant.slot,
            other => panic!("{other:?}"),
        };
        let (first, slow, later) = (claim(), claim(), claim());
        assert_eq!(slot_of(&first).await, Some(0));
        let engine = &etcd.engine;
        let attempt = engine.attempt_of(&slow).await.unwrap().unwrap();
        let request = key_request(&attempt, &slow);
        let mut view = queue::join(&engine.client, &engine.batcher, &request, true).await.unwrap();
        assert!(view.holds && view.slot.is_none());
        etcd.release(&first).await.unwrap();
        assert_eq!(slot_of(&later).await, Some(1), "the lowest is left to the slow one");
        etcd.release(&later).await.unwrap();
        queue::take_slot(&engine.client, &request, OF, &mut view).await.unwrap();
        assert_eq!(view.slot, None, "its token is lower than the last one of that slot");
        let view = engine.take_slot(&attempt, &slow, view).await;
        assert!(matches!(view, Ok(QueueView { slot: Some(0), .. })), "{view:?}");
    }
}
