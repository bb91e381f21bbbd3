//! A node's note: which run of the server wrote it, until when the node does not vote, and when its last lease ends.

use std::time::Duration;

use redis::Cmd;

use crate::engines::redis::node::{Connection, LeapForward};
use crate::engines::redlock::protocol::scripts::{LEASES_LEFT, QUARANTINE_AFTER_LEAP, START_QUARANTINE};
use crate::types::error::Result;

/// Gives a node without a note of its present run a new one. Returns how long the node does not vote.
pub(crate) async fn start_quarantine(connection: &Connection, note_key: &str, length: Duration) -> Result<Duration> {
    let fill = |command: &mut Cmd, nonce| {
        command.arg(1).arg(note_key).arg(nonce).arg(u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
    };
    connection.run(&START_QUARANTINE, fill).await?.unsigned().map(Duration::from_millis)
}

/// Returns how long the leases that a node knows of last; `None` when it has no note.
pub(crate) async fn leases_left(connection: &Connection, note_key: &str) -> Result<Option<Duration>> {
    let fill = |command: &mut Cmd, nonce| {
        command.arg(1).arg(note_key).arg(nonce);
    };
    let left_ms = connection.run(&LEASES_LEFT, fill).await?.int()?;
    Ok(u64::try_from(left_ms).ok().map(Duration::from_millis))
}

/// Stops a node whose clock leapt from voting until its leases would have ended. Returns the node's clock.
pub(crate) async fn quarantine_after_leap(connection: &Connection, note_key: &str, leap: LeapForward) -> Result<u64> {
    let fill = |command: &mut Cmd, nonce| {
        command.arg(1).arg(note_key).arg(nonce).arg(leap.most_us).arg(leap.after_us);
    };
    connection.run(&QUARANTINE_AFTER_LEAP, fill).await?.unsigned()
}
