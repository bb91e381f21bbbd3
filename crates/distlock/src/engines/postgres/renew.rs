//! Renewals of holds.

use std::time::Duration;

use crate::contract::{Lease, Renewal, Term};
use crate::engines::postgres::client::Client;
use crate::engines::postgres::protocol::requests::RenewItem;
use crate::engines::postgres::protocol::time::millis;
use crate::types::clock::Moment;
use crate::types::error::{Error, Result};
use crate::types::event::LossReason;

impl Client {
    /// Renews leases. Returns one result for each, in their order.
    pub(super) async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let item = |lease: &Lease| RenewItem {
            name: self.name(&lease.claim.key),
            attempt: lease.claim.attempt.to_string(),
            lease_ms: millis(lease.claim.lease()),
        };
        let is_urgent = self.first_leases.have_any(leases.iter().map(|lease| lease.claim.attempt));
        match self.renewals.renew(leases.iter().map(item).collect(), is_urgent).await {
            Ok((start, are_renewed)) => {
                leases.iter().for_each(|lease| self.first_leases.end(lease.claim.attempt));
                let ttls = leases.iter().map(|lease| lease.claim.ttl);
                ttls.zip(are_renewed).map(|(ttl, is_renewed)| Ok(renewal(start, ttl, is_renewed))).collect()
            }
            Err(error) => leases.iter().map(|_| Err(Error::new(error.kind(), error.to_string()))).collect(),
        }
    }
}

fn renewal(start: Moment, ttl: Duration, is_renewed: bool) -> Renewal {
    match is_renewed {
        true => Renewal::Renewed(Some(Term { start, ttl })),
        false => Renewal::Lost(LossReason::Revoked),
    }
}
