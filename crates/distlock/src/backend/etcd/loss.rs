//! What is lost without being given up: a lease that is gone, a key that somebody deleted or took over.

use std::sync::Arc;

use super::attempt::{Attempt, Phase};
use super::engine::Engine;
use super::queue;
use super::session::Session;
use crate::event::LossReason;
use crate::token::AttemptId;

impl Engine {
    /// A lease is gone, and with it every key that hung on it: all are told at once.
    pub(super) fn session_lost(self: &Arc<Self>, session: &Session) {
        session.lose();
        self.sessions.forget(session);
        self.attempts_lost(session);
        self.entries_lost(session);
    }

    pub(super) fn attempts_lost(self: &Arc<Self>, session: &Session) {
        for attempt in self.attempts.all() {
            let (hung_on_it, was_to_move, may_be_left) = {
                let mut state = attempt.state();
                let others = state.next_sessions.len();
                state.next_sessions.retain(|next| next.id != session.id);
                let left = state.next_sessions.len();
                (state.session.id == session.id, left < others, left > 0)
            };
            match () {
                () if hung_on_it && may_be_left => self.give_up(&attempt),
                () if hung_on_it => self.key_lost(&attempt),
                // It may have hung on that one, or not yet.
                () if was_to_move => self.look_for(&attempt),
                () => {}
            }
        }
        self.attempts.forget_lease(session.id);
    }

    /// The lease of a hold is gone while it was being moved to another one, so that its key may still be there: nobody counts
    /// on it, and housekeeping deletes it.
    fn give_up(&self, attempt: &Attempt) {
        let mut state = attempt.state();
        if let Phase::Held(_) = state.phase {
            state.phase = Phase::Leaving { was_held: false };
            state.keep_until = self.clock.now();
            self.tell_loss(attempt.id, LossReason::Revoked);
        }
    }

    /// The key of an attempt is gone, with its lease or by somebody's hand.
    pub(super) fn key_lost(&self, attempt: &Attempt) {
        self.key_lost_to(attempt, LossReason::Revoked);
    }

    pub(super) fn key_lost_to(&self, attempt: &Attempt, reason: LossReason) {
        let phase = std::mem::replace(&mut attempt.state().phase, Phase::Gone);
        self.attempts.remove(attempt);
        match phase {
            Phase::Held(_) => self.tell_loss(attempt.id, reason),
            Phase::Waiting => attempt.turn.notify_one(),
            Phase::Leaving { .. } | Phase::Gone => {}
        }
    }

    pub(super) fn tell_loss(&self, attempt: AttemptId, reason: LossReason) {
        if let Some(losses) = self.losses.get() {
            losses.push(attempt, reason);
        }
    }

    /// A watch saw that a key was deleted.
    pub(super) fn deleted(self: &Arc<Self>, key: &[u8], revision: i64) {
        self.entry_deleted(key, revision);
        let Some(attempt) = self.attempts.deleted(key, revision) else { return };
        let (created, phase) = {
            let mut state = attempt.state();
            state.deleted = state.deleted.max(revision);
            (state.created, state.phase)
        };
        // An older key of the same name says nothing about this one.
        if !(1..revision).contains(&created) {
            return;
        }
        match phase {
            Phase::Held(_) => {
                let engine = self.clone();
                self.run(async move {
                    let broken = queue::was_broken(&engine.client, &attempt.key, created, revision).await;
                    engine.key_lost_to(&attempt, if broken { LossReason::Broken } else { LossReason::Revoked });
                });
            }
            Phase::Waiting => self.key_lost(&attempt),
            // What we delete ourselves is no loss.
            Phase::Leaving { .. } | Phase::Gone => {}
        }
    }

    /// A watch saw that the key of a hold was written.
    pub(super) fn written(self: &Arc<Self>, key: &[u8], revision: i64) {
        let held = self.attempts.owner_of(key);
        let held = held.filter(|attempt| {
            let state = attempt.state();
            matches!(state.phase, Phase::Held(_)) && state.revision < revision
        });
        if let Some(attempt) = held {
            let engine = self.clone();
            self.run(async move { engine.look_who_wrote(&attempt, Some(revision)).await });
        }
    }
}
