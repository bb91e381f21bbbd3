//! Asking a holder to release its lock.
//!
//! The asker holds a second lock whose label is the reason; the holder polls for that lock. So asking works on every
//! engine that can show locks, and the question of an asker that dies expires with its lease. The fencing token is
//! part of the second lock's name, so that a question concerns one hold and not the next one.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use crate::api::guard::LockGuard;
use crate::api::locker::Locker;
use crate::api::request::RequestFuture;
use crate::types::clock::Moment;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::key::Key;
use crate::types::owner::Holder;
use crate::types::token::FencingToken;

/// The suffix of the second lock's name.
const SUFFIX: &str = "?asked";
/// How often the holder looks whether it was asked.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often the asker looks whether the lock was released.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// Returns the key of the second lock, for the hold of `key` with `token`.
pub(crate) fn asking_for(key: &Key, token: FencingToken) -> Result<Key> {
    Key::new(format!("{key}{SUFFIX}:{token}")).map_err(|error| error.with_key(key))
}

/// Asks a holder to release its lock; made by [`Locker::ask`]. Awaiting it returns [`Asked`].
///
/// The holder decides: it receives the reason from [`LockGuard::asked`] and releases the lock when it can.
///
/// ```
/// use std::time::Duration;
/// use distlock::{Asked, Locker};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// # let (holder, deploy) = (Locker::connect("mem://ask").await?, Locker::connect("mem://ask").await?);
/// let guard = holder.lock("printer").await?;
/// let asking = tokio::spawn(deploy.ask("printer", "a deploy").wait(Duration::from_secs(30)).into_future());
///
/// assert_eq!(guard.asked().await?, "a deploy"); // the holder, in a task of its own
/// guard.unlock().await?;
/// assert!(matches!(asking.await.expect("no panic")?, Asked::Released(_)));
/// # Ok(()) }
/// ```
///
/// # Cancel safety
/// Dropping the future withdraws the question.
#[derive(Debug)]
#[must_use = "a request does nothing until it is awaited"]
pub struct AskRequest {
    locker: Locker,
    key: Result<Key>,
    reason: Arc<str>,
    wait: Option<Duration>,
}

/// The result of asking.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Asked {
    /// The lock had no holder.
    Free,
    /// The holder has released the lock or lost it.
    Released(Box<Holder>),
}

impl AskRequest {
    pub(crate) fn new(locker: Locker, key: Result<Key>, reason: Arc<str>) -> Self {
        AskRequest { locker, key, reason, wait: None }
    }

    /// Sets the longest time to wait for the release; after it the error is of kind `Timeout` and names the holder.
    ///
    /// # Default
    /// Without limit.
    pub fn wait(mut self, most: Duration) -> Self {
        self.wait = Some(most);
        self
    }

    async fn run(self) -> Result<Asked> {
        let key = self.key?;
        let until = self.wait.map_or(Moment::NEVER, |most| self.locker.now().after(most));
        let Some(holder) = holder_of(&self.locker, &key).await? else { return Ok(Asked::Free) };
        let mut question: Option<LockGuard> = None;
        while let Some(now) = holder_of(&self.locker, &key).await?.filter(|now| now.token == holder.token) {
            // Another asker may hold the second lock already. If it gives up, this claim is next.
            if let Some(token) = holder.token.filter(|_| question.as_ref().is_none_or(LockGuard::is_lost)) {
                question = self.locker.try_lock(asking_for(&key, token)?).label(self.reason.clone()).await?;
            }
            if self.locker.now() >= until {
                let message = "the holder was asked and has not released it";
                return Err(Error::new(ErrorKind::Timeout, message).with_key(&key).with_holder(Some(now)));
            }
            self.locker.pause(CHECK_EVERY).await?;
        }
        Ok(Asked::Released(Box::new(holder)))
    }
}

impl IntoFuture for AskRequest {
    type Output = Result<Asked>;
    type IntoFuture = RequestFuture<Asked>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

async fn holder_of(locker: &Locker, key: &Key) -> Result<Option<Holder>> {
    Ok(locker.inspect().get(key).await?.and_then(|lock| lock.holders.into_iter().next()))
}
