//! The reply of one node to one request.

use crate::engines::redis::node::Trust;
use crate::engines::redis::script::Reply;

/// The reply of one node to one claim or release.
pub(crate) enum NodeReply {
    /// The lean script voted for the claim.
    Voted(Trust),
    /// The lean script released the hold.
    Released,
    /// The reply of the full script.
    Full(FullReply),
}

/// The full script's reply to one request.
pub(crate) struct FullReply {
    pub(crate) reply: Reply,
    /// The node's clock.
    pub(crate) now_us: u64,
    /// Whether notifications from that node reach this process.
    pub(crate) hears: bool,
    pub(crate) trust: Trust,
}
