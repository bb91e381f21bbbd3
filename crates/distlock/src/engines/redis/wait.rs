//! Waiting for a grant or a reason to claim again.

use crate::contract::{Claim, Claimed, Wake};
use crate::engines::redis::client::Client;

impl Client {
    pub(super) async fn wait(&self, claim: &Claim) -> Wake {
        if !self.waiting.is_enlisted(claim.attempt) {
            // Boxed: this is rare, and its future is large.
            return Box::pin(self.wait_after_failure(claim)).await;
        }
        match self.waiting.notified(claim.attempt).await {
            Some(grant) if self.is_confirmed(claim).await => {
                // Others wait perhaps: its release goes to the full script at once.
                if let Ok(names) = self.names(&claim.key) {
                    self.contention.note(&names.lock, self.clock.now());
                }
                Wake::Granted(grant)
            }
            // The next claim finds a grant that is not confirmed, and confirms it or gives it back.
            _ => Wake::Retry,
        }
    }

    /// Waits after a claim that failed. Should a message grant the lock all the same, it is claimed at once.
    async fn wait_after_failure(&self, claim: &Claim) -> Wake {
        loop {
            self.waiting.overhear(claim.attempt).await;
            match self.try_claim(claim).await {
                Ok((Claimed::Granted(grant), _)) if self.is_confirmed(claim).await => {
                    self.waiting.forget(claim.attempt);
                    return Wake::Granted(grant);
                }
                // The next claim finds a grant that is not confirmed, and gives it back if need be: only a claim that
                // fails can tell that the attempt is over.
                Ok(_) => return Wake::Retry,
                Err(_) => {}
            }
        }
    }

    /// Returns whether a grant that came as a message counts.
    async fn is_confirmed(&self, claim: &Claim) -> bool {
        // Boxed: most engines do not wait for replicas.
        self.options.wait_replicas == 0 || Box::pin(self.replicas_have(claim)).await
    }

    async fn replicas_have(&self, claim: &Claim) -> bool {
        let Ok(names) = self.names(&claim.key) else { return false };
        match self.servers.server_of(&names.lock).await {
            Ok(server) => match &server.replicas {
                Some(replicas) => replicas.confirm(&names, claim).await.is_ok(),
                None => true,
            },
            Err(_) => false,
        }
    }
}
