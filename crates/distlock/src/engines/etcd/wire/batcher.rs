//! Writes that several tasks ask for in the same moment go to the server together, in one transaction.
//!
//! The first goes at once. What comes while it is on its way waits for the answer and goes next, all of it: each write is a
//! transaction of its own inside of that one, with conditions and an answer of its own. Two keys of one queue never go
//! together, since they would be made at the same revision and have no order. Claims of a long queue keep the server busy, so
//! a release may go while they wait: somebody may be waiting for it.
//!
//! Where a lock goes from one task to the next, each of them asks for it again as the next one is about to release it. That
//! claim waits for the release for a moment and rides with it: etcd would otherwise write the one after the other, and the
//! next one waits for both.

use crate::types::sync::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::engines::etcd::error::{Failure, Fault};
use crate::engines::etcd::protocol::messages::{Request, RequestOp, Response, TxnRequest, TxnResponse};
use crate::engines::etcd::wire::client::Client;
use crate::engines::etcd::wire::tasks::Tasks;
use crate::types::clock::{Clock, Moment};

/// How many requests are on their way before a claim waits for company.
const CLAIMS_AT_ONCE: usize = 4;
/// The same for a release.
const AT_ONCE: usize = 8;
/// How long a claim waits for the release that it may ride with.
const RIDE: Duration = Duration::from_millis(2);
/// How many go together: etcd allows for 128 operations, inside and outside counted together.
const TOGETHER: usize = 64;
/// A server that does not answer must not keep others waiting: a request that is older does not count.
const SLOW: Duration = Duration::from_secs(1);
/// How often that may happen before those who wait give up.
const SILENCE: u32 = 5;

/// What a write does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Write {
    /// Makes a key in the queue of that lock; if it rides, with the next release of it if that comes soon.
    Join { lock: Vec<u8>, rides: bool },
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

    fn rides(&self) -> bool {
        matches!(self, Write::Join { rides: true, .. })
    }

    fn rides_with(&self, other: &Write) -> bool {
        matches!((self, other), (Write::Join { lock, .. }, Write::Leave { lock: other, .. }) if lock == other)
    }
}

#[derive(Debug)]
struct Part {
    id: u64,
    write: Write,
    /// It still waits for a release of the same lock.
    rides: bool,
    request: TxnRequest,
    tell: oneshot::Sender<Result<TxnResponse, Failure>>,
}

/// All writes that wait, the first to come first.
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
    /// The requests that are not answered yet, and since when.
    on_their_way: Vec<(u64, Moment)>,
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
        table.on_their_way.retain(|(id, _)| *id != self.id);
        table.landed += 1;
    }
}

impl Batches {
    /// Counts one that goes at once; `None` when it should wait for company.
    fn begin(&self, write: &Write, now: Moment) -> Option<Flight> {
        let mut table = lock(&self.0);
        let goes = table.waiting.is_empty() && !write.rides() && table.has_room(write, now);
        goes.then(|| table.take_off(now, &self.0))
    }

    fn add(&self, write: Write, request: TxnRequest) -> (u64, oneshot::Receiver<Result<TxnResponse, Failure>>) {
        let (tell, told) = oneshot::channel();
        let mut table = lock(&self.0);
        table.last_id += 1;
        let id = table.last_id;
        let rides = write.rides();
        table.waiting.push_back(Part { id, write, rides, request, tell });
        (id, told)
    }

    /// Lets one go that has waited for a release for long enough.
    fn hurry(&self, id: u64) {
        lock(&self.0).waiting.iter_mut().filter(|part| part.id == id).for_each(|part| part.rides = false);
    }

    /// What goes next, if something may.
    fn next(&self, now: Moment) -> Option<(Flight, Vec<Part>)> {
        let mut table = lock(&self.0);
        let goes = table.next();
        if !goes.iter().any(|part| table.has_room(&part.write, now)) {
            return None;
        }
        let goes: Vec<u64> = goes.into_iter().map(|part| part.id).collect();
        let waiting = std::mem::take(&mut table.waiting).into_iter();
        let (mut parts, rest): (Vec<Part>, Vec<Part>) = waiting.partition(|part| goes.contains(&part.id));
        table.waiting = rest.into();
        // Whoever comes sees those gone who leave in the same moment.
        parts.sort_by_key(|part| matches!(part.write, Write::Join { .. }));
        Some((table.take_off(now, &self.0), parts))
    }

    fn landed(&self) -> u64 {
        lock(&self.0).landed
    }

    /// Takes back one that still waits; `false` when it does not.
    fn withdraw(&self, id: u64) -> bool {
        let mut table = lock(&self.0);
        let before = table.waiting.len();
        table.waiting.retain(|part| part.id != id);
        table.waiting.len() < before
    }
}

impl Table {
    /// Those that can go together now. Nobody overtakes one that it would have to wait for.
    fn next(&self) -> Vec<&Part> {
        let is_ready =
            |part: &Part| !part.rides || self.waiting.iter().any(|other| part.write.rides_with(&other.write));
        let is_free = |place: usize, part: &Part| {
            !self.waiting.iter().take(place).any(|other| part.write.conflicts_with(&other.write))
        };
        let next = self.waiting.iter().enumerate().filter(|(place, part)| is_ready(part) && is_free(*place, part));
        next.map(|(_, part)| part).take(TOGETHER).collect()
    }

    fn has_room(&self, write: &Write, now: Moment) -> bool {
        let on_their_way = self.on_their_way.iter().filter(|since| now.since(since.1) < SLOW);
        let most = match write {
            Write::Join { .. } => CLAIMS_AT_ONCE,
            Write::Leave { .. } => AT_ONCE,
        };
        on_their_way.count() < most
    }

    fn take_off(&mut self, since: Moment, table: &Arc<Mutex<Table>>) -> Flight {
        self.last_id += 1;
        self.on_their_way.push((self.last_id, since));
        Flight { id: self.last_id, table: table.clone() }
    }
}

impl Batcher {
    pub(crate) fn new(client: Arc<Client>, clock: Clock, tasks: Arc<Tasks>) -> Self {
        Batcher { client, clock, tasks, batches: Batches::default() }
    }

    /// Carries out one write, with others or alone. It must run to its end: others may go along.
    pub(crate) async fn write(&self, write: Write, request: TxnRequest) -> Result<TxnResponse, Failure> {
        if let Some(flight) = self.batches.begin(&write, self.clock.now()) {
            let answer = self.client.txn(request).await;
            drop(flight);
            self.send_waiting();
            return answer;
        }
        let rides = write.rides();
        let (id, mut told) = self.batches.add(write, request);
        self.send_waiting();
        let closed = |_| Err(Failure::new(Fault::Unknown, "the engine was closed"));
        if rides {
            if let Ok(answer) = tokio::time::timeout(RIDE, &mut told).await {
                return answer.unwrap_or_else(closed);
            }
            self.batches.hurry(id);
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

    /// Sends all of `parts` as one transaction, and tells each what became of it.
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
            // Refused for all of them, though only one may be to blame.
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

/// Gives each part its own answer, with the header of them all.
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
        Write::Join { lock: lock.into(), rides: false }
    }

    fn riding(lock: &str) -> Write {
        Write::Join { lock: lock.into(), rides: true }
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
        let first: Vec<_> =
            (0..CLAIMS_AT_ONCE).map(|_| batches.begin(&join("a/"), at(0)).expect("it goes at once")).collect();
        assert!(batches.begin(&join("b/"), at(0)).is_none(), "it waits for company");
        drop(batches.add(join("b/"), TxnRequest::default()));
        assert!(next_of(&batches).is_none(), "there is no room yet");
        for write in [join("b/c/"), join("bc/"), leave("b/1"), leave("b/1"), join("b/")] {
            drop(batches.add(write, TxnRequest::default()));
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
        let claims: Vec<_> = (0..AT_ONCE).filter_map(|_| batches.begin(&join("a/"), at(0))).collect();
        assert_eq!(claims.len(), CLAIMS_AT_ONCE);
        let releases: Vec<_> = (0..AT_ONCE).filter_map(|_| batches.begin(&leave("a/1"), at(0))).collect();
        assert_eq!(claims.len() + releases.len(), AT_ONCE);
        let (id, _told) = batches.add(join("a/"), TxnRequest::default());
        assert!(batches.withdraw(id) && !batches.withdraw(id));
        assert!(batches.begin(&join("a/"), at(999)).is_none());
        let later = batches.begin(&join("a/"), at(1_000));
        assert!(later.is_some(), "those before do not count for ever");
        drop((claims, releases, later));
        assert_eq!(batches.landed(), AT_ONCE as u64 + 1);
    }

    #[test]
    fn a_claim_rides_with_the_next_release_of_its_lock_and_waits_for_it_for_a_moment() {
        let batches = Batches::default();
        let add = |write| batches.add(write, TxnRequest::default()).0;
        assert!(batches.begin(&riding("a/"), at(0)).is_none(), "it waits for the release");
        let [_, second, _, _] = [riding("a/"), riding("a/"), join("a/"), leave("b/1")].map(add);
        let mut flights = Vec::new();
        let mut goes = || {
            let (flight, together) = next_of(&batches)?;
            flights.push(flight);
            Some(together)
        };
        assert_eq!(goes(), Some(vec![leave("b/1")]), "the release of another lock is nothing to ride with");
        add(leave("a/1"));
        assert_eq!(goes(), Some(vec![leave("a/1"), riding("a/")]), "two keys of one queue never go together");
        assert_eq!(goes(), None, "and nobody overtakes");
        batches.hurry(second);
        assert_eq!(goes(), Some(vec![riding("a/")]), "it does not wait for ever");
        assert_eq!(goes(), Some(vec![join("a/")]));
    }

    #[test]
    fn an_answer_that_lacks_a_part_leaves_that_one_unknown() {
        let parts = |batches: &Batches| {
            let told: Vec<_> = ["a", "b"].map(|key| batches.add(leave(key), TxnRequest::default()).1).into();
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
