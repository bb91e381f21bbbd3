//! The reply of one node to one request of a batch.

use crate::engines::redis::node::Trust;
use crate::engines::redis::script::Reply;

/// The reply of one node to one claim or release.
pub(crate) struct NodeReply {
    pub(crate) reply: Reply,
    /// The node's clock; 0 when the script did not read it.
    pub(crate) now_us: u64,
    /// Whether notifications from that node reach this process.
    pub(crate) hears: bool,
    pub(crate) trust: Trust,
}
