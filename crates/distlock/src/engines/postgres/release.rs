//! Releases, of holds and of places in the queue.

use crate::contract::{Claim, Release};
use crate::engines::postgres::client::Client;
use crate::engines::postgres::protocol::requests::ReleaseItem;
use crate::engines::postgres::state::sending::Progress;
use crate::types::error::Result;

impl Client {
    pub(super) async fn release(&self, claim: &Claim) -> Result<Release> {
        self.waiting.forget(claim.attempt);
        self.first_leases.end(claim.attempt);
        let name = self.name(&claim.key);
        let is_lean = self.is_lean(claim, &name);
        let item = ReleaseItem { name, attempt: claim.attempt.to_string(), is_lean };
        let released = self.releases.request(item, &Progress::default()).await?;
        // A waiter of this process that only polls need not wait for its next poll.
        if let Some(next) = released.next {
            self.waiting.wake(next);
        }
        self.late_claims.released(claim.attempt, released.over, self.clock.now());
        Ok(released.outcome)
    }
}
