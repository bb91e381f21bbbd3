//! Requests and guards for code without async: feature `blocking`.

use std::fmt;
use std::future::IntoFuture;
use std::ops::Deref;

use tokio::runtime::Handle;

use crate::api::locker::Locker;
use crate::types::error::{Error, ErrorKind, Result};

/// A [`Locker`] for threads without a tokio runtime; made by [`Locker::blocking`] or [`Blocking::connect`].
///
/// It has every request of a locker. [`wait`](Blocking::wait) blocks the thread until one is done, on the keeper's own
/// runtime: nothing has to be set up.
///
/// ```
/// use std::time::Duration;
/// use distlock::Blocking;
///
/// let locker = Blocking::connect("mem://")?;
/// let guard = locker.wait(locker.lock("invoice:42").wait(Duration::from_secs(5)))?;
/// guard.check()?; // before each step that needs the lock
/// locker.wait(guard.unlock())?;
/// # Ok::<(), distlock::Error>(())
/// ```
///
/// Dropping a guard releases its lock in the background, as everywhere.
#[derive(Clone)]
pub struct Blocking {
    locker: Locker,
}

impl Locker {
    /// Returns this locker for threads without a tokio runtime, as a new owner: see [`Blocking`].
    #[must_use]
    pub fn blocking(&self) -> Blocking {
        Blocking { locker: self.clone() }
    }
}

impl Blocking {
    pub(crate) fn of(locker: Locker) -> Blocking {
        Blocking { locker }
    }

    /// Blocks the thread until `request` is done, and returns its result: any request of the locker, or any future of its
    /// guards.
    ///
    /// # Errors
    /// The error of the request. Kind `Config` inside a tokio runtime, whose other tasks would be blocked: await the
    /// request there. The request has not begun then.
    pub fn wait<T>(&self, request: impl IntoFuture<Output = Result<T>>) -> Result<T> {
        refuse_runtime()?;
        self.locker.block_on(request.into_future())
    }
}

/// Refuses to block a thread that a tokio runtime works on.
pub(crate) fn refuse_runtime() -> Result<()> {
    if Handle::try_current().is_err() {
        return Ok(());
    }
    let message = "a blocking call inside a tokio runtime would block its other tasks";
    let help = "await the request instead, or make the call on a thread of its own (std::thread::spawn)";
    Err(Error::new(ErrorKind::Config, message).with_help(help))
}

impl Deref for Blocking {
    type Target = Locker;
    fn deref(&self) -> &Locker {
        &self.locker
    }
}

impl fmt::Debug for Blocking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Blocking").field(&self.locker).finish()
    }
}
