//! Waiting for a grant or a reason to claim again.

use crate::contract::{Claim, Claimed, Wake};
use crate::engines::postgres::client::Client;
use crate::engines::postgres::state::waiting::Waiting;
use crate::types::token::AttemptId;

impl Client {
    pub(super) async fn wait(&self, claim: &Claim) -> Wake {
        match self.waiting.message(claim.attempt) {
            None => self.wait_after_failure(claim).await,
            Some(message) => {
                message.notified().await;
                let Some(grant) = self.waiting.take_grant(claim.attempt) else { return Wake::Retry };
                // There are probably others.
                self.contention.note(&self.name(&claim.key), self.clock.now());
                self.first_leases.begin(claim.attempt);
                Wake::Granted(grant)
            }
        }
    }

    /// Waits after a claim that failed. Should a message grant the lock all the same, it is claimed at once.
    async fn wait_after_failure(&self, claim: &Claim) -> Wake {
        loop {
            overhear(&self.waiting, claim.attempt).await;
            match self.try_claim(claim).await {
                Ok(Claimed::Granted(grant)) => {
                    self.waiting.forget(claim.attempt);
                    return Wake::Granted(grant);
                }
                Ok(Claimed::Busy(_)) => return Wake::Retry,
                Err(_) => {}
            }
        }
    }
}

/// Returns when `attempt`, whose last claim failed, was given the lock all the same.
async fn overhear(waiting: &Waiting, attempt: AttemptId) {
    waiting.enlist(attempt);
    let _enlisted = Enlisted(waiting, attempt);
    let Some(message) = waiting.message(attempt) else { return };
    while !waiting.is_handed(attempt) {
        message.notified().await;
    }
}

/// An attempt that is forgotten when this is dropped.
struct Enlisted<'a>(&'a Waiting, AttemptId);

impl Drop for Enlisted<'_> {
    fn drop(&mut self) {
        self.0.forget(self.1);
    }
}
