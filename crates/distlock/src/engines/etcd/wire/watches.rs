//! Deletions, as they happen: one stream, with one watch per lock that is waited for or held for a while, and one for
//! each key that is held for a while, to see it written by another client.
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

/// All watches of a client.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    table: Mutex<Table>,
    /// There is a watch to open the stream for.
    needed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    by_lock: HashMap<Vec<u8>, LockWatch>,
    by_id: HashMap<i64, Vec<u8>>,
    last_id: i64,
    orders: Option<mpsc::UnboundedSender<WatchRequest>>,
}

#[derive(Debug)]
struct LockWatch {
    id: i64,
    kind: EventType,
    /// Every deletion after this revision is seen; 0 as long as that is not known.
    since: watch::Sender<i64>,
    /// Where to go on when the stream is opened again; 0: from now on.
    next: i64,
    used: Moment,
    /// The keys that were deleted last, and when.
    deleted: VecDeque<(Vec<u8>, i64)>,
}

/// One lock's watch, for a waiter or a holder.
#[derive(Debug)]
pub(crate) struct Sight(watch::Receiver<i64>);

impl Sight {
    /// Whether some deletion after `revision` may have been missed, for good.
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
    /// Watches the keys of `lock`, from revision `from` on if the watch is new; 0: from now on.
    pub(crate) fn watch(&self, lock: &[u8], from: i64, now: Moment) -> Sight {
        self.watch_for(EventType::Delete, lock, from, now)
    }

    /// Watches whether the key of a hold is written, in the same way.
    pub(crate) fn watch_writes(&self, key: &[u8], from: i64, now: Moment) -> Sight {
        self.watch_for(EventType::Put, key, from, now)
    }

    // Whatever lock it is, what its keys begin with ends with a slash and no key does: the two never meet.
    fn watch_for(&self, kind: EventType, lock: &[u8], from: i64, now: Moment) -> Sight {
        let mut table = self.table();
        if let Some(watch) = table.by_lock.get_mut(lock) {
            watch.used = watch.used.max(now);
            return Sight(watch.since.subscribe());
        }
        let (since, sight) = watch::channel(0);
        let watch = LockWatch { id: 0, kind, since, next: from, used: now, deleted: VecDeque::new() };
        table.by_lock.insert(lock.to_vec(), watch);
        table.open(lock);
        self.needed.notify_one();
        Sight(sight)
    }

    /// Whether the key `mark` of `lock` was deleted a moment ago.
    pub(crate) fn saw_deletion(&self, lock: &[u8], mark: &QueueKey) -> bool {
        let is_its_end = |(key, revision): &(Vec<u8>, i64)| *key == mark.key && *revision > mark.created;
        self.table().by_lock.get(lock).is_some_and(|watch| watch.deleted.iter().any(is_its_end))
    }

    /// Ends the watches that were not used for a while.
    pub(crate) fn prune(&self, now: Moment) {
        let mut table = self.table();
        let idle: Vec<_> = table.by_lock.iter().filter(|(_, watch)| now.since(watch.used) > LINGER).collect();
        let idle: Vec<_> = idle.into_iter().map(|(lock, watch)| (lock.clone(), watch.id)).collect();
        for (lock, watch_id) in idle {
            table.by_lock.remove(&lock);
            table.by_id.remove(&watch_id);
            table.order(WatchOrder::Cancel(WatchCancelRequest { watch_id }));
        }
    }

    /// Follows all watches for ever, and tells `changed` of each key and the revision at which it was deleted or
    /// written.
    pub(crate) async fn follow(&self, client: &Client, clock: &Clock, changed: impl Fn(EventType, &[u8], i64)) {
        let mut pause = PAUSE.0;
        loop {
            while self.table().by_lock.is_empty() {
                self.needed.notified().await;
            }
            let started = clock.now();
            let end = self.follow_once(client, &changed).await;
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

    async fn follow_once(&self, client: &Client, changed: &impl Fn(EventType, &[u8], i64)) -> Option<Failure> {
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
                    if let Err(failure) = self.take(&answer, changed) {
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
        let locks: Vec<_> = table.by_lock.keys().cloned().collect();
        for lock in locks {
            table.open(&lock);
        }
        orders
    }

    /// Takes one message of the stream.
    fn take(&self, answer: &WatchResponse, changed: &impl Fn(EventType, &[u8], i64)) -> Result<(), Failure> {
        if answer.canceled && answer.watch_id < 0 {
            // Refused before it had an id: our login has run out, or does not allow it.
            return Err(Failure::new(Fault::LoggedOut, answer.cancel_reason.clone()));
        }
        let mut table = self.table();
        // One that was cancelled in the meantime.
        let Some(lock) = table.by_id.get(&answer.watch_id).cloned() else { return Ok(()) };
        let Some(watch) = table.by_lock.get_mut(&lock) else { return Ok(()) };
        if answer.canceled {
            if answer.compact_revision == 0 {
                let fault = if answer.cancel_reason.contains("auth") { Fault::LoggedOut } else { Fault::Refused };
                return Err(Failure::new(fault, answer.cancel_reason.clone()));
            }
            // Events in between are lost: waiters and holders must read the queue.
            watch.next = 0;
            table.open(&lock);
            return Ok(());
        }
        if answer.created {
            let revision = answer.header.unwrap_or_default().revision;
            match watch.next {
                0 => {
                    watch.next = revision.saturating_add(1);
                    watch.deleted.clear();
                    watch.since.send_replace(revision);
                }
                next => {
                    watch.since.send_if_modified(|since| {
                        *since == 0 && {
                            *since = next.saturating_sub(1);
                            true
                        }
                    });
                }
            }
        }
        let mut keys = Vec::new();
        let kind = watch.kind;
        for event in answer.events.iter().filter(|event| event.kind == i32::from(kind)) {
            let Some(kv) = &event.kv else { continue };
            watch.next = watch.next.max(kv.mod_revision.saturating_add(1));
            if kind == EventType::Delete {
                watch.remember(kv);
            }
            keys.push(kv);
        }
        drop(table);
        keys.iter().for_each(|kv| changed(kind, &kv.key, kv.mod_revision));
        Ok(())
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

impl LockWatch {
    fn remember(&mut self, kv: &EventKey) {
        if self.deleted.len() == REMEMBERED {
            self.deleted.pop_front();
        }
        self.deleted.push_back((kv.key.clone(), kv.mod_revision));
    }
}

impl Table {
    /// Orders the watch of `lock` under a new id.
    fn open(&mut self, lock: &[u8]) {
        self.last_id += 1;
        let watch_id = self.last_id;
        let Some(watch) = self.by_lock.get_mut(lock) else { return };
        self.by_id.remove(&watch.id);
        watch.id = watch_id;
        self.by_id.insert(watch_id, lock.to_vec());
        let (range_end, filter) = match watch.kind {
            EventType::Delete => (end_of(lock), WatchFilter::NoPut),
            EventType::Put => (Vec::new(), WatchFilter::NoDelete),
        };
        let create = WatchCreateRequest {
            key: lock.to_vec(),
            range_end,
            start_revision: watch.next,
            filters: vec![filter.into()],
            watch_id,
        };
        self.order(WatchOrder::Create(create));
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
            let watches = Watches::default();
            let now = Moment::from_nanos(1);
            let mut orders = watches.reopen_all();
            watches.watch(b"locks/a/", 0, now);
            watches.watch_writes(b"locks/a/2a-1", i64::MAX, now);
            for _ in 0..REMEMBERED {
                let _ = watches.take(&answer, &|_, key, revision| {
                    let told = |event: &crate::engines::etcd::protocol::messages::Event| {
                        event.kv.as_ref().is_some_and(|kv| kv.key == key && kv.mod_revision == revision)
                    };
                    assert!(answer.events.iter().any(told), "only what the server said");
                });
            }
            let table = watches.table();
            assert!(table.by_lock.len() == 2 && table.by_id.len() <= 2, "no watch comes or goes");
            assert!(table.by_lock.values().all(|watch| watch.deleted.len() <= REMEMBERED));
            let ordered = std::iter::from_fn(|| orders.try_recv().ok()).count();
            assert!(ordered <= 2 + REMEMBERED, "{ordered} orders");
        });
    }
}
