//! Several locks at once: all or nothing, and never a deadlock.

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

/// What is left to wait for the next lock when the time is over.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// Asks for several locks; made by [`Locker::lock_all`](crate::Locker::lock_all).
///
/// Where the engine can, they are taken in one step when all are free. Otherwise one after the other, in the order of their
/// names, whatever order they are given in: those who do the same cannot wait for each other in a circle.
///
/// # Cancel safety
/// Dropping the future at any point gives up its place in a queue and the locks that it has.
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

    /// The length of each lease.
    ///
    /// # Default
    /// 10 s, or what the locker was built with.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// The longest time to wait for all of them; then the error is of kind `Timeout`, and none is held. An engine that is
    /// out of reach is told as [`LockRequest::wait`] says.
    ///
    /// # Default
    /// Without limit. Zero asks once and does not wait.
    pub fn wait(mut self, most: Duration) -> Self {
        self.options.wait = Some(most);
        self
    }

    /// What the locks are for, shown to whoever finds one taken.
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
            // A wait that is over is not a try: that one has the engine's own bounds, which are longer.
            let wait = options.wait.map(|most| most.saturating_sub(waited).max(SHORTEST_WAIT.min(most)));
            let options = Options { wait, ..options.clone() };
            let request = LockRequest::new(family.clone(), Ok(key), owner.clone(), options);
            // To wait on after one is lost would be in vain.
            match held.run(request.into_future()).await.and_then(|granted| granted) {
                Ok(guard) => held.guards.push(guard),
                Err(error) => {
                    // Before the error is told, so that who tries again does not find its own locks.
                    held.release().await;
                    return Err(error);
                }
            }
        }
        Ok(held)
    }
}

/// Without doubles: two claims of one name would wait for each other.
fn in_order(keys: Vec<Key>) -> Result<BTreeSet<Key>> {
    let mut ordered = BTreeSet::new();
    for key in keys {
        if let Some(twice) = ordered.replace(key) {
            return Err(Error::invalid("keys", "the same lock twice").with_key(&twice));
        }
    }
    if ordered.is_empty() { Err(Error::invalid("keys", "there are none")) } else { Ok(ordered) }
}

impl IntoFuture for LockAllRequest {
    type Output = Result<MultiGuard>;
    type IntoFuture = RequestFuture<MultiGuard>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// Several locks that are held together: the loss of one is the loss of all.
///
/// Dropping it releases them in the background.
#[must_use = "dropping the guard releases the locks"]
pub struct MultiGuard {
    /// In the order of their names.
    guards: Vec<LockGuard>,
}

impl MultiGuard {
    /// The guards, in the order of their names.
    pub fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    /// The fencing token of one of the locks; `None` when it is not among them.
    #[must_use]
    pub fn fencing_token(&self, key: &str) -> Option<FencingToken> {
        self.guards.iter().find(|guard| guard.key().as_str() == key).map(LockGuard::fencing_token)
    }

    /// Whether one of the locks is lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.guards.iter().any(LockGuard::is_lost)
    }

    /// An error if one of the locks is lost: to be asked before each step that must not be done without them.
    ///
    /// # Errors
    /// Kind `Lost`, with the lock and the reason.
    pub fn check(&self) -> Result<()> {
        self.guards.iter().try_for_each(LockGuard::check)
    }

    /// Resolves when one of the locks is lost, to that lock and the reason.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect; it can be asked for again.
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

    /// Runs `work` as long as all locks are held. On the loss of one the work is dropped at its next await.
    ///
    /// # Errors
    /// Kind `Lost`, with the lock and the reason.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and nothing else.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let (mut work, mut lost) = (pin!(work), pin!(self.lost()));
        std::future::poll_fn(|context| {
            // The clock first: after a pause of the process no step may be taken before it has been looked at.
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

    /// Releases all of them, the last one first, and says what became of it.
    ///
    /// # Errors
    /// What the first that failed said, as [`LockGuard::unlock`]; the others are released all the same.
    ///
    /// # Cancel safety
    /// What has not been released when the future is dropped is released in the background.
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
