//! Deletions and writes, as they happen: one stream, with one watch per lock that is waited for, and one per key that is
//! held for a while, or one on the prefix for all of these.
//!
//! A watch that starts at a past revision is served only ten times a second until it has caught up. So a lock's watch
//! starts at "now", the queue is read once more, and the watch stays for a while after its last use.

use crate::types::sync::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tonic::codegen::tokio_stream::wrappers::UnboundedReceiverStream;

use crate::engines::etcd::error::{Failure, Fault};
use crate::engines::etcd::protocol::messages::{
    EventKey, EventType, WatchCancelRequest, WatchCreateRequest, WatchFilter, WatchOrder, WatchRequest, WatchResponse,
};
use crate::engines::etcd::protocol::names::end_of;
use crate::engines::etcd::protocol::queue_key::QueueKey;
use crate::engines::etcd::wire::client::Client;
use crate::types::clock::{Clock, Moment};

/// How long an unused watch stays.
const LINGER: Duration = Duration::from_secs(10);
/// How many deletions of a lock are remembered for those who read the queue a moment before.
const REMEMBERED: usize = 256;
/// The first and the longest pause before a stream that failed soon is opened again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// A stream that was good for so long is opened again at once.
const GOOD: Duration = Duration::from_secs(2);

/// What a watch is on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Target {
    /// The ends of all keys that begin with this: the queue of a lock, or the entries of an owner.
    Ends(Vec<u8>),
    /// The writes and the end of this key.
    Key(Vec<u8>),
    /// The writes and the ends of all keys that begin with the prefix.
    Prefix,
}

/// A change of a key that a watch has seen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Change<'a> {
    pub(crate) kind: EventType,
    pub(crate) key: &'a [u8],
    pub(crate) revision: i64,
    /// Whether it was the watch on the prefix that saw it.
    pub(crate) by_prefix: bool,
}

/// All watches of a client.
#[derive(Debug)]
pub(crate) struct Watches {
    table: Mutex<Table>,
    /// What all keys of this client begin with.
    prefix: Vec<u8>,
    /// There is a watch to open the stream for.
    needed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    by_target: HashMap<Target, Watch>,
    by_id: HashMap<i64, Target>,
    last_id: i64,
    orders: Option<mpsc::UnboundedSender<WatchRequest>>,
}

#[derive(Debug)]
struct Watch {
    id: i64,
    /// Every event after this revision is seen; 0 as long as that is not known.
    since: watch::Sender<i64>,
    /// Where to go on when the stream is opened again; 0: from now on.
    next: i64,
    used: Moment,
    /// Whether the server has made it on this stream.
    is_made: bool,
    /// The keys that were deleted last, and when.
    deleted: VecDeque<(Vec<u8>, i64)>,
}

/// A watch, for a waiter or a holder.
#[derive(Debug)]
pub(crate) struct Sight(watch::Receiver<i64>);

impl Sight {
    /// Whether some event after `revision` may have been missed, for good.
    pub(crate) fn misses(&self, revision: i64) -> bool {
        *self.0.borrow() > revision
    }

    /// Returns when the watch was opened anew after `revision`.
    pub(crate) async fn missed(&mut self, revision: i64) {
        if self.0.wait_for(|since| *since > revision).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Watches {
    pub(crate) fn new(prefix: Vec<u8>) -> Self {
        Watches { table: Mutex::default(), prefix, needed: Notify::new() }
    }

    /// Watches the ends of the keys of `lock`, from revision `from` on if the watch is new; 0: from now on.
    pub(crate) fn watch(&self, lock: &[u8], from: i64, now: Moment) -> Sight {
        self.watch_target(&Target::Ends(lock.to_vec()), 0, from, now)
    }

    /// Watches the key of a hold, which was there at `revision`.
    pub(crate) fn watch_key(&self, key: &[u8], revision: i64, now: Moment) -> Sight {
        // The watch on the prefix has seen everything up to its own place, if it has not begun later.
        let seen = self.table().by_target.get(&Target::Prefix).map_or(0, |all| {
            let since = *all.since.borrow();
            if (1..=revision).contains(&since) { all.next } else { 0 }
        });
        self.watch_target(&Target::Key(key.to_vec()), revision, seen.max(revision.saturating_add(1)), now)
    }

    /// Watches all keys below the prefix, from after `revision` on if the watch is new.
    pub(crate) fn watch_prefix(&self, revision: i64, now: Moment) -> Sight {
        self.watch_target(&Target::Prefix, 0, revision.saturating_add(1), now)
    }

    fn watch_target(&self, target: &Target, since: i64, from: i64, now: Moment) -> Sight {
        let mut table = self.table();
        if let Some(watch) = table.by_target.get_mut(target) {
            watch.used = watch.used.max(now);
            return Sight(watch.since.subscribe());
        }
        let (since, sight) = watch::channel(since);
        let watch = Watch { id: 0, since, next: from, used: now, is_made: false, deleted: VecDeque::new() };
        table.by_target.insert(target.clone(), watch);
        self.open(&mut table, target);
        self.needed.notify_one();
        Sight(sight)
    }

    /// Whether there is a watch on that key alone.
    pub(crate) fn has_key(&self, key: &[u8]) -> bool {
        self.table().by_target.contains_key(&Target::Key(key.to_vec()))
    }

    /// Whether there is a watch on the prefix.
    pub(crate) fn has_prefix(&self) -> bool {
        self.table().by_target.contains_key(&Target::Prefix)
    }

    /// Keeps the watch on the prefix. Returns the revision after which it sees every event, 0 as long as that is not
    /// known; `None` when there is no such watch.
    pub(crate) fn keep_prefix(&self, now: Moment) -> Option<i64> {
        let mut table = self.table();
        let watch = table.by_target.get_mut(&Target::Prefix)?;
        watch.used = watch.used.max(now);
        Some(*watch.since.borrow())
    }

    /// Whether the key `mark` of `lock` was deleted a moment ago.
    pub(crate) fn saw_deletion(&self, lock: &[u8], mark: &QueueKey) -> bool {
        let is_its_end = |(key, revision): &(Vec<u8>, i64)| *key == mark.key && *revision > mark.created;
        let table = self.table();
        let watches = [Target::Ends(lock.to_vec()), Target::Prefix];
        watches
            .iter()
            .filter_map(|target| table.by_target.get(target))
            .any(|watch| watch.deleted.iter().any(is_its_end))
    }

    /// Ends the watches that were not used for a while.
    pub(crate) fn prune(&self, now: Moment) {
        let mut table = self.table();
        let idle = table.by_target.iter().filter(|(_, watch)| now.since(watch.used) > LINGER);
        let idle: Vec<_> = idle.map(|(target, _)| target.clone()).collect();
        idle.iter().for_each(|target| table.end(target));
    }

    /// Follows all watches for ever, and tells `told` of each change, or that the prefix may not be watched.
    pub(crate) async fn follow(&self, client: &Client, clock: &Clock, told: impl Fn(Option<Change<'_>>)) {
        let mut pause = PAUSE.0;
        loop {
            while self.table().by_target.is_empty() {
                self.needed.notified().await;
            }
            let started = clock.now();
            let end = self.follow_once(client, &told).await;
            self.table().orders = None;
            tracing::debug!(target: "distlock", { reason = ?end }, "etcd watch stream ended");
            if clock.now().since(started) > GOOD {
                pause = PAUSE.0;
            } else {
                clock.sleep_until(clock.now().after(pause)).await;
                pause = (pause * 2).min(PAUSE.1);
            }
        }
    }

    async fn follow_once(&self, client: &Client, told: &impl Fn(Option<Change<'_>>)) -> Option<Failure> {
        let orders = self.reopen_all();
        // The server answers when it has its first order, so the orders come first.
        let (mut stream, route) = match client.watch(UnboundedReceiverStream::new(orders)).await {
            Ok(opened) => opened,
            Err(failure) => return Some(failure),
        };
        let end = loop {
            let answer = tokio::select! {
                answer = stream.message() => answer,
                // Another request found out that this connection hangs.
                () = client.left(route) => break None,
            };
            match answer {
                Ok(Some(answer)) => {
                    if let Err(failure) = self.take(&answer, told) {
                        break Some(failure);
                    }
                }
                Ok(None) => break None,
                Err(status) => break Some(status.into()),
            }
        };
        client.leave(route);
        if end.as_ref().is_some_and(|failure| matches!(failure.fault, Fault::LoggedOut | Fault::Forbidden)) {
            client.forget_login();
        }
        end
    }

    /// Orders every watch on a new stream.
    fn reopen_all(&self) -> mpsc::UnboundedReceiver<WatchRequest> {
        let mut table = self.table();
        // Unbounded, yet never longer than two orders per lock that is held or waited for.
        let (sender, orders) = mpsc::unbounded_channel();
        table.orders = Some(sender);
        let targets: Vec<_> = table.by_target.keys().cloned().collect();
        targets.iter().for_each(|target| self.open(&mut table, target));
        orders
    }

    /// Takes one message of the stream.
    fn take(&self, answer: &WatchResponse, told: &impl Fn(Option<Change<'_>>)) -> Result<(), Failure> {
        let mut table = self.table();
        if answer.canceled && is_forbidden(&answer.cancel_reason) && table.expects_prefix(answer.watch_id) {
            // A user that may see its own locks only, or a part of them.
            table.end(&Target::Prefix);
            drop(table);
            told(None);
            return Ok(());
        }
        if answer.canceled && answer.watch_id < 0 {
            // Refused before it had an id: our login has run out, or does not allow it.
            return Err(Failure::new(Fault::LoggedOut, answer.cancel_reason.clone()));
        }
        // One that was cancelled in the meantime.
        let Some(target) = table.by_id.get(&answer.watch_id).cloned() else { return Ok(()) };
        let Some(watch) = table.by_target.get_mut(&target) else { return Ok(()) };
        if answer.canceled {
            if answer.compact_revision == 0 {
                let fault = if answer.cancel_reason.contains("auth") { Fault::LoggedOut } else { Fault::Refused };
                return Err(Failure::new(fault, answer.cancel_reason.clone()));
            }
            // Events in between are lost: waiters and holders must read the queue.
            watch.next = 0;
            self.open(&mut table, &target);
            return Ok(());
        }
        watch.take(answer);
        let by_prefix = target == Target::Prefix;
        let mut changes = Vec::new();
        for event in &answer.events {
            let (Some(kv), Ok(kind)) = (&event.kv, EventType::try_from(event.kind)) else { continue };
            watch.next = watch.next.max(kv.mod_revision.saturating_add(1));
            if kind == EventType::Delete {
                watch.remember(kv);
            }
            changes.push(Change { kind, key: &kv.key, revision: kv.mod_revision, by_prefix });
        }
        drop(table);
        changes.into_iter().for_each(|change| told(Some(change)));
        Ok(())
    }

    /// Orders a watch under a new id.
    fn open(&self, table: &mut Table, target: &Target) {
        table.last_id += 1;
        let watch_id = table.last_id;
        let Some(watch) = table.by_target.get_mut(target) else { return };
        table.by_id.remove(&watch.id);
        (watch.id, watch.is_made) = (watch_id, false);
        table.by_id.insert(watch_id, target.clone());
        let create = WatchCreateRequest { start_revision: watch.next, watch_id, ..self.order_for(target) };
        table.order(WatchOrder::Create(create));
    }

    fn order_for(&self, target: &Target) -> WatchCreateRequest {
        match target {
            Target::Ends(start) => WatchCreateRequest {
                key: start.clone(),
                range_end: end_of(start),
                filters: vec![WatchFilter::NoPut.into()],
                ..WatchCreateRequest::default()
            },
            Target::Key(key) => WatchCreateRequest { key: key.clone(), ..WatchCreateRequest::default() },
            Target::Prefix => WatchCreateRequest {
                // A key of one zero is the first of all.
                key: if self.prefix.is_empty() { vec![0] } else { self.prefix.clone() },
                range_end: end_of(&self.prefix),
                // Where nothing happens, its place would be compacted some day.
                progress_notify: true,
                ..WatchCreateRequest::default()
            },
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

impl Watch {
    /// Notes how far it has seen: from where on when it was created, or that nothing has happened until now.
    fn take(&mut self, answer: &WatchResponse) {
        let revision = answer.header.unwrap_or_default().revision;
        if !answer.created {
            if answer.events.is_empty() && self.next != 0 {
                self.next = self.next.max(revision.saturating_add(1));
            }
            return;
        }
        self.is_made = true;
        if self.next == 0 {
            self.next = revision.saturating_add(1);
            self.deleted.clear();
            self.since.send_replace(revision);
            return;
        }
        let seen = self.next.saturating_sub(1);
        self.since.send_if_modified(|since| *since == 0 && std::mem::replace(since, seen) != seen);
    }

    fn remember(&mut self, kv: &EventKey) {
        if self.deleted.len() == REMEMBERED {
            self.deleted.pop_front();
        }
        self.deleted.push_back((kv.key.clone(), kv.mod_revision));
    }
}

/// Whether the reason says that a user has no right to watch, not that it must log in again.
fn is_forbidden(reason: &str) -> bool {
    reason.contains("permission denied")
}

impl Table {
    /// Whether a watch that was refused under this id can be the one on the prefix. etcd 3.5 does not say which it was.
    fn expects_prefix(&self, id: i64) -> bool {
        let Some(watch) = self.by_target.get(&Target::Prefix) else { return false };
        id == watch.id || (id < 0 && !watch.is_made)
    }

    fn end(&mut self, target: &Target) {
        if let Some(Watch { id: watch_id, .. }) = self.by_target.remove(target) {
            self.by_id.remove(&watch_id);
            self.order(WatchOrder::Cancel(WatchCancelRequest { watch_id }));
        }
    }

    fn order(&self, order: WatchOrder) {
        if let Some(orders) = &self.orders {
            // A stream that ended meanwhile is opened again, with every watch.
            let _ = orders.send(WatchRequest { order: Some(order) });
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn fuzz_messages_of_a_watch() {
        distlock_testkit::fuzz("etcd_watch.txt", |input| {
            let Ok(answer) = WatchResponse::decode(input) else { return };
            distlock_testkit::assert_in_proportion(input, &answer);
            let watches = Watches::new(b"locks/".to_vec());
            let now = Moment::from_nanos(1);
            let mut orders = watches.reopen_all();
            watches.watch(b"locks/a/", 0, now);
            watches.watch_key(b"locks/a/2a-1", i64::MAX, now);
            watches.watch_prefix(7, now);
            for _ in 0..REMEMBERED {
                let _ = watches.take(&answer, &|change| {
                    let Some(change) = change else { return };
                    let told = |event: &crate::engines::etcd::protocol::messages::Event| {
                        let is_it = |kv: &EventKey| kv.key == change.key && kv.mod_revision == change.revision;
                        event.kv.as_ref().is_some_and(is_it)
                    };
                    assert!(answer.events.iter().any(told), "only what the server said");
                });
            }
            let table = watches.table();
            assert!(
                (2..=3).contains(&table.by_target.len()) && table.by_id.len() <= 3,
                "only the prefix may be refused"
            );
            assert!(table.by_target.values().all(|watch| watch.deleted.len() <= REMEMBERED));
            let ordered = std::iter::from_fn(|| orders.try_recv().ok()).count();
            assert!(ordered <= 4 + REMEMBERED, "{ordered} orders");
        });
    }
}
