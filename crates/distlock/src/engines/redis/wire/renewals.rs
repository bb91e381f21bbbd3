//! Renewals in few calls: what concurrent requests ask for shares a call.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};

use crate::contract::{Attachment, Lease, Renewal, Term};
use crate::engines::redis::protocol::names::Names;
use crate::engines::redis::protocol::script::{RENEW, RENEW_GROUP, garbled};
use crate::engines::redis::protocol::time::millis;
use crate::engines::redis::wire::cluster::is_moving;
use crate::engines::redis::wire::connection::Connection;
use crate::engines::redis::wire::join_all::join_all;
use crate::engines::redis::wire::server_connections::ServerConnections;
use crate::engines::redis::wire::servers::{Moving, Servers};
use crate::types::clock::Clock;
use crate::types::error::{Error, Result};
use crate::types::event::LossReason;
use crate::types::token::AttemptId;

/// How many locks one call renews: a fraction of a millisecond of the server's time.
const MOST: usize = 192;
/// The shortest time between two calls, so that many locks need few calls also where leases are of many lengths. Shorter
/// where leases are short.
const SPACING: Duration = Duration::from_millis(20);
const SPACING_PART: u32 = 250;
/// How long a renewal waits for a connection that is being opened again.
const RENEWAL_CONNECT_WAIT: Duration = Duration::from_millis(400);

/// Renews holds: on one server in few calls, one after the other; in a cluster every hash slot by itself.
pub(in crate::engines) struct Renewals {
    servers: Arc<Servers>,
    clock: Clock,
    queue: mpsc::UnboundedSender<QueuedCall>,
    task: JoinHandle<()>,
}

/// Leases that wait for the next call, all of one kind.
struct QueuedCall {
    items: Vec<Item>,
    /// The outcomes of the first items, as far as they are known.
    renewals: Vec<Result<Renewal>>,
    reply: oneshot::Sender<Vec<Result<Renewal>>>,
}

/// What is sent of a lease.
pub(in crate::engines) struct Item {
    names: Names,
    attempt: AttemptId,
    ttl: Duration,
    lease: Duration,
    /// Whether others may hold the lock too: such a hold is renewed by another script.
    is_shared: bool,
}

impl Item {
    pub(in crate::engines) fn new(names: Names, lease: &Lease) -> Item {
        let claim = &lease.claim;
        let is_shared = !claim.mode().is_exclusive();
        Item { names, attempt: claim.attempt, ttl: claim.ttl, lease: claim.lease(), is_shared }
    }
}

impl QueuedCall {
    /// Returns the items whose outcome is not known yet.
    fn rest(&self) -> &[Item] {
        &self.items[self.renewals.len()..]
    }
}

impl Renewals {
    pub(in crate::engines) fn start(servers: Arc<Servers>, attachment: &Attachment) -> Renewals {
        let (queue, queued) = mpsc::unbounded_channel();
        let clock = attachment.clock.clone();
        // tidy-allow(spawn): renews on the keeper's runtime, so that a blocked application loses no lock
        let task = attachment.keeper_runtime.spawn(run(servers.clone(), clock.clone(), queued));
        Renewals { servers, clock, queue, task }
    }

    /// Renews `items`. Returns one result for each, in their order.
    pub(in crate::engines) async fn renew(&self, items: Vec<Item>) -> Vec<Result<Renewal>> {
        match &*self.servers {
            Servers::One(_) => self.renew_with_others(items).await,
            Servers::Cluster(_) => renew_by_slot(&self.servers, &self.clock, items).await,
        }
    }

    /// Has the items renewed by the next calls. The caller only waits for replies: a caller that is not polled delays no
    /// other renewal.
    async fn renew_with_others(&self, items: Vec<Item>) -> Vec<Result<Renewal>> {
        let are_shared: Vec<bool> = items.iter().map(|item| item.is_shared).collect();
        let (shared, exclusive) = items.into_iter().partition(|item| item.is_shared);
        let (shared, exclusive) = (self.enqueue(shared), self.enqueue(exclusive));
        let mut exclusive = exclusive.await.unwrap_or_default().into_iter();
        let mut shared = shared.await.unwrap_or_default().into_iter();
        let next = |is_shared| if is_shared { shared.next() } else { exclusive.next() };
        are_shared.into_iter().map(next).map(|renewal| renewal.unwrap_or_else(|| Err(Error::closed()))).collect()
    }

    /// Queues items of one kind. Their outcomes come all at once, in their order.
    fn enqueue(&self, items: Vec<Item>) -> oneshot::Receiver<Vec<Result<Renewal>>> {
        let (reply, replied) = oneshot::channel();
        if !items.is_empty() {
            let _ = self.queue.send(QueuedCall { renewals: Vec::with_capacity(items.len()), items, reply });
        }
        replied
    }
}

impl Drop for Renewals {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sends what is queued, one call after the other: the server works on one at a time.
async fn run(servers: Arc<Servers>, clock: Clock, mut queue: mpsc::UnboundedReceiver<QueuedCall>) {
    let mut last = clock.now();
    while let Some(first) = queue.recv().await {
        let mut queued = vec![first];
        take_all(&mut queue, &mut queued);
        // A renewal after a pause is sent at once; frequent ones collect.
        let shortest = queued.iter().flat_map(|call| &call.items).map(|item| item.ttl).min().unwrap_or_default();
        clock.sleep_until(last.after(SPACING.min(shortest / SPACING_PART))).await;
        take_all(&mut queue, &mut queued);
        let is_shared = |call: &QueuedCall| call.items.first().is_some_and(|item| item.is_shared);
        let (shared, exclusive) = queued.into_iter().partition(is_shared);
        for mut calls in [exclusive, shared] {
            send(&servers, &clock, &mut calls).await;
        }
        last = clock.now();
    }
}

/// Renews what is queued. A queued call whose caller has gone does no harm.
async fn send(servers: &Servers, clock: &Clock, calls: &mut VecDeque<QueuedCall>) {
    while !calls.is_empty() {
        let items: Vec<&Item> = calls.iter().flat_map(QueuedCall::rest).take(MOST).collect();
        for renewal in renew(servers, clock, &items).await {
            let Some(call) = calls.front_mut() else { return };
            call.renewals.push(renewal);
            // At once: the next call may be late.
            if call.renewals.len() == call.items.len()
                && let Some(QueuedCall { renewals, reply, .. }) = calls.pop_front()
            {
                let _ = reply.send(renewals);
            }
        }
    }
}

fn take_all(queue: &mut mpsc::UnboundedReceiver<QueuedCall>, queued: &mut Vec<QueuedCall>) {
    while let Ok(more) = queue.try_recv() {
        queued.push(more);
    }
}

/// Renews the locks of one hash slot in one call, and all hash slots at the same time: none waits for another's node.
async fn renew_by_slot(servers: &Arc<Servers>, clock: &Clock, items: Vec<Item>) -> Vec<Result<Renewal>> {
    let mut renewals: Vec<Option<Result<Renewal>>> = items.iter().map(|_| None).collect();
    let mut slots = BTreeMap::<(u16, bool), Vec<(usize, Item)>>::new();
    for (at, item) in items.into_iter().enumerate() {
        slots.entry((servers.hash_slot(&item.names.lock), item.is_shared)).or_default().push((at, item));
    }
    let mut calls = JoinSet::new();
    for mut slot in slots.into_values() {
        while !slot.is_empty() {
            let (places, items): (Vec<_>, Vec<_>) = slot.drain(..slot.len().min(MOST)).unzip();
            let (servers, clock) = (servers.clone(), clock.clone());
            // tidy-allow(spawn): side by side, where the caller runs; ends with it
            calls.spawn(async move { (places, renew(&servers, &clock, &items.iter().collect::<Vec<_>>()).await) });
        }
    }
    while let Some(done) = calls.join_next().await {
        let Ok((places, done)) = done else { continue };
        places.into_iter().zip(done).for_each(|(at, renewal)| renewals[at] = Some(renewal));
    }
    let unanswered = || Err(Error::unknown("redis: a renewal was not answered"));
    renewals.into_iter().map(|renewal| renewal.unwrap_or_else(unanswered)).collect()
}

async fn renew(servers: &Servers, clock: &Clock, items: &[&Item]) -> Vec<Result<Renewal>> {
    match try_renew(servers, clock, items).await {
        Ok(renewals) => renewals.into_iter().map(Ok).collect(),
        // Some of the locks may have moved to another node and some not yet.
        Err(error) if items.len() > 1 && is_moving(&error) => {
            let one = |item| async move { try_renew(servers, clock, &[item]).await?.pop().ok_or_else(garbled) };
            join_all(items.iter().map(|item| one(*item))).await
        }
        Err(error) => items.iter().map(|_| Err(Error::new(error.kind(), error.to_string()))).collect(),
    }
}

async fn try_renew(servers: &Servers, clock: &Clock, items: &[&Item]) -> Result<Vec<Renewal>> {
    let Some(first) = items.first() else { return Ok(Vec::new()) };
    let moving = if items.len() == 1 { Moving::FollowAsk } else { Moving::GiveUp };
    let request = |server: Arc<ServerConnections>, is_asking| async move {
        let connection = server.for_renewal(RENEWAL_CONNECT_WAIT).await?;
        renew_over(&connection, clock, items, is_asking).await
    };
    servers.routed(&first.names.lock, moving, request).await
}

async fn renew_over(connection: &Connection, clock: &Clock, items: &[&Item], is_asking: bool) -> Result<Vec<Renewal>> {
    // All items of a call are of one kind.
    let is_shared = items.first().is_some_and(|item| item.is_shared);
    let start = clock.now();
    let common = items.iter().all(|item| item.lease == items[0].lease).then(|| millis(items[0].lease));
    let fill = |command: &mut redis::Cmd, nonce: u64| {
        command.arg(if is_shared { items.len() * 3 } else { items.len() });
        for item in items {
            command.arg(&item.names.lock);
            if is_shared {
                command.arg(item.names.holders()).arg(item.names.leases());
            }
        }
        command.arg(nonce);
        match common {
            Some(lease_ms) => command.arg(lease_ms),
            None => command.arg(""),
        };
        for item in items {
            command.arg(item.attempt.hex().as_slice());
        }
        for item in items.iter().filter(|_| common.is_none()) {
            command.arg(millis(item.lease));
        }
    };
    let script = if is_shared { &RENEW_GROUP } else { &RENEW };
    let mut reply = match is_asking {
        true => connection.run_asking(script, fill).await?,
        false => connection.run(script, fill).await?,
    };
    let gone = read_gone(&reply.word()?, items.len()).filter(|_| reply.is_empty()).ok_or_else(garbled)?;
    let renewal = |(item, is_gone): (&&Item, bool)| match is_gone {
        true => Renewal::Lost(LossReason::Revoked),
        false => Renewal::Renewed(Some(Term { start, ttl: item.ttl })),
    };
    Ok(items.iter().zip(gone).map(renewal).collect())
}

/// Parses which of `count` locks are gone: their numbers, from 1 on, rise. Returns `None` for any other text.
fn read_gone(text: &str, count: usize) -> Option<Vec<bool>> {
    let (mut gone, mut last) = (vec![false; count], 0);
    for number in text.split(' ').skip(1) {
        let number = number.parse().ok().filter(|number| (last + 1..=count).contains(number))?;
        (gone[number - 1], last) = (true, number);
    }
    (text.is_empty() || text.starts_with(' ')).then_some(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_lists_the_locks_that_are_gone() {
        assert_eq!(read_gone("", 2), Some(vec![false, false]));
        assert_eq!(read_gone(" 2 3", 3), Some(vec![false, true, true]));
        assert_eq!(read_gone(" 1", 1), Some(vec![true]));
        for wrong in ["1", " ", " 0", " 4", " 2 2", " 3 1", " 1 ", "  1", " x", "x 1"] {
            assert_eq!(read_gone(wrong, 3), None, "{wrong:?}");
        }
    }
}
