//! A release as it is sent to every node, and a node's reply.

use std::time::Duration;

use redis::Cmd;

use crate::contract::Release;
use crate::engines::redis::node::Keys;
use crate::engines::redis::script::garbled;
use crate::engines::redlock::protocol::claim::head;
use crate::engines::redlock::protocol::reply::NodeReply;
use crate::engines::redlock::state::node_set::NodeSet;
use crate::types::error::Result;
use crate::types::token::AttemptId;

/// A release as every node gets it.
#[derive(Debug)]
pub(crate) struct NodeRelease {
    pub(crate) keys: Keys,
    /// Nothing with this ballot is accepted later; 0 when this engine does not know it.
    pub(crate) ballot: u64,
    pub(crate) may_be_queued: bool,
    pub(crate) ends: Ends,
    /// `attempt ballot `, by which the lock's value begins.
    pub(crate) head: String,
    /// The nodes that have voted for the hold, if that is all they know of it: there the lean script may be asked.
    pub(crate) lean_on: NodeSet,
    /// How long a node may take to reply.
    pub(crate) timeout: Duration,
}

/// What a release ends, as the script knows it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ends {
    /// A claim that is given up: it may have votes and queue entries, and nothing that was renewed.
    Claim = 0,
    /// A hold, by its holder, which sends nothing more that could set it again.
    Hold = 1,
    /// A hold, by an operator, while its holder goes on.
    Forced = 2,
}

impl NodeRelease {
    pub(crate) fn new(keys: Keys, attempt: AttemptId, ballot: u64, ends: Ends) -> NodeRelease {
        let head = head(attempt, ballot);
        let (lean_on, timeout) = (NodeSet::default(), Duration::ZERO);
        NodeRelease { keys, ballot, may_be_queued: false, ends, head, lean_on, timeout }
    }

    pub(super) fn fill(&self, command: &mut Cmd, notify: bool) {
        command.arg("release").arg(&self.head[..32]).arg(self.ballot);
        command.arg(u8::from(self.may_be_queued)).arg(u8::from(notify)).arg(self.ends as u8);
    }
}

/// Reads a node's reply to a release.
pub(crate) fn outcome(reply: Result<NodeReply>) -> Result<Release> {
    let mut reply = match reply? {
        NodeReply::Released => return Ok(Release::Released),
        NodeReply::Full(reply) => reply.reply,
        NodeReply::Voted(_) => return Err(garbled()),
    };
    match reply.word()?.as_str() {
        "released" => Ok(Release::Released),
        "not ours" => Ok(Release::NotOurs),
        _ => Err(garbled()),
    }
}
