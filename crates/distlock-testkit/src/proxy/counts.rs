//! What a proxy has seen.

/// Bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Came in.
    pub received: u64,
    /// Went out.
    pub forwarded: u64,
    /// Were swallowed, or were on their way when their connection was cut.
    pub dropped: u64,
}

impl Traffic {
    /// Came in and wait in the proxy.
    pub fn held(&self) -> u64 {
        self.received - self.forwarded - self.dropped
    }
}

/// What a proxy has seen since it started.
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
