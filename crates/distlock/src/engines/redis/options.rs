//! How a Redis is reached and spoken to.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engines::redis::dial::Dialer;
use crate::engines::redis::encryption::Encryption;
use crate::engines::redis::guard::Guard;
use crate::engines::redis::script::Dialect;
use crate::engines::redis::sentinels::Sentinels;
use crate::types::error::Result;
use crate::types::token::AttemptId;

/// The version of the Redis protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// The old one: wake-ups come over a second connection.
    Resp2,
    /// The one since Redis 6: wake-ups come over the connection that carries the commands.
    Resp3,
}

/// Everything that the connections of an engine need.
#[derive(Clone)]
pub(super) struct Options {
    /// How the server is reached.
    pub(super) dialer: Dialer,
    /// Who knows which server it is, if that changes.
    pub(super) sentinels: Option<Sentinels>,
    /// Whether it is one of several that share the locks.
    pub(super) is_cluster: bool,
    /// For servers that are only known by their addresses.
    pub(super) encryption: Option<Encryption>,
    pub(super) prefix: String,
    pub(super) database: u32,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    /// `None`: the best that the server speaks.
    pub(super) protocol: Option<Protocol>,
    pub(super) dial_timeout: Duration,
    /// How many replicas must have a grant; 0: it counts without them.
    pub(super) wait_replicas: u32,
    /// Holds grants back after the server may have forgotten leases.
    pub(super) guard: Option<Arc<Guard>>,
    /// Names the channel on which this engine hears of its turns.
    pub(super) wake: AttemptId,
}

impl Options {
    /// The server to connect to now.
    pub(super) async fn find(&self) -> Result<Dialer> {
        match &self.sentinels {
            None => Ok(self.dialer.clone()),
            Some(sentinels) => Ok(Dialer::tcp(&sentinels.master().await?, self.encryption.as_ref())),
        }
    }

    pub(super) fn dialect(&self) -> Dialect {
        match self.guard {
            Some(_) => Dialect::Guarded,
            None if self.is_cluster => Dialect::Sharded,
            None => Dialect::Plain,
        }
    }

    /// The channel for the lock with this fence, in the slot of both.
    pub(super) fn sharded_channel(&self, fence: &str) -> String {
        format!("distlock:wake:{fence}:{}", self.wake)
    }

    pub(super) fn channel(&self) -> String {
        format!("distlock:wake:{}", self.wake)
    }
}

// By hand: a password is never printed.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("dialer", &self.dialer)
            .field("sentinels", &self.sentinels)
            .field("encrypted", &self.encryption.is_some())
            .field("prefix", &self.prefix)
            .field("database", &self.database)
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("protocol", &self.protocol)
            .field("dial_timeout", &self.dial_timeout)
            .field("wait_replicas", &self.wait_replicas)
            .field("guard", &self.guard)
            .finish_non_exhaustive()
    }
}
