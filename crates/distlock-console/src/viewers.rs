//! The connected browsers, each with its own short queue.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::Bytes;
use futures_core::Stream;
use tokio::sync::mpsc;

/// How many browsers may be connected at once.
const MAX_BROWSERS: usize = 256;
/// How many events a browser may be behind. A slower one is disconnected; it reconnects and gets a new snapshot.
const BACKLOG: usize = 16;

/// The queues of all connected browsers.
#[derive(Debug, Default)]
pub(crate) struct Viewers(Mutex<Vec<mpsc::Sender<Bytes>>>);

impl Viewers {
    /// Adds a browser, which gets `first` and then every event; `None` when there are too many.
    pub(crate) fn join<const N: usize>(&self, first: [Bytes; N]) -> Option<Frames> {
        let mut viewers = self.senders();
        if viewers.len() >= MAX_BROWSERS {
            return None;
        }
        let (sender, receiver) = mpsc::channel(BACKLOG);
        // A new queue has room.
        first.into_iter().for_each(|frame| drop(sender.try_send(frame)));
        viewers.push(sender);
        Some(Frames(receiver))
    }

    /// Sends an event to every browser; disconnects those that cannot keep up.
    pub(crate) fn send(&self, frame: &Bytes) {
        self.senders().retain(|viewer| viewer.try_send(frame.clone()).is_ok());
    }

    pub(crate) fn count(&self) -> usize {
        self.senders().len()
    }

    /// Disconnects every browser.
    pub(crate) fn close_all(&self) {
        self.senders().clear();
    }

    fn senders(&self) -> MutexGuard<'_, Vec<mpsc::Sender<Bytes>>> {
        let mut viewers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        viewers.retain(|viewer| !viewer.is_closed());
        viewers
    }
}

/// The events for one browser. Dropping it disconnects the browser.
#[derive(Debug)]
pub(crate) struct Frames(mpsc::Receiver<Bytes>);

impl Stream for Frames {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|frame| frame.map(Ok))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_streams_are_not_counted_and_slow_ones_are_disconnected() {
        let viewers = Viewers::default();
        let first = Bytes::from_static(b"first");
        let (slow, quick) = (viewers.join([first.clone()]).unwrap(), viewers.join([first.clone()]).unwrap());
        assert_eq!(viewers.count(), 2);
        drop(quick);
        assert_eq!(viewers.count(), 1);
        (0..BACKLOG).for_each(|_| viewers.send(&first));
        assert_eq!(viewers.count(), 0, "one more than fits");
        assert_eq!(slow.0.len(), BACKLOG);
        let many: Vec<_> = (0..MAX_BROWSERS).map(|_| viewers.join([first.clone()]).unwrap()).collect();
        assert!(viewers.join([first]).is_none() && many.len() == MAX_BROWSERS);
    }
}
