//! Renewals in few statements: what several calls ask for shares one.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::engines::postgres::protocol::requests::{RenewItem, column, garbled};
use crate::engines::postgres::protocol::time::from_millis;
use crate::engines::postgres::wire::batcher::order_by;
use crate::engines::postgres::wire::links::Links;
use crate::engines::postgres::wire::options::Options;
use crate::types::clock::{Clock, Moment};
use crate::types::error::{Error, ErrorKind, Result};

/// How many leases one statement renews: a few milliseconds, for which their rows are locked.
const MOST: usize = 1024;
/// The time between two statements is at least this part of the shortest lease, so that many locks need few statements.
const SPACING_PART: u32 = 40;
const LONGEST_SPACING: Duration = Duration::from_millis(250);

/// Renews leases, one statement after the other.
pub(in crate::engines) struct Renewals {
    queue: mpsc::UnboundedSender<RenewCall>,
    task: JoinHandle<()>,
}

/// The leases of one call of the keeper.
struct RenewCall {
    items: Vec<RenewItem>,
    /// Whether a lease among them is a first lease after a handoff, which is shorter than it says.
    is_urgent: bool,
    reply: oneshot::Sender<Result<Renewed>>,
}

/// When a statement was sent, and of each lease whether it is renewed.
pub(in crate::engines) type Renewed = (Moment, Vec<bool>);

impl Renewals {
    pub(in crate::engines) fn start(
        links: &Arc<Links>,
        options: &Arc<Options>,
        clock: &Clock,
        keeper: &Handle,
    ) -> Renewals {
        let (queue, queued) = mpsc::unbounded_channel();
        let sender = RenewSender { links: links.clone(), options: options.clone(), clock: clock.clone() };
        // tidy-allow(spawn): renews on the keeper's runtime, so that a caller that is not polled delays no other renewal
        let task = keeper.spawn(sender.run(queued));
        Renewals { queue, task }
    }

    /// Has the leases renewed by the next statement, and that one sent at once where they are urgent.
    pub(in crate::engines) async fn renew(&self, items: Vec<RenewItem>, is_urgent: bool) -> Result<Renewed> {
        let (reply, replied) = oneshot::channel();
        let _ = self.queue.send(RenewCall { items, is_urgent, reply });
        replied.await.map_err(|_| Error::closed())?
    }
}

impl Drop for Renewals {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct RenewSender {
    links: Arc<Links>,
    options: Arc<Options>,
    clock: Clock,
}

impl RenewSender {
    async fn run(self, mut queue: mpsc::UnboundedReceiver<RenewCall>) {
        // When the last statement was sent, unless it failed: what is repeated is not delayed.
        let (mut last, mut next) = (None::<Moment>, None);
        loop {
            let Some(first) = (match next.take() {
                Some(call) => Some(call),
                None => queue.recv().await,
            }) else {
                return;
            };
            let (mut calls, mut count) = (vec![first], 0);
            // A renewal after a pause is sent at once; frequent ones collect.
            while count < MOST {
                count = calls.iter().map(|call| call.items.len()).sum();
                tokio::select! {
                    biased;
                    call = queue.recv() => match call {
                        Some(call) if count + call.items.len() > MOST => {
                            next = Some(call);
                            break;
                        }
                        Some(call) => calls.push(call),
                        None => break,
                    },
                    () = self.clock.sleep_until(last.map_or(Moment::from_nanos(0), |last| last.after(spacing(&calls)))) => break,
                }
            }
            let sent = self.clock.now();
            let replied = self.send(&calls).await;
            last = replied.is_ok().then_some(sent);
            match replied {
                // Nothing was carried out. What one call is refused for must not fail the others.
                Err(error)
                    if calls.len() > 1 && !matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable) =>
                {
                    for call in calls {
                        let replied = self.send(std::slice::from_ref(&call)).await;
                        answer(vec![call], replied);
                    }
                }
                replied => answer(calls, replied),
            }
        }
    }

    async fn send(&self, calls: &[RenewCall]) -> Result<Renewed> {
        let connection = self.links.for_renewal().await?;
        let items: Vec<&RenewItem> = calls.iter().flat_map(|call| call.items.iter()).collect();
        // In the order in which the server locks their rows.
        let order = order_by(&items, |item| (&item.name, &item.attempt));
        let names: Vec<&str> = order.iter().map(|place| items[*place].name.as_str()).collect();
        let attempts: Vec<&str> = order.iter().map(|place| items[*place].attempt.as_str()).collect();
        let leases: Vec<i64> = order.iter().map(|place| items[*place].lease_ms).collect();
        let start = self.clock.now();
        let rows = connection.query(&self.options.statements.renew, &[&names, &attempts, &leases]).await?;
        if rows.len() != items.len() {
            return Err(garbled());
        }
        if let Some(row) = rows.last() {
            connection.saw_clock(start, column(row, 0)?);
        }
        let mut are_renewed = vec![false; items.len()];
        for (row, place) in rows.iter().zip(order) {
            are_renewed[place] = column(row, 1)?;
        }
        Ok((start, are_renewed))
    }
}

/// Returns the shortest time between two statements that renew these leases.
fn spacing(calls: &[RenewCall]) -> Duration {
    if calls.iter().any(|call| call.is_urgent) {
        return Duration::ZERO;
    }
    let leases = calls.iter().flat_map(|call| &call.items).map(|item| item.lease_ms);
    LONGEST_SPACING.min(from_millis(leases.min().unwrap_or_default()) / SPACING_PART)
}

/// Gives each call its part of the reply.
fn answer(calls: Vec<RenewCall>, replied: Result<Renewed>) {
    match replied {
        Ok((start, are_renewed)) => {
            let mut are_renewed = are_renewed.into_iter();
            for call in calls {
                let own = are_renewed.by_ref().take(call.items.len()).collect();
                let _ = call.reply.send(Ok((start, own)));
            }
        }
        Err(error) => calls.into_iter().for_each(|call| drop(call.reply.send(Err(error.duplicate())))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(lease_ms: i64, is_urgent: bool) -> RenewCall {
        let item = RenewItem { name: "a".into(), attempt: "x".into(), lease_ms };
        RenewCall { items: vec![item], is_urgent, reply: oneshot::channel().0 }
    }

    #[test]
    fn statements_are_spaced_by_the_shortest_lease_and_a_first_lease_waits_for_none() {
        assert_eq!(spacing(&[call(60_000, false)]), LONGEST_SPACING);
        assert_eq!(spacing(&[call(60_000, false), call(400, false)]), Duration::from_millis(10));
        assert_eq!(spacing(&[call(60_000, false), call(60_000, true)]), Duration::ZERO);
    }
}
