//! A claim as it is sent to every node, and the vote in a node's reply.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

use redis::Cmd;

use crate::contract::Claim;
use crate::engines::redis::heartbeat;
use crate::engines::redis::node::{self, Connection, Keys, Trust};
use crate::engines::redis::script::garbled;
use crate::engines::redlock::options::RedlockOptions;
use crate::engines::redlock::protocol::reply::{FullReply, NodeReply};
use crate::engines::redlock::state::attempts::BallotAttempt;
use crate::engines::redlock::state::claim_votes::{ClaimVote, HeldVote};
use crate::engines::shared::record_text::write_record;
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::token::AttemptId;

/// The length of an attempt's or a channel's id with the space behind it.
const WORD: usize = 33;

/// A claim as every node gets it.
pub(crate) struct NodeClaim {
    pub(super) keys: Keys,
    id: AttemptId,
    attempt: BallotAttempt,
    ttl_ms: u64,
    /// `attempt ballot channel record`, as nodes store it whose notifications reach this process.
    value: String,
    /// Where the channel and the record begin in `value`.
    channel_at: usize,
    record_at: usize,
    heartbeat_ms: u64,
    sent: Moment,
    is_contended: bool,
}

impl NodeClaim {
    /// `is_contended`: whether other claims have competed for the lock a moment ago.
    pub(crate) fn new(
        options: &RedlockOptions,
        keys: Keys,
        claim: &Claim,
        attempt: BallotAttempt,
        sent: Moment,
        is_contended: bool,
    ) -> Result<NodeClaim> {
        let record = write_record(&claim.record)?;
        let mut value = head(claim.attempt, attempt.ballot());
        let channel_at = value.len();
        value.reserve(record.len() + WORD);
        let _ = write!(value, "{} ", options.wake);
        let record_at = value.len();
        value.push_str(&record);
        Ok(NodeClaim {
            keys,
            id: claim.attempt,
            attempt,
            ttl_ms: node::millis(claim.ttl),
            value,
            channel_at,
            record_at,
            heartbeat_ms: if claim.queue { node::millis(heartbeat(claim.ttl)) } else { 0 },
            sent,
            is_contended,
        })
    }

    pub(crate) fn id(&self) -> AttemptId {
        self.id
    }

    pub(crate) fn ttl_ms(&self) -> u64 {
        self.ttl_ms
    }

    pub(super) fn ballot(&self) -> u64 {
        self.attempt.ballot()
    }

    pub(super) fn ballot_text(&self) -> &str {
        &self.value[WORD..self.channel_at - 1]
    }

    /// Returns how many bytes its value and its ballot have.
    pub(super) fn size(&self) -> usize {
        self.value.len() + self.ballot_text().len()
    }

    /// Whether the claim waits in a queue where the lock is held.
    pub(crate) fn waits(&self) -> bool {
        self.heartbeat_ms > 0
    }

    /// Whether the lean script may be asked: probably the lock is free, and the attempt is in no queue.
    pub(super) fn may_be_lean(&self) -> bool {
        !self.is_contended && !self.attempt.is_queued()
    }

    /// Returns the value of the lock; `hears`: whether notifications from the node reach this process.
    pub(super) fn value(&self, hears: bool) -> Cow<'_, str> {
        match hears {
            true => Cow::Borrowed(&self.value),
            false => Cow::Owned(format!("{}- {}", &self.value[..self.channel_at], &self.value[self.record_at..])),
        }
    }

    pub(super) fn fill(&self, command: &mut Cmd, to: &Connection) {
        let value = self.value(to.hears());
        command.arg("claim").arg(&value[..WORD - 1]).arg(self.ballot_text()).arg(self.ttl_ms);
        command.arg(&value[self.channel_at..]).arg(self.heartbeat_ms).arg(self.attempt.ticket());
        command.arg(u8::from(self.attempt.is_queued())).arg(to.not_after(self.sent));
    }
}

/// Returns `attempt ballot `, by which a lock's value begins.
pub(super) fn head(attempt: AttemptId, ballot: u64) -> String {
    let mut head = String::with_capacity(2 * WORD);
    let _ = write!(head, "{attempt} {ballot} ");
    head
}

/// Returns the vote in a node's reply, or the one that its failure stands for.
pub(crate) fn vote(reply: Result<NodeReply>) -> ClaimVote {
    match reply.and_then(read_vote) {
        Ok(vote) => vote,
        Err(error) if error.may_be_applied() => ClaimVote::Unanswered,
        Err(error) => ClaimVote::Refused(error),
    }
}

fn read_vote(reply: NodeReply) -> Result<ClaimVote> {
    let FullReply { mut reply, now_us, hears, trust } = match reply {
        NodeReply::Full(reply) => reply,
        NodeReply::Voted(trust) => return Ok(granted(trust)),
        NodeReply::Released => return Err(garbled()),
    };
    Ok(match reply.word()?.as_str() {
        "ack" => granted(trust),
        "low" => ClaimVote::Low(reply.word()?.parse().map_err(|_| garbled())?),
        "held" => {
            let ttl_left = u64::try_from(reply.int()?).ok().map(Duration::from_millis);
            let place = u32::try_from(reply.int()?).ok();
            let holder = node::holder(&reply.bytes()?, ttl_left, now_us);
            let notifies = hears && holder.record.is_some();
            ClaimVote::Held(HeldVote { holder, place, notifies })
        }
        "fresh" => ClaimVote::Fresh,
        "quarantined" => ClaimVote::Quarantined(Duration::from_millis(reply.unsigned()?)),
        "late" => ClaimVote::Refused(Error::unavailable("the claim arrived after its time and was refused")),
        "ahead" => ClaimVote::Refused(
            Error::new(ErrorKind::Foreign, "the ballot is more than a day ahead of the node's clock")
                .with_help("a clock is wrong by days, or the lock's fence was written by hand"),
        ),
        "foreign" => ClaimVote::Refused(Error::new(ErrorKind::Foreign, format!("{:?} is not ours", reply.word()?))),
        "error" => ClaimVote::Refused(node::refusal(&reply.word()?)),
        _ => return Err(garbled()),
    })
}

fn granted(trust: Trust) -> ClaimVote {
    match trust {
        Trust::Full => ClaimVote::Granted,
        Trust::Young => ClaimVote::Young,
        Trust::None => ClaimVote::Distrusted,
    }
}
