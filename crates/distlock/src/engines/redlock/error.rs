//! What a node's missing reply means, and errors that name every node.

use std::fmt;

use crate::types::error::Error;

/// The error of a node that has not replied: the request may have been applied.
pub(crate) fn no_reply() -> Error {
    Error::unknown("not answered in time")
}

/// The error of a node without an open connection: the request was not sent.
pub(crate) fn no_connection() -> Error {
    Error::unavailable("no connection")
}

/// Returns each node's place with its reply, for the message of an error.
pub(crate) fn by_node<T: fmt::Display>(places: &[&str], replies: impl Iterator<Item = T>) -> String {
    let each: Vec<_> = places.iter().zip(replies).map(|(place, reply)| format!("{place}: {reply}")).collect();
    each.join("; ")
}
