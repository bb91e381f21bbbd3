//! The runtime in which the locker was made. A request of a task there needs no change of threads if its connection is
//! driven there too; but that runtime may block or end at any time, or have no timers and no sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::runtime::Handle;

const UNTRIED: u8 = 0;
/// For ever where the runtime cannot open a connection, or has ended.
const TRYING: u8 = 1;
const PROVEN: u8 = 2;

/// The runtime of the callers.
#[derive(Debug)]
pub(crate) struct CallerRuntime {
    handle: Handle,
    state: Arc<AtomicU8>,
}

impl CallerRuntime {
    pub(crate) fn new(handle: Handle) -> Self {
        CallerRuntime { handle, state: Arc::default() }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns whether the current task runs there.
    pub(crate) fn is_current(&self) -> bool {
        Handle::try_current().is_ok_and(|current| current.id() == self.handle.id())
    }

    /// Returns whether a connection was opened there. Runs `open` there if it was not tried yet, or has failed: a
    /// runtime without timers or sockets never gets to its end.
    pub(crate) fn is_proven<F>(&self, open: impl FnOnce() -> F) -> bool
    where
        F: Future<Output = bool> + Send + 'static,
    {
        match self.state.compare_exchange(UNTRIED, TRYING, Ordering::AcqRel, Ordering::Acquire) {
            Err(state) => state == PROVEN,
            Ok(_) => {
                let (open, state) = (open(), self.state.clone());
                // tidy-allow(spawn): opens a connection where its callers are; nothing waits for it
                self.handle.spawn(async move {
                    let is_open = open.await;
                    state.store(if is_open { PROVEN } else { UNTRIED }, Ordering::Release);
                });
                false
            }
        }
    }
}
