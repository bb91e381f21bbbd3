//! How the engine connects.

use std::fmt;
use std::time::Duration;

use crate::engines::postgres::protocol::requests::Statements;
use crate::engines::postgres::protocol::schema::Schema;
use crate::engines::postgres::wire::lender::{Lender, PLACE};
use crate::engines::shared::dial::Dialer;
use crate::types::secret::Secret;

/// What every connection of an engine has in common.
pub(in crate::engines) struct Options {
    /// Lends the connections for claims, releases and renewals; then the servers are only listened to.
    pub(in crate::engines) lender: Option<Lender>,
    /// The servers, of which one is the primary. There may be none where there is a lender.
    pub(in crate::engines) servers: Vec<Server>,
    pub(in crate::engines) is_encrypted: bool,
    /// Whether a pooler is known to lend servers by the transaction.
    pub(in crate::engines) is_pooled: bool,
    pub(in crate::engines) user: String,
    pub(in crate::engines) database: String,
    pub(in crate::engines) schema: Schema,
    pub(in crate::engines) statements: Statements,
    /// Stands before each lock's name.
    pub(in crate::engines) prefix: String,
    pub(in crate::engines) dial_timeout: Duration,
}

/// One server.
pub(in crate::engines) struct Server {
    pub(in crate::engines) dialer: Dialer,
    /// A password file may have another one for each server.
    pub(in crate::engines) password: Option<Secret>,
}

impl Options {
    /// Returns whether a session that listens can be had, as far as is known before one is opened.
    pub(in crate::engines) fn can_listen(&self) -> bool {
        !self.is_pooled && !self.servers.is_empty()
    }

    /// Returns the addresses of the servers, for messages.
    pub(in crate::engines) fn places(&self) -> String {
        match &self.lender {
            Some(_) => PLACE.into(),
            None => self.servers.iter().map(|server| &*server.dialer.place).collect::<Vec<_>>().join(","),
        }
    }

    /// Returns how long opening a connection may take, on whichever server.
    pub(in crate::engines) fn longest_dial(&self) -> Duration {
        let servers = if self.lender.is_some() { 1 } else { self.servers.len() };
        self.dial_timeout.saturating_mul(u32::try_from(servers).unwrap_or(1))
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { user, database, schema, prefix, .. } = self;
        let mut shown = f.debug_struct("Options");
        shown.field("servers", &self.places()).field("user", user).field("database", database);
        shown.field("schema", schema).field("prefix", prefix).finish_non_exhaustive()
    }
}
