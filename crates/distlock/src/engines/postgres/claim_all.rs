//! Claims of several locks in one step.

use tokio_postgres::types::ToSql;

use crate::contract::{Claim, ClaimedAll, Grant, Term};
use crate::engines::postgres::claim::{fence, late};
use crate::engines::postgres::client::Client;
use crate::engines::postgres::protocol::requests::{ClaimItem, column, garbled};
use crate::engines::postgres::protocol::value;
use crate::engines::postgres::state::sending::{Progress, Sending};
use crate::engines::postgres::wire::batcher::{noting, order_by};
use crate::types::error::{Error, ErrorKind, Result};

/// How many locks one statement takes: others wait for their rows as long as it runs.
const MOST: usize = 64;

/// The outcome of several claims in one statement.
enum Outcome {
    Granted(Vec<Grant>),
    /// The lock of that claim is held, or has waiters.
    Busy(usize),
}

impl Client {
    /// Takes all locks, or none.
    pub(super) async fn claim_all(&self, claims: &[Claim]) -> Result<ClaimedAll> {
        if claims.len() > MOST {
            return Err(Error::new(ErrorKind::Unsupported, "postgres: one statement cannot take that many locks"));
        }
        let sending = Sending::new(&self.late_claims, &self.clock, claims.iter().map(|claim| claim.attempt).collect());
        let replied = self.send_all(claims, &sending.progress).await;
        if !replied.as_ref().is_err_and(Error::may_be_applied) {
            sending.answered();
        }
        match replied? {
            Outcome::Granted(grants) => Ok(ClaimedAll::Granted(grants)),
            Outcome::Busy(which) => {
                let key = claims[which].key.clone();
                let holder = self.get(&key).await.ok().flatten().and_then(|lock| lock.holder().cloned());
                Ok(ClaimedAll::Busy(key, holder))
            }
        }
    }

    async fn send_all(&self, claims: &[Claim], progress: &Progress) -> Result<Outcome> {
        let items = claims.iter().map(|claim| self.item(claim)).collect::<Result<Vec<ClaimItem>>>()?;
        // In the order in which the server locks their rows.
        let order = order_by(&items, |item| (&item.name, &item.attempt));
        let texts =
            |field: fn(&ClaimItem) -> &str| order.iter().map(|place| field(&items[*place])).collect::<Vec<&str>>();
        let numbers =
            |field: fn(&ClaimItem) -> i64| order.iter().map(|place| field(&items[*place])).collect::<Vec<i64>>();
        let (names, attempts, records) =
            (texts(|item| &item.name), texts(|item| &item.attempt), texts(|item| &item.record));
        let (ttls, delays) = (numbers(|item| item.ttl_ms), numbers(|item| item.delay_ms));
        let connection = self.links.for_claim().await?;
        let channel = self.links.listener.channel();
        let (wake, sent) = (channel.as_deref(), self.clock.now());
        let not_after = connection.not_after(sent);
        let statement = &self.options.statements.claim_all;
        progress.leave();
        let parameters: [&(dyn ToSql + Sync); 7] = [&wake, &not_after, &names, &attempts, &ttls, &delays, &records];
        let rows = noting(connection.query(statement, &parameters), || progress.sent(connection.id)).await?;
        let mut grants: Vec<_> = claims.iter().map(|_| None).collect();
        for row in &rows {
            connection.saw_clock(sent, column(row, 0)?);
            let place = usize::try_from(column::<i32>(row, 2)?).ok().and_then(|place| order.get(place.checked_sub(1)?));
            let place = *place.ok_or_else(garbled)?;
            match column::<&str>(row, 1)? {
                "granted" => {
                    let token = value::read_token(column(row, 3)?).ok_or_else(garbled)?;
                    grants[place] = Some(Grant::new(token, Some(Term { start: sent, ttl: claims[place].ttl })));
                }
                "busy" => return Ok(Outcome::Busy(place)),
                "late" => return Err(late()),
                "fence" => return Err(fence()),
                _ => return Err(garbled()),
            }
        }
        grants.into_iter().collect::<Option<_>>().map(Outcome::Granted).ok_or_else(garbled)
    }
}
