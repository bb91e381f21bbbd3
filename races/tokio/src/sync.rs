//! Tokio's primitives with a scheduling step before each operation that others may observe.

use shuttle::sync::atomic::{AtomicBool, Ordering};
use tokio::sync as real;
pub use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

/// A point at which the scheduler may switch to another thread.
pub fn step() {
    AtomicBool::new(false).load(Ordering::SeqCst);
}

/// [`tokio::sync::Notify`].
#[derive(Debug, Default)]
pub struct Notify(real::Notify);

impl Notify {
    /// Returns a value without a pending notification.
    #[must_use]
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Wakes one waiter, or the next one that comes.
    pub fn notify_one(&self) {
        step();
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_waiters(&self) {
        step();
        self.0.notify_waiters();
    }

    /// Waits to be notified.
    pub fn notified(&self) -> real::futures::Notified<'_> {
        step();
        self.0.notified()
    }
}

/// [`tokio::sync::SetOnce`].
#[derive(Debug)]
pub struct SetOnce<T>(real::SetOnce<T>);

impl<T> SetOnce<T> {
    /// Returns an empty cell.
    #[must_use]
    pub fn new() -> SetOnce<T> {
        SetOnce(real::SetOnce::new())
    }

    /// Returns whether it is set.
    pub fn initialized(&self) -> bool {
        step();
        self.0.initialized()
    }

    /// Returns the value.
    pub fn get(&self) -> Option<&T> {
        step();
        self.0.get()
    }

    /// Sets the value.
    ///
    /// # Errors
    /// The value is already set.
    pub fn set(&self, value: T) -> Result<(), real::SetOnceError<T>> {
        step();
        self.0.set(value)
    }

    /// Waits until it is set.
    pub async fn wait(&self) -> &T {
        step();
        self.0.wait().await
    }
}

impl<T> Default for SetOnce<T> {
    fn default() -> Self {
        SetOnce::new()
    }
}
