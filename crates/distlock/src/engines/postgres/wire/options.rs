//! How the engine connects.

use std::fmt;
use std::time::Duration;

use crate::engines::postgres::protocol::requests::Statements;
use crate::engines::postgres::protocol::schema::Schema;
use crate::engines::shared::dial::Dialer;
use crate::types::secret::Secret;

/// What every connection of an engine has in common.
pub(in crate::engines) struct Options {
    /// The servers, of which one is the primary.
    pub(in crate::engines) dialers: Vec<Dialer>,
    pub(in crate::engines) is_encrypted: bool,
    /// Whether a pooler is known to lend servers by the transaction.
    pub(in crate::engines) is_pooled: bool,
    pub(in crate::engines) user: String,
    pub(in crate::engines) password: Option<Secret>,
    pub(in crate::engines) database: String,
    pub(in crate::engines) schema: Schema,
    pub(in crate::engines) statements: Statements,
    /// Stands before each lock's name.
    pub(in crate::engines) prefix: String,
    pub(in crate::engines) dial_timeout: Duration,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { dialers, user, database, schema, prefix, .. } = self;
        let mut shown = f.debug_struct("Options");
        shown.field("servers", dialers).field("user", user).field("database", database);
        shown.field("schema", schema).field("prefix", prefix).finish_non_exhaustive()
    }
}
