//! The browsers that look, each with its own short queue.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::Bytes;
use futures_core::Stream;
use tokio::sync::mpsc;

/// How many browsers may look at once.
const MOST: usize = 256;
/// A browser that is further behind is cut off; it comes back and starts from what is there then.
const BACKLOG: usize = 16;

/// Everybody who looks.
#[derive(Debug, Default)]
pub(crate) struct Viewers(Mutex<Vec<mpsc::Sender<Bytes>>>);

impl Viewers {
    /// One more, who is sent `first` and then everything; `None` when there are too many.
    pub(crate) fn join<const N: usize>(&self, first: [Bytes; N]) -> Option<Frames> {
        let mut viewers = self.present();
        if viewers.len() >= MOST {
            return None;
        }
        let (sender, receiver) = mpsc::channel(BACKLOG);
        // There is room: it is new.
        first.into_iter().for_each(|frame| drop(sender.try_send(frame)));
        viewers.push(sender);
        Some(Frames(receiver))
    }

    /// Sends to everybody; who cannot keep up is cut off.
    pub(crate) fn send(&self, frame: &Bytes) {
        self.present().retain(|viewer| viewer.try_send(frame.clone()).is_ok());
    }

    pub(crate) fn count(&self) -> usize {
        self.present().len()
    }

    /// Sends everybody away.
    pub(crate) fn dismiss(&self) {
        self.present().clear();
    }

    fn present(&self) -> MutexGuard<'_, Vec<mpsc::Sender<Bytes>>> {
        let mut viewers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        viewers.retain(|viewer| !viewer.is_closed());
        viewers
    }
}

/// What one browser is sent. Dropping it is leaving.
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
    fn who_leaves_is_not_counted_and_who_is_slow_is_cut_off() {
        let viewers = Viewers::default();
        let first = Bytes::from_static(b"first");
        let (slow, quick) = (viewers.join([first.clone()]).unwrap(), viewers.join([first.clone()]).unwrap());
        assert_eq!(viewers.count(), 2);
        drop(quick);
        assert_eq!(viewers.count(), 1);
        (0..BACKLOG).for_each(|_| viewers.send(&first));
        assert_eq!(viewers.count(), 0, "one more than fits");
        assert_eq!(slow.0.len(), BACKLOG);
        let many: Vec<_> = (0..MOST).map(|_| viewers.join([first.clone()]).unwrap()).collect();
        assert!(viewers.join([first]).is_none() && many.len() == MOST);
    }
}
