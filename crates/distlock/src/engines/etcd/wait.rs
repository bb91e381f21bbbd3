//! Waiting for a lock.
//!
//! Among the waiters of one client the reply to a release is enough: see `release.rs`. A waiter behind another client's
//! key is told by a watch, and reads the queue itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::AbortHandle;

use super::engine::Engine;
use super::protocol::queue;
use super::state::attempts::Attempt;
use super::state::effect::Wait;
use crate::contract::{Claim, Wake};
use crate::types::mode::Mode;

/// How long to wait for the reply to this client's own release when the watch was faster: the reply saves a request.
const RELEASE_REPLY_WAIT: Duration = Duration::from_millis(20);

/// A task that ends when its caller does.
struct Running(AbortHandle);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
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

impl Engine {
    /// Waits on the keeper's runtime, where the watch and the connection are: no other thread has to be woken between
    /// the end of one hold and the beginning of the next.
    pub(super) async fn wait(self: &Arc<Self>, claim: &Claim) -> Wake {
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
            let wait = attempt.state().wait();
            let Some(wait) = wait else { return Wake::Retry };
            if let Some(revision) = wait.first_at {
                return self.grant_at(attempt, revision).map_or(Wake::Retry, Wake::Granted);
            }
            if !wait.before.is_empty() {
                match self.wait_for_end(attempt, &wait, claim).await {
                    Told::Look => {}
                    Told::Again => continue,
                    Told::Nothing => return Wake::Retry,
                }
            }
            let seen = self.seen_revision.now();
            let view = queue::look(&self.client, attempt.lock(), attempt.mode(), attempt.key(), wait.created).await;
            let view = match view {
                Ok(view) => self.take_slot(attempt, claim, view).await,
                failed => failed,
            };
            match view {
                Ok(view) if self.seen_revision.check(seen, view.header).is_err() => return Wake::Retry,
                // The claim that follows is refused.
                Ok(view) if view.disagreement(attempt.lock(), attempt.asked()).is_some() => return Wake::Retry,
                Ok(view) if view.holds => {
                    return self.grant(attempt, &view).map_or(Wake::Retry, Wake::Granted);
                }
                Ok(view) if view.own.is_some() => {
                    self.queue_read(attempt, view);
                    // The holder may be of the same owner now.
                    if attempt.mode() == Mode::Reentrant {
                        return Wake::Retry;
                    }
                }
                // The claim that follows finds out what to do about it.
                Ok(_) | Err(_) => return Wake::Retry,
            }
        }
    }

    /// Waits until one of the keys before ours is gone, or may be.
    async fn wait_for_end(&self, attempt: &Attempt, wait: &Wait, claim: &Claim) -> Told {
        let Wait { before, revision, .. } = wait;
        let news = || if attempt.state().has_news() { Told::Again } else { Told::Look };
        if before.iter().any(|before| self.attempts.has_left(before)) {
            // The claim was on its way when that key was deleted, and was answered later.
            return news();
        }
        if before.iter().all(|before| self.attempts.is_own(before)) {
            // This client is the first to hear of its own keys and wakes us: no watch is needed.
            attempt.turn().notified().await;
            let is_leaving = before.iter().any(|before| self.attempts.is_leaving(before));
            if attempt.mode() == Mode::Exclusive && !attempt.state().is_first() && is_leaving {
                let _ = tokio::time::timeout(RELEASE_REPLY_WAIT, attempt.turn().notified()).await;
            }
            return news();
        }
        let mut sight = self.watches.watch(attempt.lock(), 0, self.clock.now());
        if before.iter().any(|before| self.watches.saw_deletion(attempt.lock(), before)) {
            return Told::Look;
        }
        if sight.misses(*revision) {
            // The watch began after the queue was read.
            return match self.unchanged(attempt, claim).await {
                Ok(Some(_)) => Told::Again,
                Ok(None) => Told::Look,
                Err(_) => Told::Nothing,
            };
        }
        tokio::select! {
            () = attempt.turn().notified() => {}
            () = sight.missed(*revision) => return Told::Again,
        }
        news()
    }
}
