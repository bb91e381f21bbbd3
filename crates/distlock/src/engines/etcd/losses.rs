//! What is lost without being given up: a lease that is gone, a key that somebody deleted or took over.

use std::sync::Arc;

use crate::engines::etcd::engine::Engine;
use crate::engines::etcd::housekeeping::AGAIN;
use crate::engines::etcd::protocol::queue;
use crate::engines::etcd::shared_lease::SharedLease;
use crate::engines::etcd::state::attempts::{Attempt, Phase};
use crate::types::event::LossReason;
use crate::types::token::AttemptId;

impl Engine {
    /// A lease is gone, and with it every key that hung on it: all are told at once.
    pub(super) fn lease_lost(self: &Arc<Self>, session: &SharedLease) {
        session.lose();
        self.leases.forget(session);
        self.attempts_lost(session);
        self.entries_lost(session);
    }

    pub(super) fn attempts_lost(self: &Arc<Self>, session: &SharedLease) {
        for attempt in self.attempts.all() {
            let (hung_on_it, was_to_move, may_be_left) = {
                let mut state = attempt.state();
                let others = state.next_leases.len();
                state.next_leases.retain(|next| next.id != session.id);
                let left = state.next_leases.len();
                (state.session.id == session.id, left < others, left > 0)
            };
            match () {
                () if hung_on_it && may_be_left => self.give_up(&attempt),
                () if hung_on_it => self.key_lost(&attempt),
                // It may have hung on that one, or not yet.
                () if was_to_move => {
                    attempt.state().in_question = true;
                    self.look_for(&attempt);
                }
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
    pub(super) fn key_lost(self: &Arc<Self>, attempt: &Attempt) {
        self.key_lost_to(attempt, LossReason::Revoked);
    }

    pub(super) fn key_lost_to(self: &Arc<Self>, attempt: &Attempt, reason: LossReason) {
        let phase = std::mem::replace(&mut attempt.state().phase, Phase::Gone);
        self.attempts.remove(attempt);
        self.delete_late(attempt);
        match phase {
            Phase::Held(_) => self.tell_loss(attempt.id, reason),
            Phase::Waiting => attempt.turn.notify_one(),
            Phase::Leaving { .. } | Phase::Gone => {}
        }
    }

    /// A request that was not answered may still make the key of an attempt that is forgotten: deletes it when it comes. No
    /// other attempt is given its name.
    fn delete_late(self: &Arc<Self>, attempt: &Attempt) {
        let (doubts, created, session) = {
            let state = attempt.state();
            (state.doubts, state.created, state.session.clone())
        };
        if doubts == 0 || session.is_gone() {
            return;
        }
        // What comes later than that goes with the lease.
        session.retire();
        let (engine, key) = (self.clone(), attempt.key.clone());
        self.run(async move {
            for pause in AGAIN {
                engine.clock.sleep_until(engine.clock.now().after(pause)).await;
                // Whatever comes of it: there may be several such requests.
                let _ = queue::delete_late(&engine.client, &key, created, session.id).await;
            }
        });
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use distlock_testkit::servers::EtcdServer;

    use super::*;
    use crate::contract::{Backend, Claim, Claimed};
    use crate::engines::etcd::Etcd;
    use crate::engines::etcd::protocol::messages::{DeleteRangeRequest, PutRequest, Request, TxnRequest};
    use crate::types::clock::Clock;
    use crate::types::key::Key;
    use crate::types::owner::{OwnerId, Process, Record};

    async fn send(engine: &Engine, request: Request) {
        let request = TxnRequest { success: vec![request.into()], ..TxnRequest::default() };
        queue::txn(&engine.client, request).await.unwrap();
    }

    /// Somebody deletes the key of a hold, of which a second request to make it was never answered, and may still come.
    #[tokio::test]
    async fn a_key_that_comes_after_its_hold_was_lost_is_deleted() {
        let server = EtcdServer::start();
        let (clock, time) = Clock::manual();
        let mut etcd = Etcd::builder([server.address().to_string()]).build().unwrap();
        Arc::get_mut(&mut etcd.engine).unwrap().clock = clock;
        let engine = &etcd.engine;
        let record = Record::new(OwnerId::new("o").unwrap(), Process::current(), None, SystemTime::UNIX_EPOCH);
        // So long that no lease is due in a test, however far it moves the clock.
        let (ttl, record) = (Duration::from_secs(30 * 24 * 60 * 60), Arc::new(record));
        let claim = Claim::new(Key::new("a").unwrap(), ttl, true, record.clone());
        // Another hold keeps the lease alive.
        for claim in [&claim, &Claim::new(Key::new("b").unwrap(), ttl, true, record)] {
            assert!(matches!(etcd.claim(claim).await, Ok(Claimed::Granted(_))));
        }
        let attempt = engine.attempts.get(claim.attempt).unwrap();
        let key = attempt.key.clone();
        let (created, lease) = {
            let mut state = attempt.state();
            state.doubts = 1;
            (state.created, state.session.id)
        };
        // While it is there, it is the hold's, or somebody's who has taken it over on the same lease.
        queue::delete_late(&engine.client, &key, created, lease).await.unwrap();
        assert!(queue::read(&engine.client, &key).await.unwrap().0.is_some(), "it was made by the claim");
        send(engine, Request::DeleteRange(DeleteRangeRequest { key: key.clone() })).await;
        engine.key_lost(&attempt);
        let late = PutRequest { key: key.clone(), lease, ..PutRequest::default() };
        send(engine, Request::Put(late)).await;
        let mut looks = 0;
        while queue::read(&engine.client, &key).await.unwrap().0.is_some() {
            looks += 1;
            assert!(looks < 500, "it stays");
            time.advance(AGAIN[0]);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
