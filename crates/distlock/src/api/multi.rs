//! Several locks at once: all or nothing, deadlock-free.

use std::collections::BTreeSet;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::api::guard::LockGuard;
use crate::api::request::{LockRequest, RequestFuture};
use crate::core::acquire::claim_all;
use crate::core::family::Family;
use crate::types::error::{Error, Result};
use crate::types::event::LossReason;
use crate::types::key::Key;
use crate::types::options::Options;
use crate::types::owner::OwnerId;
use crate::types::token::FencingToken;

/// The wait for the next lock when the time is over.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// A request for several locks; made by [`Locker::lock_all`](crate::Locker::lock_all).
///
/// If all are free and the engine can, they are granted in one step. Otherwise they are taken one after the other in
/// the order of their names, whatever the order of the arguments. That order makes them deadlock-free among requests
/// of this kind.
///
/// ```
/// # use distlock::Locker;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// # let locker = Locker::connect("mem://lock-all").await?;
/// let both = locker.lock_all(["account:2", "account:1"]).await?;
/// both.run(async { /* move money */ }).await?; // dropped if one of them is lost
/// assert!(both.fencing_token("account:1").is_some());
/// both.unlock().await?;
/// # Ok(()) }
/// ```
///
/// # Cancel safety
/// Dropping the future at any point withdraws its claim and releases the locks that it has.
#[must_use = "a request does nothing until it is awaited"]
pub struct LockAllRequest {
    family: Arc<Family>,
    keys: Result<Vec<Key>>,
    owner: OwnerId,
    options: Options,
}

impl LockAllRequest {
    pub(crate) fn new<K>(
        family: Arc<Family>,
        keys: impl IntoIterator<Item = K>,
        owner: OwnerId,
        options: Options,
    ) -> Self
    where
        K: TryInto<Key>,
        K::Error: Into<Error>,
    {
        let keys = keys.into_iter().map(|key| key.try_into().map_err(Into::into)).collect();
        LockAllRequest { family, keys, owner, options }
    }

    /// Sets the length of each lease.
    ///
    /// # Default
    /// 10 s, or the locker's default.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// Sets the longest time to wait for all of them; after it the error is of kind `Timeout`, and none is held. An
    /// unreachable engine is reported as by [`LockRequest::wait`].
    ///
    /// # Default
    /// No limit. Zero claims once and does not wait.
    pub fn wait(mut self, most: Duration) -> Self {
        self.options.wait = Some(most);
        self
    }

    /// Sets the label: what the locks are for, shown to clients that find one held.
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.options.label = Some(label.into());
        self
    }

    async fn run(self) -> Result<MultiGuard> {
        let LockAllRequest { family, keys, owner, options } = self;
        let keys = in_order(keys?)?;
        options.check()?;
        let started = family.clock.now();
        if let Some(holds) = claim_all(&family, &keys, &owner, &options).await? {
            let guards = holds.into_iter().map(|hold| LockGuard::new(family.clone(), hold)).collect();
            return Ok(MultiGuard { guards });
        }
        let mut held = MultiGuard { guards: Vec::with_capacity(keys.len()) };
        for key in keys {
            let waited = family.clock.now().since(started);
            // A wait of zero would be a try, whose bounds are the engine's own and longer.
            let wait = options.wait.map(|most| most.saturating_sub(waited).max(SHORTEST_WAIT.min(most)));
            let options = Options { wait, ..options.clone() };
            let request = LockRequest::new(family.clone(), Ok(key), owner.clone(), options);
            // Waiting on is useless after the loss of one lock.
            match held.run(request.into_future()).await.and_then(|granted| granted) {
                Ok(guard) => held.guards.push(guard),
                Err(error) => {
                    // Released before the error is returned, so that a retry does not find its own locks held.
                    held.release().await;
                    return Err(error);
                }
            }
        }
        Ok(held)
    }
}

/// Removes duplicates: two claims of one key would deadlock.
fn in_order(keys: Vec<Key>) -> Result<BTreeSet<Key>> {
    let mut ordered = BTreeSet::new();
    for key in keys {
        if let Some(twice) = ordered.replace(key) {
            return Err(Error::invalid("keys", "the same lock twice").with_key(&twice));
        }
    }
    if ordered.is_empty() { Err(Error::invalid("keys", "there are none")) } else { Ok(ordered) }
}

impl fmt::Debug for LockAllRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LockAllRequest { keys, owner, options, .. } = self;
        let mut out = f.debug_struct("LockAllRequest");
        out.field("keys", keys).field("owner", owner).field("options", options).finish_non_exhaustive()
    }
}

impl IntoFuture for LockAllRequest {
    type Output = Result<MultiGuard>;
    type IntoFuture = RequestFuture<MultiGuard>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// Several held locks; made by [`Locker::lock_all`](crate::Locker::lock_all). The loss of one is the loss of all.
///
/// Dropping the guard releases them in the background, without confirmation.
#[must_use = "dropping the guard releases the locks"]
pub struct MultiGuard {
    /// In the order of their names.
    guards: Vec<LockGuard>,
}

impl MultiGuard {
    /// Returns the guards, in the order of their names.
    pub fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    /// Returns the fencing token of one of the locks; `None` if `key` is not among them.
    #[must_use]
    pub fn fencing_token(&self, key: &str) -> Option<FencingToken> {
        self.guards.iter().find(|guard| guard.key().as_str() == key).map(LockGuard::fencing_token)
    }

    /// Returns whether one of the locks is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.guards.iter().any(LockGuard::is_lost)
    }

    /// Returns an error if one of the locks is lost. Call it before each step that must not happen without the locks.
    ///
    /// # Errors
    /// Kind `Lost`, with the lock and the reason.
    pub fn check(&self) -> Result<()> {
        self.guards.iter().try_for_each(LockGuard::check)
    }

    /// Completes with the lock and the reason when one of the locks is lost.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect; the method can be called again.
    pub async fn lost(&self) -> (&Key, LossReason) {
        let mut losses: Vec<_> = self.guards.iter().map(|guard| (guard, Box::pin(guard.lost()))).collect();
        std::future::poll_fn(|context| {
            let first = losses.iter_mut().find_map(|(guard, lost)| match lost.as_mut().poll(context) {
                Poll::Ready(reason) => Some((guard.key(), reason)),
                Poll::Pending => None,
            });
            first.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Runs `work` while all locks are held. On the loss of one the work is dropped at its next await.
    ///
    /// # Errors
    /// Kind `Lost`, with the lock and the reason.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and nothing else.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let (mut work, mut lost) = (pin!(work), pin!(self.lost()));
        std::future::poll_fn(|context| {
            // Reads the clock first: after a pause of the process no step of the work may run before the deadlines
            // are checked.
            if let Err(error) = self.check() {
                return Poll::Ready(Err(error));
            }
            if let Poll::Ready((key, reason)) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(Error::lost(reason).with_key(key)));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Runs fallible `work` while all locks are held, with one error for both, as [`LockGuard::try_run`].
    ///
    /// # Errors
    /// The error of the work; of a loss, [`Error`] of kind `Lost`, converted.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and nothing else.
    pub async fn try_run<T, E: From<Error>>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.run(work).await?
    }

    /// Releases all locks, the last one first, and confirms it.
    ///
    /// # Errors
    /// The first error, as of [`LockGuard::unlock`]; the other locks are released nevertheless.
    ///
    /// # Cancel safety
    /// Locks that are not released when the future is dropped are released in the background.
    pub async fn unlock(self) -> Result<()> {
        self.release().await.map_or(Ok(()), Err)
    }

    async fn release(mut self) -> Option<Error> {
        let mut failed = None;
        while let Some(guard) = self.guards.pop() {
            let outcome = guard.unlock().await;
            failed = failed.or(outcome.err());
        }
        failed
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}
