//! From one holder to the next: waiting for one's turn, and handing the lock over.
//!
//! Among the waiters of one client the answer to a release is enough. It says that the holder's key is gone and, as of
//! the same revision, that the key right behind it is there: keys are only ever added at the end of a queue, so that one
//! is the first from then on. Whoever waits for the key of another client is told by a watch, and reads the queue itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use crate::contract::{Claim, Release, Wake};
use crate::engines::etcd::engine::Engine;
use crate::engines::etcd::error::{Failure, Fault};
use crate::engines::etcd::protocol::queue::{self, Leaver, Left};
use crate::engines::etcd::state::attempts::{Attempt, Phase, QueueKey};
use crate::types::error::Result;
use crate::types::mode::Mode;

/// How long to wait for the answer to our own release when the watch was faster: the answer saves a request.
const GRACE: Duration = Duration::from_millis(20);

/// A task that ends when nobody waits for it any more.
struct Running(AbortHandle);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Engine {
    /// Waits on the keeper's runtime, where the watch and the connection are: between the end of one hold and the
    /// beginning of the next there is no other thread to wake.
    pub(super) async fn wait(self: &Arc<Self>, claim: &Claim) -> Wake {
        match claim.mode() {
            Mode::Reentrant => self.wait_entry(claim).await,
            _ => self.wait_alone(claim).await,
        }
    }

    pub(super) async fn wait_alone(self: &Arc<Self>, claim: &Claim) -> Wake {
        let Some(attempt) = self.attempts.get(claim.attempt) else { return Wake::Retry };
        let (tell, told) = oneshot::channel();
        let (engine, claim) = (self.clone(), claim.clone());
        let waiting = self.run(async move {
            let _ = tell.send(engine.wait_for_turn(&attempt, &claim).await);
        });
        let _waiting = waiting.map(Running);
        told.await.unwrap_or(Wake::Retry)
    }

    async fn wait_for_turn(self: &Arc<Self>, attempt: &Attempt, claim: &Claim) -> Wake {
        loop {
            let (revision, created, before, first_at) = {
                let state = attempt.state();
                if state.phase != Phase::Waiting || state.created == 0 {
                    return Wake::Retry;
                }
                (state.revision, state.created, state.before.clone(), state.first_at)
            };
            if let Some(revision) = first_at {
                return self.grant_at(attempt, revision).map_or(Wake::Retry, Wake::Granted);
            }
            if !before.is_empty() {
                match self.wait_for_end(attempt, &before, revision, claim).await {
                    Told::Look => {}
                    Told::Again => continue,
                    Told::Nothing => return Wake::Retry,
                }
            }
            let seen_revision = self.seen_revision.now();
            let view = match queue::look(&self.client, &attempt.lock, attempt.mode, &attempt.key, created).await {
                Ok(view) => self.seat(attempt, claim, view).await,
                failed => failed,
            };
            match view {
                Ok(view) if self.seen_revision.check(seen_revision, view.header).is_err() => return Wake::Retry,
                Ok(view) if view.holds => {
                    return self.grant(attempt, &view).map_or(Wake::Retry, Wake::Granted);
                }
                Ok(view) if view.own.is_some() => {
                    self.note(attempt, view);
                    // Whoever has the lock now may be of the same owner.
                    if attempt.mode == Mode::Reentrant {
                        return Wake::Retry;
                    }
                }
                // The claim that follows finds out what to do about it.
                Ok(_) | Err(_) => return Wake::Retry,
            }
        }
    }

    /// Waits until one of the keys before ours is gone, as far as anybody tells.
    async fn wait_for_end(&self, attempt: &Attempt, before: &[QueueKey], revision: i64, claim: &Claim) -> Told {
        if before.iter().all(|before| self.attempts.is_own(before)) {
            // Whatever becomes of it, this client hears of it first and wakes us: no watch is needed for that.
            attempt.turn.notified().await;
            let is_leaving = before.iter().any(|before| self.attempts.is_leaving(before));
            if attempt.mode == Mode::Exclusive && attempt.state().first_at.is_none() && is_leaving {
                let _ = tokio::time::timeout(GRACE, attempt.turn.notified()).await;
            }
            let state = attempt.state();
            return if state.first_at.is_some() || state.phase != Phase::Waiting { Told::Again } else { Told::Look };
        }
        let mut sight = self.watches.watch(&attempt.lock, 0, self.clock.now());
        if before.iter().any(|before| self.watches.saw_deletion(&attempt.lock, before)) {
            return Told::Look;
        }
        if sight.misses(revision) {
            // The watch began after we looked.
            return match self.glance(attempt, claim).await {
                Ok(Some(_)) => Told::Again,
                Ok(None) => Told::Look,
                Err(_) => Told::Nothing,
            };
        }
        tokio::select! {
            () = attempt.turn.notified() => {}
            () = sight.missed(revision) => return Told::Again,
        }
        let state = attempt.state();
        if state.first_at.is_some() || state.phase != Phase::Waiting { Told::Again } else { Told::Look }
    }

    /// Releases on the keeper's runtime: the one who waits there goes on without a detour, also when the caller's future
    /// is dropped.
    pub(super) async fn release(self: &Arc<Self>, claim: &Claim) -> Result<Release> {
        match claim.mode() {
            Mode::Reentrant => self.release_entry(claim).await,
            _ => self.release_alone(claim).await,
        }
    }

    pub(super) async fn release_alone(self: &Arc<Self>, claim: &Claim) -> Result<Release> {
        let Some(attempt) = self.attempts.get(claim.attempt) else { return Ok(Release::NotOurs) };
        let engine = self.clone();
        Ok(self.apart(async move { engine.leave(&attempt).await }).await?)
    }

    async fn leave(self: &Arc<Self>, attempt: &Attempt) -> Result<Release, Failure> {
        let _made = attempt.making.lock().await;
        let (was_held, is_first, repeated) = {
            let mut state = attempt.state();
            if state.phase == Phase::Gone {
                return Ok(Release::NotOurs);
            }
            let repeated = matches!(state.phase, Phase::Leaving { .. });
            let was_held = matches!(state.phase, Phase::Held(_) | Phase::Leaving { was_held: true });
            state.phase = Phase::Leaving { was_held };
            // Only of one that has the lock for itself is it known that nobody was before it.
            let is_first = attempt.mode == Mode::Exclusive && (was_held || state.first_at.is_some());
            (was_held, is_first, repeated)
        };
        // Deleted by an earlier try, whose answer was lost: nobody else deletes a key while its lease is good.
        let outcome = |deleted: bool| {
            let by_us = deleted || (repeated && !attempt.state().session.is_gone());
            if was_held && by_us { Release::Released } else { Release::NotOurs }
        };
        if !self.attempts.has(attempt) {
            // The one before was answered, and another key may have its name by now.
            return Ok(outcome(false));
        }
        let mark = attempt.mark();
        let next = mark.as_ref().filter(|_| is_first);
        let next = next.and_then(|mark| self.attempts.next_after(mark, &attempt.lock));
        // A slot or an entry needs more than to be the first.
        let next = next.filter(|next| matches!(next.mode, Mode::Exclusive | Mode::Shared));
        let next = next.and_then(|next| Some((next.mark()?, next)));
        let seen_revision = self.seen_revision.now();
        let sent = self.send_leave(attempt, next.as_ref().map(|next| &*next.0.key)).await;
        let left = sent.inspect_err(|_| self.attempts.wake_behind(attempt))?;
        if let Some((mark, next)) = next
            && self.seen_revision.check(seen_revision, left.header).is_ok()
        {
            self.hand_over(&left, &mark, &next);
        }
        self.has_left(attempt, mark.is_some(), left.deleted);
        Ok(outcome(left.deleted))
    }

    /// Deletes the key of `attempt`, which is [being made](Attempt::making) by nobody else.
    pub(super) async fn send_leave(self: &Arc<Self>, attempt: &Attempt, next: Option<&[u8]>) -> Result<Left, Failure> {
        let (created, lease, moving) = {
            let state = attempt.state();
            let moving: Vec<_> = state.next_leases.iter().map(|session| session.id).collect();
            (state.created, state.session.id, moving)
        };
        let if_new = attempt.mode == Mode::Reentrant;
        let leaver = Leaver { lock: &attempt.lock, key: &attempt.key, created, lease: Some(lease), if_new };
        let note = |failure: &Failure| {
            if created == 0 && failure.fault == Fault::Unknown {
                // It may still come, and would delete the next key of this name: nobody knows when ours was made.
                attempt.state().name_is_taken = true;
            }
        };
        let mut left = queue::leave(self, leaver, next).await.inspect_err(note)?;
        // After the one that it is moved from, so that it cannot slip through in between.
        for lease in moving {
            if left.deleted {
                break;
            }
            left = queue::leave(self, Leaver { lease: Some(lease), ..leaver }, next).await.inspect_err(note)?;
        }
        Ok(left)
    }

    /// Gives the lock to the one right behind its last holder, if the answer to the release proves that its key is there.
    fn hand_over(&self, left: &Left, mark: &QueueKey, next: &Attempt) {
        let is_first = left.deleted && left.next == Some(mark.created);
        if is_first && next.set_first(mark.created, left.header.revision) {
            self.attempts.set_holder(next);
        }
    }

    /// The key of an attempt that is given up was deleted, or was not there.
    pub(super) fn has_left(&self, attempt: &Attempt, was_known: bool, deleted: bool) {
        let doubtful = {
            let mut state = attempt.state();
            // If it was a hold, somebody may have taken it over, with the name of the key.
            state.name_is_taken |= !deleted && state.phase == Phase::Leaving { was_held: true };
            if !was_known && deleted {
                state.doubts = state.doubts.saturating_sub(1);
            }
            if state.doubts > 0 {
                // A request that makes the key may still be on its way: housekeeping deletes it when it comes.
                let now = self.clock.now();
                state.created = 0;
                state.again.get_or_insert((now, now));
                state.session.retire();
            }
            state.doubts > 0
        };
        if doubtful {
            self.attempts.wake_behind(attempt);
        } else {
            self.attempts.remove(attempt);
        }
    }
}

/// What ended a wait for the key before ours.
enum Told {
    /// It is gone, or may be.
    Look,
    /// Something else has changed.
    Again,
    /// The server did not answer.
    Nothing,
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use distlock_testkit::servers::EtcdServer;

    use super::*;
    use crate::contract::{Backend, Claimed};
    use crate::engines::etcd::Etcd;
    use crate::types::key::Key;
    use crate::types::owner::{OwnerId, Process, Record};

    /// A release that is repeated waits for the one before. When that one has deleted the key, the next one spares who has a key
    /// of the same name by then, also if it is not known when ours was made.
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
        first.state().created = 0;
        assert_eq!(etcd.engine.leave(&first).await.unwrap(), Release::Released);
        let second = take(claim()).await;
        assert_eq!(second.key, first.key);
        assert_eq!(etcd.engine.leave(&first).await.unwrap(), Release::Released, "it was");
        etcd.engine.delete(&first).await;
        let (there, _) = queue::read(&etcd.engine.client, &second.key).await.unwrap();
        assert_eq!(there.map(|key| key.create_revision), Some(second.state().created));
    }
}
