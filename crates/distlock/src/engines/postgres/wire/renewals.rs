//! Renewals of several calls in one statement.

use std::sync::Arc;

use crate::engines::postgres::protocol::requests::{RenewItem, column, garbled};
use crate::engines::postgres::wire::batcher::{Sender, order_by};
use crate::engines::postgres::wire::connection::Connection;
use crate::engines::postgres::wire::links::Links;
use crate::engines::postgres::wire::options::Options;
use crate::types::clock::{Clock, Moment};
use crate::types::error::Result;

/// Sends renewals.
#[derive(Clone)]
pub(in crate::engines) struct RenewSender {
    pub(in crate::engines) links: Arc<Links>,
    pub(in crate::engines) options: Arc<Options>,
    pub(in crate::engines) clock: Clock,
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
