//! The queue of claims and releases that wait for the next call of their connection.
//!
//! A request that finds no call under way is sent alone at once. Requests that come meanwhile are batched: one write,
//! one script, one outcome for each.

use crate::types::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;

use redis::{Arg, Cmd, Value};
use tokio::sync::{Notify, oneshot};

use crate::engines::redis::protocol::names::{Fences, Names};
use crate::engines::redis::protocol::script::{CLAIM, RELEASE, Script};
use crate::types::error::Result;

/// How many requests one call carries: a fraction of a millisecond of the server's time.
const MOST: usize = 32;

/// What a request asks for. Releases have batches of their own: they never wait behind claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engines) enum CallKind {
    Claim,
    Release,
}

impl CallKind {
    pub(super) fn script(self) -> &'static Script {
        match self {
            CallKind::Claim => &CLAIM,
            CallKind::Release => &RELEASE,
        }
    }
}

/// One claim or release.
pub(in crate::engines) struct Request {
    pub(in crate::engines) names: Names,
    /// What all requests of a call have in common: for claims, the channel for messages to this process.
    pub(in crate::engines) common: Option<String>,
    /// Its own arguments.
    pub(in crate::engines) args: Cmd,
}

/// The server's reply to one request of a call.
pub(in crate::engines) struct RequestReply {
    /// The server's clock, where the script reads it.
    pub(in crate::engines) server_us: u64,
    pub(in crate::engines) outcome: Value,
}

/// The requests of one connection.
#[derive(Default)]
pub(super) struct Batcher {
    lanes: Mutex<[BatchLane; 2]>,
    due: [Notify; 2],
}

/// The requests of one kind.
#[derive(Default)]
struct BatchLane {
    /// Whether a request that was sent alone is unanswered.
    has_single: bool,
    /// Whether a batch is unanswered.
    has_batch: bool,
    queue: VecDeque<Entry>,
    last: u64,
}

/// A request that waits for the next batch, or is in one.
pub(super) struct Entry {
    number: u64,
    pub(super) request: Request,
    pub(super) reply: oneshot::Sender<Result<RequestReply>>,
}

/// How a request is sent.
pub(super) enum Path<'a> {
    Alone(Request, Single<'a>),
    Batched(u64, oneshot::Receiver<Result<RequestReply>>),
}

impl Batcher {
    pub(super) fn enter(&self, kind: CallKind, request: Request) -> Path<'_> {
        let mut lanes = self.lanes();
        let lane = &mut lanes[kind as usize];
        if !lane.has_single && !lane.has_batch && lane.queue.is_empty() {
            lane.has_single = true;
            return Path::Alone(request, Single(self, kind));
        }
        let (reply, replied) = oneshot::channel();
        lane.last += 1;
        let number = lane.last;
        lane.queue.push_back(Entry { number, request, reply });
        if lane.queue.len() == 1 && !lane.has_batch {
            self.due[kind as usize].notify_one();
        }
        Path::Batched(number, replied)
    }

    /// Takes a request out of the queue. Returns false when it was sent before.
    pub(super) fn withdraw(&self, kind: CallKind, number: u64) -> bool {
        let mut lanes = self.lanes();
        let queue = &mut lanes[kind as usize].queue;
        let place = queue.iter().position(|entry| entry.number == number);
        place.and_then(|place| queue.remove(place)).is_some()
    }

    /// Returns when there is a batch to send.
    pub(super) async fn due(&self, kind: CallKind) {
        self.due[kind as usize].notified().await;
    }

    /// Takes the next batch out of the queue.
    pub(super) fn take(&self, kind: CallKind) -> Option<Vec<Entry>> {
        let mut lanes = self.lanes();
        let lane = &mut lanes[kind as usize];
        let count = lane.queue.len().min(MOST);
        lane.has_batch = count > 0;
        lane.has_batch.then(|| lane.queue.drain(..count).collect())
    }

    /// Calls `send` under the lock that every request takes when it enters.
    pub(super) fn before_others<T>(&self, send: impl FnOnce() -> T) -> T {
        let _lanes = self.lanes();
        send()
    }

    fn lanes(&self) -> MutexGuard<'_, [BatchLane; 2]> {
        self.lanes.lock()
    }
}

/// The right to send one request alone, until it is dropped.
pub(super) struct Single<'a>(&'a Batcher, CallKind);

impl Drop for Single<'_> {
    fn drop(&mut self) {
        self.0.lanes()[self.1 as usize].has_single = false;
    }
}

/// Adds the keys of all requests, then `nonce` and what they have in common, then the arguments of each.
pub(super) fn fill<'a>(
    command: &mut Cmd,
    fences: &Fences,
    nonce: u64,
    requests: impl Iterator<Item = &'a Request> + Clone,
) {
    command.arg(requests.clone().count() * Names::KEYS);
    requests.clone().for_each(|request| request.names.keys(command, fences));
    command.arg(nonce);
    if let Some(common) = requests.clone().find_map(|request| request.common.as_deref()) {
        command.arg(common);
    }
    for arg in requests.flat_map(|request| request.args.args_iter()) {
        if let Arg::Simple(arg) = arg {
            command.arg(arg);
        }
    }
}
