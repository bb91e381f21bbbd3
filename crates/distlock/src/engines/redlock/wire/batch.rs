//! Batches concurrent claims and releases: each node gets those of one moment as one request.
//!
//! A request that is alone is sent at once. Otherwise the first request begins a batch, which is sent after the tasks that
//! are runnable at that moment have added theirs. No request waits for the reply to another, and a batch has a task of its
//! own: it is completed even if its callers are gone.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::{Handle, Id};

use crate::engines::redis::node::{Connection, Lane};
use crate::engines::redlock::error::no_reply;
use crate::engines::redlock::protocol::batch::{self, NodeRequest};
use crate::engines::redlock::protocol::reply::NodeReply;
use crate::engines::redlock::wire::calls::{NodeCalls, collect_until};
use crate::engines::redlock::wire::nodes::Nodes;
use crate::types::error::Result;
use crate::types::sync::{Mutex, MutexGuard};

/// How many requests one batch has at the most: a fraction of a millisecond of the node's time.
const MAX_BATCH: usize = 64;

/// Sends requests to nodes, concurrent ones in batches.
pub(crate) struct NodeBatcher {
    nodes: Arc<Nodes>,
    unsent: Mutex<UnsentBatches>,
    /// How many requests have a caller that waits for replies.
    open: AtomicUsize,
}

#[derive(Default)]
struct UnsentBatches {
    batches: Vec<NodeBatch>,
    next: u64,
}

/// One for each runtime: no request depends on another caller's runtime.
struct NodeBatch {
    number: u64,
    runtime: Id,
    requests: Vec<Arc<BatchedRequest>>,
}

impl NodeBatcher {
    pub(crate) fn new(nodes: Arc<Nodes>) -> NodeBatcher {
        NodeBatcher { nodes, unsent: Mutex::default(), open: AtomicUsize::new(0) }
    }

    /// Sends a request to some nodes: at once if no other request is open, otherwise soon, in a batch.
    pub(crate) fn send(self: &Arc<Self>, request: NodeRequest, nodes: Vec<usize>) -> Replies {
        if self.open.load(Ordering::Relaxed) == 0 {
            let source = ReplySource::Direct(self.send_directly(request, &nodes));
            return Replies::new(self, source, nodes);
        }
        let request = Arc::new(BatchedRequest { request, nodes: nodes.clone(), inbox: Mutex::default() });
        let replies = Replies::new(self, ReplySource::Batched(request.clone()), nodes);
        self.add(request);
        replies
    }

    fn send_directly(&self, request: NodeRequest, nodes: &[usize]) -> NodeCalls<Result<NodeReply>> {
        let request = Arc::new(request);
        NodeCalls::new(nodes.iter().map(|at| {
            let (nodes, request, at) = (self.nodes.clone(), request.clone(), *at);
            (at, async move { send_one(&nodes, at, &request).await })
        }))
    }

    /// Adds a request to the runtime's unsent batch, or begins one.
    fn add(self: &Arc<Self>, request: Arc<BatchedRequest>) {
        let handle = Handle::try_current().unwrap_or_else(|_| self.nodes.runtime.clone());
        let runtime = handle.id();
        let mut unsent = self.unsent.lock();
        let has_room = |batch: &&mut NodeBatch| batch.runtime == runtime && batch.requests.len() < MAX_BATCH;
        if let Some(batch) = unsent.batches.iter_mut().find(has_room) {
            batch.requests.push(request);
            return;
        }
        let number = unsent.next;
        unsent.next += 1;
        unsent.batches.push(NodeBatch { number, runtime, requests: vec![request] });
        drop(unsent);
        let task = BatchTask { batcher: self.clone(), number, requests: Vec::new() };
        // tidy-allow(spawn): one task for all requests of this moment; it ends when each node has replied or timed out
        handle.spawn(task.run());
    }

    fn take(&self, number: u64) -> Vec<Arc<BatchedRequest>> {
        let mut unsent = self.unsent.lock();
        let at = unsent.batches.iter().position(|batch| batch.number == number);
        at.map(|at| unsent.batches.swap_remove(at).requests).unwrap_or_default()
    }
}

/// A request of a batch, and its replies so far.
struct BatchedRequest {
    request: NodeRequest,
    nodes: Vec<usize>,
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    replies: Vec<(usize, Result<NodeReply>)>,
    taken: usize,
    /// No more replies will come.
    is_closed: bool,
    waker: Option<Waker>,
}

impl BatchedRequest {
    fn deliver(&self, node: usize, reply: Result<NodeReply>) {
        let mut inbox = self.inbox.lock();
        inbox.replies.push((node, reply));
        // A minority decides nothing.
        if inbox.taken + inbox.replies.len() > self.nodes.len() / 2 {
            wake(inbox);
        }
    }

    /// Returns the next reply. When no more come, it is a failure of the node `last`.
    fn poll_next(&self, last: usize, context: &mut Context<'_>) -> Poll<Option<(usize, Result<NodeReply>)>> {
        let mut inbox = self.inbox.lock();
        let reply = match inbox.replies.pop() {
            Some(reply) => reply,
            None if inbox.is_closed => (last, Err(no_reply())),
            None => {
                inbox.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
        };
        inbox.taken += 1;
        Poll::Ready(Some(reply))
    }

    fn close(&self) {
        let mut inbox = self.inbox.lock();
        inbox.is_closed = true;
        wake(inbox);
    }
}

fn wake(mut inbox: MutexGuard<'_, Inbox>) {
    let waker = inbox.waker.take();
    drop(inbox);
    waker.into_iter().for_each(Waker::wake);
}

/// The replies to one request, as they come. If it is dropped before its batch is sent, the request is not sent.
pub(crate) struct Replies {
    source: ReplySource,
    missing: Vec<usize>,
    batcher: Arc<NodeBatcher>,
}

enum ReplySource {
    Direct(NodeCalls<Result<NodeReply>>),
    Batched(Arc<BatchedRequest>),
}

impl Replies {
    fn new(batcher: &Arc<NodeBatcher>, source: ReplySource, nodes: Vec<usize>) -> Replies {
        batcher.open.fetch_add(1, Ordering::Relaxed);
        Replies { source, missing: nodes, batcher: batcher.clone() }
    }

    /// Returns the nodes that have not replied yet.
    pub(crate) fn missing(&self) -> &[usize] {
        &self.missing
    }

    pub(crate) fn is_done(&self) -> bool {
        self.missing.is_empty()
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Result<NodeReply>)>> {
        let Some(last) = self.missing.last() else { return Poll::Ready(None) };
        let next = match &mut self.source {
            ReplySource::Direct(calls) => calls.poll_next(context),
            ReplySource::Batched(request) => request.poll_next(*last, context),
        };
        next.map(|next| {
            self.missing.retain(|other| next.as_ref().is_none_or(|(node, _)| node != other));
            next
        })
    }

    /// Takes replies like [`collect_until`], for `limit` at the longest.
    pub(crate) async fn collect(
        &mut self,
        limit: Duration,
        grace: Duration,
        take: impl FnMut(usize, Result<NodeReply>) -> bool,
    ) {
        let mut wait = pin!(tokio::time::sleep(limit));
        collect_until(wait.as_mut(), grace, |context| self.poll_next(context), take).await;
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        self.batcher.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sends one batch. When it ends, even by a panic or with its runtime, no caller waits for it any more.
struct BatchTask {
    batcher: Arc<NodeBatcher>,
    number: u64,
    requests: Vec<Arc<BatchedRequest>>,
}

impl BatchTask {
    async fn run(mut self) {
        // Lets the tasks that are about to send add their requests.
        tokio::task::yield_now().await;
        self.requests = self.batcher.take(self.number);
        // A request whose caller is gone was not sent, and never is.
        self.requests.retain(|request| Arc::strong_count(request) > 1);
        let nodes = &self.batcher.nodes;
        let requests_to = |at: usize| -> Vec<Arc<BatchedRequest>> {
            self.requests.iter().filter(|request| request.nodes.contains(&at)).cloned().collect()
        };
        let parts = (0..nodes.len()).map(|at| (at, requests_to(at))).filter(|(_, requests)| !requests.is_empty());
        let mut calls = NodeCalls::new(parts.map(|(at, requests)| {
            let nodes = nodes.clone();
            (at, async move {
                let replies = send(&nodes, at, requests.iter().map(|request| &request.request)).await;
                requests.iter().zip(replies).for_each(|(request, reply)| request.deliver(at, reply));
            })
        }));
        while calls.next().await.is_some() {}
    }
}

impl Drop for BatchTask {
    fn drop(&mut self) {
        let unsent = self.batcher.take(self.number);
        self.requests.iter().chain(&unsent).for_each(|request| request.close());
    }
}

/// Sends one request to one node.
pub(crate) async fn send_one(nodes: &Nodes, at: usize, request: &NodeRequest) -> Result<NodeReply> {
    send(nodes, at, std::iter::once(request)).await.pop().unwrap_or_else(|| Err(no_reply()))
}

/// Sends requests to one node, as one call. Returns the reply to each, in their order.
async fn send<'a>(
    nodes: &Nodes,
    at: usize,
    requests: impl Iterator<Item = &'a NodeRequest> + Clone,
) -> Vec<Result<NodeReply>> {
    let main = nodes[at].connection(Lane::Main);
    // A release that cannot follow its claim on the same connection takes the other one.
    let may_go = |request: &NodeRequest| main.is_ok() || matches!(request, NodeRequest::Release { .. });
    let going = requests.clone().filter(|request| may_go(request));
    let replies = match main.as_ref().map(Connection::clone).or_else(|_| nodes[at].connection(Lane::Reserved)) {
        Ok(connection) if going.clone().next().is_some() => {
            let restart_guard = nodes.options.restart_guard;
            batch::run(&connection, &nodes.note_key, restart_guard, going, || nodes.now()).await
        }
        Ok(_) => Ok(Vec::new()),
        Err(error) => Err(error),
    };
    let mut replies = replies.map(|replies| replies.into_iter());
    requests
        .map(|request| match (&main, &mut replies) {
            (Err(error), _) if !may_go(request) => Err(error.duplicate()),
            (_, Ok(replies)) => replies.next().unwrap_or_else(|| Err(no_reply())),
            (_, Err(error)) => Err(error.duplicate()),
        })
        .collect()
}
