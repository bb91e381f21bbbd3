//! A cluster: several masters that share the locks by their hash slots.

use crate::types::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, Value};

use crate::contract::Attachment;
use crate::engines::redis::error::{Stage, classify_at};
use crate::engines::redis::wire::hash_slot::{SlotMap, hash_slot, redirected};
use crate::engines::redis::wire::link_state::Trouble;
use crate::engines::redis::wire::options::{Options, Protocol};
use crate::engines::redis::wire::server_connections::ServerConnections;
use crate::engines::shared::dial::{Address, Dialer};
use crate::engines::shared::waiting::Waiting;
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};

/// How long one node may take to say which node serves which hash slot.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a node may take before the next one is asked at the same time.
const PROMPT_REPLY: Duration = Duration::from_millis(50);
/// The shortest time between two `CLUSTER SLOTS`.
const LEARN_SPACING: Duration = Duration::from_millis(200);
/// How long a request is retried while its hash slot moves, and the pause between retries.
const RETRY_FOR: Duration = Duration::from_millis(1500);
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// How many redirections in a row are followed.
const MOST_REDIRECTIONS: u32 = 8;

/// The masters. Each is connected to when it is first needed.
pub(in crate::engines) struct Cluster {
    seeds: Vec<Address>,
    options: Arc<Options>,
    waiting: Arc<Waiting>,
    attachment: Attachment,
    known: Mutex<Known>,
    /// One `CLUSTER SLOTS` at a time; when the last one ended, and how.
    asking: tokio::sync::Mutex<Option<(Moment, std::result::Result<(), Trouble>)>>,
}

#[derive(Default)]
struct Known {
    slots: SlotMap,
    servers: HashMap<Address, Arc<ServerConnections>>,
}

impl Cluster {
    pub(in crate::engines) fn new(
        seeds: Vec<Address>,
        options: Arc<Options>,
        waiting: Arc<Waiting>,
        attachment: Attachment,
    ) -> Cluster {
        let (known, asking) = (Mutex::default(), tokio::sync::Mutex::default());
        Cluster { seeds, options, waiting, attachment, known, asking }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }

    /// Returns the connections to the node at `address`.
    fn server_at(&self, address: &Address) -> Arc<ServerConnections> {
        let start = || {
            let dialer = Dialer::tcp(address, self.options.encryption.as_ref());
            let options = Arc::new(Options { dialer, ..(*self.options).clone() });
            Arc::new(ServerConnections::of_cluster(&options, &self.waiting, &self.attachment))
        };
        self.known().servers.entry(address.clone()).or_insert_with(start).clone()
    }

    /// Returns the node that serves `slot`.
    async fn owner(&self, slot: u16) -> Result<Address> {
        if let Some(owner) = self.known().slots.owner(slot) {
            return Ok(owner.clone());
        }
        self.learn().await?;
        let owner = self.known().slots.owner(slot).cloned();
        owner.ok_or_else(|| Error::unavailable(format!("redis: no node of the cluster serves slot {slot}")))
    }

    /// Returns the connections to the node that serves the slot of `key`, if they are there already.
    pub(in crate::engines) fn known_server(&self, key: &str) -> Option<Arc<ServerConnections>> {
        let known = self.known();
        known.servers.get(known.slots.owner(hash_slot(key))?).cloned()
    }

    /// Returns a number for the node that serves the slot of `key`, as far as is known.
    pub(in crate::engines) fn shard(&self, key: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.known().slots.owner(hash_slot(key)).hash(&mut hasher);
        hasher.finish()
    }

    /// Asks the nodes which of them serves which hash slot, unless they have just been asked.
    pub(in crate::engines) async fn learn(&self) -> Result<()> {
        let mut asking = self.asking.lock().await;
        let now = self.attachment.clock.now();
        if let Some((_, outcome)) = asking.as_ref().filter(|(last, _)| now.since(*last) < LEARN_SPACING) {
            return outcome.as_ref().copied().map_err(Trouble::error);
        }
        let mut nodes: Vec<Address> = self.known().slots.owners().into_iter().collect();
        nodes.extend(self.seeds.iter().filter(|seed| !nodes.contains(seed)).cloned().collect::<Vec<_>>());
        let answer = self.ask_any(&nodes).await.map(|slots| self.take(slots));
        let outcome = answer.as_ref().copied().map_err(|error| Trouble { kind: error.kind(), text: error.to_string() });
        *asking = Some((self.attachment.clock.now(), outcome));
        answer
    }

    /// Returns the first reply of a node. While a node hangs, the next one is asked at the same time.
    async fn ask_any(&self, nodes: &[Address]) -> Result<SlotMap> {
        let mut trouble = Error::unavailable("redis: no node of the cluster is known");
        let (mut nodes, mut asked) = (nodes.iter(), Vec::new());
        loop {
            let next = nodes.next();
            asked.extend(next.map(|node| Box::pin(self.ask_in_time(node))));
            let wait = if next.is_some() { PROMPT_REPLY } else { REPLY_TIMEOUT };
            match tokio::time::timeout(wait, first_of(&mut asked)).await {
                Ok(Some(Ok(slots))) => return Ok(slots),
                Ok(Some(Err(error))) => trouble = error,
                Ok(None) if next.is_none() => return Err(trouble),
                Ok(None) | Err(_) => {}
            }
        }
    }

    async fn ask_in_time(&self, node: &Address) -> Result<SlotMap> {
        let late = |_| Err(Error::unavailable(format!("redis: {node} does not answer")));
        tokio::time::timeout(REPLY_TIMEOUT, self.ask(node)).await.unwrap_or_else(late)
    }

    async fn ask(&self, node: &Address) -> Result<SlotMap> {
        let stream = Dialer::tcp(node, self.options.encryption.as_ref()).open("redis").await?;
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(REPLY_TIMEOUT));
        let login = self.options.login(Protocol::Resp2);
        let opened = MultiplexedConnection::new_with_config(&login, stream, config).await;
        let (mut connection, driver) =
            opened.map_err(|error| classify_at(&node.to_string(), &error, Stage::Opening))?;
        let mut question = redis::cmd("CLUSTER");
        question.arg("SLOTS");
        let answer = tokio::select! {
            answer = connection.send_packed_command(&question) => answer.and_then(Value::extract_error),
            () = driver => return Err(Error::unavailable(format!("redis: {node} closed the connection"))),
        };
        let answer = answer.map_err(|error| classify_at(&node.to_string(), &error, Stage::Opening))?;
        SlotMap::read(&answer, node)
            .ok_or_else(|| Error::unavailable(format!("redis: {node} does not say who serves which slot")))
    }

    /// Takes a new map, and disconnects from nodes that serve no hash slot any more.
    fn take(&self, slots: SlotMap) {
        let mut known = self.known();
        let owners = slots.owners();
        known.servers.retain(|address, _| owners.contains(address));
        known.slots = slots;
    }

    /// Returns every master that serves a hash slot.
    pub(in crate::engines) async fn all(&self) -> Result<Vec<Arc<ServerConnections>>> {
        self.learn().await?;
        let owners = self.known().slots.owners();
        Ok(owners.iter().map(|owner| self.server_at(owner)).collect())
    }

    pub(in crate::engines) fn route(&self, key: &str) -> Route<'_> {
        let until = self.attachment.clock.now().after(RETRY_FOR);
        Route { cluster: self, slot: hash_slot(key), at: None, asks: false, followed: 0, until }
    }

    /// Returns whether messages can come in from every node that was connected to.
    pub(in crate::engines) fn may_hear(&self) -> bool {
        self.known().servers.values().all(|server| server.may_hear())
    }

    pub(in crate::engines) fn close(&self) {
        self.known().servers.values().for_each(|server| server.close());
    }
}

/// Returns the first result of some futures and removes that future; `None` when there are none.
async fn first_of<F: Future + Unpin>(open: &mut Vec<F>) -> Option<F::Output> {
    poll_fn(|context| {
        let is_ready = |future: &mut F| match Pin::new(future).poll(context) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        };
        let ready = open.iter_mut().map(is_ready).enumerate().find_map(|(at, ready)| Some((at, ready?)));
        match ready {
            Some((at, result)) => {
                drop(open.swap_remove(at));
                Poll::Ready(Some(result))
            }
            None if open.is_empty() => Poll::Ready(None),
            None => Poll::Pending,
        }
    })
    .await
}

/// The route of one request to the node that serves its hash slot.
pub(in crate::engines) struct Route<'a> {
    cluster: &'a Cluster,
    slot: u16,
    /// The node that a redirection named, or that the request went to last.
    at: Option<Address>,
    /// Whether the redirection was an ASK.
    asks: bool,
    followed: u32,
    until: Moment,
}

impl Route<'_> {
    /// Returns the connections to use, and whether the request must announce itself with ASKING.
    pub(in crate::engines) async fn next(&mut self) -> Result<(Arc<ServerConnections>, bool)> {
        if !self.asks {
            self.at = Some(self.cluster.owner(self.slot).await?);
        }
        let at = self.at.as_ref().ok_or_else(|| Error::unavailable("redis: no node to ask"))?;
        Ok((self.cluster.server_at(at), self.asks))
    }

    /// Returns whether to retry a request that failed: only when it certainly was not carried out, and because its hash
    /// slot is elsewhere or moving. `follows_ask`: see [`Moving::FollowAsk`](super::servers::Moving).
    pub(in crate::engines) async fn again(&mut self, error: &Error, follows_ask: bool) -> bool {
        let asked = std::mem::take(&mut self.asks);
        let Some(redirection) = Redirection::of(error) else {
            // Perhaps it failed because the node is no master any more.
            if error.kind() == ErrorKind::Unavailable {
                let _ = self.cluster.learn().await;
            }
            return false;
        };
        self.followed += 1;
        let place = redirection.place.zip(self.at.as_ref()).and_then(|(place, at)| redirected(place, at));
        match (redirection.kind, place) {
            (Kind::Moved, Some(owner)) if self.followed <= MOST_REDIRECTIONS => {
                self.cluster.known().slots.set(self.slot, owner);
                true
            }
            (Kind::Ask, Some(owner)) if follows_ask && !asked && self.followed <= MOST_REDIRECTIONS => {
                (self.at, self.asks) = (Some(owner), true);
                true
            }
            _ => self.pause().await,
        }
    }

    /// Waits a little for the hash slot to arrive. Returns false when the time for that is over.
    async fn pause(&self) -> bool {
        tokio::time::sleep(RETRY_PAUSE).await;
        self.cluster.attachment.clock.now() < self.until
    }
}

/// Returns whether the request failed because its hash slot is moving to another node.
pub(in crate::engines) fn is_moving(error: &Error) -> bool {
    matches!(Redirection::of(error), Some(Redirection { kind: Kind::Ask | Kind::TryAgain, .. }))
}

struct Redirection<'a> {
    kind: Kind,
    place: Option<&'a str>,
}

enum Kind {
    Moved,
    Ask,
    TryAgain,
}

impl<'a> Redirection<'a> {
    fn of(error: &'a Error) -> Option<Redirection<'a>> {
        let error = std::error::Error::source(error)?.downcast_ref::<RedisError>()?;
        let kind = match error.code()? {
            "MOVED" => Kind::Moved,
            "ASK" => Kind::Ask,
            "TRYAGAIN" => Kind::TryAgain,
            _ => return None,
        };
        Some(Redirection { kind, place: error.redirect_node().map(|(place, _)| place) })
    }
}
