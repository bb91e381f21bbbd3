//! The queues of claims and releases that wait for the next call of their connection.
//!
//! A request that finds no call of its kind in flight is sent alone at once. Requests that come meanwhile are batched: one
//! script, one outcome for each. Some calls are in flight at a time, and a batch is sent as soon as it is worth a call, so
//! that client and server work side by side.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use redis::{Arg, Cmd, Value};
use tokio::sync::oneshot;

use crate::engines::redis::protocol::lean::{LeanOutcome, LeanRequest};
use crate::engines::redis::protocol::names::{Fences, Names};
use crate::engines::redis::wire::socket::NoReply;
use crate::types::clock::Moment;
use crate::types::error::Result;
use crate::types::sync::{Mutex, MutexGuard};

/// How many requests one call carries: about a tenth of a millisecond of the server's time.
const MOST: usize = 32;
/// How many requests at least are worth a call while other tasks, which may have more, wait for their turn: with fewer the
/// server's cost of a call counts.
const LEAST_EARLY: usize = 8;
/// How many calls of a kind are in flight.
const MOST_IN_FLIGHT: usize = 8;
/// Room in a call for the script's hash and what else its requests have in common, and for what each of them has beside its
/// arguments and the names of its keys.
const CALL_ARGS: usize = 8;
const CALL_BYTES: usize = 128;
const REQUEST_ARGS: usize = 5;
const REQUEST_BYTES: usize = 48;

/// What a request asks for. Each kind has calls of its own: releases never wait behind claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engines) enum CallKind {
    LeanClaim,
    LeanRelease,
    Claim,
    Release,
}

const KINDS: [CallKind; 4] = [CallKind::LeanRelease, CallKind::LeanClaim, CallKind::Release, CallKind::Claim];

impl CallKind {
    /// Returns what it is called in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            CallKind::LeanClaim | CallKind::Claim => "claim",
            CallKind::LeanRelease | CallKind::Release => "release",
        }
    }
}

/// One claim or release.
pub(in crate::engines) enum Request {
    Lean(LeanRequest),
    /// Boxed: a lean request stays small.
    Full(Box<FullRequest>),
}

/// A claim or release for the full scripts.
pub(in crate::engines) struct FullRequest {
    pub(in crate::engines) names: Names,
    /// What all requests of a call have in common: for claims, the channel for messages to this process.
    pub(in crate::engines) common: Option<String>,
    /// Its own arguments.
    pub(in crate::engines) args: Cmd,
    /// About how many bytes they have.
    pub(in crate::engines) bytes: usize,
}

impl Request {
    pub(super) fn lean(&self) -> Option<&LeanRequest> {
        if let Request::Lean(request) = self { Some(request) } else { None }
    }

    pub(super) fn full(&self) -> Option<&FullRequest> {
        if let Request::Full(request) = self { Some(request) } else { None }
    }

    /// Returns whether one call can carry both.
    fn goes_with(&self, other: &Request) -> bool {
        self.lean().and_then(LeanRequest::lease_ms) == other.lean().and_then(LeanRequest::lease_ms)
    }
}

/// The server's reply to one request of a call.
pub(in crate::engines) enum RequestReply {
    Lean(LeanOutcome),
    Full {
        /// The server's clock, where the script reads it.
        server_us: u64,
        outcome: Value,
    },
}

/// The requests of one connection.
#[derive(Default)]
pub(super) struct Batcher {
    lanes: Mutex<Lanes>,
}

#[derive(Default)]
struct Lanes {
    of_kind: [BatchLane; 4],
    /// Wakes the task that sends the batches. Taken when it was woken.
    sender: Option<Waker>,
    /// The batches that are in flight, in the order in which they were sent.
    sent: VecDeque<SentBatch>,
    is_dead: bool,
}

/// The requests of one kind.
#[derive(Default)]
struct BatchLane {
    /// How many calls are unanswered.
    in_flight: usize,
    /// How many requests those calls carry that are batches.
    unanswered: usize,
    queue: VecDeque<Entry>,
}

impl BatchLane {
    /// Returns whether there are as many requests as the server works on: then it and the client have half of them each.
    fn is_worth_a_call(&self) -> bool {
        self.is_due() && self.queue.len() >= self.unanswered.clamp(LEAST_EARLY, MOST)
    }

    fn is_due(&self) -> bool {
        !self.queue.is_empty() && self.in_flight < MOST_IN_FLIGHT
    }
}

/// A request that waits for the next batch, or is in one.
pub(super) struct Entry {
    pub(super) request: Request,
    pub(super) reply: oneshot::Sender<Result<RequestReply>>,
}

/// What tells the replies of one call apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentCall {
    pub(super) kind: CallKind,
    pub(super) nonce: u64,
    /// When it was handed over, and how many requests it carries.
    pub(super) sent: Moment,
    pub(super) count: usize,
}

/// A batch that is in flight.
pub(super) struct SentBatch {
    pub(super) call: SentCall,
    /// It carries the text of its script.
    pub(super) by_text: bool,
    pub(super) entries: Vec<Entry>,
}

/// How a request is sent.
pub(super) enum Path<'a> {
    /// As a call of its own: the only one of its kind, or beside any others.
    Alone(Request, Option<Single<'a>>),
    Batched(oneshot::Receiver<Result<RequestReply>>),
    /// As `Batched`. With it the batch is worth a call, and the caller sends it.
    Last(oneshot::Receiver<Result<RequestReply>>),
    /// Not at all: the connection is broken.
    Dead,
}

/// Whether a batch was handed to the connection.
pub(super) enum HandOver {
    Sent,
    /// A caller has dropped its request meanwhile.
    Incomplete(Vec<Entry>),
    /// It is not sent.
    Refused(Vec<Entry>, NoReply),
}

/// What was left when a connection broke.
pub(super) struct Remains {
    /// The requests that were never sent.
    pub(super) queued: Vec<(CallKind, Entry)>,
    /// Those that were sent and not answered.
    pub(super) sent: Vec<(CallKind, Entry)>,
}

impl Batcher {
    pub(super) fn enter(&self, kind: CallKind, request: Request) -> Path<'_> {
        let mut lanes = self.lanes();
        if lanes.is_dead {
            return Path::Dead;
        }
        let lane = &mut lanes.of_kind[kind as usize];
        if lane.in_flight == 0 && lane.queue.is_empty() {
            lane.in_flight = 1;
            return Path::Alone(request, Some(Single(self, kind)));
        }
        let (reply, replied) = oneshot::channel();
        lane.queue.push_back(Entry { request, reply });
        if lane.is_worth_a_call() {
            return Path::Last(replied);
        }
        let sender = if lane.is_due() { lanes.sender.take() } else { None };
        drop(lanes);
        if let Some(sender) = sender {
            sender.wake();
        }
        Path::Batched(replied)
    }

    /// Returns when there is a batch to send. One task calls this.
    pub(super) fn poll_due(&self, context: &Context<'_>) -> Poll<()> {
        let mut lanes = self.lanes();
        if lanes.of_kind.iter().any(BatchLane::is_due) {
            return Poll::Ready(());
        }
        if !lanes.sender.as_ref().is_some_and(|sender| sender.will_wake(context.waker())) {
            lanes.sender = Some(context.waker().clone());
        }
        Poll::Pending
    }

    /// Takes the next batch out of its queue; it counts as in flight from now on. Releases first: they let others in.
    pub(super) fn take(&self) -> Option<(CallKind, Vec<Entry>)> {
        self.take_first(BatchLane::is_due)
    }

    /// As [`take`](Batcher::take), but only a batch that is worth a call.
    pub(super) fn take_early(&self) -> Option<(CallKind, Vec<Entry>)> {
        self.take_first(BatchLane::is_worth_a_call)
    }

    fn take_first(&self, is_wanted: impl Fn(&BatchLane) -> bool) -> Option<(CallKind, Vec<Entry>)> {
        let mut lanes = self.lanes();
        let kind = KINDS.into_iter().find(|kind| is_wanted(&lanes.of_kind[*kind as usize]))?;
        let lane = &mut lanes.of_kind[kind as usize];
        let count = lane.queue.len().min(MOST);
        let first = &lane.queue[0].request;
        let entries = match lane.queue.iter().take(count).all(|entry| entry.request.goes_with(first)) {
            true => lane.queue.drain(..count).collect(),
            false => lane.take_alike(),
        };
        lane.in_flight += 1;
        Some((kind, entries))
    }

    /// Calls `send` for entries whose callers all wait still, under the lock that every request takes when it enters. Keeps
    /// the entries until they are answered.
    pub(super) fn hand_over(
        &self,
        batch: SentBatch,
        send: impl FnOnce() -> std::result::Result<(), NoReply>,
    ) -> HandOver {
        let mut lanes = self.lanes();
        if lanes.is_dead {
            return HandOver::Refused(batch.entries, NoReply::Unsent);
        } else if batch.entries.iter().any(|entry| entry.reply.is_closed()) {
            return HandOver::Incomplete(batch.entries);
        }
        match send() {
            Ok(()) => {
                lanes.of_kind[batch.call.kind as usize].unanswered += batch.entries.len();
                lanes.sent.push_back(batch);
                HandOver::Sent
            }
            Err(refusal) => HandOver::Refused(batch.entries, refusal),
        }
    }

    /// Takes the entries of the batch that was sent first: it is answered first.
    pub(super) fn answered(&self) -> Option<SentBatch> {
        let mut lanes = self.lanes();
        let batch = lanes.sent.pop_front()?;
        lanes.of_kind[batch.call.kind as usize].unanswered -= batch.entries.len();
        Some(batch)
    }

    /// A batch of this kind is not in flight any more.
    pub(super) fn landed(&self, kind: CallKind) {
        let mut lanes = self.lanes();
        let lane = &mut lanes.of_kind[kind as usize];
        lane.in_flight -= 1;
        let sender = if lane.is_due() { lanes.sender.take() } else { None };
        drop(lanes);
        if let Some(sender) = sender {
            sender.wake();
        }
    }

    /// Takes all requests out. From now on none enters.
    pub(super) fn end(&self) -> Remains {
        let mut lanes = self.lanes();
        lanes.is_dead = true;
        let mut queued = Vec::new();
        for kind in KINDS {
            let lane = &mut lanes.of_kind[kind as usize];
            queued.extend(lane.queue.drain(..).map(|entry| (kind, entry)));
        }
        let of_kind = |SentBatch { call, entries, .. }| entries.into_iter().map(move |entry| (call.kind, entry));
        let sent = lanes.sent.drain(..).flat_map(of_kind).collect();
        Remains { queued, sent }
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock()
    }
}

impl BatchLane {
    /// Takes the first request, and those behind it that can share its call; the others keep their order.
    fn take_alike(&mut self) -> Vec<Entry> {
        let mut alike: Vec<Entry> = Vec::new();
        let mut others = VecDeque::with_capacity(self.queue.len());
        for entry in self.queue.drain(..) {
            let is_alike = alike.first().is_none_or(|first| first.request.goes_with(&entry.request));
            if is_alike && alike.len() < MOST { alike.push(entry) } else { others.push_back(entry) }
        }
        self.queue = others;
        alike
    }
}

/// The right to send one request alone, until it is dropped.
pub(super) struct Single<'a>(&'a Batcher, CallKind);

impl Drop for Single<'_> {
    fn drop(&mut self) {
        self.0.landed(self.1);
    }
}

/// Returns an empty command with room for the call of `requests`.
pub(super) fn with_room<'a>(requests: impl Iterator<Item = &'a FullRequest>) -> Cmd {
    let (args, bytes) = requests.fold((CALL_ARGS, CALL_BYTES), |(args, bytes), request| {
        let (of_keys, common) =
            (request.names.lock.len() * Names::KEYS, request.common.as_ref().map_or(0, String::len));
        (args + Names::KEYS + REQUEST_ARGS, bytes + of_keys + common + REQUEST_BYTES + request.bytes)
    });
    Cmd::with_capacity(args, bytes)
}

/// Adds the keys of all requests, then `nonce` and what they have in common, then the arguments of each.
pub(super) fn fill<'a>(
    command: &mut Cmd,
    fences: &Fences,
    nonce: u64,
    requests: impl Iterator<Item = &'a FullRequest> + Clone,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::key::Key;

    fn request() -> Request {
        let names = Names::new("", &Key::new("a").unwrap()).unwrap();
        Request::Full(Box::new(FullRequest { names, common: None, args: Cmd::new(), bytes: 0 }))
    }

    #[test]
    fn the_request_that_makes_a_batch_worth_a_call_has_its_caller_send_it() {
        let batcher = Batcher::default();
        let Path::Alone(_, single) = batcher.enter(CallKind::Claim, request()) else { panic!("it is the first one") };
        let mut replies = Vec::new();
        for batch in 1..MOST_IN_FLIGHT {
            for number in 1..LEAST_EARLY {
                let Path::Batched(reply) = batcher.enter(CallKind::Claim, request()) else {
                    panic!("{batch}, {number}")
                };
                replies.push(reply);
            }
            assert!(batcher.take_early().is_none(), "more may come");
            let Path::Last(reply) = batcher.enter(CallKind::Claim, request()) else { panic!("{batch}") };
            replies.push(reply);
            let (kind, entries) = batcher.take_early().expect("a batch");
            assert_eq!((kind, entries.len()), (CallKind::Claim, LEAST_EARLY));
        }
        // Enough calls are in flight: the next one is for more requests.
        for _ in 0..=MOST {
            assert!(matches!(batcher.enter(CallKind::Claim, request()), Path::Batched(_)));
        }
        assert!(batcher.take().is_none(), "too many calls in flight");
        drop(single);
        assert_eq!(batcher.take().map(|(_, entries)| entries.len()), Some(MOST));
        batcher.landed(CallKind::Claim);
        assert_eq!(batcher.take().map(|(_, entries)| entries.len()), Some(1));
    }

    #[test]
    fn a_batch_grows_with_what_is_in_flight() {
        let batcher = Batcher::default();
        let Path::Alone(_, single) = batcher.enter(CallKind::Claim, request()) else { panic!("it is the first one") };
        let mut replies = Vec::new();
        for (nonce, expected) in (0..).zip([LEAST_EARLY, LEAST_EARLY, 2 * LEAST_EARLY, MOST, MOST]) {
            let before = replies.len();
            let batch_of = loop {
                match batcher.enter(CallKind::Claim, request()) {
                    Path::Batched(reply) => replies.push(reply),
                    Path::Last(reply) => {
                        replies.push(reply);
                        break batcher.take_early().expect("a batch").1;
                    }
                    Path::Alone(..) | Path::Dead => panic!("it waits for a call"),
                }
            };
            assert_eq!((replies.len() - before, batch_of.len()), (expected, expected));
            assert!(matches!(batcher.hand_over(batch(nonce, batch_of), || Ok(())), HandOver::Sent));
        }
        while batcher.answered().is_some() {
            batcher.landed(CallKind::Claim);
        }
        drop(single);
        replies.clear();
        let lanes = batcher.lanes();
        let lane = &lanes.of_kind[CallKind::Claim as usize];
        assert_eq!((lane.in_flight, lane.unanswered), (0, 0));
    }

    fn batch(nonce: u64, entries: Vec<Entry>) -> SentBatch {
        let call = SentCall { kind: CallKind::Claim, nonce, sent: Moment::from_nanos(0), count: entries.len() };
        SentBatch { call, by_text: false, entries }
    }

    #[test]
    fn a_refused_batch_takes_no_reply_of_another_one() {
        let batcher = Batcher::default();
        let (reply, _replied) = oneshot::channel();
        let sent = batch(1, vec![Entry { request: request(), reply }]);
        assert!(matches!(batcher.hand_over(sent, || Ok(())), HandOver::Sent));
        let (reply, _replied) = oneshot::channel();
        let refused = batch(2, vec![Entry { request: request(), reply }]);
        let outcome = batcher.hand_over(refused, || Err(NoReply::Unsent));
        assert!(matches!(outcome, HandOver::Refused(entries, NoReply::Unsent) if entries.len() == 1));
        assert_eq!(batcher.answered().map(|batch| batch.call.nonce), Some(1));
        assert!(batcher.answered().is_none());
    }
}
