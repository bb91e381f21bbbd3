//! A claim as it is sent to every node, and the vote in a node's reply.

use std::time::Duration;

use redis::Cmd;

use crate::contract::Claim;
use crate::engines::redis::heartbeat;
use crate::engines::redis::node::{self, Connection, Keys, Trust};
use crate::engines::redis::script::garbled;
use crate::engines::redlock::options::RedlockOptions;
use crate::engines::redlock::protocol::reply::NodeReply;
use crate::engines::redlock::state::attempts::BallotAttempt;
use crate::engines::redlock::state::claim_votes::{ClaimVote, HeldVote};
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};

/// A claim as every node gets it.
pub(crate) struct NodeClaim {
    pub(super) keys: Keys,
    id: String,
    attempt: BallotAttempt,
    ttl_ms: u64,
    /// `channel record` for a node whose notifications reach this process, and for one whose do not.
    notified: String,
    polling: String,
    heartbeat_ms: u64,
    sent: Moment,
}

impl NodeClaim {
    pub(crate) fn new(
        options: &RedlockOptions,
        claim: &Claim,
        attempt: BallotAttempt,
        sent: Moment,
    ) -> Result<NodeClaim> {
        let record = node::write_record(&claim.record)?;
        Ok(NodeClaim {
            keys: options.keys(&claim.key)?,
            id: claim.attempt.to_string(),
            attempt,
            ttl_ms: node::millis(claim.ttl),
            notified: format!("{} {record}", options.wake),
            polling: format!("- {record}"),
            heartbeat_ms: if claim.queue { node::millis(heartbeat(claim.ttl)) } else { 0 },
            sent,
        })
    }

    pub(super) fn fill(&self, command: &mut Cmd, to: &Connection) {
        let channel_and_record = if to.hears() { &self.notified } else { &self.polling };
        command.arg("claim").arg(&self.id).arg(self.attempt.ballot()).arg(self.ttl_ms).arg(channel_and_record);
        command.arg(self.heartbeat_ms).arg(self.attempt.ticket()).arg(u8::from(self.attempt.is_queued()));
        command.arg(to.not_after(self.sent));
    }
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
    let NodeReply { mut reply, now_us, hears, trust } = reply;
    Ok(match reply.word()?.as_str() {
        "ack" => match trust {
            Trust::Full => ClaimVote::Granted,
            Trust::Young => ClaimVote::Young,
            Trust::None => ClaimVote::Distrusted,
        },
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
