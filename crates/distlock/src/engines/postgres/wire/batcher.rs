//! Requests of several callers in one statement.
//!
//! A request that finds none under way is sent alone, in its caller's future. Those that come meanwhile are batched: one
//! statement, one transaction, one result for each.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::engines::postgres::state::sending::Progress;
use crate::engines::postgres::wire::connection::Connection;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::sync::Mutex;

/// Sends requests of one kind.
pub(in crate::engines) trait Sender: Clone + Send + Sync + 'static {
    type Item: Clone + Send + Sync + 'static;
    type Reply: Send + 'static;

    /// Returns the connection to send over.
    fn connection(&self) -> impl Future<Output = Result<Arc<Connection>>> + Send;

    /// Sends the items in one statement, before anything is awaited. Returns one reply for each, in their order.
    fn send(
        &self,
        connection: &Connection,
        items: Vec<Self::Item>,
    ) -> impl Future<Output = Result<Vec<Self::Reply>>> + Send;

    /// Sends one item, and may send it once more when the server has certainly not carried it out. Runs in the caller's
    /// future: nothing of it is sent when that was dropped.
    fn send_alone(
        &self,
        connection: &Connection,
        item: Self::Item,
    ) -> impl Future<Output = Result<Self::Reply>> + Send {
        async { self.send(connection, vec![item]).await?.into_iter().next().ok_or_else(missing) }
    }
}

/// Batches requests of one kind.
pub(in crate::engines) struct Batcher<S: Sender> {
    sender: S,
    runtime: Handle,
    most: usize,
    queue: Arc<Mutex<Queue<S>>>,
}

struct Queue<S: Sender> {
    is_busy: bool,
    waiting: Vec<Entry<S>>,
}

struct Entry<S: Sender> {
    item: S::Item,
    progress: Progress,
    reply: oneshot::Sender<Result<S::Reply>>,
}

impl<S: Sender> Batcher<S> {
    /// `most` is the largest number of requests in one statement.
    pub(in crate::engines) fn new(sender: S, runtime: &Handle, most: usize) -> Batcher<S> {
        let queue = Queue { is_busy: false, waiting: Vec::new() };
        Batcher { sender, runtime: runtime.clone(), most, queue: Arc::new(Mutex::new(queue)) }
    }

    /// Sends one request.
    pub(in crate::engines) async fn request(&self, item: S::Item, progress: &Progress) -> Result<S::Reply> {
        let item = match self.enter(item, progress) {
            Ok(item) => item,
            Err(replied) => {
                let ended = |_| Error::unknown("postgres: the runtime of the connection has ended");
                return replied.await.map_err(ended)?;
            }
        };
        let _turn = Turn(self);
        let connection = self.sender.connection().await?;
        if !progress.leave() {
            return Err(missing());
        }
        let sending = self.sender.send_alone(&connection, item);
        noting(sending, || progress.sent(connection.id)).await
    }

    /// Returns the request when it is its turn, or else its reply to come.
    fn enter(&self, item: S::Item, progress: &Progress) -> Result<S::Item, oneshot::Receiver<Result<S::Reply>>> {
        let mut queue = self.queue.lock();
        if !queue.is_busy {
            queue.is_busy = true;
            return Ok(item);
        }
        let (reply, replied) = oneshot::channel();
        queue.waiting.push(Entry { item, progress: progress.clone(), reply });
        Err(replied)
    }
}

/// Runs `sending`, and calls `sent` when it was polled once: then its statement is on its way.
pub(in crate::engines) async fn noting<T>(sending: impl Future<Output = T>, sent: impl FnOnce()) -> T {
    let (mut sending, mut sent) = (pin!(sending), Some(sent));
    poll_fn(|context| {
        let polled = sending.as_mut().poll(context);
        if let Some(sent) = sent.take() {
            sent();
        }
        polled
    })
    .await
}

/// The right to send, until it is dropped. Then the requests that came meanwhile are sent.
struct Turn<'a, S: Sender>(&'a Batcher<S>);

impl<S: Sender> Drop for Turn<'_, S> {
    fn drop(&mut self) {
        let Batcher { sender, runtime, most, queue } = self.0;
        if is_over(queue) {
            return;
        }
        let (sender, most, queue) = (sender.clone(), *most, queue.clone());
        // tidy-allow(spawn): the requests are other callers', and this one's future is over
        runtime.spawn(async move {
            while !is_over(&queue) {
                send_batch(&sender, &queue, most).await;
            }
        });
    }
}

/// Returns whether no request waits; then the next one is sent alone.
fn is_over<S: Sender>(queue: &Mutex<Queue<S>>) -> bool {
    let mut queue = queue.lock();
    queue.waiting.retain(|entry| !entry.reply.is_closed());
    queue.is_busy = !queue.waiting.is_empty();
    !queue.is_busy
}

async fn send_batch<S: Sender>(sender: &S, queue: &Mutex<Queue<S>>, most: usize) {
    let connection = sender.connection().await;
    let mut entries: Vec<_> = {
        let mut queue = queue.lock();
        let count = queue.waiting.len().min(most);
        queue.waiting.drain(..count).collect()
    };
    let connection = match connection {
        Ok(connection) => connection,
        Err(error) => return fail(entries, &error),
    };
    entries.retain(|entry| entry.progress.leave());
    if entries.is_empty() {
        return;
    }
    let items: Vec<_> = entries.iter().map(|entry| entry.item.clone()).collect();
    let sent = || entries.iter().for_each(|entry| entry.progress.sent(connection.id));
    match noting(sender.send(&connection, items), sent).await {
        Ok(replies) => {
            let mut replies = replies.into_iter();
            entries.into_iter().for_each(|entry| drop(entry.reply.send(replies.next().ok_or_else(missing))));
        }
        // Nothing was carried out. What one request is refused for must not fail the others.
        Err(error) if entries.len() > 1 && !matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable) => {
            for entry in entries {
                entry.progress.leave_again();
                if entry.reply.is_closed() {
                    continue;
                }
                let sending = sender.send(&connection, vec![entry.item]);
                let replied = noting(sending, || entry.progress.sent(connection.id)).await;
                let replied = replied.and_then(|replies| replies.into_iter().next().ok_or_else(missing));
                let _ = entry.reply.send(replied);
            }
        }
        Err(error) => fail(entries, &error),
    }
}

fn fail<S: Sender>(entries: Vec<Entry<S>>, error: &Error) {
    entries.into_iter().for_each(|entry| drop(entry.reply.send(Err(error.duplicate()))));
}

fn missing() -> Error {
    Error::unknown("postgres: the reply has too few rows")
}

/// Returns the places of `items` in the order of the lock's name and the attempt of each: the order in which every statement
/// locks their rows, so that statements do not wait for each other.
pub(in crate::engines) fn order_by<T>(items: &[T], row: impl Fn(&T) -> (&str, &str)) -> Vec<usize> {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by(|one, other| row(&items[*one]).cmp(&row(&items[*other])));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_locked_by_name_and_then_by_attempt() {
        let items = [("b", "1"), ("a", "2"), ("a", "1"), ("B", "3")];
        assert_eq!(order_by(&items, |item| *item), [3, 2, 1, 0]);
    }
}
