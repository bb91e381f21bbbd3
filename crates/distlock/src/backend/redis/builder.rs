//! Makes a Redis engine.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::backend::redis::Redis;
use crate::backend::redis::dial::Dialer;
use crate::backend::redis::options::{Options, Protocol};
use crate::error::{Error, ErrorKind, Result};
use crate::owner::MAX_TEXT_BYTES;
use crate::token::AttemptId;

const DEFAULT_DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes a [`Redis`] engine.
#[must_use = "a builder does nothing until it is built"]
pub struct RedisBuilder(Options);

impl Redis {
    /// A server by its name or address. An IPv6 address needs no brackets.
    pub fn tcp(host: &str, port: u16) -> RedisBuilder {
        RedisBuilder::new(Dialer::tcp(host, port))
    }

    /// A server on a Unix socket of this machine.
    pub fn unix(path: impl Into<PathBuf>) -> RedisBuilder {
        RedisBuilder::new(Dialer::unix(path.into()))
    }

    /// A server behind any stream, such as a tunnel. `dial` is called for each connection, and again whenever one has
    /// died; it runs inside a tokio runtime. `place` names the server in messages.
    pub fn over<F, Fut, S>(place: &str, dial: F) -> RedisBuilder
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        RedisBuilder::new(Dialer::new(place, dial))
    }
}

impl RedisBuilder {
    fn new(dialer: Dialer) -> RedisBuilder {
        RedisBuilder(Options {
            dialer,
            prefix: String::new(),
            database: 0,
            username: None,
            password: None,
            protocol: None,
            dial_timeout: DEFAULT_DIAL_TIMEOUT,
            wake: AttemptId::random(),
        })
    }

    /// What stands before each lock's name. Default: nothing.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.0.prefix = prefix.into();
        self
    }

    /// The number of the database. Default: 0.
    pub fn database(mut self, number: u32) -> Self {
        self.0.database = number;
        self
    }

    /// The user of the server's access list. Default: the server's default user.
    pub fn username(mut self, name: &str) -> Self {
        self.0.username = Some(name.into());
        self
    }

    /// The password. Default: none.
    pub fn password(mut self, password: &str) -> Self {
        self.0.password = Some(password.into());
        self
    }

    /// The version of the protocol. Default: the best that the server speaks.
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.0.protocol = Some(protocol);
        self
    }

    /// How long to try to open a connection. Default: 5 s.
    pub fn dial_timeout(mut self, most: Duration) -> Self {
        self.0.dial_timeout = most;
        self
    }

    /// The engine. It connects when a locker is made of it.
    ///
    /// # Errors
    /// Kind `Config`, naming what is not acceptable.
    pub fn build(self) -> Result<Redis> {
        let refuse = |problem: String| Err(Error::new(ErrorKind::Config, problem));
        let Options { prefix, username, password, dial_timeout, .. } = &self.0;
        if prefix.len() > MAX_TEXT_BYTES {
            return refuse(format!("prefix: {} bytes, at most {MAX_TEXT_BYTES} are accepted", prefix.len()));
        }
        if prefix.contains(|c: char| c.is_control() || matches!(c, '{' | '}')) {
            return refuse("prefix: a control character or a brace".into());
        }
        if username.is_some() && password.is_none() {
            return refuse("password: missing; a user name is given".into());
        }
        if dial_timeout.is_zero() {
            return refuse("dial_timeout: nothing can be reached in no time".into());
        }
        Ok(Redis::new(self.0))
    }
}

impl fmt::Debug for RedisBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisBuilder").field(&self.0).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_printed() {
        let builder = Redis::tcp("localhost", 6379).username("app").password("hunter2");
        assert!(!format!("{builder:?}").contains("hunter2"));
        assert!(!format!("{:?}", builder.build().unwrap()).contains("hunter2"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        let cases = [
            ("prefix: ", Redis::tcp("localhost", 6379).prefix("a{b}")),
            ("prefix: ", Redis::tcp("localhost", 6379).prefix(&"x".repeat(257))),
            ("password: ", Redis::tcp("localhost", 6379).username("app")),
            ("dial_timeout: ", Redis::unix("/run/redis.sock").dial_timeout(Duration::ZERO)),
        ];
        for (start, builder) in cases {
            let error = builder.build().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().starts_with(start), "{error}");
        }
    }
}
