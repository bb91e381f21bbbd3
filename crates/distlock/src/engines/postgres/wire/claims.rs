//! Claims of several callers in one statement.

use std::sync::Arc;
use std::time::Duration;

use crate::engines::postgres::protocol::requests::{ClaimItem, ClaimRow, column, garbled};
use crate::engines::postgres::protocol::time::from_micros;
use crate::engines::postgres::protocol::value;
use crate::engines::postgres::wire::batcher::{Sender, order_by};
use crate::engines::postgres::wire::connection::Connection;
use crate::engines::postgres::wire::links::Links;
use crate::engines::postgres::wire::options::Options;
use crate::types::clock::{Clock, Moment};
use crate::types::error::Result;
use crate::types::owner::Holder;
use crate::types::token::FencingToken;

/// The reply to one claim.
pub(in crate::engines) struct ClaimReply {
    pub(in crate::engines) sent: Moment,
    pub(in crate::engines) server_us: u64,
    /// Whether messages come in for the place in the queue.
    pub(in crate::engines) hears: bool,
    pub(in crate::engines) outcome: Outcome,
}

pub(in crate::engines) enum Outcome {
    Granted { token: FencingToken, slot: Option<u32> },
    Busy { place: Option<u32>, left: Option<Duration>, holder: Option<Holder> },
    Late,
    Fence,
    Disagrees(String),
}

/// Sends claims.
#[derive(Clone)]
pub(in crate::engines) struct ClaimSender {
    pub(in crate::engines) links: Arc<Links>,
    pub(in crate::engines) options: Arc<Options>,
    pub(in crate::engines) clock: Clock,
}

impl Sender for ClaimSender {
    type Item = ClaimItem;
    type Reply = ClaimReply;

    async fn connection(&self) -> Result<Arc<Connection>> {
        self.links.for_claim().await
    }

    async fn send(&self, connection: &Connection, items: Vec<ClaimItem>) -> Result<Vec<ClaimReply>> {
        // In the order in which the server locks their rows.
        let order = order_by(&items, |item| (&item.name, &item.attempt));
        let sorted: Vec<&ClaimItem> = order.iter().map(|place| &items[*place]).collect();
        let texts = |field: fn(&ClaimItem) -> &str| sorted.iter().map(|item| field(item)).collect::<Vec<&str>>();
        let numbers = |field: fn(&ClaimItem) -> i64| sorted.iter().map(|item| field(item)).collect::<Vec<i64>>();
        let (names, attempts) = (texts(|item| &item.name), texts(|item| &item.attempt));
        let (modes, records) = (texts(|item| &item.mode), texts(|item| &item.record));
        let (ttls, delays, beats) =
            (numbers(|item| item.ttl_ms), numbers(|item| item.delay_ms), numbers(|item| item.beat_ms));
        let channel = self.links.listener.channel();
        let wake = channel.as_deref();
        let sent = self.clock.now();
        let not_after = connection.not_after(sent);
        let statement = &self.options.statements.claim;
        let rows = connection
            .query(statement, &[&wake, &not_after, &names, &attempts, &modes, &ttls, &delays, &beats, &records])
            .await?;
        let mut replies: Vec<_> = items.iter().map(|_| None).collect();
        for (row, place) in rows.iter().zip(order) {
            replies[place] = Some(reply(connection, sent, wake.is_some(), &ClaimRow::of(row)?)?);
        }
        replies.into_iter().collect::<Option<_>>().ok_or_else(garbled)
    }

    async fn send_alone(&self, connection: &Connection, item: ClaimItem) -> Result<ClaimReply> {
        if item.is_lean
            && let Some(granted) = self.claim_lean(connection, &item).await?
        {
            return Ok(granted);
        }
        // Boxed: the future of a claim that is granted at once stays small.
        let replies = Box::pin(self.send(connection, vec![item])).await?;
        replies.into_iter().next().ok_or_else(garbled)
    }
}

impl ClaimSender {
    /// Claims by the lean statement. Returns `None` when the lock was not free, and nothing has happened.
    async fn claim_lean(&self, connection: &Connection, item: &ClaimItem) -> Result<Option<ClaimReply>> {
        let ClaimItem { name, attempt, ttl_ms, delay_ms, record, .. } = item;
        let channel = self.links.listener.channel();
        let (wake, sent) = (channel.as_deref(), self.clock.now());
        let (lease_ms, not_after) = (ttl_ms.saturating_add(*delay_ms), connection.not_after(sent));
        let statement = &self.options.statements.lean_claim;
        let rows = connection.query(statement, &[name, attempt, &lease_ms, &not_after, &wake, record]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        // The token is the server's clock.
        let server_us: i64 = column(row, 0)?;
        connection.saw_clock(sent, server_us);
        let token = value::read_token(server_us).ok_or_else(garbled)?;
        let outcome = Outcome::Granted { token, slot: None };
        Ok(Some(ClaimReply { sent, server_us: token.get(), hears: wake.is_some(), outcome }))
    }
}

fn reply(connection: &Connection, sent: Moment, hears: bool, row: &ClaimRow) -> Result<ClaimReply> {
    connection.saw_clock(sent, row.server_us);
    let server_us = u64::try_from(row.server_us).map_err(|_| garbled())?;
    Ok(ClaimReply { sent, server_us, hears, outcome: read(row)? })
}

fn read(row: &ClaimRow) -> Result<Outcome> {
    let token = row.token.and_then(value::read_token);
    Ok(match row.outcome.as_str() {
        "granted" => {
            let slot = row.slot.map(u32::try_from).transpose().map_err(|_| garbled())?;
            Outcome::Granted { token: token.ok_or_else(garbled)?, slot }
        }
        "busy" => {
            let holder = || value::holder(row.token, row.left_us, row.held_us, row.record.as_deref());
            let place = row.place.and_then(|place| u32::try_from(place).ok());
            Outcome::Busy {
                place,
                left: row.left_us.and_then(from_micros),
                holder: row.mode.as_ref().map(|_| holder()),
            }
        }
        "late" => Outcome::Late,
        "fence" => Outcome::Fence,
        "disagrees" => Outcome::Disagrees(row.mode.clone().ok_or_else(garbled)?),
        _ => return Err(garbled()),
    })
}
