//! What a hold goes on with: a lease that is renewed, or a longer one, and what others may read about it.

use std::sync::Arc;
use std::time::Duration;

use super::attempt::{Attempt, Mark, Phase};
use super::engine::Engine;
use super::entry::Entry;
use super::failure::Fault;
use super::queue;
use super::session::Session;
use crate::backend::{Claim, Lease, Renewal};
use crate::error::{Error, Result};
use crate::event::LossReason;
use crate::mode::Mode;

impl Engine {
    pub(super) async fn renew(self: &Arc<Self>, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let mut answers = Vec::with_capacity(leases.len());
        for lease in leases {
            answers.push(self.renew_one(lease).await);
        }
        answers
    }

    /// Renews one hold: its lease was renewed since it last asked, or is now, for all that hang on it.
    async fn renew_one(self: &Arc<Self>, lease: &Lease) -> Result<Renewal> {
        if lease.claim.mode() == Mode::Reentrant {
            return self.renew_entry(lease).await;
        }
        let attempt = self.attempts.get(lease.claim.attempt);
        let Some(attempt) = attempt.filter(|attempt| matches!(attempt.state().phase, Phase::Held(_))) else {
            return Ok(Renewal::Lost(LossReason::Revoked));
        };
        let (session, known, is_moving) = {
            let state = attempt.state();
            (state.session.clone(), state.known_start, !state.next_sessions.is_empty())
        };
        let session = match session.covers(lease.claim.lease()) && !is_moving {
            true => session,
            false => match self.move_to_longer(attempt.clone(), lease.claim.lease()).await? {
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
        Ok(Renewal::Renewed(Some(attempt.term_of(term))))
    }

    /// Writes what is known about a holder anew.
    pub(super) async fn amend(self: &Arc<Self>, lease: &Lease) -> Result<bool> {
        if lease.claim.mode() == Mode::Reentrant {
            return self.amend_entry(lease).await;
        }
        let Some(attempt) = self.attempts.get(lease.claim.attempt) else { return Ok(false) };
        let (engine, claim) = (self.clone(), lease.claim.clone());
        // Whoever wants to move or delete the key waits for it, and not for the caller to go on.
        self.apart(async move { engine.amend_alone(&attempt, &claim).await }).await
    }

    async fn amend_alone(&self, attempt: &Attempt, claim: &Claim) -> Result<bool> {
        // Moved to another lease meanwhile, the key would look like one that was taken over.
        let _making = attempt.making.lock().await;
        let (mark, session, slot) = {
            let state = attempt.state();
            if !matches!(state.phase, Phase::Held(_)) {
                return Ok(false);
            }
            if !state.next_sessions.is_empty() {
                return Err(Error::unavailable("it is being moved to another lease"));
            }
            let mark = Mark { key: attempt.key.clone(), created: state.created };
            (mark, state.session.id, state.slot)
        };
        let record = Arc::new(claim.record.as_ref().clone().with_mode(attempt.mode));
        let claim = Claim { record: record.clone(), ..claim.clone() };
        let value = Entry::new(&claim, session).with_slot(slot).to_value();
        let amended = queue::rewrite(&self.client, &mark, Some(session), value).await?;
        if amended {
            attempt.state().record = record;
        }
        Ok(amended)
    }

    /// Hangs a hold on a lease that is long enough for `ttl`, and for what was asked before and not answered: after that it
    /// is known again what it hangs on. `None` when the hold is gone.
    async fn move_to_longer(self: &Arc<Self>, attempt: Arc<Attempt>, ttl: Duration) -> Result<Option<Arc<Session>>> {
        let engine = self.clone();
        // Whoever wants to renew or delete the key waits for it, and not for the caller to go on.
        self.apart(async move { engine.move_alone(&attempt, ttl).await }).await
    }

    async fn move_alone(self: &Arc<Self>, attempt: &Attempt, ttl: Duration) -> Result<Option<Arc<Session>>> {
        // One after the other: an answer says what the key hangs on only as long as nobody else moves it.
        let _making = attempt.making.lock().await;
        let ttl = attempt.state().next_sessions.iter().map(|next| next.length()).fold(ttl, Duration::max);
        let longer = self.session(ttl).await?;
        loop {
            let (mark, from, in_doubt) = {
                let mut state = attempt.state();
                match state.phase {
                    Phase::Held(_) if !state.session.covers(ttl) => {}
                    Phase::Held(_) => return Ok(Some(state.session.clone())),
                    _ => return Ok(None),
                }
                // Until the answer it may hang on either.
                let in_doubt = state.next_sessions.iter().any(|next| next.id == longer.id);
                if !in_doubt {
                    state.next_sessions.push(longer.clone());
                }
                (Mark { key: attempt.key.clone(), created: state.created }, state.session.id, in_doubt)
            };
            match queue::attach(&self.client, &mark, from, longer.id).await {
                Ok(lease) => {
                    let mut state = attempt.state();
                    let next = state.next_sessions.iter().find(|next| Some(next.id) == lease).cloned();
                    let Some(next) = next else {
                        state.name_is_taken = true;
                        drop(state);
                        self.key_lost(attempt);
                        return Ok(None);
                    };
                    state.session = next;
                    state.next_sessions.clear();
                }
                Err(failure) => {
                    if !in_doubt && failure.fault != Fault::Unknown {
                        attempt.state().next_sessions.retain(|next| next.id != longer.id);
                    }
                    if failure.fault == Fault::LeaseGone {
                        self.session_lost(&longer);
                    }
                    return Err(failure.into());
                }
            }
        }
    }
}
