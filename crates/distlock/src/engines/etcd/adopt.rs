//! Taking a hold over: its key stays, with its place and its token, and hangs on another client's lease from then on.
//!
//! The old holder sees that its key was written, and reads by whom. Whatever it still sends about the key depends on
//! the lease that it hung on.

use std::sync::Arc;

use crate::contract::{Claim, Grant};
use crate::engines::etcd::engine::Engine;
use crate::engines::etcd::error::{Failure, Fault};
use crate::engines::etcd::protocol::messages::KeyValue;
use crate::engines::etcd::protocol::pages;
use crate::engines::etcd::protocol::queue;
use crate::engines::etcd::protocol::queue_key::QueueKey;
use crate::engines::etcd::protocol::standing;
use crate::engines::etcd::protocol::value::{self, Value};
use crate::engines::etcd::state::attempt::WATCH_AFTER;
use crate::engines::etcd::state::attempts::Attempt;
use crate::engines::shared::listing::Allowance;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::mode::AskedMode;
use crate::types::token::{AttemptId, FencingToken};

/// How often it is tried again when the key was written by its old holder in between.
const ROUNDS: usize = 8;

impl Engine {
    pub(super) async fn adopt(self: &Arc<Self>, from: AttemptId, token: FencingToken, claim: &Claim) -> Result<Grant> {
        self.start();
        let not_held =
            || Error::new(ErrorKind::NotHeld, format!("no owner holds it by that ticket, with token {token}"));
        let Some(attempt) = self.adopter(from, token, claim).await? else { return Err(not_held()) };
        let (engine, claim, adopter) = (self.clone(), claim.clone(), attempt.clone());
        // That goes on when the caller's future is dropped: a release waits for its end, and undoes what it did.
        let taken = self.finish(async move {
            let _making = adopter.making().lock().await;
            // One of this client hangs on the same lease: its release must not come in between.
            let old = engine.attempts.get(from);
            let _leaving = match &old {
                Some(old) => Some(old.making().lock().await),
                None => None,
            };
            let taken = engine.take_over(&adopter, from, &claim).await;
            if let Ok(Some(_)) = taken {
                adopter.state().taken_over();
                old.iter().for_each(|old| engine.taken_by_another(old));
                engine.attempts.give(&adopter);
                // A watch may have seen its end before the key was this attempt's, and told no one.
                let key = adopter.own_key();
                if key.is_some_and(|key| engine.watches.saw_deletion(adopter.lock(), &key)) {
                    adopter.state().end_was_seen();
                }
                if engine.watches.has_prefix() {
                    adopter.state().was_not_watched();
                }
            }
            taken
        });
        let grant = match taken.await? {
            Some(revision) => self.grant_at(&attempt, revision),
            None => {
                self.attempts.remove(&attempt);
                None
            }
        };
        grant.ok_or_else(not_held)
    }

    /// The attempt that is to have the hold; `None` when there is no such hold.
    async fn adopter(
        self: &Arc<Self>,
        from: AttemptId,
        token: FencingToken,
        claim: &Claim,
    ) -> Result<Option<Arc<Attempt>>> {
        if let Some(attempt) = self.attempts.get(claim.attempt) {
            return Ok(Some(attempt));
        }
        let lock = self.names.lock(&claim.key);
        let lease = self.fresh_lease(claim).await?;
        let mut queue = pages::list(&self.client, &lock, &mut Allowance::new()).await?;
        queue.sort_by_key(|kv| kv.create_revision);
        let held = &queue[..standing::holders(&lock, &queue)];
        let held = held.iter().find(|kv| kv.create_revision.unsigned_abs() == token.get() && is_of(kv, &[from]));
        let Some(held) = held else { return Ok(None) };
        let now = self.clock.now();
        let keep_until = now.after(lease.term().ttl.max(claim.lease()));
        let place = (lock, QueueKey::of(held));
        Ok(Some(self.attempts.take_in(claim, place, lease, keep_until, now.after(WATCH_AFTER))))
    }

    /// Hangs the key on our lease, with our record in it. Returns the revision as of which it is ours; `None`: it is
    /// gone.
    async fn take_over(&self, attempt: &Attempt, from: AttemptId, claim: &Claim) -> Result<Option<i64>, Failure> {
        let adopter = attempt.state().adopter();
        let Some((lease, created)) = adopter else { return Ok(None) };
        for _ in 0..ROUNDS {
            let (key, revision) = queue::read(&self.client, attempt.key()).await?;
            let key = key.filter(|kv| kv.create_revision == created && is_of(kv, &[from, claim.attempt]));
            let Some(key) = key else { return Ok(None) };
            let Some(known) = value::read(&key.value) else { return Ok(None) };
            attempt.state().slot_seen(known.slot);
            if known.is_of(claim.attempt) && key.lease == lease {
                return Ok(Some(revision));
            }
            let AskedMode { mode, resizes } = attempt.asked();
            let record = Arc::new(claim.record.as_ref().clone().with_mode(mode).with_resizes(resizes));
            let claim = Claim { record, ..claim.clone() };
            let value = Value::new(&claim, lease).with_slot(known.slot).to_value();
            match queue::take_over(&self.client, &key, value, lease).await {
                Ok(Some(revision)) => return Ok(Some(revision)),
                // It was written in between.
                Ok(None) => {}
                Err(failure) => {
                    if failure.fault == Fault::Unknown {
                        attempt.state().unanswered();
                    }
                    return Err(failure);
                }
            }
        }
        Err(Failure::new(Fault::Refused, "the hold is written again and again"))
    }
}

/// Whether a key was last written by one of `attempts`.
fn is_of(kv: &KeyValue, attempts: &[AttemptId]) -> bool {
    value::read(&kv.value).is_some_and(|entry| attempts.iter().any(|attempt| entry.is_of(*attempt)))
}
