//! Several claims and releases for one node, as one call of a script.

use std::sync::Arc;

use redis::Cmd;

use crate::engines::redis::node::{Connection, Keys, Trust};
use crate::engines::redlock::protocol::claim::NodeClaim;
use crate::engines::redlock::protocol::release::NodeRelease;
use crate::engines::redlock::protocol::reply::NodeReply;
use crate::engines::redlock::protocol::scripts::BATCH;
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

impl NodeRequest {
    fn keys(&self) -> &Keys {
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

/// Sends `requests` as one call. Returns the reply to each, in their order. `sent` is the time now.
pub(crate) async fn run<'a>(
    connection: &Connection,
    note_key: &str,
    restart_guard: bool,
    requests: impl Iterator<Item = &'a NodeRequest> + Clone,
    sent: impl Fn() -> Moment,
) -> Result<Vec<Result<NodeReply>>> {
    let count = requests.clone().count();
    let run_id = if restart_guard { connection.life().await? } else { "" };
    let sent = sent();
    let fill = |command: &mut Cmd, nonce| {
        command.arg(1 + 4 * count).arg(note_key);
        for Keys { lock, queue, waiters, fence } in requests.clone().map(NodeRequest::keys) {
            command.arg(lock).arg(queue).arg(waiters).arg(fence);
        }
        command.arg(nonce).arg(run_id);
        requests.clone().for_each(|request| request.fill(command, connection));
    };
    let mut reply = connection.run(&BATCH, fill).await?;
    let now_us = reply.unsigned()?;
    // A release may not read the clock, and needs no trust. Without the guard nothing makes up for a leap.
    let seen = (now_us > 0).then(|| connection.saw_clock(sent, now_us));
    let trust = seen.filter(|_| restart_guard).unwrap_or(Trust::Full);
    let hears = connection.hears();
    Ok((0..count).map(|_| Ok(NodeReply { reply: reply.part()?, now_us, hears, trust })).collect())
}
