//! One server of several: what an engine that locks on a majority of independent servers needs of each.
//!
//! The face of this engine's connections towards the Redlock engine, which knows nothing else of them.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::Attachment;
use crate::engines::redis::config::RedisBuilder;
use crate::engines::redis::error::{Stage, classify};
use crate::engines::redis::protocol::names::Names;
use crate::engines::redis::protocol::script::garbled;
use crate::engines::redis::protocol::{time, value};
use crate::engines::redis::wire::link::Link;
use crate::engines::redis::wire::options::Options;
pub(in crate::engines) use crate::engines::redis::wire::server_clock::{LeapForward, Trust};
use crate::engines::shared::waiting::Waiting;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::key::Key;
use crate::types::owner::Holder;
use crate::types::token::AttemptId;

/// How to reach and speak to one node.
#[derive(Debug, Clone)]
pub(in crate::engines) struct NodeOptions(Arc<Options>);

impl NodeOptions {
    /// The node that `builder` describes, with what all nodes of an engine have in common.
    ///
    /// # Errors
    /// Kind `Config`, naming what is not acceptable.
    pub(in crate::engines) fn new(
        builder: RedisBuilder,
        prefix: &str,
        dial_timeout: Duration,
        wake: AttemptId,
        notices_restarts: bool,
    ) -> Result<NodeOptions> {
        let engine = builder.prefix(prefix).dial_timeout(dial_timeout).build()?;
        let mut options = (*engine.options).clone();
        if options.wait_replicas > 0 {
            let place = &options.dialer.place;
            let problem =
                format!("wait_replicas: {place} is one of several independent nodes; a majority of them counts");
            return Err(Error::new(ErrorKind::Config, problem).with_help("leave it out, or use redis:// with replicas"));
        }
        (options.wake, options.needs_info) = (wake, notices_restarts);
        options.loads_scripts = false;
        Ok(NodeOptions(Arc::new(options)))
    }

    /// Where the node is, for messages: never with credentials.
    pub(in crate::engines) fn place(&self) -> &str {
        &self.0.dialer.place
    }

    pub(super) fn options(&self) -> &Options {
        &self.0
    }
}

/// The connections to one node: one for claims, releases and messages, one for renewals.
pub(in crate::engines) struct Node {
    options: NodeOptions,
    waiting: Arc<Waiting>,
    main: Link,
    reserved: Link,
}

/// Which connection of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engines) enum Lane {
    /// Claims and releases: what is sent later arrives later.
    Main,
    /// Renewals: driven by the keeper's runtime.
    Reserved,
}

impl Node {
    /// Begins to connect.
    pub(in crate::engines) fn start(options: &NodeOptions, attachment: &Attachment) -> Node {
        let runtime = attachment.caller_runtime.as_ref().unwrap_or(&attachment.keeper_runtime).clone();
        let waiting = Arc::new(Waiting::new(attachment));
        let main = Link::start(options.0.clone(), Some(waiting.clone()), attachment, runtime);
        let reserved = Link::start(options.0.clone(), None, attachment, attachment.keeper_runtime.clone());
        Node { options: options.clone(), waiting, main, reserved }
    }

    pub(in crate::engines) fn place(&self) -> &str {
        self.options.place()
    }

    /// Returns the connection if it is open now.
    pub(in crate::engines) fn now(&self, lane: Lane) -> Option<Connection> {
        self.link(lane).now()
    }

    /// Returns the connection when it is open; waits at most `wait`.
    pub(in crate::engines) async fn connection(&self, lane: Lane, wait: Duration) -> Result<Connection> {
        self.link(lane).connection(wait).await
    }

    /// Returns when the connection is open or the first attempt to open it has failed.
    pub(in crate::engines) async fn first(&self, lane: Lane, wait: Duration) -> Result<()> {
        self.link(lane).first(wait).await
    }

    /// Messages for `attempt` are kept from now on; those that came before are not.
    pub(in crate::engines) fn listen(&self, attempt: AttemptId) {
        self.waiting.enlist_anew(attempt);
    }

    /// Messages for `attempt` are kept, if they were not before.
    pub(in crate::engines) fn keep_listening(&self, attempt: AttemptId) {
        self.waiting.enlist(attempt);
    }

    pub(in crate::engines) fn forget(&self, attempt: AttemptId) {
        self.waiting.forget(attempt);
    }

    /// Returns when the node has sent a message for `attempt`; never when it is not listened for.
    pub(in crate::engines) async fn hint(&self, attempt: AttemptId) {
        if self.waiting.is_enlisted(attempt) {
            self.waiting.notified(attempt).await;
        } else {
            std::future::pending::<()>().await;
        }
    }

    /// Returns when the node's clock was seen to leap forward, and that is not dealt with yet.
    pub(in crate::engines) async fn leapt(&self) -> LeapForward {
        self.main.clock().leapt().await
    }

    /// `leap` was dealt with when the node's clock showed `server_us`: its later answers are trusted again.
    pub(in crate::engines) fn settle(&self, leap: LeapForward, server_us: u64) {
        self.main.clock().settle(leap, server_us);
    }

    /// `leap` was none: our own clock stood still.
    pub(in crate::engines) fn meet_again(&self, leap: LeapForward) {
        self.main.clock().meet_again(leap);
    }

    pub(in crate::engines) fn close(&self) {
        self.main.close();
        self.reserved.close();
    }

    fn link(&self, lane: Lane) -> &Link {
        match lane {
            Lane::Main => &self.main,
            Lane::Reserved => &self.reserved,
        }
    }
}

/// One open connection to a node.
pub(in crate::engines) type Connection = Arc<crate::engines::redis::wire::connection::Connection>;

/// The keys of one lock on every node.
#[derive(Debug, Clone)]
pub(in crate::engines) struct Keys {
    pub(in crate::engines) lock: String,
    pub(in crate::engines) queue: String,
    pub(in crate::engines) waiters: String,
    pub(in crate::engines) fence: String,
}

impl Keys {
    pub(in crate::engines) fn new(prefix: &str, key: &Key) -> Result<Keys> {
        let names = Names::new(prefix, key)?;
        let (queue, waiters, fence) = (names.queue(), names.waiters(), names.fence());
        Ok(Keys { lock: names.lock, queue, waiters, fence })
    }
}

/// The error that the words of a server stand for, which a script has passed on.
pub(in crate::engines) fn refusal(words: &str) -> Error {
    let line = format!("-{}\r\n", words.trim_start_matches('-').replace(['\r', '\n'], " "));
    match redis::parse_redis_value(line.as_bytes()).and_then(redis::Value::extract_error) {
        Err(error) => classify(&error, Stage::Request),
        Ok(_) => garbled(),
    }
}

/// Who has a lock, from its value and what is left of its lease.
pub(in crate::engines) fn holder(value: &[u8], ttl_left: Option<Duration>, now_us: u64) -> Holder {
    value::holder(value, ttl_left, now_us)
}

/// Whole milliseconds for the server, rounded up.
pub(in crate::engines) fn millis(length: Duration) -> u64 {
    time::millis(length)
}
