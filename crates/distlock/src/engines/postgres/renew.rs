//! Renewals of holds.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::{Lease, Renewal, Term};
use crate::engines::postgres::claim::order_by;
use crate::engines::postgres::client::{Client, Links};
use crate::engines::postgres::protocol::requests::{RenewItem, column, garbled};
use crate::engines::postgres::protocol::time::millis;
use crate::engines::postgres::state::late_claims::Progress;
use crate::engines::postgres::wire::batcher::Sender;
use crate::engines::postgres::wire::connection::Connection;
use crate::engines::postgres::wire::options::Options;
use crate::types::clock::{Clock, Moment};
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
        let items: Arc<[RenewItem]> = leases.iter().map(item).collect();
        match self.renewals.request(items, &Progress::default()).await {
            Ok((start, are_renewed)) => {
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

/// Sends renewals.
#[derive(Clone)]
pub(super) struct RenewSender {
    pub(super) links: Arc<Links>,
    pub(super) options: Arc<Options>,
    pub(super) clock: Clock,
}

impl Sender for RenewSender {
    /// The leases of one call of the keeper.
    type Item = Arc<[RenewItem]>;
    /// When it was sent, and of each lease whether it is renewed.
    type Reply = (Moment, Vec<bool>);

    async fn connection(&self) -> Result<Arc<Connection>> {
        self.links.for_renewal().await
    }

    async fn send(&self, connection: &Connection, calls: Vec<Arc<[RenewItem]>>) -> Result<Vec<(Moment, Vec<bool>)>> {
        let items: Vec<&RenewItem> = calls.iter().flat_map(|call| call.iter()).collect();
        // In the order in which the server locks their rows.
        let order = order_by(&items, |item| &item.name);
        let names: Vec<&str> = order.iter().map(|place| items[*place].name.as_str()).collect();
        let attempts: Vec<&str> = order.iter().map(|place| items[*place].attempt.as_str()).collect();
        let leases: Vec<i64> = order.iter().map(|place| items[*place].lease_ms).collect();
        let start = self.clock.now();
        let rows = connection.query(&self.options.statements.renew, &[&names, &attempts, &leases]).await?;
        if rows.len() != items.len() {
            return Err(garbled());
        }
        let mut are_renewed = vec![false; items.len()];
        for (row, place) in rows.iter().zip(order) {
            connection.saw_clock(start, column(row, 0)?);
            are_renewed[place] = column(row, 1)?;
        }
        let mut are_renewed = are_renewed.into_iter();
        Ok(calls.iter().map(|call| (start, are_renewed.by_ref().take(call.len()).collect())).collect())
    }
}
