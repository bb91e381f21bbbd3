//! Claims of several callers in one statement.

use std::sync::Arc;
use std::time::Duration;

use crate::engines::postgres::protocol::requests::{ClaimItem, column, garbled};
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
    pub(in crate::engines) server_us: i64,
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
        let order = order_by(&items, |item| &item.name);
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
            let server_us = column(row, 0)?;
            connection.saw_clock(sent, server_us);
            replies[place] = Some(ClaimReply { sent, server_us, hears: wake.is_some(), outcome: read(row)? });
        }
        replies.into_iter().collect::<Option<_>>().ok_or_else(garbled)
    }
}

fn read(row: &tokio_postgres::Row) -> Result<Outcome> {
    let token: Option<i64> = column(row, 2)?;
    Ok(match column::<&str>(row, 1)? {
        "granted" => {
            let slot: Option<i32> = column(row, 3)?;
            let slot = slot.map(u32::try_from).transpose().map_err(|_| garbled())?;
            Outcome::Granted { token: token.and_then(value::read_token).ok_or_else(garbled)?, slot }
        }
        "busy" => {
            let (left, held): (Option<i64>, Option<i64>) = (column(row, 5)?, column(row, 6)?);
            let (mode, record): (Option<&str>, Option<&str>) = (column(row, 7)?, column(row, 8)?);
            let holder = mode.map(|_| value::holder(token, left, held, record));
            let place = column::<Option<i32>>(row, 4)?.and_then(|place| u32::try_from(place).ok());
            Outcome::Busy { place, left: left.and_then(from_micros), holder }
        }
        "late" => Outcome::Late,
        "fence" => Outcome::Fence,
        "disagrees" => Outcome::Disagrees(column(row, 7)?),
        _ => return Err(garbled()),
    })
}
