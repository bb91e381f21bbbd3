//! How a Redis is reached and spoken to.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{ProtocolVersion, RedisConnectionInfo};

use crate::engines::redis::protocol::names::Fences;
use crate::engines::redis::protocol::script::Dialect;
use crate::engines::redis::state::restart_guard::RestartGuard;
use crate::engines::redis::wire::sentinels::Sentinels;
use crate::engines::shared::dial::Dialer;
use crate::engines::shared::encryption::Encryption;
use crate::types::error::Result;
use crate::types::token::AttemptId;

/// The version of the Redis protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// Version 2: wake-ups come over a second connection.
    Resp2,
    /// Version 3, since Redis 6: wake-ups come over the connection that carries the commands.
    Resp3,
}

/// Everything that the connections of an engine need.
#[derive(Clone)]
pub(in crate::engines) struct Options {
    /// How the server is reached.
    pub(in crate::engines) dialer: Dialer,
    /// The sentinels that name the server, if there are any.
    pub(in crate::engines) sentinels: Option<Sentinels>,
    /// Whether it is a cluster.
    pub(in crate::engines) is_cluster: bool,
    /// For servers that are only known by their addresses.
    pub(in crate::engines) encryption: Option<Encryption>,
    pub(in crate::engines) prefix: String,
    pub(in crate::engines) database: u32,
    pub(in crate::engines) username: Option<String>,
    pub(in crate::engines) password: Option<String>,
    /// `None`: the best that the server speaks.
    pub(in crate::engines) protocol: Option<Protocol>,
    pub(in crate::engines) dial_timeout: Duration,
    /// How many replicas must have a grant; 0: it counts without them.
    pub(in crate::engines) wait_replicas: u32,
    /// Holds grants back after the server may have forgotten leases.
    pub(in crate::engines) guard: Option<Arc<RestartGuard>>,
    /// Whether connections give the server the scripts of this engine before they are needed.
    pub(in crate::engines) loads_scripts: bool,
    /// Whether scripts ask for `INFO`, to notice a restart.
    pub(in crate::engines) needs_info: bool,
    /// Names the channel for messages to this engine's waiters.
    pub(in crate::engines) wake: AttemptId,
}

impl Options {
    /// Returns the server to connect to now.
    pub(in crate::engines) async fn find(&self) -> Result<Dialer> {
        match &self.sentinels {
            None => Ok(self.dialer.clone()),
            Some(sentinels) => Ok(Dialer::tcp(&sentinels.master().await?, self.encryption.as_ref())),
        }
    }

    /// Returns the log-in for the servers.
    pub(in crate::engines) fn login(&self, protocol: Protocol) -> RedisConnectionInfo {
        let version = match protocol {
            Protocol::Resp2 => ProtocolVersion::RESP2,
            Protocol::Resp3 => ProtocolVersion::RESP3,
        };
        let mut info = RedisConnectionInfo::default()
            .set_protocol(version)
            .set_db(i64::from(self.database))
            .set_skip_set_lib_name();
        if let Some(username) = &self.username {
            info = info.set_username(username);
        }
        if let Some(password) = &self.password {
            info = info.set_password(password);
        }
        info
    }

    pub(in crate::engines) fn dialect(&self) -> Dialect {
        match self.guard {
            Some(_) => Dialect::Guarded,
            None if self.is_cluster => Dialect::Sharded,
            None => Dialect::Plain,
        }
    }

    /// Returns which keys are the fences: all keys of a script are in one hash slot of a cluster.
    pub(in crate::engines) fn fences(&self) -> Fences {
        match self.is_cluster {
            true => Fences::OfLock,
            false => Fences::of_prefix(&self.prefix),
        }
    }

    /// Returns the channel for the lock with this fence, in the hash slot of both.
    pub(in crate::engines) fn sharded_channel(&self, fence: &str) -> String {
        format!("distlock:wake:{fence}:{}", self.wake)
    }

    pub(in crate::engines) fn channel(&self) -> String {
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
