//! Waiting for a grant or a reason to claim again.

use crate::contract::{Claim, Claimed, Wake};
use crate::engines::postgres::client::Client;

impl Client {
    pub(super) async fn wait(&self, claim: &Claim) -> Wake {
        if !self.waiting.is_enlisted(claim.attempt) {
            return self.wait_after_failure(claim).await;
        }
        let Some(grant) = self.waiting.notified(claim.attempt).await else { return Wake::Retry };
        // There are probably others.
        self.contention.note(&self.name(&claim.key), self.clock.now());
        self.first_leases.begin(claim.attempt);
        Wake::Granted(grant)
    }

    /// Waits after a claim that failed. Should a message grant the lock all the same, it is claimed at once.
    async fn wait_after_failure(&self, claim: &Claim) -> Wake {
        loop {
            self.waiting.overhear(claim.attempt).await;
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
