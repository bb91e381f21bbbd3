//! Releases, and the handoff to the next waiter of this client.
//!
//! The reply to a release says that the holder's key is gone and, as of the same revision, that the key right behind it
//! is there. Keys are only ever added at the end of a queue, so that key is the first from then on: its waiter needs no
//! further request.

use std::sync::Arc;

use super::engine::Engine;
use super::error::{Failure, Fault};
use super::protocol::queue::{self, Deletion, KeyToDelete, Read};
use super::protocol::queue_key::QueueKey;
use super::state::attempts::Attempt;
use super::state::effect::AfterDeletion;
use super::state::phase::Leaving;
use crate::contract::{Claim, Release};
use crate::types::error::Result;
use crate::types::mode::Mode;

impl Engine {
    /// Releases also when the caller's future is dropped; on the keeper's runtime where a waiter of this client may be
    /// next, which goes on there.
    pub(super) async fn release(self: &Arc<Self>, claim: &Claim) -> Result<Release> {
        let Some(attempt) = self.attempts.get(claim.attempt) else { return Ok(Release::NotOurs) };
        // The core repeats a release that ends with the caller's runtime. By name alone it must not be repeated.
        let is_alone = self.is_alone(&attempt) && attempt.state().created() != 0;
        let engine = self.clone();
        Ok(self.finish_near(is_alone, async move { engine.leave(&attempt).await }).await?)
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
        let next = own.as_ref().filter(|_| is_first).and_then(|own| self.next_after(own, attempt));
        let read = match &next {
            Some(next) => Read::Key(&next.key),
            // The claim of a waiter may be on its way.
            None if is_first && self.attempts.has_company(attempt) => Read::First,
            None => Read::Nothing,
        };
        let seen = self.seen_revision.now();
        let sent = self.delete_key(attempt, read).await;
        let deletion = sent.inspect_err(|_| self.attempts.wake_behind(attempt))?;
        if self.seen_revision.check(seen, deletion.header).is_ok() {
            self.hand_over(&deletion, attempt.lock(), next.as_ref());
        }
        let outcome = outcome(deletion.deleted);
        self.has_left(attempt, own, deletion.deleted);
        Ok(outcome)
    }

    /// Returns the key of the waiter of this client right behind `own`, which needs no more than to be the first. A slot or
    /// an entry needs more.
    fn next_after(&self, own: &QueueKey, attempt: &Attempt) -> Option<QueueKey> {
        let next = self.attempts.next_after(own, attempt.lock())?;
        matches!(next.mode(), Mode::Exclusive | Mode::Shared).then(|| next.own_key())?
    }

    /// Deletes the key of `attempt`, whose [making](Attempt::making) the caller has locked, and does `read` with it.
    async fn delete_key(&self, attempt: &Attempt, read: Read<'_>) -> Result<Deletion, Failure> {
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
        let mut deletion = queue::delete(&self.batcher, key, read).await.inspect_err(note)?;
        // After the lease that it is moved from, so that the key cannot slip through in between.
        for lease in to_delete.moving_to {
            if deletion.deleted {
                break;
            }
            let key = KeyToDelete { lease: Some(lease), ..key };
            deletion = queue::delete(&self.batcher, key, read).await.inspect_err(note)?;
        }
        Ok(deletion)
    }

    /// Hands the lock to the waiter whose key the reply to the release shows to be the first: the key `asked` that was
    /// right behind the released one, or where that was not known whichever is the first now.
    fn hand_over(&self, deletion: &Deletion, lock: &[u8], asked: Option<&QueueKey>) {
        let shown = deletion.next.as_ref().filter(|shown| asked.is_none_or(|asked| asked == *shown));
        let Some(first) = shown.filter(|_| deletion.deleted) else { return };
        let Some(next) = self.attempts.owner_of(&first.key) else { return };
        let fits = next.lock() == lock && matches!(next.mode(), Mode::Exclusive | Mode::Shared);
        if fits && next.handed_over(first.created, deletion.header.revision) {
            self.attempts.set_holder(&next);
        }
    }

    /// A release was answered: the key was deleted, or was not there.
    fn has_left(&self, attempt: &Attempt, own: Option<QueueKey>, deleted: bool) -> AfterDeletion {
        let was_known = own.is_some();
        if let Some(own) = own.filter(|_| deleted) {
            self.attempts.remember_left(own);
        }
        let after = {
            let mut state = attempt.state();
            let after = state.left(was_known, deleted, self.clock.now());
            if after == AfterDeletion::Late {
                state.lease().retire();
            }
            after
        };
        match after {
            AfterDeletion::Forget => self.attempts.remove(attempt),
            AfterDeletion::Late => self.attempts.wake_behind(attempt),
        }
        after
    }

    /// Deletes the key of an attempt whose time is over, which the core does not ask for any more.
    pub(super) async fn delete(self: &Arc<Self>, attempt: &Attempt) {
        // The earlier deletion is still on its way.
        let Ok(_alone) = attempt.making().try_lock() else { return };
        if !self.attempts.has(attempt) {
            // The earlier deletion is done, and another key may have the name by now.
            return;
        }
        let own = attempt.own_key();
        if let Ok(deletion) = self.delete_key(attempt, Read::Nothing).await
            && self.has_left(attempt, own, deletion.deleted) == AfterDeletion::Late
        {
            self.attempts.remove(attempt);
            self.delete_late(attempt, 0);
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
