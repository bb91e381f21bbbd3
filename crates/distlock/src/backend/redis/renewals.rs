//! Renewals of all holds, gathered into few calls.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::backend::redis::link::Link;
use crate::backend::redis::script::{RENEW, garbled};
use crate::backend::{Attachment, Lease, Renewal, Term};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::event::LossReason;

/// How many locks one call renews: a fraction of a millisecond of the server's time.
const CHUNK: usize = 128;
/// The shortest time between two calls, so that many locks need few of them; less where leases are short.
const SPACING: Duration = Duration::from_millis(40);
const SPACING_PART: u32 = 50;
/// How long a renewal waits for a connection that is being opened again.
const PATIENCE: Duration = Duration::from_millis(400);

/// Takes renewals and answers each.
pub(super) struct Renewals {
    asks: mpsc::UnboundedSender<Ask>,
    task: JoinHandle<()>,
}

struct Ask {
    items: Vec<Item>,
    answer: oneshot::Sender<Vec<Result<Renewal>>>,
}

/// What is sent of a lease.
#[derive(Debug)]
pub(super) struct Item {
    lock: String,
    attempt: String,
    ttl: Duration,
}

impl Item {
    pub(super) fn new(lock: String, lease: &Lease) -> Item {
        Item { lock, attempt: lease.claim.attempt.to_string(), ttl: lease.claim.ttl }
    }
}

impl Renewals {
    pub(super) fn start(link: Arc<Link>, attachment: &Attachment) -> Renewals {
        let (asks, asked) = mpsc::unbounded_channel();
        // tidy-allow(spawn): renews on the keeper's runtime, so that a blocked application loses no lock
        let task = attachment.runtime.spawn(run(link, attachment.clock.clone(), asked));
        Renewals { asks, task }
    }

    /// Renews; one answer for each item, in their order.
    pub(super) async fn renew(&self, items: Vec<Item>) -> Vec<Result<Renewal>> {
        let count = items.len();
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

async fn run(link: Arc<Link>, clock: Clock, mut asked: mpsc::UnboundedReceiver<Ask>) {
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
        let items: Vec<&Item> = asks.iter().flat_map(|ask| &ask.items).collect();
        let mut answers = Vec::with_capacity(items.len());
        for chunk in items.chunks(CHUNK) {
            answers.extend(renew(&link, &clock, chunk).await);
        }
        last = clock.now();
        let mut answers = answers.into_iter();
        for ask in asks {
            let theirs = answers.by_ref().take(ask.items.len()).collect();
            let _ = ask.answer.send(theirs);
        }
    }
}

async fn renew(link: &Link, clock: &Clock, items: &[&Item]) -> Vec<Result<Renewal>> {
    match try_renew(link, clock, items).await {
        Ok(renewals) => renewals.into_iter().map(Ok).collect(),
        Err(error) => items.iter().map(|_| Err(Error::new(error.kind(), error.to_string()))).collect(),
    }
}

async fn try_renew(link: &Link, clock: &Clock, items: &[&Item]) -> Result<Vec<Renewal>> {
    let session = link.session(PATIENCE).await?;
    let start = clock.now();
    let fill = |command: &mut redis::Cmd, nonce: u64| {
        command.arg(items.len());
        items.iter().for_each(|item| {
            command.arg(&item.lock);
        });
        command.arg(nonce);
        items.iter().for_each(|item| {
            command.arg(&item.attempt).arg(super::millis(item.ttl));
        });
    };
    let mut reply = session.run(&RENEW, fill).await?;
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
