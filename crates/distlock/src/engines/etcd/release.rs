//! Releases, and the handoff to the next waiter of this client.
//!
//! The reply to a release says that the holder's key is gone and, as of the same revision, that the key right behind it
//! is there. Keys are only ever added at the end of a queue, so that key is the first from then on: its waiter needs no
//! further request.

use std::sync::Arc;

use super::engine::Engine;
use super::error::{Failure, Fault};
use super::protocol::queue::{self, Deletion, KeyToDelete};
use super::protocol::queue_key::QueueKey;
use super::state::attempts::Attempt;
use super::state::effect::AfterDeletion;
use super::state::phase::Leaving;
use crate::contract::{Claim, Release};
use crate::types::error::Result;
use crate::types::mode::Mode;

impl Engine {
    /// Releases on the keeper's runtime: the next waiter goes on there, also when the caller's future is dropped.
    pub(super) async fn release(self: &Arc<Self>, claim: &Claim) -> Result<Release> {
        let Some(attempt) = self.attempts.get(claim.attempt) else { return Ok(Release::NotOurs) };
        let engine = self.clone();
        Ok(self.finish(async move { engine.leave(&attempt).await }).await?)
    }

    async fn leave(&self, attempt: &Attempt) -> Result<Release, Failure> {
        let _made = attempt.making().lock().await;
        let (Leaving { was_held, repeated }, is_first) = {
            let mut state = attempt.state();
            let Some(leaving) = state.leave() else { return Ok(Release::NotOurs) };
            // Only an exclusive holder is known to have no key before its own.
            (leaving, attempt.mode() == Mode::Exclusive && (leaving.was_held || state.is_first()))
        };
        // An earlier release whose reply was lost has deleted it: no other client deletes a key while its lease is
        // good.
        let outcome = |deleted: bool| {
            let by_us = deleted || (repeated && !attempt.lease().is_gone());
            if was_held && by_us { Release::Released } else { Release::NotOurs }
        };
        if !self.attempts.has(attempt) {
            // The earlier release was answered, and another key may have the name by now.
            return Ok(outcome(false));
        }
        let own = attempt.own_key();
        let next = own.as_ref().filter(|_| is_first);
        let next = next.and_then(|own| self.attempts.next_after(own, attempt.lock()));
        // A slot or an entry needs more than to be the first.
        let next = next.filter(|next| matches!(next.mode(), Mode::Exclusive | Mode::Shared));
        let next = next.and_then(|next| Some((next.own_key()?, next)));
        let seen = self.seen_revision.now();
        let sent = self.delete_key(attempt, next.as_ref().map(|next| &*next.0.key)).await;
        let deletion = sent.inspect_err(|_| self.attempts.wake_behind(attempt))?;
        if let Some((key, next)) = next
            && self.seen_revision.check(seen, deletion.header).is_ok()
        {
            self.hand_over(&deletion, &key, &next);
        }
        self.has_left(attempt, own.is_some(), deletion.deleted);
        Ok(outcome(deletion.deleted))
    }

    /// Deletes the key of `attempt`, whose [making](Attempt::making) the caller has locked. Reads the key `next` with
    /// it.
    async fn delete_key(&self, attempt: &Attempt, next: Option<&[u8]>) -> Result<Deletion, Failure> {
        let to_delete = attempt.state().to_delete();
        let created = to_delete.created;
        let if_new = attempt.mode() == Mode::Reentrant;
        let key =
            KeyToDelete { lock: attempt.lock(), key: attempt.key(), created, lease: Some(to_delete.lease), if_new };
        let note = |failure: &Failure| {
            if failure.fault == Fault::Unknown {
                attempt.state().deletion_unanswered(created);
            }
        };
        let mut deletion = queue::delete(&self.batcher, key, next).await.inspect_err(note)?;
        // After the lease that it is moved from, so that the key cannot slip through in between.
        for lease in to_delete.moving_to {
            if deletion.deleted {
                break;
            }
            let key = KeyToDelete { lease: Some(lease), ..key };
            deletion = queue::delete(&self.batcher, key, next).await.inspect_err(note)?;
        }
        Ok(deletion)
    }

    /// Hands the lock to the waiter right behind its last holder, if the reply to the release proves that its key is
    /// there.
    fn hand_over(&self, deletion: &Deletion, key: &QueueKey, next: &Attempt) {
        let is_first = deletion.deleted && deletion.next == Some(key.created);
        if is_first && next.handed_over(key.created, deletion.header.revision) {
            self.attempts.set_holder(next);
        }
    }

    /// A release was answered: the key was deleted, or was not there.
    fn has_left(&self, attempt: &Attempt, was_known: bool, deleted: bool) {
        let after = {
            let mut state = attempt.state();
            let after = state.left(was_known, deleted, self.clock.now());
            if after == AfterDeletion::DeleteAgain {
                state.lease().retire();
            }
            after
        };
        match after {
            AfterDeletion::Forget => self.attempts.remove(attempt),
            AfterDeletion::DeleteAgain => self.attempts.wake_behind(attempt),
        }
    }

    /// Deletes the key of an attempt whose time is over.
    pub(super) async fn delete(&self, attempt: &Attempt) {
        // The earlier deletion is still on its way.
        let Ok(_alone) = attempt.making().try_lock() else { return };
        if !self.attempts.has(attempt) {
            // The earlier deletion is done, and another key may have the name by now.
            return;
        }
        let was_known = attempt.own_key().is_some();
        if let Ok(deletion) = self.delete_key(attempt, None).await {
            self.has_left(attempt, was_known, deletion.deleted);
        }
    }
}
#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use distlock_testkit::servers::EtcdServer;

    use super::*;
    use crate::contract::{Backend, Claimed};
    use crate::engines::etcd::Etcd;
    use crate::types::key::Key;
    use crate::types::owner::{OwnerId, Process, Record};

    /// A release that is repeated waits for the one before. When that one has deleted the key, the next one spares the
    /// attempt that has a key of the same name by then, also if it is not known when ours was made.
    #[tokio::test]
    async fn a_key_is_deleted_once_however_often_it_is_asked_for() {
        let server = EtcdServer::start();
        let etcd = Etcd::builder([server.address().to_string()]).build().unwrap();
        let record = Record::new(OwnerId::new("o").unwrap(), Process::current(), None, SystemTime::UNIX_EPOCH);
        let record = Arc::new(record);
        let claim = || Claim::new(Key::new("a").unwrap(), Duration::from_secs(60), false, record.clone());
        let take = async |claim: Claim| {
            assert!(matches!(etcd.claim(&claim).await, Ok(Claimed::Granted(_))));
            etcd.engine.attempts.get(claim.attempt).unwrap()
        };
        let first = take(claim()).await;
        first.state().made(None, false);
        assert_eq!(etcd.engine.leave(&first).await.unwrap(), Release::Released);
        let second = take(claim()).await;
        assert_eq!(second.key(), first.key());
        assert_eq!(etcd.engine.leave(&first).await.unwrap(), Release::Released, "it was");
        etcd.engine.delete(&first).await;
        let (there, _) = queue::read(&etcd.engine.client, second.key()).await.unwrap();
        assert_eq!(there.map(|key| key.create_revision), Some(second.state().created()));
    }
}
