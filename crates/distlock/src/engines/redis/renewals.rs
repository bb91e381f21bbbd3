//! Renewals of holds, gathered into few calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};

use crate::contract::{Attachment, Lease, Renewal, Term};
use crate::engines::redis::cluster::is_moving;
use crate::engines::redis::inspect::together;
use crate::engines::redis::names::Names;
use crate::engines::redis::script::{RENEW, RENEW_GROUP, garbled};
use crate::engines::redis::servers::Servers;
use crate::engines::redis::session::Session;
use crate::types::clock::Clock;
use crate::types::error::{Error, Result};
use crate::types::event::LossReason;

/// How many locks one call renews: a fraction of a millisecond of the server's time.
const CHUNK: usize = 192;
/// The shortest time between two calls, so that many locks need few of them also where leases are of many lengths; less
/// where they are short.
const SPACING: Duration = Duration::from_millis(20);
const SPACING_PART: u32 = 250;
/// How long a renewal waits for a connection that is being opened again.
const PATIENCE: Duration = Duration::from_millis(400);

/// Renews holds: on one server in few calls one after the other, in a cluster every slot by itself.
pub(super) struct Renewals {
    servers: Arc<Servers>,
    clock: Clock,
    asks: mpsc::UnboundedSender<Ask>,
    task: JoinHandle<()>,
}

/// One renewal that waits for the next call.
struct Ask {
    item: Item,
    answer: oneshot::Sender<Result<Renewal>>,
}

/// What is sent of a lease.
#[derive(Debug)]
pub(super) struct Item {
    names: Names,
    attempt: String,
    ttl: Duration,
    lease: Duration,
    /// Whether others may be inside: such a hold is renewed by another script.
    is_shared: bool,
}

impl Item {
    pub(super) fn new(names: Names, lease: &Lease) -> Item {
        let claim = &lease.claim;
        let is_shared = !claim.mode().is_exclusive();
        Item { names, attempt: claim.attempt.to_string(), ttl: claim.ttl, lease: claim.lease(), is_shared }
    }
}

impl Renewals {
    pub(super) fn start(servers: Arc<Servers>, attachment: &Attachment) -> Renewals {
        let (asks, asked) = mpsc::unbounded_channel();
        let clock = attachment.clock.clone();
        // tidy-allow(spawn): renews on the keeper's runtime, so that a blocked application loses no lock
        let task = attachment.keeper_runtime.spawn(run(servers.clone(), clock.clone(), asked));
        Renewals { servers, clock, asks, task }
    }

    /// Renews; one answer for each item, in their order.
    pub(super) async fn renew(&self, items: Vec<Item>) -> Vec<Result<Renewal>> {
        match &*self.servers {
            Servers::One(_) => self.renew_with_others(items).await,
            Servers::Cluster(_) => renew_by_slot(&self.servers, &self.clock, items).await,
        }
    }

    /// Has the items renewed by the next call that is sent.
    async fn renew_with_others(&self, items: Vec<Item>) -> Vec<Result<Renewal>> {
        let ask = |item| {
            let (answer, answered) = oneshot::channel();
            let _ = self.asks.send(Ask { item, answer });
            answered
        };
        let asked: Vec<_> = items.into_iter().map(ask).collect();
        let mut answers = Vec::with_capacity(asked.len());
        for answered in asked {
            answers.push(answered.await.unwrap_or_else(|_| Err(Error::closed())));
        }
        answers
    }
}

impl Drop for Renewals {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Sends what is asked for, one call after the other: a server works on one at a time.
async fn run(servers: Arc<Servers>, clock: Clock, mut asked: mpsc::UnboundedReceiver<Ask>) {
    let mut last = clock.now();
    while let Some(first) = asked.recv().await {
        let mut asks = vec![first];
        take_all(&mut asked, &mut asks);
        // One that comes alone goes at once; those that come thick gather.
        let shortest = asks.iter().map(|ask| ask.item.ttl).min().unwrap_or_default();
        clock.sleep_until(last.after(SPACING.min(shortest / SPACING_PART))).await;
        take_all(&mut asked, &mut asks);
        let (shared, alone): (Vec<_>, Vec<_>) = asks.into_iter().partition(|ask| ask.item.is_shared);
        for mut rest in [alone, shared] {
            while !rest.is_empty() {
                let chunk: Vec<Ask> = rest.drain(..rest.len().min(CHUNK)).collect();
                // A caller that has gone needs no reply; a renewal that is not needed does no harm.
                let items: Vec<&Item> = chunk.iter().map(|ask| &ask.item).collect();
                let renewals = renew(&servers, &clock, &items).await;
                // At once: those of the next call may be late.
                chunk.into_iter().zip(renewals).for_each(|(ask, renewal)| drop(ask.answer.send(renewal)));
            }
        }
        last = clock.now();
    }
}

fn take_all(asked: &mut mpsc::UnboundedReceiver<Ask>, asks: &mut Vec<Ask>) {
    while let Ok(more) = asked.try_recv() {
        asks.push(more);
    }
}

/// Renews what shares a slot in one call, and all slots at once: none waits for another, nor for another's node.
async fn renew_by_slot(servers: &Arc<Servers>, clock: &Clock, items: Vec<Item>) -> Vec<Result<Renewal>> {
    let mut answers: Vec<Option<Result<Renewal>>> = items.iter().map(|_| None).collect();
    let mut slots = BTreeMap::<(u16, bool), Vec<(usize, Item)>>::new();
    for (at, item) in items.into_iter().enumerate() {
        slots.entry((servers.group(&item.names.lock), item.is_shared)).or_default().push((at, item));
    }
    let mut calls = JoinSet::new();
    for mut slot in slots.into_values() {
        while !slot.is_empty() {
            let (places, items): (Vec<_>, Vec<_>) = slot.drain(..slot.len().min(CHUNK)).unzip();
            let (servers, clock) = (servers.clone(), clock.clone());
            // tidy-allow(spawn): side by side, where the caller runs; ends with it
            calls.spawn(async move { (places, renew(&servers, &clock, &items.iter().collect::<Vec<_>>()).await) });
        }
    }
    while let Some(done) = calls.join_next().await {
        let Ok((places, renewals)) = done else { continue };
        for (at, renewal) in places.into_iter().zip(renewals) {
            answers[at] = Some(renewal);
        }
    }
    let unanswered = || Err(Error::unknown("redis: a renewal was not answered"));
    answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
}

async fn renew(servers: &Servers, clock: &Clock, items: &[&Item]) -> Vec<Result<Renewal>> {
    match try_renew(servers, clock, items).await {
        Ok(renewals) => renewals.into_iter().map(Ok).collect(),
        // Some of the locks may have moved to another node and some not yet.
        Err(error) if items.len() > 1 && is_moving(&error) => {
            together(items.iter().map(|item| async move {
                let one = try_renew(servers, clock, std::slice::from_ref(item)).await;
                one.and_then(|mut one| one.pop().ok_or_else(garbled))
            }))
            .await
        }
        Err(error) => items.iter().map(|_| Err(Error::new(error.kind(), error.to_string()))).collect(),
    }
}

async fn try_renew(servers: &Servers, clock: &Clock, items: &[&Item]) -> Result<Vec<Renewal>> {
    let Some(first) = items.first() else { return Ok(Vec::new()) };
    let mut route = servers.route(&first.names.lock);
    let is_single = items.len() == 1;
    loop {
        let (pair, asks) = route.next().await?;
        let session = pair.for_renewal(PATIENCE).await;
        let outcome = match session {
            Ok(session) => renew_over(&session, clock, items, asks).await,
            Err(error) => Err(error),
        };
        match outcome {
            // Several are tried one by one rather than waited for.
            Err(error) if is_single || !is_moving(&error) => {
                if !route.again(&error, is_single).await {
                    return Err(error);
                }
            }
            outcome => return outcome,
        }
    }
}

async fn renew_over(session: &Session, clock: &Clock, items: &[&Item], asks: bool) -> Result<Vec<Renewal>> {
    // All items of a call are of one kind.
    let is_shared = items.first().is_some_and(|item| item.is_shared);
    let start = clock.now();
    let fill = |command: &mut redis::Cmd, nonce: u64| {
        command.arg(if is_shared { items.len() * 3 } else { items.len() });
        items.iter().for_each(|item| {
            command.arg(&item.names.lock);
            if is_shared {
                command.arg(item.names.holders()).arg(item.names.leases());
            }
        });
        command.arg(nonce);
        items.iter().for_each(|item| {
            command.arg(&item.attempt).arg(super::millis(item.lease));
        });
    };
    let script = if is_shared { &RENEW_GROUP } else { &RENEW };
    let mut reply = match asks {
        true => session.run_asking(script, fill).await?,
        false => session.run(script, fill).await?,
    };
    let renewals = items
        .iter()
        .map(|item| match reply.int()? {
            1 => Ok(Renewal::Renewed(Some(Term { start, ttl: item.ttl }))),
            0 => Ok(Renewal::Lost(LossReason::Revoked)),
            _ => Err(garbled()),
        })
        .collect::<Result<_>>()?;
    if reply.is_empty() { Ok(renewals) } else { Err(garbled()) }
}
