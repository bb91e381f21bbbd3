//! Threads that wait on the keeper's runtime: feature `blocking`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Handle;
use tokio::sync::Notify;

/// The keeper's runtime, and how many threads use it. The runtime lives until the last of them is done.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    runtime: OnceLock<Handle>,
    count: AtomicUsize,
    ended: Notify,
}

impl Waits {
    /// Sets the runtime that threads wait on.
    pub(crate) fn begin_on(&self, runtime: Handle) {
        let _ = self.runtime.set(runtime);
    }

    /// Counts a thread. Counted before it looks whether the keeper has ended, so that the keeper waits for it or it sees
    /// the end.
    pub(crate) fn enter(&self) -> Waiting<'_> {
        self.count.fetch_add(1, Ordering::SeqCst);
        Waiting(self)
    }

    /// Returns when no thread uses the runtime. The keeper has ended, so each one ends soon.
    pub(crate) async fn end(&self) {
        loop {
            let ended = self.ended.notified();
            if self.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            ended.await;
        }
    }
}

/// A thread that may wait on the runtime, until this is dropped.
pub(crate) struct Waiting<'a>(&'a Waits);

impl Waiting<'_> {
    /// Returns the runtime.
    pub(crate) fn runtime(&self) -> Option<&Handle> {
        self.0.runtime.get()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::SeqCst);
        self.0.ended.notify_one();
    }
}
