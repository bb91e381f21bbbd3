//! Leases for attempts: asked for once, kept alive while an attempt needs them, renewed before a key is hung on them.

use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use super::shared_lease::{self, SharedLease};
use crate::contract::Claim;
use crate::types::error::{Error, Result};

impl Engine {
    /// Returns a lease for a lock that asks for `ttl`.
    pub(super) async fn lease_for(self: &Arc<Self>, ttl: Duration) -> Result<Arc<SharedLease>> {
        // In the background: other callers wait for the same lease when the first one's future is dropped.
        let begin = |tell| {
            let engine = self.clone();
            self.run(async move {
                if let Ok(lease) = engine.leases.open(ttl, tell, &engine.client, &engine.clock).await {
                    engine.keep(&lease).await;
                }
            });
        };
        Ok(self.leases.get(ttl, &self.clock, begin).await?)
    }

    /// Returns a lease for a hold that is taken over, or for an entry.
    pub(super) async fn fresh_lease(self: &Arc<Self>, claim: &Claim) -> Result<Arc<SharedLease>> {
        let lease = self.lease_for(claim.lease()).await?;
        match self.freshen(&lease).await? {
            true => Ok(lease),
            false => self.lease_for(claim.lease()).await,
        }
    }

    /// Renews a lease whose renewal is overdue: no key is hung on one that is about to end. Returns whether it is
    /// there.
    pub(super) async fn freshen(self: &Arc<Self>, lease: &SharedLease) -> Result<bool> {
        let term = lease.term();
        if self.clock.now() < term.start.after(term.ttl / 2) {
            return Ok(true);
        }
        match lease.renewed_after(term.start).await {
            Ok(Some(_)) => Ok(true),
            Ok(None) => {
                self.lease_lost(lease);
                Ok(false)
            }
            Err(error) => Err(Error::unavailable("the lease cannot be renewed").with_source(error)),
        }
    }

    /// Keeps a lease until no attempt needs it, or it is gone.
    async fn keep(self: &Arc<Self>, lease: &SharedLease) {
        let is_needed = || self.needs(lease.id);
        let is_idle = shared_lease::keep(lease, &self.leases, &self.client, &self.clock, is_needed).await;
        // An attempt that came to count on it in this moment is told before it ends.
        self.lease_lost(lease);
        if is_idle {
            // Unanswered, it ends by itself.
            let _ = lease.revoke(&self.client).await;
        }
    }
}
