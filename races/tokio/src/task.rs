//! Tasks.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

pub use shuttle::future::{AbortHandle, JoinHandle};

/// The id of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Id(u64);

impl Id {
    fn next() -> Id {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Id(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

/// A task of a [`JoinSet`].
#[derive(Debug)]
pub struct Spawned(Id);

impl Spawned {
    /// Returns its id.
    #[must_use]
    pub fn id(&self) -> Id {
        self.0
    }
}

/// A task that panicked. Never constructed, because a panic ends the whole schedule.
#[derive(Debug)]
pub struct JoinError(Id);

impl JoinError {
    /// Returns its id.
    #[must_use]
    pub fn id(&self) -> Id {
        self.0
    }
}

type Task<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Tasks of a single-threaded runtime: they run while their owner waits for one of them, and switch at their awaits.
pub struct JoinSet<T>(Vec<(Id, Task<T>)>);

impl<T> JoinSet<T> {
    /// Returns an empty set.
    #[must_use]
    pub fn new() -> JoinSet<T> {
        JoinSet(Vec::new())
    }

    /// Returns the number of tasks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there is no task.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a task.
    pub fn spawn(&mut self, task: impl Future<Output = T> + Send + 'static) -> Spawned {
        let id = Id::next();
        self.0.push((id, Box::pin(task)));
        Spawned(id)
    }

    /// Waits for a task to end; `None` when there is none.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.join_next_with_id().await.map(|done| done.map(|(_, output)| output))
    }

    /// Waits for a task to end, and returns its id, too.
    pub async fn join_next_with_id(&mut self) -> Option<Result<(Id, T), JoinError>> {
        poll_fn(|context| self.poll(context)).await.map(Ok)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<(Id, T)>> {
        for place in 0..self.0.len() {
            let (id, task) = &mut self.0[place];
            if let Poll::Ready(output) = task.as_mut().poll(context) {
                let done = (*id, output);
                drop(self.0.remove(place));
                return Poll::Ready(Some(done));
            }
        }
        if self.0.is_empty() { Poll::Ready(None) } else { Poll::Pending }
    }
}

impl<T> Default for JoinSet<T> {
    fn default() -> Self {
        JoinSet::new()
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(id, _)| id)).finish()
    }
}
