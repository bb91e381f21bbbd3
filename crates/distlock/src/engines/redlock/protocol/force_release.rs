//! The forced end of a hold on one node.

use redis::Cmd;

use crate::engines::redis::node::{Connection, Keys};
use crate::engines::redis::script::garbled;
use crate::engines::redlock::protocol::scripts::FORCE_RELEASE;
use crate::types::error::Result;
use crate::types::token::{AttemptId, FencingToken};

/// A node's reply.
pub(crate) enum ForcedRelease {
    Done(AttemptId),
    NotHeld,
    /// The key holds another type or format, which is named.
    Foreign(String),
}

/// Ends the hold with `token` on one node.
pub(crate) async fn run(connection: &Connection, keys: &Keys, token: FencingToken) -> Result<ForcedRelease> {
    let Keys { lock, queue, waiters, fence } = keys;
    let fill = |command: &mut Cmd, nonce| {
        command.arg(4).arg(lock).arg(queue).arg(waiters).arg(fence).arg(nonce).arg(token.get());
    };
    let mut reply = connection.run(&FORCE_RELEASE, fill).await?;
    match reply.word()?.as_str() {
        "broken" => Ok(ForcedRelease::Done(reply.word()?.parse().map_err(|_| garbled())?)),
        "not held" => Ok(ForcedRelease::NotHeld),
        "foreign" => Ok(ForcedRelease::Foreign(reply.word()?)),
        _ => Err(garbled()),
    }
}
