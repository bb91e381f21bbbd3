//! The connections of an engine.

use std::sync::Arc;
use std::time::Duration;

use crate::engines::postgres::wire::connection::Connection;
use crate::engines::postgres::wire::link::Link;
use crate::engines::postgres::wire::listener::Listener;
use crate::types::error::Result;

/// How long a request waits for a connection that is being opened again.
pub(in crate::engines) const CONNECT_WAIT: Duration = Duration::from_secs(1);

/// The connections of an engine.
pub(in crate::engines) struct Links {
    /// For claims, releases and everything but renewals.
    pub(in crate::engines) main: Link,
    /// For renewals.
    pub(in crate::engines) reserved: Link,
    pub(in crate::engines) listener: Listener,
}

impl Links {
    pub(in crate::engines) async fn for_claim(&self) -> Result<Arc<Connection>> {
        self.main.connection(CONNECT_WAIT).await
    }

    /// Returns the connection for a release: the main one, or the reserved one while that is closed.
    pub(in crate::engines) async fn for_release(&self) -> Result<Arc<Connection>> {
        match self.main.now().or_else(|| self.reserved.now()) {
            Some(connection) => Ok(connection),
            None => self.main.connection(CONNECT_WAIT).await,
        }
    }

    /// Returns the connection for a renewal: the reserved one, or the main one while that is closed.
    pub(in crate::engines) async fn for_renewal(&self) -> Result<Arc<Connection>> {
        match self.reserved.now() {
            Some(connection) => Ok(connection),
            None => match self.reserved.connection(CONNECT_WAIT / 4).await {
                Ok(connection) => Ok(connection),
                Err(error) => self.main.now().ok_or(error),
            },
        }
    }

    /// Returns whether messages can come in, as far as is known.
    pub(in crate::engines) fn hears(&self) -> bool {
        !self.listener.is_deaf() && self.main.now().is_none_or(|main| main.is_lent() || !main.is_pooled)
    }

    pub(in crate::engines) fn shut(&self) {
        self.listener.shut();
        self.main.shut();
        self.reserved.shut();
    }
}
