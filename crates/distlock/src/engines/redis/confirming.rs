//! Whether a grant counts, and giving back one that does not.

use crate::contract::{Claim, Claimed, Wake};
use crate::engines::redis::names::Names;
use crate::engines::redis::pair::Pair;
use crate::engines::redis::release::{Released, release};
use crate::engines::redis::{Links, Redis};
use crate::types::error::{Error, ErrorKind, Result};

impl Redis {
    /// Returns `claimed`; a grant only when enough replicas have it, otherwise it is given back.
    pub(super) async fn confirm(&self, pair: &Pair, claimed: Claimed, claim: &Claim) -> Result<Claimed> {
        if let (Claimed::Granted(_), Some(replicas)) = (&claimed, &pair.replicas)
            && let Err(error) = replicas.confirm(&self.names(&claim.key)?, claim).await
        {
            return Err(self.give_back(std::slice::from_ref(claim), error).await);
        }
        Ok(claimed)
    }

    /// Waits until the replicas have all of them; otherwise none is kept.
    pub(super) async fn confirm_all(&self, pair: &Pair, names: &[Names], claims: &[Claim]) -> Result<()> {
        let Some(replicas) = &pair.replicas else { return Ok(()) };
        for (names, claim) in names.iter().zip(claims) {
            if let Err(error) = replicas.confirm(names, claim).await {
                return Err(self.give_back(claims, error).await);
            }
        }
        Ok(())
    }

    /// Whether a grant that came as a message counts.
    pub(super) async fn is_confirmed(&self, claim: &Claim) -> bool {
        if self.options.wait_replicas == 0 {
            return true;
        }
        let Ok(names) = self.names(&claim.key) else { return false };
        match self.links().servers.route(&names.lock).next().await {
            Ok((pair, _)) => match &pair.replicas {
                Some(replicas) => replicas.confirm(&names, claim).await.is_ok(),
                None => true,
            },
            Err(_) => false,
        }
    }

    /// Ends grants that do not count. Returns `error`, unless it is not known whether all of them are ended. In either case
    /// the releases may still be on their way, so the attempts are over.
    async fn give_back(&self, claims: &[Claim], error: Error) -> Error {
        let mut are_ended = true;
        for claim in claims {
            are_ended &= self.end(claim).await.is_ok();
        }
        let error = match are_ended {
            true if error.kind() != ErrorKind::Unknown => error,
            true => Error::unavailable(format!("{error}; the grant was given back")).with_source(error),
            false => Error::unknown(format!("{error}; it is not known whether it is given back")).with_source(error),
        };
        error.with_attempt_over()
    }

    /// Ends what the attempt has so far.
    pub(super) async fn end(&self, claim: &Claim) -> Result<Released> {
        let Links { servers, waiting, .. } = self.links();
        waiting.forget(claim.attempt);
        let released = release(servers, &self.names(&claim.key)?, claim.attempt).await?;
        // One of our own that only polls need not wait for its next look.
        if let Some(next) = released.next {
            waiting.wake(next);
        }
        Ok(released)
    }

    /// The last claim failed. Should the lock come to its place all the same, it is claimed at once.
    pub(super) async fn overhear(&self, claim: &Claim) -> Wake {
        let waiting = &self.links().waiting;
        loop {
            waiting.overhear(claim.attempt).await;
            match self.try_claim(claim).await {
                Ok((Claimed::Granted(grant), _)) if self.is_confirmed(claim).await => {
                    waiting.forget(claim.attempt);
                    return Wake::Granted(grant);
                }
                // A grant that is not confirmed is found again by the next claim, which gives it back if need be: only what
                // fails a claim can tell that the attempt is over.
                Ok(_) => return Wake::Retry,
                Err(_) => {}
            }
        }
    }
}
