//! Writes of the same moment go to the server in one transaction.
//!
//! The first write goes at once. Writes that come while it is on its way wait for the reply and go next, in one batch:
//! each is a transaction of its own inside that one, with its own conditions and reply. Two keys of one queue never go
//! in one batch, since they would have the same create revision and no order. Claims of a long queue keep the server
//! busy, so a release may go while they wait: a waiter may depend on it.
//!
//! Where a lock goes from one task of this client to the next, each task claims it again while the next one is about to
//! release it. Such a claim waits for that release for a moment and goes in its batch: etcd writes both to its disk at
//! once, and one request makes a handoff instead of two.

use crate::types::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::engines::etcd::error::{Failure, Fault};
use crate::engines::etcd::protocol::messages::{Request, RequestOp, Response, TxnRequest, TxnResponse};
use crate::engines::etcd::wire::client::Client;
use crate::engines::etcd::wire::endpoint::Home;
use crate::engines::etcd::wire::tasks::Tasks;
use crate::types::clock::{Clock, Moment};

/// How many requests are on their way before a claim waits for a batch.
const CLAIMS_AT_ONCE: usize = 4;
/// The same for a release.
const AT_ONCE: usize = 8;
/// How long a claim waits for the release that it may go with.
const RELEASE_WAIT: Duration = Duration::from_millis(2);
/// How many writes a batch has: etcd allows for 128 operations, inner and outer ones counted together.
const MOST_IN_BATCH: usize = 64;
/// A request that is older does not count as on its way: a silent server must not keep other writes waiting.
const SLOW: Duration = Duration::from_secs(1);
/// How often no request may end within [`SLOW`] before a waiting write gives up.
const SILENCE: u32 = 5;

/// What a write does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Write {
    /// Makes a key in the queue of that lock; with the next release of it, if that comes soon.
    Join { lock: Vec<u8>, with_release: bool },
    /// Deletes that key of the lock.
    Leave { lock: Vec<u8>, key: Vec<u8> },
}

impl Write {
    /// Whether one of them has to wait for the other. Names that nest are in each other's queues.
    fn conflicts_with(&self, other: &Write) -> bool {
        match (self, other) {
            (Write::Join { lock, .. }, Write::Join { lock: other, .. }) => {
                lock.starts_with(other) || other.starts_with(lock)
            }
            (Write::Leave { key, .. }, Write::Leave { key: other, .. }) => key == other,
            _ => false,
        }
    }

    fn with_release(&self) -> bool {
        matches!(self, Write::Join { with_release: true, .. })
    }

    fn goes_with(&self, other: &Write) -> bool {
        matches!((self, other), (Write::Join { lock, .. }, Write::Leave { lock: other, .. }) if lock == other)
    }
}

#[derive(Debug)]
struct Part {
    id: u64,
    write: Write,
    /// It still waits for a release of the same lock.
    with_release: bool,
    home: Home,
    request: TxnRequest,
    tell: oneshot::Sender<Result<TxnResponse, Failure>>,
}

/// The writes that wait, in the order in which they came.
#[derive(Debug, Clone, Default)]
struct Batches(Arc<Mutex<Table>>);

/// Sends the writes of one client, those of the same moment together.
#[derive(Debug, Clone)]
pub(crate) struct Batcher {
    client: Arc<Client>,
    clock: Clock,
    tasks: Arc<Tasks>,
    batches: Batches,
}

#[derive(Debug, Default)]
struct Table {
    last_id: u64,
    waiting: VecDeque<Part>,
    /// The requests that are not answered yet, from where, and since when.
    on_their_way: Vec<(u64, Home, Moment)>,
    /// How many requests have ended.
    landed: u64,
}

/// A request on its way.
#[derive(Debug)]
struct Flight {
    id: u64,
    table: Arc<Mutex<Table>>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        let mut table = lock(&self.table);
        table.on_their_way.retain(|(id, ..)| *id != self.id);
        table.landed += 1;
    }
}

impl Batches {
    /// Counts a write that goes at once; `None` when it should wait for a batch.
    fn begin(&self, write: &Write, home: Home, now: Moment) -> Option<Flight> {
        let mut table = lock(&self.0);
        let goes = table.waiting.is_empty() && !write.with_release() && table.has_room(write, home, now);
        goes.then(|| table.take_off(home, now, &self.0))
    }

    fn add(
        &self,
        write: Write,
        home: Home,
        request: TxnRequest,
    ) -> (u64, oneshot::Receiver<Result<TxnResponse, Failure>>) {
        let (tell, told) = oneshot::channel();
        let mut table = lock(&self.0);
        table.last_id += 1;
        let id = table.last_id;
        let with_release = write.with_release();
        table.waiting.push_back(Part { id, write, with_release, home, request, tell });
        (id, told)
    }

    /// A claim has waited for a release for long enough.
    fn stop_waiting(&self, id: u64) {
        lock(&self.0).waiting.iter_mut().filter(|part| part.id == id).for_each(|part| part.with_release = false);
    }

    /// Returns the next batch, if one may go.
    fn next(&self, now: Moment) -> Option<(Flight, Vec<Part>)> {
        let mut table = lock(&self.0);
        let goes = table.next();
        if !goes.iter().any(|part| table.has_room(&part.write, part.home, now)) {
            return None;
        }
        let goes: Vec<u64> = goes.into_iter().map(|part| part.id).collect();
        let waiting = std::mem::take(&mut table.waiting).into_iter();
        let (mut parts, rest): (Vec<Part>, Vec<Part>) = waiting.partition(|part| goes.contains(&part.id));
        table.waiting = rest.into();
        // Releases first: a claim of the same batch sees their keys gone.
        parts.sort_by_key(|part| matches!(part.write, Write::Join { .. }));
        Some((table.take_off(Home::Keeper, now, &self.0), parts))
    }

    fn landed(&self) -> u64 {
        lock(&self.0).landed
    }

    /// Takes back a write that still waits; `false` when it does not.
    fn withdraw(&self, id: u64) -> bool {
        let mut table = lock(&self.0);
        let before = table.waiting.len();
        table.waiting.retain(|part| part.id != id);
        table.waiting.len() < before
    }
}

impl Table {
    /// Returns the writes that can go in one batch now. No write overtakes one that it conflicts with.
    fn next(&self) -> Vec<&Part> {
        let is_ready =
            |part: &Part| !part.with_release || self.waiting.iter().any(|other| part.write.goes_with(&other.write));
        let is_free = |place: usize, part: &Part| {
            !self.waiting.iter().take(place).any(|other| part.write.conflicts_with(&other.write))
        };
        let next = self.waiting.iter().enumerate().filter(|(place, part)| is_ready(part) && is_free(*place, part));
        next.map(|(_, part)| part).take(MOST_IN_BATCH).collect()
    }

    /// Returns whether a write may go at once. One of the keeper does not wait for the callers' runtime, which may be
    /// blocked.
    fn has_room(&self, write: &Write, home: Home, now: Moment) -> bool {
        let counts = |from: Home, since: Moment| now.since(since) < SLOW && (home == Home::Caller || from == home);
        let on_their_way = self.on_their_way.iter().filter(|(_, from, since)| counts(*from, *since));
        let most = match write {
            Write::Join { .. } => CLAIMS_AT_ONCE,
            Write::Leave { .. } => AT_ONCE,
        };
        on_their_way.count() < most
    }

    fn take_off(&mut self, home: Home, since: Moment, table: &Arc<Mutex<Table>>) -> Flight {
        self.last_id += 1;
        self.on_their_way.push((self.last_id, home, since));
        Flight { id: self.last_id, table: table.clone() }
    }
}

impl Batcher {
    pub(crate) fn new(client: Arc<Client>, clock: Clock, tasks: Arc<Tasks>) -> Self {
        Batcher { client, clock, tasks, batches: Batches::default() }
    }

    /// Carries out one write, in a batch or alone. It must run to its end: it may carry the writes of other callers.
    pub(crate) async fn write(&self, write: Write, request: TxnRequest) -> Result<TxnResponse, Failure> {
        let (home, _) = self.client.home();
        if let Some(flight) = self.batches.begin(&write, home, self.clock.now()) {
            let answer = self.client.txn(request).await;
            drop(flight);
            self.send_waiting();
            return answer;
        }
        let with_release = write.with_release();
        let (id, mut told) = self.batches.add(write, home, request);
        self.send_waiting();
        let closed = |_| Err(Failure::new(Fault::Unknown, "the engine was closed"));
        if with_release {
            if let Ok(answer) = tokio::time::timeout(RELEASE_WAIT, &mut told).await {
                return answer.unwrap_or_else(closed);
            }
            self.batches.stop_waiting(id);
            self.send_waiting();
        }
        let (mut landed, mut silent) = (self.batches.landed(), 0);
        while silent < SILENCE {
            if let Ok(answer) = tokio::time::timeout(SLOW, &mut told).await {
                return answer.unwrap_or_else(closed);
            }
            self.send_waiting();
            let before = std::mem::replace(&mut landed, self.batches.landed());
            silent = if landed == before { silent + 1 } else { 0 };
        }
        match self.batches.withdraw(id) {
            true => Err(Failure::new(Fault::Refused, "etcd does not answer those before")),
            // It is on its way.
            false => told.await.unwrap_or_else(closed),
        }
    }

    fn send_waiting(&self) {
        while let Some((flight, parts)) = self.batches.next(self.clock.now()) {
            let batcher = self.clone();
            self.tasks.run(self.client.runtime(), async move {
                batcher.send(parts).await;
                drop(flight);
                batcher.send_waiting();
            });
        }
    }

    /// Sends all of `parts` as one transaction, and hands each its reply.
    async fn send(&self, mut parts: Vec<Part>) {
        if parts.len() == 1 {
            if let Some(Part { request, tell, .. }) = parts.pop() {
                let _ = tell.send(self.client.txn(request).await);
            }
            return;
        }
        let success = parts.iter().map(|part| RequestOp::from(Request::Txn(part.request.clone()))).collect();
        let all = TxnRequest { success, ..TxnRequest::default() };
        match self.client.txn(all).await {
            Ok(answer) => hand_out(answer, parts),
            // Refused as a whole, though one part alone may be to blame.
            Err(failure) if failure.blames_the_request() => {
                for Part { request, tell, .. } in parts {
                    let batcher = self.clone();
                    self.tasks.run(self.client.runtime(), async move {
                        let _ = tell.send(batcher.client.txn(request).await);
                    });
                }
            }
            Err(failure) => {
                for part in parts {
                    let _ = part.tell.send(Err(failure.clone()));
                }
            }
        }
    }
}

/// Hands each part its own reply, with the header of the batch.
fn hand_out(answer: TxnResponse, parts: Vec<Part>) {
    let header = answer.header;
    let mut answers = answer.responses.into_iter();
    for part in parts {
        let own = match answers.next().and_then(|op| op.response) {
            Some(Response::Txn(own)) => Ok(TxnResponse { header, ..own }),
            _ => Err(Failure::new(Fault::Unknown, "etcd sent an answer without one of its parts")),
        };
        let _ = part.tell.send(own);
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(0).after(Duration::from_millis(ms))
    }

    fn join(lock: &str) -> Write {
        Write::Join { lock: lock.into(), with_release: false }
    }

    fn join_with_release(lock: &str) -> Write {
        Write::Join { lock: lock.into(), with_release: true }
    }

    fn leave(key: &str) -> Write {
        let (lock, _) = key.split_at(key.find('/').map_or(0, |end| end + 1));
        Write::Leave { lock: lock.into(), key: key.into() }
    }

    /// What goes next, and what still waits.
    fn next_of(batches: &Batches) -> Option<(Flight, Vec<Write>)> {
        let (flight, parts) = batches.next(at(0))?;
        Some((flight, parts.into_iter().map(|part| part.write).collect()))
    }

    #[test]
    fn what_comes_meanwhile_goes_together_but_for_keys_of_one_queue() {
        let batches = Batches::default();
        let first: Vec<_> = (0..CLAIMS_AT_ONCE)
            .map(|_| batches.begin(&join("a/"), Home::Keeper, at(0)).expect("it goes at once"))
            .collect();
        assert!(batches.begin(&join("b/"), Home::Keeper, at(0)).is_none(), "it waits for a batch");
        drop(batches.add(join("b/"), Home::Keeper, TxnRequest::default()));
        assert!(next_of(&batches).is_none(), "there is no room yet");
        for write in [join("b/c/"), join("bc/"), leave("b/1"), leave("b/1"), join("b/")] {
            drop(batches.add(write, Home::Keeper, TxnRequest::default()));
        }
        drop(first);
        let (_flight, together) = next_of(&batches).expect("there is room");
        assert_eq!(together, [leave("b/1"), join("b/"), join("bc/")], "who leaves goes first");
        let (_flight, together) = next_of(&batches).expect("there is room");
        assert_eq!(together, [leave("b/1"), join("b/c/")], "names that nest are in one queue");
    }

    #[test]
    fn a_release_does_not_wait_for_claims_nor_anybody_for_ever() {
        let batches = Batches::default();
        let claims: Vec<_> = (0..AT_ONCE).filter_map(|_| batches.begin(&join("a/"), Home::Keeper, at(0))).collect();
        assert_eq!(claims.len(), CLAIMS_AT_ONCE);
        let releases: Vec<_> = (0..AT_ONCE).filter_map(|_| batches.begin(&leave("a/1"), Home::Keeper, at(0))).collect();
        assert_eq!(claims.len() + releases.len(), AT_ONCE);
        let (id, _told) = batches.add(join("a/"), Home::Keeper, TxnRequest::default());
        assert!(batches.withdraw(id) && !batches.withdraw(id));
        assert!(batches.begin(&join("a/"), Home::Keeper, at(999)).is_none());
        let later = batches.begin(&join("a/"), Home::Keeper, at(1_000));
        assert!(later.is_some(), "those before do not count for ever");
        drop((claims, releases, later));
        assert_eq!(batches.landed(), AT_ONCE as u64 + 1);
    }

    #[test]
    fn a_write_of_the_keeper_does_not_wait_for_the_callers_runtime() {
        let batches = Batches::default();
        let begin = |home| batches.begin(&leave("a/1"), home, at(0));
        let stuck: Vec<_> = (0..=AT_ONCE).filter_map(|_| begin(Home::Caller)).collect();
        assert_eq!(stuck.len(), AT_ONCE);
        assert!(begin(Home::Keeper).is_some(), "the callers' runtime may be blocked");
        drop(batches.add(leave("b/1"), Home::Caller, TxnRequest::default()));
        assert!(next_of(&batches).is_none(), "there is no room for another one of a caller");
        drop(batches.add(leave("c/1"), Home::Keeper, TxnRequest::default()));
        let (_flight, together) = next_of(&batches).expect("there is room");
        assert_eq!(together, [leave("b/1"), leave("c/1")]);
    }

    #[test]
    fn a_claim_goes_with_the_next_release_of_its_lock_and_waits_for_it_for_a_moment() {
        let batches = Batches::default();
        let add = |write| batches.add(write, Home::Keeper, TxnRequest::default()).0;
        assert!(batches.begin(&join_with_release("a/"), Home::Keeper, at(0)).is_none(), "it waits for the release");
        let [_, second, _, _] = [join_with_release("a/"), join_with_release("a/"), join("a/"), leave("b/1")].map(add);
        let mut flights = Vec::new();
        let mut goes = || {
            let (flight, together) = next_of(&batches)?;
            flights.push(flight);
            Some(together)
        };
        assert_eq!(goes(), Some(vec![leave("b/1")]), "the release of another lock is not waited for");
        add(leave("a/1"));
        assert_eq!(
            goes(),
            Some(vec![leave("a/1"), join_with_release("a/")]),
            "two keys of one queue never go together"
        );
        assert_eq!(goes(), None, "and nobody overtakes");
        batches.stop_waiting(second);
        assert_eq!(goes(), Some(vec![join_with_release("a/")]), "it does not wait for ever");
        assert_eq!(goes(), Some(vec![join("a/")]));
    }

    #[test]
    fn an_answer_that_lacks_a_part_leaves_that_one_unknown() {
        let parts = |batches: &Batches| {
            let told: Vec<_> =
                ["a", "b"].map(|key| batches.add(leave(key), Home::Keeper, TxnRequest::default()).1).into();
            let (_, parts) = batches.next(at(0)).expect("there is room");
            (parts, told)
        };
        let (parts, mut told) = parts(&Batches::default());
        let own = Response::Txn(TxnResponse { succeeded: true, ..TxnResponse::default() });
        let responses = vec![crate::engines::etcd::protocol::messages::ResponseOp { response: Some(own) }];
        hand_out(TxnResponse { responses, ..TxnResponse::default() }, parts);
        assert!(told[0].try_recv().unwrap().unwrap().succeeded);
        assert_eq!(told[1].try_recv().unwrap().unwrap_err().fault, Fault::Unknown);
    }
}
