//! Taking a hold over: its key stays, with its place and its token, and hangs on another client's lease from then on.
//!
//! The old holder sees that its key was written, and reads by whom. Whatever it still sends about the key depends on the
//! lease that it hung on.

use std::sync::Arc;

use crate::contract::{Claim, Grant};
use crate::engines::etcd::engine::Engine;
use crate::engines::etcd::error::{Failure, Fault};
use crate::engines::etcd::housekeeping::WATCH_AFTER;
use crate::engines::etcd::protocol::messages::KeyValue;
use crate::engines::etcd::protocol::pages;
use crate::engines::etcd::protocol::queue;
use crate::engines::etcd::protocol::standing;
use crate::engines::etcd::protocol::value::{self, Value};
use crate::engines::etcd::state::attempts::{Attempt, Phase, QueueKey};
use crate::engines::shared::listing::Allowance;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::LossReason;
use crate::types::mode::Mode;
use crate::types::token::{AttemptId, FencingToken};

/// How often it is tried again when the key was written by its old holder in between.
const ROUNDS: usize = 8;

impl Engine {
    pub(super) async fn adopt(self: &Arc<Self>, from: AttemptId, token: FencingToken, claim: &Claim) -> Result<Grant> {
        if claim.mode() == Mode::Reentrant {
            return self.adopt_entry(from, token, claim).await;
        }
        self.start();
        let not_held = || Error::new(ErrorKind::NotHeld, format!("nobody holds it by that ticket, with token {token}"));
        let Some(attempt) = self.adopter(from, token, claim).await? else { return Err(not_held()) };
        let (engine, claim, adopter) = (self.clone(), claim.clone(), attempt.clone());
        // That goes on when the caller's future is dropped: a release waits for its end, and undoes what it did.
        let taken = self.apart(async move {
            let _making = adopter.making.lock().await;
            // One of this client hangs on the same lease: its release must not come in between.
            let old = engine.attempts.get(from);
            let _leaving = match &old {
                Some(old) => Some(old.making.lock().await),
                None => None,
            };
            let taken = engine.take_over(&adopter, from, &claim).await;
            if let Ok(Some(_)) = taken {
                adopter.state().doubts = 0;
                old.iter().for_each(|old| engine.adopted(old));
                engine.attempts.give(&adopter);
                // Of an end that a watch has seen before nobody was told.
                let seen = adopter.mark().filter(|mark| engine.watches.saw_deletion(&adopter.lock, mark));
                if let Some(mark) = seen {
                    adopter.state().deleted = mark.created.saturating_add(1);
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
        let session = self.fresh_lease(claim).await?;
        let mut queue = pages::list(&self.client, &lock, &mut Allowance::new()).await?;
        queue.sort_by_key(|kv| kv.create_revision);
        let held = &queue[..standing::holders(&lock, &queue)];
        let held = held.iter().find(|kv| kv.create_revision.unsigned_abs() == token.get() && is_of(kv, &[from]));
        let Some(held) = held else { return Ok(None) };
        let now = self.clock.now();
        let keep_until = now.after(session.term().ttl.max(claim.lease()));
        let place = (lock, QueueKey::of(held));
        Ok(Some(self.attempts.take_in(claim, place, session, keep_until, now.after(WATCH_AFTER))))
    }

    /// Hangs the key on our lease, with our record in it. Answers as of which revision it is ours; `None`: it is gone.
    async fn take_over(&self, attempt: &Attempt, from: AttemptId, claim: &Claim) -> Result<Option<i64>, Failure> {
        let (session, created) = {
            let state = attempt.state();
            if !matches!(state.phase, Phase::Waiting | Phase::Held(_)) {
                return Ok(None);
            }
            (state.session.id, state.created)
        };
        for _ in 0..ROUNDS {
            let (key, revision) = queue::read(&self.client, &attempt.key).await?;
            let key = key.filter(|kv| kv.create_revision == created && is_of(kv, &[from, claim.attempt]));
            let Some(key) = key else { return Ok(None) };
            let Some(known) = value::read(&key.value) else { return Ok(None) };
            attempt.state().slot = known.slot;
            if known.is_of(claim.attempt) && key.lease == session {
                return Ok(Some(revision));
            }
            let record = Arc::new(claim.record.as_ref().clone().with_mode(attempt.mode));
            let claim = Claim { record, ..claim.clone() };
            let value = Value::new(&claim, session).with_slot(known.slot).to_value();
            match queue::take_over(&self.client, &key, value, session).await {
                Ok(Some(revision)) => return Ok(Some(revision)),
                // It was written in between.
                Ok(None) => {}
                Err(failure) => {
                    attempt.state().doubts += u32::from(failure.fault == Fault::Unknown);
                    return Err(failure);
                }
            }
        }
        Err(Failure::new(Fault::Refused, "the hold is written again and again"))
    }

    /// A watch saw that a key was written, at the revision `written`, or may have missed it: if not by us, the hold is
    /// another one's.
    pub(super) async fn look_who_wrote(self: &Arc<Self>, attempt: &Attempt, written: Option<i64>) {
        let created = attempt.state().created;
        match queue::read(&self.client, &attempt.key).await {
            Ok((Some(key), revision)) if key.create_revision == created => match is_of(&key, &[attempt.id]) {
                true => {
                    let mut state = attempt.state();
                    state.revision = state.revision.max(revision);
                    state.in_question = false;
                }
                // What somebody else wrote by hand is no taking over, and does not end a hold.
                false if value::read(&key.value).is_none() => {
                    let mut state = attempt.state();
                    (state.revision, state.in_question) = (revision, false);
                }
                false => self.adopted(attempt),
            },
            // Who breaks a lock writes so into its key, and deletes it then.
            Ok(_) => {
                let broken = match written {
                    Some(written) => queue::was_broken(&self.client, &attempt.key, created, written + 1).await,
                    None => false,
                };
                self.key_lost_to(attempt, if broken { LossReason::Broken } else { LossReason::Revoked });
            }
            // At the next tick again.
            Err(_) => {}
        }
    }

    fn adopted(self: &Arc<Self>, attempt: &Attempt) {
        attempt.state().name_is_taken = true;
        self.key_lost_to(attempt, LossReason::Adopted);
    }
}

/// Whether a key was last written by one of `attempts`.
fn is_of(kv: &KeyValue, attempts: &[AttemptId]) -> bool {
    value::read(&kv.value).is_some_and(|entry| attempts.iter().any(|attempt| entry.is_of(*attempt)))
}
