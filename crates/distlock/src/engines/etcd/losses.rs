//! Losses: a lease that is gone, a key that another client deleted or took over.

use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::protocol::{queue, value};
use super::shared_lease::SharedLease;
use super::state::attempts::Attempt;
use super::state::effect::{LeaseGone, SawDeletion};
use super::state::entry::{Entry, EntryDeletion};
use crate::types::event::LossReason;

/// The pauses after which a key is deleted again that a late request may still make.
pub(super) const LATE_KEY_PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(15), Duration::from_secs(40)];

impl Engine {
    /// A lease is gone, and with it every key that hung on it: all holders are told at once.
    pub(super) fn lease_lost(self: &Arc<Self>, lease: &SharedLease) {
        lease.lose();
        self.leases.forget(lease);
        self.attempts_lost(lease);
        // The lease of this process carries its entries.
        for entry in self.entries.all().into_iter().filter(|entry| entry.own().id == lease.id) {
            self.entry_lost(&entry, LossReason::Revoked);
        }
    }

    /// A lease is gone: acts on the attempts whose keys may have hung on it.
    pub(super) fn attempts_lost(self: &Arc<Self>, lease: &SharedLease) {
        let now = self.clock.now();
        for (attempt, what) in self.attempts.lease_gone(lease.id, now) {
            self.attempts.look_again(&attempt, now);
            match what {
                LeaseGone::Untouched | LeaseGone::GivenUp { tell: false } => {}
                LeaseGone::GivenUp { tell: true } => self.tell_loss(attempt.id(), LossReason::Revoked),
                LeaseGone::KeyLost => self.key_lost(&attempt),
                LeaseGone::Look => self.look_for(&attempt),
            }
        }
        self.attempts.forget_lease(lease.id);
    }

    /// The key of an attempt is gone, with its lease or because another client deleted it.
    pub(super) fn key_lost(self: &Arc<Self>, attempt: &Attempt) {
        self.key_lost_to(attempt, LossReason::Revoked);
    }

    fn key_lost_to(self: &Arc<Self>, attempt: &Attempt, reason: LossReason) {
        let lost = attempt.state().lost();
        self.attempts.remove(attempt);
        if let Some(created) = lost.delete_after {
            self.delete_late(attempt, created);
        }
        if lost.tell {
            self.tell_loss(attempt.id(), reason);
        }
        if lost.wake {
            attempt.turn().notify_one();
        }
    }

    /// An unanswered request may still make the key of a forgotten attempt: deletes one that is made after `created`.
    /// No other attempt gets its name. The core does not know the attempt any more, or has been told that it is lost, so
    /// its keeper does not repeat the release.
    pub(super) fn delete_late(self: &Arc<Self>, attempt: &Attempt, created: i64) {
        let lease = attempt.lease();
        if lease.is_gone() {
            return;
        }
        // A key that comes even later goes with the lease.
        lease.retire();
        let (engine, key) = (self.clone(), attempt.key().to_vec());
        self.run(async move {
            for pause in LATE_KEY_PAUSES {
                engine.clock.sleep_until(engine.clock.now().after(pause)).await;
                // Whatever the outcome: there may be several such requests.
                let _ = queue::delete_late(&engine.client, &key, created, lease.id).await;
            }
        });
    }

    /// A watch saw that a key was deleted.
    pub(super) fn saw_deletion(self: &Arc<Self>, key: &[u8], revision: i64) {
        for (entry, meaning) in self.entries.saw_deletion(key, revision) {
            self.entry_deleted(&entry, meaning, revision);
        }
        let Some(attempt) = self.attempts.deleted(key, revision) else { return };
        let meaning = attempt.state().saw_deletion(revision);
        match meaning {
            SawDeletion::Nothing => {}
            SawDeletion::KeyLost => self.key_lost(&attempt),
            SawDeletion::FindReason { created } => {
                let engine = self.clone();
                self.run(async move {
                    let broken = queue::was_broken(&engine.client, attempt.key(), created, revision).await;
                    engine.key_lost_to(&attempt, if broken { LossReason::Broken } else { LossReason::Revoked });
                });
            }
        }
    }

    fn entry_deleted(self: &Arc<Self>, entry: &Arc<Entry>, meaning: EntryDeletion, revision: i64) {
        match meaning {
            EntryDeletion::Nothing => {}
            EntryDeletion::TakenOver => self.entry_lost(entry, LossReason::Adopted),
            EntryDeletion::HeadGone => self.entry_lost(entry, LossReason::Revoked),
            EntryDeletion::FindReason => {
                let (engine, entry) = (self.clone(), entry.clone());
                self.run(async move {
                    let head = entry.head();
                    let broken = queue::was_broken(&engine.client, &head.key, head.created, revision).await;
                    engine.entry_lost(&entry, if broken { LossReason::Broken } else { LossReason::Revoked });
                });
            }
        }
    }

    /// A watch saw that the key of a hold was written.
    pub(super) fn saw_write(self: &Arc<Self>, key: &[u8], revision: i64) {
        let Some(attempt) = self.attempts.owner_of(key) else { return };
        if attempt.state().saw_write(revision) {
            let engine = self.clone();
            self.run(async move { engine.look_who_wrote(&attempt, Some(revision)).await });
        }
    }

    /// A watch may have missed the end of a hold: looks whether its key is there, and its own.
    pub(super) fn look_for(self: &Arc<Self>, attempt: &Arc<Attempt>) {
        let (engine, attempt) = (self.clone(), attempt.clone());
        self.run(async move { engine.look_who_wrote(&attempt, None).await });
    }

    /// A watch saw that a key was written, at the revision `written`, or may have missed it. If another attempt wrote
    /// it, that attempt has the hold.
    pub(super) async fn look_who_wrote(self: &Arc<Self>, attempt: &Attempt, written: Option<i64>) {
        let created = attempt.state().created();
        match queue::read(&self.client, attempt.key()).await {
            Ok((Some(key), revision)) if key.create_revision == created => {
                match value::read(&key.value).map(|value| value.is_of(attempt.id())) {
                    Some(true) => attempt.state().found_own_value(revision),
                    // A value written by hand does not take a hold over, and does not end it.
                    None => attempt.state().found_foreign_value(revision),
                    Some(false) => self.taken_by_another(attempt),
                }
            }
            // A forced release writes a mark into the key before it deletes it.
            Ok(_) => {
                let broken = match written {
                    Some(written) => queue::was_broken(&self.client, attempt.key(), created, written + 1).await,
                    None => false,
                };
                self.key_lost_to(attempt, if broken { LossReason::Broken } else { LossReason::Revoked });
            }
            // Asked again at the next tick.
            Err(_) => {}
        }
    }

    /// The hold goes on as that of another attempt.
    pub(super) fn taken_by_another(self: &Arc<Self>, attempt: &Attempt) {
        attempt.state().taken_by_another();
        self.key_lost_to(attempt, LossReason::Adopted);
    }
}
#[cfg(test)]
mod tests {
    use std::time::SystemTime;

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
        engine.client.txn(request).await.unwrap();
    }

    /// Another client deletes the key of a hold, and a second request to make it, never answered, may still come.
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
        let key = attempt.key().to_vec();
        let (created, lease) = {
            let mut state = attempt.state();
            state.unanswered();
            (state.created(), state.lease().id)
        };
        // While it is there, it is the hold's, or that of an attempt that took it over on the same lease.
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
            time.jump(LATE_KEY_PAUSES[0]);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
