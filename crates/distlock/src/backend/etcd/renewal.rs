//! What a hold goes on with: a lease that is renewed, or a longer one, and what others may read about it.

use std::sync::Arc;
use std::time::Duration;

use super::attempt::{Attempt, Mark, Phase};
use super::engine::Engine;
use super::entry::Entry;
use super::failure::Fault;
use super::queue;
use super::session::Session;
use crate::backend::{Claim, Lease, Renewal, Term};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::event::LossReason;
use crate::mode::Mode;

/// How often a hold is renewed once more that was moved to another lease meanwhile.
const ROUNDS: usize = 8;

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
        let length = lease.claim.lease();
        let (is_long_enough, is_moving) = {
            let state = attempt.state();
            (state.session.covers(length), !state.next_sessions.is_empty())
        };
        if !is_long_enough && !self.move_to_longer(attempt.clone(), length).await? {
            return Ok(Renewal::Lost(LossReason::Revoked));
        }
        if is_long_enough && is_moving {
            self.settle_soon(&attempt, length);
        }
        for _ in 0..ROUNDS {
            let (sessions, known) = {
                let state = attempt.state();
                (state.sessions().cloned().collect::<Vec<_>>(), state.known_start)
            };
            let Some(term) = self.renew_leases(&sessions, known).await? else {
                return Ok(Renewal::Lost(LossReason::Revoked));
            };
            let mut state = attempt.state();
            if !matches!(state.phase, Phase::Held(_)) {
                return Ok(Renewal::Lost(LossReason::Revoked));
            }
            // Where it was moved to meanwhile may end sooner.
            if state.sessions().all(|session| sessions.iter().any(|renewed| renewed.id == session.id)) {
                state.known_start = term.start;
                state.keep_until = state.keep_until.max(term.start.after(term.ttl));
                return Ok(Renewal::Renewed(Some(attempt.term_of(term))));
            }
        }
        Err(Error::unavailable("it is moved to another lease again and again"))
    }

    /// Renews every lease that a hold may hang on, the one that it was on last first; each was renewed since the term that began at
    /// `known`, or is now. Answers the term that ends first; `None`: the hold is lost.
    async fn renew_leases(self: &Arc<Self>, sessions: &[Arc<Session>], known: Moment) -> Result<Option<Term>> {
        let mut first: Option<Term> = None;
        for session in sessions {
            let renewed = match session.term() {
                term if term.start > known && !session.is_gone() => Some(term),
                _ => session.renewed_after(known).await?,
            };
            let Some(term) = renewed else {
                self.session_lost(session);
                return match first {
                    None => Ok(None),
                    // Whether the hold went with it is being looked for.
                    Some(_) => Err(Error::unavailable("a lease that it may hang on is gone")),
                };
            };
            let end = |term: &Term| term.start.after(term.ttl);
            first = Some(first.filter(|first| end(first) <= end(&term)).unwrap_or(term));
        }
        Ok(first)
    }

    /// Finds out what a hold hangs on. Its renewals do not wait for that: leases are kept alive also where nothing is written.
    fn settle_soon(self: &Arc<Self>, attempt: &Arc<Attempt>, length: Duration) {
        if attempt.making.try_lock().is_err() {
            // Somebody is at it.
            return;
        }
        let (engine, attempt) = (self.clone(), attempt.clone());
        self.run(async move {
            // Unanswered, it is tried again at the next renewal.
            let _ = engine.move_alone(&attempt, length).await;
        });
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
    /// is known again what it hangs on. False when the hold is gone.
    async fn move_to_longer(self: &Arc<Self>, attempt: Arc<Attempt>, ttl: Duration) -> Result<bool> {
        let engine = self.clone();
        // Whoever wants to renew or delete the key waits for it, and not for the caller to go on.
        self.apart(async move { engine.move_alone(&attempt, ttl).await }).await
    }

    async fn move_alone(self: &Arc<Self>, attempt: &Attempt, ttl: Duration) -> Result<bool> {
        // One after the other: an answer says what the key hangs on only as long as nobody else moves it.
        let _making = attempt.making.lock().await;
        let ttl = attempt.state().next_sessions.iter().map(|next| next.length()).fold(ttl, Duration::max);
        let longer = self.session(ttl).await?;
        loop {
            let (mark, from, in_doubt) = {
                let mut state = attempt.state();
                match state.phase {
                    Phase::Held(_) if !state.session.covers(ttl) => {}
                    Phase::Held(_) => return Ok(true),
                    _ => return Ok(false),
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
                        return Ok(false);
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

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use distlock_testkit::servers::EtcdServer;

    use super::*;
    use crate::backend::etcd::Etcd;
    use crate::backend::{Backend, Claimed};
    use crate::key::Key;
    use crate::owner::{OwnerId, Process, Record};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// An extension that is not answered: its hold may hang on either lease, and goes on with what both are good for.
    #[tokio::test]
    async fn a_hold_that_is_being_moved_is_renewed_without_waiting_for_that() {
        let server = EtcdServer::start();
        let etcd = Etcd::builder([server.address().to_string()]).build().unwrap();
        let engine = &etcd.engine;
        let record = Record::new(OwnerId::new("o").unwrap(), Process::current(), None, SystemTime::UNIX_EPOCH);
        let claim = Claim::new(Key::new("a").unwrap(), Duration::from_secs(60), true, Arc::new(record));
        let Ok(Claimed::Granted(grant)) = etcd.claim(&claim).await else { panic!("not granted") };
        let lease = Lease::new(claim.clone(), grant.token);
        let attempt = engine.attempts.get(claim.attempt).unwrap();
        let longer = engine.session(Duration::from_secs(90)).await.unwrap();
        attempt.state().next_sessions.push(longer.clone());
        let known = attempt.state().known_start;
        {
            let _moving = attempt.making.lock().await;
            let renewed = tokio::time::timeout(PATIENCE, engine.renew(std::slice::from_ref(&lease))).await;
            let renewed = renewed.expect("it waits for the move").pop().unwrap().unwrap();
            let Renewal::Renewed(Some(term)) = renewed else { panic!("{renewed:?}") };
            assert!(term.ttl == Duration::from_secs(60) && term.start > known, "{term:?}");
            assert!(longer.term().start > known, "it may hang on this one");
        }
        // One that is gone may have taken the hold along.
        longer.revoke(&engine.client).await.unwrap();
        longer.lose();
        let renewed = engine.renew(std::slice::from_ref(&lease)).await.pop().unwrap();
        assert!(renewed.is_err(), "{renewed:?}");
        // It has not, as is found out; meanwhile it may be moved once more.
        let renewed = async {
            loop {
                if let Ok(renewed) = engine.renew(std::slice::from_ref(&lease)).await.pop().unwrap() {
                    return renewed;
                }
            }
        };
        let renewed = tokio::time::timeout(PATIENCE, renewed).await.expect("it is never found out");
        assert!(matches!(renewed, Renewal::Renewed(_)), "{renewed:?}");
    }
}
