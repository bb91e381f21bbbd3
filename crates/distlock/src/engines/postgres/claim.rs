//! Claims of one lock.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::{Busy, Claim, Claimed, Grant, Term};
use crate::engines::postgres::client::{CONNECT_WAIT, Client, Links};
use crate::engines::postgres::protocol::requests::{ClaimItem, column, garbled};
use crate::engines::postgres::protocol::time::{CLAIMS_PER_HEARTBEAT, from_micros, heartbeat, millis};
use crate::engines::postgres::protocol::value;
use crate::engines::postgres::wire::batcher::Sender;
use crate::engines::postgres::wire::connection::Connection;
use crate::engines::postgres::wire::options::Options;
use crate::types::clock::{Clock, Moment};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::options::DEFAULT_RETRY_INTERVAL;
use crate::types::owner::Holder;
use crate::types::token::FencingToken;

/// The reply to one claim.
pub(super) struct ClaimReply {
    sent: Moment,
    server_us: i64,
    /// Whether messages come in for the place in the queue.
    hears: bool,
    outcome: Outcome,
}

enum Outcome {
    Granted { token: FencingToken, slot: Option<u32> },
    Busy { place: Option<u32>, left: Option<Duration>, holder: Option<Holder> },
    Late,
    Fence,
    Disagrees(String),
}

impl Client {
    pub(super) async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        let outcome = self.try_claim(claim).await;
        if !matches!(outcome, Ok(Claimed::Busy(_))) {
            self.waiting.forget(claim.attempt);
        }
        outcome
    }

    pub(super) async fn try_claim(&self, claim: &Claim) -> Result<Claimed> {
        let (claimed, hears) = self.claim_once(claim).await?;
        // A claim that is granted at once needs no messages.
        let must_listen = claim.queue && !hears && matches!(claimed, Claimed::Busy(_)) && self.links.hears();
        match must_listen && self.links.listener.begin(CONNECT_WAIT).await {
            true => self.claim_once(claim).await.map(|(claimed, _)| claimed),
            false => Ok(claimed),
        }
    }

    /// Claims. Returns also whether messages come in.
    async fn claim_once(&self, claim: &Claim) -> Result<(Claimed, bool)> {
        if claim.queue {
            self.waiting.enlist(claim.attempt);
        }
        let item = self.item(claim)?;
        let sending = self.late_claims.sending(vec![claim.attempt]);
        let replied = self.claims.request(item, &sending.progress).await;
        if !replied.as_ref().is_err_and(Error::may_be_applied) {
            sending.answered();
        }
        let ClaimReply { sent, server_us, hears, outcome } = replied?;
        let claimed = match outcome {
            Outcome::Granted { token, slot } => {
                Claimed::Granted(Grant { token, term: Some(Term { start: sent, ttl: claim.ttl }), slot })
            }
            Outcome::Busy { place, left, holder } => {
                self.waiting.answered(claim.attempt, sent, server_us);
                Claimed::Busy(Busy { holder, poll_after: poll_after(claim, hears, place, left) })
            }
            Outcome::Late => return Err(late()),
            Outcome::Fence => return Err(fence()),
            Outcome::Disagrees(mode) => {
                return Err(claim.mode().disagrees(value::mode_of(&mode).ok_or_else(garbled)?));
            }
        };
        Ok((claimed, hears))
    }

    pub(super) fn item(&self, claim: &Claim) -> Result<ClaimItem> {
        Ok(ClaimItem {
            name: self.name(&claim.key),
            attempt: claim.attempt.to_string(),
            mode: value::mode_text(&claim.record),
            ttl_ms: millis(claim.ttl),
            delay_ms: millis(claim.delay),
            beat_ms: if claim.queue { millis(heartbeat(claim.ttl)) } else { 0 },
            record: value::write_record(&claim.record)?,
        })
    }
}

/// Returns when to claim again at the latest. `place` is how many waiters are before it.
fn poll_after(claim: &Claim, hears: bool, place: Option<u32>, left: Option<Duration>) -> Option<Duration> {
    let beat = heartbeat(claim.ttl) / CLAIMS_PER_HEARTBEAT;
    match (place?, left) {
        // No message will come for the first: the caller's retry interval. Nor if the lease is over, and a transaction
        // still relies on it.
        (0, left) if !hears || left.is_none_or(|left| left.is_zero()) => None,
        // A millisecond later than the lease, so as not to come a moment too early.
        (0, Some(left)) => Some(beat.min(left + Duration::from_millis(1))),
        // Without messages, the more rarely the further behind.
        (place, _) if !hears => Some(beat.min(DEFAULT_RETRY_INTERVAL * place)),
        _ => Some(beat),
    }
}

pub(super) fn late() -> Error {
    Error::unavailable("postgres: the claim arrived after its time and was refused")
}

pub(super) fn fence() -> Error {
    Error::new(ErrorKind::Foreign, "postgres: the last token of the lock is more than a day ahead")
        .with_help("it was written by hand, or the server's clock went back by days; delete the lock's row")
}

/// Sends claims.
#[derive(Clone)]
pub(super) struct ClaimSender {
    pub(super) links: Arc<Links>,
    pub(super) options: Arc<Options>,
    pub(super) clock: Clock,
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

/// Returns the places of `items` in the order of a name of each.
pub(super) fn order_by<T>(items: &[T], name: impl Fn(&T) -> &str) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by(|one, other| name(&items[*one]).cmp(name(&items[*other])));
    order
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
