//! Batches concurrent claims and releases: each node gets those of one kind and moment as one request.
//!
//! A request that is alone is sent at once. Otherwise the first request begins a batch, which is sent after the tasks that
//! are runnable at that moment have added theirs. While some batches are in flight, the next one waits for them a little,
//! and grows. A batch has a task of its own: it is completed even if its callers are gone.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;

use crate::engines::redlock::error::no_reply;
use crate::engines::redlock::protocol::batch::{NodeRequest, RequestKind};
use crate::engines::redlock::protocol::reply::NodeReply;
use crate::engines::redlock::state::node_set::NodeSet;
use crate::engines::redlock::state::quorum::quorum_of;
use crate::engines::redlock::wire::calls::{NodeCalls, collect_until};
use crate::engines::redlock::wire::nodes::{LATE_REPLY_WAIT, MAX_TIMEOUT, Nodes};
use crate::engines::redlock::wire::send::{self, SentRequest};
use crate::types::error::Result;
use crate::types::sync::Mutex;

/// How many requests one batch has at the most: a fraction of a millisecond of the node's time.
const MAX_BATCH: usize = 64;
/// How many batches are in flight before the next one waits, so that this process and the nodes work at the same time.
const MAX_IN_FLIGHT: usize = 2;
/// How long a batch waits for those in flight at the most. Nodes that are far away reply later than that.
const IN_FLIGHT_WAIT: Duration = Duration::from_millis(1);

/// Sends requests to nodes, concurrent ones in batches.
pub(crate) struct NodeBatcher {
    nodes: Arc<Nodes>,
    unsent: Mutex<UnsentBatches>,
    /// How many requests have a caller that waits for replies.
    open: AtomicUsize,
    /// How many batches no majority of the nodes has replied to.
    in_flight: AtomicUsize,
    landed: Notify,
}

#[derive(Default)]
struct UnsentBatches {
    batches: Vec<NodeBatch>,
    next: u64,
}

/// One for each kind of requests and each runtime: no request depends on another caller's runtime.
struct NodeBatch {
    number: u64,
    runtime: Id,
    kind: RequestKind,
    requests: Vec<Arc<BatchedRequest>>,
}

impl NodeBatcher {
    pub(crate) fn new(nodes: Arc<Nodes>) -> NodeBatcher {
        let (open, in_flight) = (AtomicUsize::new(0), AtomicUsize::new(0));
        NodeBatcher { nodes, unsent: Mutex::default(), open, in_flight, landed: Notify::new() }
    }

    /// Sends a request to some nodes: at once if no other request is open, otherwise soon, in a batch.
    pub(crate) fn send(self: &Arc<Self>, request: NodeRequest, nodes: NodeSet) -> Replies {
        if self.open.fetch_add(1, Ordering::Relaxed) == 0 {
            let source = ReplySource::Direct(self.send_directly(request, nodes));
            return Replies { source, missing: nodes, batcher: self.clone() };
        }
        let request = Arc::new(BatchedRequest::new(request, nodes));
        let replies = Replies { source: ReplySource::Batched(request.clone()), missing: nodes, batcher: self.clone() };
        self.add(request);
        replies
    }

    fn send_directly(&self, request: NodeRequest, nodes: NodeSet) -> NodeCalls<Result<NodeReply>> {
        let request = Arc::new(request);
        NodeCalls::new(nodes.iter().map(|at| {
            let (nodes, request) = (self.nodes.clone(), request.clone());
            (at, async move { send_one(&nodes, at, &request).await })
        }))
    }

    /// Adds a request to the runtime's unsent batch, or begins one.
    fn add(self: &Arc<Self>, request: Arc<BatchedRequest>) {
        let handle = Handle::try_current().unwrap_or_else(|_| self.nodes.runtime.clone());
        let (runtime, kind) = (handle.id(), request.request.kind());
        let mut unsent = self.unsent.lock();
        let has_room =
            |batch: &&mut NodeBatch| batch.runtime == runtime && batch.kind == kind && batch.requests.len() < MAX_BATCH;
        if let Some(batch) = unsent.batches.iter_mut().find(has_room) {
            batch.requests.push(request);
            return;
        }
        let number = unsent.next;
        unsent.next += 1;
        unsent.batches.push(NodeBatch { number, runtime, kind, requests: vec![request] });
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

    /// Waits until few batches are in flight, or for a little.
    async fn take_off(&self) -> BatchInFlight<'_> {
        let has_landed = async {
            while self.in_flight.load(Ordering::Acquire) >= MAX_IN_FLIGHT {
                self.landed.notified().await;
            }
        };
        if self.in_flight.load(Ordering::Acquire) >= MAX_IN_FLIGHT {
            let _ = tokio::time::timeout(IN_FLIGHT_WAIT, has_landed).await;
        }
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        BatchInFlight(self)
    }
}

/// A batch that is in flight until this is dropped.
struct BatchInFlight<'a>(&'a NodeBatcher);

impl Drop for BatchInFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.0.landed.notify_one();
    }
}

/// A request of a batch, and its replies so far.
struct BatchedRequest {
    request: NodeRequest,
    nodes: NodeSet,
    inbox: Mutex<Inbox>,
    /// Its caller is gone.
    is_abandoned: AtomicBool,
}

#[derive(Default)]
struct Inbox {
    replies: Vec<(usize, Result<NodeReply>)>,
    /// No more replies will come.
    is_closed: bool,
    waker: Option<Waker>,
}

impl SentRequest for Arc<BatchedRequest> {
    fn request(&self) -> &NodeRequest {
        &self.request
    }

    fn is_wanted(&self) -> bool {
        !self.is_abandoned.load(Ordering::Acquire)
    }
}

impl BatchedRequest {
    fn new(request: NodeRequest, nodes: NodeSet) -> BatchedRequest {
        BatchedRequest { request, nodes, inbox: Mutex::default(), is_abandoned: AtomicBool::new(false) }
    }

    fn deliver(&self, node: usize, reply: Result<NodeReply>) {
        self.inbox.lock().replies.push((node, reply));
    }

    /// Wakes the caller to take its replies.
    fn wake(&self) {
        let waker = self.inbox.lock().waker.take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Returns the next reply. When no more come, it is a failure of the node `last`.
    fn poll_next(&self, last: usize, context: &mut Context<'_>) -> Poll<Option<(usize, Result<NodeReply>)>> {
        let mut inbox = self.inbox.lock();
        match inbox.replies.pop() {
            Some(reply) => Poll::Ready(Some(reply)),
            None if inbox.is_closed => Poll::Ready(Some((last, Err(no_reply())))),
            None => {
                inbox.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn close(&self) {
        self.inbox.lock().is_closed = true;
        self.wake();
    }
}

/// The replies to one request, as they come. If it is dropped before its batch is sent, the request is not sent.
pub(crate) struct Replies {
    source: ReplySource,
    missing: NodeSet,
    batcher: Arc<NodeBatcher>,
}

enum ReplySource {
    Direct(NodeCalls<Result<NodeReply>>),
    Batched(Arc<BatchedRequest>),
}

impl Replies {
    /// Returns the nodes that have not replied yet.
    pub(crate) fn missing(&self) -> NodeSet {
        self.missing
    }

    pub(crate) fn is_done(&self) -> bool {
        self.missing.is_empty()
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Result<NodeReply>)>> {
        let Some(last) = self.missing.iter().next() else { return Poll::Ready(None) };
        let next = match &mut self.source {
            ReplySource::Direct(calls) => calls.poll_next(context),
            ReplySource::Batched(request) => request.poll_next(last, context),
        };
        if let Poll::Ready(Some((node, _))) = &next {
            self.missing.remove(*node);
        }
        next
    }

    /// Takes replies like [`collect_until`], for `limit` at the longest.
    pub(crate) async fn collect(
        &mut self,
        limit: Duration,
        grace: Duration,
        take: impl FnMut(usize, Result<NodeReply>) -> bool,
    ) {
        // A batch wakes its callers after such a grace.
        let grace = if matches!(self.source, ReplySource::Batched(_)) { Duration::ZERO } else { grace };
        let mut wait = pin!(tokio::time::sleep(limit));
        collect_until(wait.as_mut(), grace, |context| self.poll_next(context), take).await;
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        if let ReplySource::Batched(request) = &self.source {
            // Its claim is handed over by now, and a release follows it, or it never is.
            let _order = self.batcher.nodes.hand_over.lock();
            request.is_abandoned.store(true, Ordering::Release);
        }
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
        let batcher = self.batcher.clone();
        // Lets the tasks that are about to send add their requests.
        tokio::task::yield_now().await;
        let in_flight = batcher.take_off().await;
        self.requests = batcher.take(self.number);
        // A request whose caller is gone was not sent, and never is.
        self.requests.retain(SentRequest::is_wanted);
        let mut calls = self.call_nodes();
        let (mut replied, count) = (0, calls.len());
        let mut wait = pin!(tokio::time::sleep(MAX_TIMEOUT));
        // Callers are woken once for the replies of all nodes that are on time.
        collect_until(
            wait.as_mut(),
            LATE_REPLY_WAIT,
            |context| calls.poll_next(context),
            |_, ()| {
                replied += 1;
                replied >= quorum_of(count)
            },
        )
        .await;
        drop(in_flight);
        self.requests.iter().for_each(|request| request.wake());
        while calls.next().await.is_some() {
            self.requests.iter().for_each(|request| request.wake());
        }
    }

    /// Sends each node its requests; the replies are delivered as they come.
    fn call_nodes(&self) -> NodeCalls<()> {
        let nodes = &self.batcher.nodes;
        let requests_to = |at: usize| -> Vec<Arc<BatchedRequest>> {
            self.requests.iter().filter(|request| request.nodes.has(at)).cloned().collect()
        };
        let parts = (0..nodes.len()).map(|at| (at, requests_to(at))).filter(|(_, requests)| !requests.is_empty());
        NodeCalls::new(parts.map(|(at, requests)| {
            let nodes = nodes.clone();
            (at, async move {
                let replies = send::send(&nodes, at, &requests).await;
                requests.iter().zip(replies).for_each(|(request, reply)| request.deliver(at, reply));
            })
        }))
    }
}

impl Drop for BatchTask {
    fn drop(&mut self) {
        let unsent = self.batcher.take(self.number);
        self.requests.iter().chain(&unsent).for_each(|request| request.close());
    }
}

/// Sends one request to one node.
pub(crate) async fn send_one(nodes: &Nodes, at: usize, request: &Arc<NodeRequest>) -> Result<NodeReply> {
    let mut replies = send::send(nodes, at, std::slice::from_ref(request)).await;
    replies.pop().unwrap_or_else(|| Err(no_reply()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest allocation that the C library's allocator serves from a cache of the thread.
    const CACHED: usize = 1032;

    fn size<F>(_: impl FnOnce(&'static Nodes, usize, &'static Arc<NodeRequest>) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_future_of_a_call_to_a_node_is_small() {
        // With what the caller's box has beside it.
        assert!(size(send_one) <= CACHED - 64, "{}: something large is not boxed", size(send_one));
    }
}
