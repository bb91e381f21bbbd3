//! Claims of one lock.

use std::time::Duration;

use crate::contract::{Busy, Claim, Claimed, Grant, Term};
use crate::engines::postgres::client::Client;
use crate::engines::postgres::protocol::requests::{ClaimItem, garbled};
use crate::engines::postgres::protocol::time::{CLAIMS_PER_HEARTBEAT, heartbeat, millis};
use crate::engines::postgres::state::sending::Sending;
use crate::engines::postgres::wire::claims::{ClaimReply, Outcome};
use crate::engines::postgres::wire::links::CONNECT_WAIT;
use crate::engines::shared::mode_text::{mode_of, mode_text};
use crate::engines::shared::record_text::write_record;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::options::DEFAULT_RETRY_INTERVAL;

impl Client {
    pub(super) async fn claim(&self, claim: &Claim) -> Result<Claimed> {
        let outcome = self.try_claim(claim).await;
        if !matches!(outcome, Ok(Claimed::Busy(_))) {
            self.waiting.forget(claim.attempt);
        }
        outcome
    }

    pub(super) async fn try_claim(&self, claim: &Claim) -> Result<Claimed> {
        let can_listen = claim.queue && self.links.listener.channel().is_none() && self.links.hears();
        if !can_listen {
            return self.claim_once(claim, claim.queue).await;
        }
        // A claim that is granted at once needs no messages. A new waiter takes its place when it listens: the place of a
        // process that polls and is stopped lasts until its heartbeat ends.
        let has_place = self.waiting.is_enlisted(claim.attempt);
        let claimed = self.claim_once(claim, has_place).await?;
        if !matches!(claimed, Claimed::Busy(_)) {
            return Ok(claimed);
        }
        match self.links.listener.begin(CONNECT_WAIT).await || !has_place {
            true => self.claim_once(claim, true).await,
            false => Ok(claimed),
        }
    }

    /// Claims, with or without a place in the queue.
    async fn claim_once(&self, claim: &Claim, queue: bool) -> Result<Claimed> {
        let mut item = self.item(claim)?;
        // A waiter has a queue before it, and the repeat of a claim may find its own hold.
        let is_first = !self.waiting.is_enlisted(claim.attempt) && self.late_claims.until(claim.attempt).is_none();
        item.is_lean &= is_first;
        if queue {
            self.waiting.enlist_anew(claim.attempt);
        } else {
            item.beat_ms = 0;
        }
        let unknown_name = (!item.is_lean).then(|| item.name.clone());
        let sending = Sending::new(&self.late_claims, &self.clock, vec![claim.attempt]);
        let replied = self.claims.request(item, &sending.progress).await;
        if !replied.as_ref().is_err_and(Error::may_be_applied) {
            sending.answered();
        }
        let ClaimReply { sent, server_us, hears, outcome } = replied?;
        let claimed = match outcome {
            Outcome::Granted { token, slot } => {
                if let Some(name) = unknown_name {
                    self.known_names.note(&name);
                }
                Claimed::Granted(Grant { token, term: Some(Term { start: sent, ttl: claim.ttl }), slot })
            }
            Outcome::Busy { place, left, holder } => {
                self.contention.note(&self.name(&claim.key), sent);
                self.waiting.answered(claim.attempt, sent, server_us);
                Claimed::Busy(Busy { holder, poll_after: poll_after(claim, hears, place, left) })
            }
            Outcome::Late => return Err(late()),
            Outcome::Fence => return Err(fence()),
            Outcome::Disagrees(mode) => {
                return Err(claim.mode().disagrees(mode_of(&mode).ok_or_else(garbled)?));
            }
        };
        Ok(claimed)
    }

    pub(super) fn item(&self, claim: &Claim) -> Result<ClaimItem> {
        let name = self.name(&claim.key);
        let is_lean = self.is_lean(claim, &name);
        Ok(ClaimItem {
            name,
            is_lean,
            attempt: claim.attempt.to_string(),
            mode: mode_text(&claim.record),
            ttl_ms: millis(claim.ttl),
            delay_ms: millis(claim.delay),
            beat_ms: if claim.queue { millis(heartbeat(claim.ttl)) } else { 0 },
            record: write_record(&claim.record)?,
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
