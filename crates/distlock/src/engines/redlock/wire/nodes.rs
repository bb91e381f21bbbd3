//! The nodes: their connections, and whether each replies.

use std::ops::Index;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::contract::Attachment;
use crate::engines::redis::node::{Connection, Lane, Node, NodeOptions};
use crate::engines::redlock::error::{by_node, no_connection, no_reply};
use crate::engines::redlock::options::RedlockOptions;
use crate::engines::redlock::state::contended::ContendedLocks;
use crate::engines::redlock::state::known_note::KnownNote;
use crate::engines::redlock::state::quorum::quorum_of;
use crate::engines::redlock::wire::calls::NodeCalls;
use crate::types::clock::{Clock, Moment};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::sync::Mutex;

/// How long a node may take to reply, as a part of the lease and within bounds.
const TIMEOUT_PART: u32 = 5;
const MIN_TIMEOUT: Duration = Duration::from_millis(50);
pub(crate) const MAX_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the replies of the others are waited for when a majority has decided: they are about to arrive.
pub(crate) const LATE_REPLY_WAIT: Duration = Duration::from_millis(1);
/// How long the other nodes are waited for when a majority is connected for the first time.
const FIRST_CONNECT_GRACE: Duration = Duration::from_millis(200);

/// The nodes of an attached engine.
pub(crate) struct Nodes {
    all: Vec<Arc<NodeState>>,
    pub(crate) options: Arc<RedlockOptions>,
    pub(crate) note_key: String,
    pub(crate) clock: Clock,
    pub(crate) drift: f64,
    pub(crate) runtime: Handle,
    pub(crate) contended: ContendedLocks,
    /// Taken while a batch is handed to a connection, and when a caller gives its request up.
    pub(crate) hand_over: Mutex<()>,
    /// How many claims and releases still wait for replies of a minority.
    late_requests: watch::Sender<usize>,
    /// Whether every node was tried once, per lane.
    was_tried: [AtomicBool; 2],
}

/// One node and what is known of it.
pub(crate) struct NodeState {
    pub(crate) node: Node,
    /// Whether the node did not reply to the last request.
    is_away: AtomicBool,
    /// Whether a task of this process is about to put the node into quarantine.
    pub(crate) is_entering_quarantine: AtomicBool,
    /// The connections over which the lean scripts were sent last: each gets their text once.
    pub(crate) claims_over: AtomicU64,
    pub(crate) releases_over: AtomicU64,
    /// The node's last note, and the connection over which it was told: a restart of the server ends that.
    note: Mutex<Option<(u64, Arc<KnownNote>)>>,
}

impl Nodes {
    /// Begins to connect.
    pub(crate) fn start(options: &Arc<RedlockOptions>, attachment: &Attachment) -> Nodes {
        let state = |node: &NodeOptions| {
            Arc::new(NodeState {
                node: Node::start(node, attachment),
                is_away: AtomicBool::new(false),
                is_entering_quarantine: AtomicBool::new(false),
                claims_over: AtomicU64::new(0),
                releases_over: AtomicU64::new(0),
                note: Mutex::default(),
            })
        };
        Nodes {
            all: options.nodes.iter().map(state).collect(),
            options: options.clone(),
            note_key: options.note_key(),
            clock: attachment.clock.clone(),
            drift: attachment.drift,
            runtime: attachment.keeper_runtime.clone(),
            contended: ContendedLocks::default(),
            hand_over: Mutex::default(),
            late_requests: watch::Sender::new(0),
            was_tried: Default::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<NodeState>> {
        self.all.iter()
    }

    pub(crate) fn quorum(&self) -> usize {
        quorum_of(self.len())
    }

    pub(crate) fn places(&self) -> Vec<&str> {
        self.iter().map(|state| state.node.place()).collect()
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Calls all nodes at once.
    pub(crate) fn call_all<T, F>(&self, call: impl Fn(Arc<NodeState>) -> F) -> NodeCalls<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        NodeCalls::new(self.iter().enumerate().map(|(at, state)| (at, call(state.clone()))))
    }

    /// Returns once a majority is connected. Fails when it is not within `limit`; the error names each node's problem.
    pub(crate) async fn await_quorum(&self, lane: Lane, limit: Duration) -> Result<()> {
        let was_tried = &self.was_tried[lane as usize];
        if !was_tried.load(Ordering::Relaxed) {
            // At the start the others get a little time as well, so that the first locks do not stand on a bare majority.
            let calls = self.call_all(|state| async move { state.node.first(lane, limit).await });
            self.connect(calls, limit, FIRST_CONNECT_GRACE).await;
            was_tried.store(true, Ordering::Relaxed);
        }
        if self.connected(lane) >= self.quorum() {
            return Ok(());
        }
        let calls = self.call_all(|state| async move { state.node.connection(lane, limit).await.map(drop) });
        let outcomes = self.connect(calls, limit, Duration::ZERO).await;
        if self.connected(lane) >= self.quorum() { Ok(()) } else { Err(self.no_quorum(&outcomes)) }
    }

    fn connected(&self, lane: Lane) -> usize {
        self.iter().filter(|state| state.node.now(lane).is_some()).count()
    }

    async fn connect(&self, mut calls: NodeCalls<Result<()>>, limit: Duration, grace: Duration) -> Vec<Result<()>> {
        let mut outcomes: Vec<_> = self.iter().map(|_| Err(no_reply())).collect();
        calls
            .collect(limit, grace, |at, outcome| {
                outcomes[at] = outcome;
                total_ok(&outcomes) >= self.quorum()
            })
            .await;
        outcomes
    }

    fn no_quorum(&self, outcomes: &[Result<()>]) -> Error {
        let states = outcomes.iter().map(|outcome| match outcome {
            Ok(()) => "connected".to_owned(),
            Err(error) => error.to_string(),
        });
        let states = by_node(&self.places(), states);
        let kinds: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err().map(Error::kind)).collect();
        let is_cause = |kind: &ErrorKind| kinds.iter().filter(|other| *other == kind).count() >= self.quorum();
        let kind = [ErrorKind::Auth, ErrorKind::Config, ErrorKind::Closed, ErrorKind::Unsupported]
            .into_iter()
            .find(is_cause)
            .unwrap_or(ErrorKind::Unavailable);
        let (connected, total, quorum) = (total_ok(outcomes), self.len(), self.quorum());
        Error::new(kind, format!("redlock: {connected} of {total} nodes are connected, {quorum} must: {states}"))
    }

    /// Returns how long a node may take to reply when the lease is `ttl`.
    pub(crate) fn timeout(ttl: Duration) -> Duration {
        (ttl / TIMEOUT_PART).clamp(MIN_TIMEOUT, MAX_TIMEOUT)
    }

    /// Records whether a node replied, and logs a change.
    pub(crate) fn record(&self, node: usize, replied: bool) {
        let state = &self[node];
        if state.is_away.load(Ordering::Relaxed) == replied {
            state.is_away.store(!replied, Ordering::Relaxed);
            let place = state.node.place();
            if replied {
                tracing::info!(target: "distlock", { lock.backend = "redlock", node = place }, "node answers again");
            } else {
                tracing::warn!(target: "distlock", { lock.backend = "redlock", node = place }, "node does not answer");
            }
        }
    }

    /// A claim or a release still waits for late replies. [`close`](Nodes::close) waits until the result is dropped.
    pub(crate) fn await_late_replies(self: &Arc<Nodes>) -> LateRequest {
        self.late_requests.send_modify(|count| *count += 1);
        LateRequest(self.clone())
    }

    /// Closes the connections, after the late replies. Otherwise a node that is a little late would grant, or keep, a lock
    /// until its lease ends.
    pub(crate) async fn close(&self) {
        // It cannot fail: the sender is a field of `self`. Each request ends with its timeout.
        let _ = self.late_requests.subscribe().wait_for(|count| *count == 0).await;
        self.iter().for_each(|state| state.node.close());
    }
}

impl Index<usize> for Nodes {
    type Output = Arc<NodeState>;

    fn index(&self, node: usize) -> &Arc<NodeState> {
        &self.all[node]
    }
}

impl NodeState {
    /// Returns the connection if it is open: a node that is away is not waited for.
    pub(crate) fn connection(&self, lane: Lane) -> Result<Connection> {
        self.node.now(lane).ok_or_else(no_connection)
    }

    /// Returns the note that the node has told over this connection when it last voted.
    pub(crate) fn known_note(&self, connection: &Connection) -> Option<Arc<KnownNote>> {
        self.note.lock().as_ref().filter(|(over, _)| *over == connection.id).map(|(_, note)| note.clone())
    }

    /// The node has told its note.
    pub(crate) fn learn(&self, connection: &Connection, note: KnownNote) {
        *self.note.lock() = Some((connection.id, Arc::new(note)));
    }
}

/// A claim or a release that some nodes have yet to reply to.
pub(crate) struct LateRequest(Arc<Nodes>);

impl Drop for LateRequest {
    fn drop(&mut self) {
        self.0.late_requests.send_modify(|count| *count -= 1);
    }
}

fn total_ok<T>(outcomes: &[Result<T>]) -> usize {
    outcomes.iter().filter(|outcome| outcome.is_ok()).count()
}
