//! Changes of a hold besides renewing and releasing it: its record and its owner.

use tokio_postgres::types::ToSql;

use crate::contract::{Claim, Grant, Term};
use crate::engines::postgres::claim::late;
use crate::engines::postgres::client::Client;
use crate::engines::postgres::protocol::requests::{column, garbled};
use crate::engines::postgres::state::sending::{Progress, Sending};
use crate::engines::postgres::wire::batcher::noting;
use crate::engines::shared::record_text::write_record;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::token::{AttemptId, FencingToken};

impl Client {
    /// Replaces the record of the hold that `claim` became. Returns false when it has none.
    pub(super) async fn amend(&self, claim: &Claim) -> Result<bool> {
        let (name, attempt) = (self.name(&claim.key), claim.attempt.to_string());
        let record = write_record(&claim.record)?;
        let rows = self.query(&self.options.statements.amend, &[&name, &attempt, &record]).await?;
        column(rows.first().ok_or_else(garbled)?, 0)
    }

    /// Gives the hold that the attempt `from` has with a token to `claim`.
    pub(super) async fn adopt(&self, from: AttemptId, token: FencingToken, claim: &Claim) -> Result<Grant> {
        let sending = Sending::new(&self.late_claims, &self.clock, vec![claim.attempt]);
        let adopted = self.send_adoption(from, token, claim, &sending.progress).await;
        if !adopted.as_ref().is_err_and(Error::may_be_applied) {
            sending.answered();
        }
        adopted
    }

    async fn send_adoption(
        &self,
        from: AttemptId,
        token: FencingToken,
        claim: &Claim,
        progress: &Progress,
    ) -> Result<Grant> {
        let not_held = || Error::new(ErrorKind::NotHeld, format!("no owner holds it with token {token}"));
        let number = i64::try_from(token.get()).map_err(|_| not_held())?;
        let (item, from) = (self.item(claim)?, from.to_string());
        let lease = item.ttl_ms.saturating_add(item.delay_ms);
        let connection = self.links.for_claim().await?;
        let channel = self.links.listener.channel();
        let (wake, sent) = (channel.as_deref(), self.clock.now());
        let not_after = connection.not_after(sent);
        progress.leave();
        let parameters: [&(dyn ToSql + Sync); 9] =
            [&wake, &not_after, &item.name, &from, &number, &item.attempt, &item.mode, &lease, &item.record];
        let request = connection.query(&self.options.statements.adopt, &parameters);
        let rows = noting(request, || progress.sent(connection.id)).await?;
        let row = rows.first().ok_or_else(garbled)?;
        connection.saw_clock(sent, column(row, 0)?);
        match column::<&str>(row, 1)? {
            "adopted" => {
                let slot = column::<Option<i32>>(row, 2)?.map(u32::try_from).transpose().map_err(|_| garbled())?;
                Ok(Grant { token, term: Some(Term { start: sent, ttl: claim.ttl }), slot })
            }
            "not held" => Err(not_held()),
            "late" => Err(late()),
            _ => Err(garbled()),
        }
    }
}
