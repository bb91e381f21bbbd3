//! Renewals of all holds, gathered into few calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};

use crate::backend::redis::cluster::is_moving;
use crate::backend::redis::names::Names;
use crate::backend::redis::script::{RENEW, RENEW_GROUP, garbled};
use crate::backend::redis::servers::Servers;
use crate::backend::redis::session::Session;
use crate::backend::{Attachment, Lease, Renewal, Term};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::event::LossReason;

/// How many locks one call renews: a fraction of a millisecond of the server's time.
const CHUNK: usize = 192;
/// The shortest time between two calls, so that many locks need few of them also where leases are of many lengths; less
/// where they are short.
const SPACING: Duration = Duration::from_millis(20);
const SPACING_PART: u32 = 250;
/// How many nodes of a cluster, or slots of one, are called at once.
const CALLS_AT_ONCE: usize = 64;
/// How long a renewal waits for a connection that is being opened again.
const PATIENCE: Duration = Duration::from_millis(400);

/// Takes renewals and answers each.
pub(super) struct Renewals {
    asks: mpsc::UnboundedSender<Ask>,
    task: JoinHandle<()>,
}

struct Ask {
    items: Vec<Arc<Item>>,
    answer: oneshot::Sender<Vec<Result<Renewal>>>,
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
        // tidy-allow(spawn): renews on the keeper's runtime, so that a blocked application loses no lock
        let task = attachment.runtime.spawn(run(servers, attachment.clock.clone(), asked));
        Renewals { asks, task }
    }

    /// Renews; one answer for each item, in their order.
    pub(super) async fn renew(&self, items: Vec<Item>) -> Vec<Result<Renewal>> {
        let count = items.len();
        let items = items.into_iter().map(Arc::new).collect();
        let (answer, answered) = oneshot::channel();
        let _ = self.asks.send(Ask { items, answer });
        answered.await.unwrap_or_else(|_| (0..count).map(|_| Err(Error::closed())).collect())
    }
}

impl Drop for Renewals {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(servers: Arc<Servers>, clock: Clock, mut asked: mpsc::UnboundedReceiver<Ask>) {
    let mut last = clock.now();
    while let Some(first) = asked.recv().await {
        let mut asks = vec![first];
        // One that comes alone goes at once; those that come thick gather.
        let shortest = asks[0].items.iter().map(|item| item.ttl).min().unwrap_or_default();
        clock.sleep_until(last.after(SPACING.min(shortest / SPACING_PART))).await;
        while let Ok(more) = asked.try_recv() {
            asks.push(more);
        }
        // Whoever asked and has gone, in a hurry or closed, needs no answer; a renewal that is not needed does no harm.
        let items: Vec<Arc<Item>> = asks.iter().flat_map(|ask| ask.items.iter().cloned()).collect();
        let mut answers = renew_all(&servers, &clock, &items).await.into_iter();
        last = clock.now();
        for ask in asks {
            let theirs = answers.by_ref().take(ask.items.len()).collect();
            let _ = ask.answer.send(theirs);
        }
    }
}

/// Renews as many in one call as the servers take, and calls several servers at once.
async fn renew_all(servers: &Arc<Servers>, clock: &Clock, items: &[Arc<Item>]) -> Vec<Result<Renewal>> {
    let mut groups = BTreeMap::<(u16, bool), Vec<usize>>::new();
    for (at, item) in items.iter().enumerate() {
        groups.entry((servers.group(&item.names.lock), item.is_shared)).or_default().push(at);
    }
    let mut chunks = groups.values().flat_map(|group| group.chunks(CHUNK)).map(<[usize]>::to_vec);
    let mut answers: Vec<Option<Result<Renewal>>> = items.iter().map(|_| None).collect();
    let mut calls = JoinSet::new();
    loop {
        // On one server they go one after the other: it works on one at a time.
        while calls.len() < if groups.len() == 1 { 1 } else { CALLS_AT_ONCE }
            && let Some(chunk) = chunks.next()
        {
            let (servers, clock) = (servers.clone(), clock.clone());
            let chosen: Vec<Arc<Item>> = chunk.iter().map(|at| items[*at].clone()).collect();
            // tidy-allow(spawn): side by side, on the keeper's runtime
            calls.spawn(async move { (chunk, renew(&servers, &clock, &chosen).await) });
        }
        let Some(done) = calls.join_next().await else { break };
        let Ok((chunk, renewals)) = done else { continue };
        for (at, renewal) in chunk.into_iter().zip(renewals) {
            answers[at] = Some(renewal);
        }
    }
    let unanswered = || Err(Error::unknown("redis: a renewal was not answered"));
    answers.into_iter().map(|answer| answer.unwrap_or_else(unanswered)).collect()
}

async fn renew(servers: &Servers, clock: &Clock, items: &[Arc<Item>]) -> Vec<Result<Renewal>> {
    match try_renew(servers, clock, items).await {
        Ok(renewals) => renewals.into_iter().map(Ok).collect(),
        // Some of the locks may have moved to another node and some not yet.
        Err(error) if items.len() > 1 && is_moving(&error) => {
            let mut renewals = Vec::with_capacity(items.len());
            for item in items {
                let one = try_renew(servers, clock, std::slice::from_ref(item)).await;
                renewals.push(one.and_then(|mut one| one.pop().ok_or_else(garbled)));
            }
            renewals
        }
        Err(error) => items.iter().map(|_| Err(Error::new(error.kind(), error.to_string()))).collect(),
    }
}

async fn try_renew(servers: &Servers, clock: &Clock, items: &[Arc<Item>]) -> Result<Vec<Renewal>> {
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

async fn renew_over(session: &Session, clock: &Clock, items: &[Arc<Item>], asks: bool) -> Result<Vec<Renewal>> {
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
