//! The counts of a proxy.

/// Bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Received.
    pub received: u64,
    /// Forwarded.
    pub forwarded: u64,
    /// Dropped, or in transit when their connection was cut.
    pub dropped: u64,
}

impl Traffic {
    /// Returns the bytes that were received and wait in the proxy.
    pub fn held(&self) -> u64 {
        self.received - self.forwarded - self.dropped
    }
}

/// What a proxy has counted since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Bytes from clients.
    pub requests: Traffic,
    /// Bytes from the server.
    pub replies: Traffic,
    /// Connections that clients made.
    pub accepted: u64,
    /// Connections that are open now.
    pub open: u64,
}
