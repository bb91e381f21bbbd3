//! The rule for the bytes of one direction.

use std::ops::{Index, IndexMut};
use std::time::Duration;

/// A direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
}

/// The rule for the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flow {
    /// They are forwarded.
    #[default]
    Pass,
    /// They are dropped; the end of a connection is still passed on.
    Drop,
    /// They are not even read: the sender sees an open connection that accepts no more bytes once buffers are full.
    /// The end of a connection is not passed on either.
    Freeze,
    /// They are read and kept, and forwarded in order when they may pass, even if the sender has disconnected by then.
    Hold,
    /// They are forwarded this long after they were received.
    Delay(Duration),
}

impl Flow {
    pub(super) fn reads(self) -> bool {
        self != Flow::Freeze
    }
}

/// One value for each direction.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PerDirection<T> {
    requests: T,
    replies: T,
}

impl<T> Index<Direction> for PerDirection<T> {
    type Output = T;

    fn index(&self, direction: Direction) -> &T {
        match direction {
            Direction::Requests => &self.requests,
            Direction::Replies => &self.replies,
        }
    }
}

impl<T> IndexMut<Direction> for PerDirection<T> {
    fn index_mut(&mut self, direction: Direction) -> &mut T {
        match direction {
            Direction::Requests => &mut self.requests,
            Direction::Replies => &mut self.replies,
        }
    }
}
