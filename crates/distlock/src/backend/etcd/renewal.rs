//! What a hold goes on with: a lease that is renewed, or a longer one, and what others may read about it.

use std::sync::Arc;

use super::attempt::{Attempt, Mark, Phase};
use super::engine::Engine;
use super::entry::Entry;
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
        let (session, known) = {
            let state = attempt.state();
            (state.session.clone(), state.known_start)
        };
        let session = match session.covers(lease.claim.lease()) {
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
        Ok(Renewal::Renewed(Some(attempt.term_of(term))))
    }

    /// Writes what is known about a holder anew.
    pub(super) async fn amend(&self, lease: &Lease) -> Result<bool> {
        if lease.claim.mode() == Mode::Reentrant {
            return self.amend_entry(lease).await;
        }
        let attempt = self.attempts.get(lease.claim.attempt);
        let Some(attempt) = attempt.filter(|attempt| matches!(attempt.state().phase, Phase::Held(_))) else {
            return Ok(false);
        };
        let (mark, session, slot) = {
            let state = attempt.state();
            if state.next_session.is_some() {
                return Err(Error::unavailable("it is being moved to another lease"));
            }
            let mark = Mark { key: attempt.key.clone(), created: state.created };
            (mark, state.session.id, state.slot)
        };
        let record = Arc::new(lease.claim.record.as_ref().clone().with_mode(attempt.mode));
        let claim = Claim { record: record.clone(), ..lease.claim.clone() };
        let value = Entry::new(&claim, session).with_slot(slot).to_value();
        let amended = queue::rewrite(&self.client, &mark, Some(session), value).await?;
        if amended {
            attempt.state().record = record;
        }
        Ok(amended)
    }

    /// Hangs a hold on a lease that is long enough; `None` when the hold is gone.
    async fn move_to_longer(self: &Arc<Self>, attempt: &Attempt, lease: &Lease) -> Result<Option<Arc<Session>>> {
        let session = self.session(lease.claim.lease()).await?;
        let (created, from) = {
            let state = attempt.state();
            (state.created, state.session.id)
        };
        let mark = Mark { key: attempt.key.clone(), created };
        // Until the answer it may hang on either.
        attempt.state().next_session = Some(session.clone());
        if !queue::attach(&self.client, &mark, from, session.id).await? {
            attempt.state().name_is_taken = true;
            self.key_lost(attempt);
            return Ok(None);
        }
        let mut state = attempt.state();
        state.next_session = None;
        state.session = session.clone();
        Ok(Some(session))
    }
}
