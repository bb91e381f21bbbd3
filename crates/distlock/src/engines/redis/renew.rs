//! Renewals of holds.

use crate::contract::{Lease, Renewal};
use crate::engines::redis::client::Client;
use crate::engines::redis::wire::renewals::Item;
use crate::types::error::{Error, Result};

impl Client {
    /// Renews leases. Returns one result for each, in their order.
    pub(super) async fn renew(&self, leases: &[Lease]) -> Vec<Result<Renewal>> {
        let item = |lease: &Lease| Ok(Item::new(self.names(&lease.claim.key)?, lease));
        let items: Result<Vec<_>> = leases.iter().map(item).collect();
        self.note_leases(leases.iter().map(|lease| &lease.claim));
        match items {
            Ok(items) => self.renewals.renew(items).await,
            Err(error) => leases.iter().map(|_| Err(Error::new(error.kind(), error.to_string()))).collect(),
        }
    }
}
