//! Builds a Redlock engine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engines::redis::RedisBuilder;
use crate::engines::redis::node::NodeOptions;
use crate::engines::redlock::engine::Redlock;
use crate::engines::redlock::options::RedlockOptions;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::token::AttemptId;

const DEFAULT_DIAL_TIMEOUT: Duration = Duration::from_secs(5);
const MIN_NODES: usize = 3;
const MAX_NODES: usize = 9;

/// Builds a [`Redlock`] engine; made by [`Redlock::of`].
#[must_use = "a builder does nothing until it is built"]
pub struct RedlockBuilder {
    nodes: Vec<RedisBuilder>,
    prefix: String,
    dial_timeout: Duration,
    restart_guard: bool,
}

impl Redlock {
    /// Returns a builder for locks on a majority of these nodes: 3, 5, 7 or 9 independent servers, each with its own address
    /// and credentials. Their [`wait_replicas`](RedisBuilder::wait_replicas) must be 0.
    pub fn of(nodes: impl IntoIterator<Item = RedisBuilder>) -> RedlockBuilder {
        RedlockBuilder {
            nodes: nodes.into_iter().collect(),
            prefix: String::new(),
            dial_timeout: DEFAULT_DIAL_TIMEOUT,
            restart_guard: true,
        }
    }
}

impl RedlockBuilder {
    /// Sets the prefix of each lock's name, on every node. Default: none.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the timeout of a connection attempt. Default: 5 s.
    pub fn dial_timeout(mut self, most: Duration) -> Self {
        self.dial_timeout = most;
        self
    }

    /// Lets a node vote at once after a restart or a flush. Default: it waits until every older lease is over.
    ///
    /// Safe only where every node writes to its disk before it replies (`appendfsync always`) and is never flushed.
    pub fn without_restart_guard(mut self) -> Self {
        self.restart_guard = false;
        self
    }

    /// Builds the engine. It connects when a locker is made of it.
    ///
    /// # Errors
    /// Kind `Config`, naming the option that is refused.
    pub fn build(self) -> Result<Redlock> {
        let RedlockBuilder { nodes, prefix, dial_timeout, restart_guard } = self;
        check_count(nodes.len())?;
        let wake = AttemptId::random();
        let node = |builder| NodeOptions::new(builder, &prefix, dial_timeout, wake, restart_guard);
        let nodes = nodes.into_iter().map(node).collect::<Result<Vec<_>>>()?;
        for (at, node) in nodes.iter().enumerate() {
            if nodes[..at].iter().any(|other| other.place() == node.place()) {
                return Err(refuse(&format!("{} is there twice; each node has one vote", node.place())));
            }
        }
        Ok(Redlock::new(Arc::new(RedlockOptions { nodes, prefix, dial_timeout, restart_guard, wake })))
    }
}

fn check_count(count: usize) -> Result<()> {
    match count {
        _ if count < MIN_NODES => {
            Err(refuse(&format!("{count}; below {MIN_NODES} no node may fail; 3, 5, 7 or 9 are accepted")))
        }
        _ if count > MAX_NODES => {
            Err(refuse(&format!("{count}; each one costs a round trip per lock; 3, 5, 7 or 9 are accepted")))
        }
        _ if count.is_multiple_of(2) => Err(refuse(&format!(
            "{count}; an even one adds no failure that may be survived; 3, 5, 7 or 9 are accepted"
        ))),
        _ => Ok(()),
    }
}

fn refuse(problem: &str) -> Error {
    Error::new(ErrorKind::Config, format!("nodes: {problem}"))
}

impl fmt::Debug for RedlockBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockBuilder")
            .field("nodes", &self.nodes)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::redis::Redis;

    fn nodes(ports: &[u16]) -> RedlockBuilder {
        Redlock::of(ports.iter().map(|port| Redis::tcp("localhost", *port).username("app").password("hunter2")))
    }

    #[test]
    fn an_even_number_too_few_too_many_and_the_same_twice_are_refused_with_the_reason() {
        let cases: [(&[u16], &str); 6] = [
            (&[], "nodes: 0; below 3"),
            (&[1, 2], "nodes: 2; below 3"),
            (&[1, 2, 3, 4], "nodes: 4; an even one adds no failure"),
            (&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], "nodes: 11; each one costs"),
            (&[1, 2, 2], "nodes: localhost:2 is there twice"),
            (&[1, 2, 3, 4, 1], "nodes: localhost:1 is there twice"),
        ];
        for (ports, start) in cases {
            let error = nodes(ports).build().expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().starts_with(start), "{error}");
        }
        for ports in [&[1, 2, 3][..], &[1, 2, 3, 4, 5], &[1, 2, 3, 4, 5, 6, 7, 8, 9]] {
            nodes(ports).build().expect("accepted");
        }
        assert_eq!(nodes(&[1, 2, 3]).prefix("a{b}").build().expect_err("refused").kind(), ErrorKind::Config);
    }

    #[test]
    fn replicas_of_a_node_are_not_waited_for_and_that_is_said() {
        let node = |port| Redis::tcp("localhost", port).wait_replicas(u32::from(port == 2));
        let error = Redlock::of([1, 2, 3].map(node)).build().expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.to_string().starts_with("wait_replicas: localhost:2 is one of several"), "{error}");
    }

    #[test]
    fn a_password_is_never_printed() {
        let builder = nodes(&[1, 2, 3]);
        assert!(!format!("{builder:?} {:?}", nodes(&[1, 2, 3]).build()).contains("hunter2"));
    }
}
