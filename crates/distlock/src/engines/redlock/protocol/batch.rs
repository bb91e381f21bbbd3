//! Several claims and releases for one node, as one call of a script.

use std::sync::Arc;

use redis::Cmd;

use crate::engines::redis::node::{Connection, Keys, Trust};
use crate::engines::redlock::protocol::claim::NodeClaim;
use crate::engines::redlock::protocol::release::NodeRelease;
use crate::engines::redlock::protocol::reply::{FullReply, NodeReply};
use crate::engines::redlock::protocol::scripts::BATCH;
use crate::engines::redlock::state::known_note::KnownNote;
use crate::types::clock::Moment;
use crate::types::error::Result;

/// A request to nodes about one lock.
pub(crate) enum NodeRequest {
    Claim(Box<NodeClaim>),
    /// `notify`: whether the node notifies the next waiter.
    Release {
        release: Arc<NodeRelease>,
        notify: bool,
    },
}

/// What requests must have in common to share a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// Claims with one lease that the lean script may be asked for.
    Claim { ttl_ms: u64 },
    /// Releases that the lean script may be asked for.
    Release,
    /// Requests for the full script.
    Full,
}

impl NodeRequest {
    pub(crate) fn kind(&self) -> RequestKind {
        match self {
            NodeRequest::Claim(claim) if claim.may_be_lean() => RequestKind::Claim { ttl_ms: claim.ttl_ms() },
            NodeRequest::Release { release, .. } if !release.lean_on.is_empty() => RequestKind::Release,
            NodeRequest::Claim(_) | NodeRequest::Release { .. } => RequestKind::Full,
        }
    }

    pub(crate) fn keys(&self) -> &Keys {
        match self {
            NodeRequest::Claim(claim) => &claim.keys,
            NodeRequest::Release { release, .. } => &release.keys,
        }
    }

    fn fill(&self, command: &mut Cmd, to: &Connection) {
        match self {
            NodeRequest::Claim(claim) => claim.fill(command, to),
            NodeRequest::Release { release, notify } => release.fill(command, *notify),
        }
    }
}

/// The reply of a node to a batch.
pub(crate) struct BatchReply {
    /// The reply to each request, in their order.
    pub(crate) replies: Vec<Result<NodeReply>>,
    /// The node's note if it is of the server's present run, and the node votes.
    pub(crate) note: Option<KnownNote>,
}

/// Sends `requests` at `sent` as one call of the full script, by its hash or its text. `run_id` is that of the server, with the
/// restart guard. Returns `None` when the server does not know the hash.
pub(crate) async fn run(
    connection: &Connection,
    note_key: &str,
    run_id: Option<&str>,
    requests: &[&NodeRequest],
    by_text: bool,
    sent: Moment,
) -> Result<Option<BatchReply>> {
    let restart_guard = run_id.is_some();
    let run_id = run_id.unwrap_or_default();
    let fill = |command: &mut Cmd, nonce| {
        command.arg(1 + 4 * requests.len()).arg(note_key);
        for Keys { lock, queue, waiters, fence } in requests.iter().map(|request| request.keys()) {
            command.arg(lock).arg(queue).arg(waiters).arg(fence);
        }
        command.arg(nonce).arg(run_id);
        requests.iter().for_each(|request| request.fill(command, connection));
    };
    let Some(mut reply) = connection.try_run(&BATCH, by_text, fill).await? else { return Ok(None) };
    let (now_us, note) = (reply.unsigned()?, reply.word()?);
    let seen = connection.saw_clock(sent, now_us);
    // Without the guard nothing makes up for a leap.
    let trust = if restart_guard { seen } else { Trust::Full };
    let note = if restart_guard { KnownNote::read(&note, run_id, now_us) } else { Some(KnownNote::unguarded()) };
    let hears = connection.hears();
    let full = |reply| NodeReply::Full(FullReply { reply, now_us, hears, trust });
    Ok(Some(BatchReply { replies: requests.iter().map(|_| reply.part().map(full)).collect(), note }))
}
