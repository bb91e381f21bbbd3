//! Leader election: a lock whose holder publishes a value.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use crate::api::guard::LockGuard;
use crate::api::inspect::SHORTEST_INTERVAL;
use crate::api::locker::Locker;
use crate::api::request::{LockRequest, RequestFuture};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::key::Key;
use crate::types::owner::{Holder, OwnerId};
use crate::types::token::FencingToken;

/// An election; made by [`Locker::election`](crate::Locker::election).
///
/// The holder of the lock of that name is the leader. Candidates wait in order, and every client can read who leads.
///
/// ```
/// # use distlock::Locker;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// let locker = Locker::connect("mem://").await?;
/// let election = locker.election("scheduler");
///
/// let leadership = election.campaign("node-7").await?; // waits for its turn
/// let leader = election.leader().await?.expect("the election has a leader");
/// assert_eq!(leader.value.as_deref(), Some("node-7"));
/// leadership.resign().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Election {
    locker: Locker,
    /// An invalid name is refused at each use.
    key: std::result::Result<Key, (ErrorKind, String)>,
}

/// The current leader; returned by [`Election::leader`] and [`Leaders::next`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Leader {
    /// The value that the leader published.
    pub value: Option<Arc<str>>,
    /// The leader's owner; `None` if its record is of another lock library.
    pub owner: Option<OwnerId>,
    /// Rises with each election.
    pub token: Option<FencingToken>,
}

impl Election {
    pub(crate) fn new(locker: Locker, key: Result<Key>) -> Self {
        Election { locker, key: key.map_err(|error| (error.kind(), error.to_string())) }
    }

    /// Campaigns for leadership and waits until the election is won. Awaiting it returns a [`Leadership`]. Every client can
    /// read `value`.
    ///
    /// # Errors
    /// When it is awaited: as [`Locker::lock`](crate::Locker::lock).
    pub fn campaign(&self, value: impl Into<Arc<str>>) -> CampaignRequest {
        let request = match self.key() {
            Ok(key) => self.locker.lock(key),
            Err(error) => self.locker.lock(Refused(error)),
        };
        CampaignRequest(request.label(value))
    }

    /// Runs `work` as the leader, again after each loss: short for `campaign(value).lead(work)`, see
    /// [`CampaignRequest::lead`].
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::sync::atomic::{AtomicU64, Ordering};
    /// # use distlock::Locker;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locker = Locker::connect("mem://lead").await?;
    /// let jobs = Arc::new(AtomicU64::new(0));
    ///
    /// let done = jobs.clone();
    /// let work = async move |_: &distlock::Leadership| done.fetch_add(1, Ordering::Relaxed);
    /// tokio::spawn(locker.election("scheduler").lead("node-7", work)).await??;
    /// assert_eq!(jobs.load(Ordering::Relaxed), 1);
    /// # Ok(()) }
    /// ```
    pub fn lead<T, V, W>(&self, value: V, work: W) -> impl Future<Output = Result<T>> + use<T, V, W>
    where
        V: Into<Arc<str>>,
        W: AsyncFnMut(&Leadership) -> T,
    {
        self.campaign(value).lead(work)
    }

    /// Returns the current leader; `None` if there is none.
    ///
    /// # Errors
    /// The engine's error; kind `Unsupported` if it cannot show locks.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let lock = self.locker.inspect().get(self.key()?).await?;
        Ok(lock.and_then(|lock| lock.holder().map(Leader::new)))
    }

    /// Observes the leader by polling every `interval`, at most every 10 ms.
    ///
    /// ```
    /// use std::time::Duration;
    /// # use distlock::Locker;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
    /// # let election = Locker::connect("mem://observe").await?.election("scheduler");
    /// let mut leaders = election.observe(Duration::from_millis(100));
    /// assert_eq!(leaders.next().await?, None); // no leader yet
    /// let leadership = election.campaign("node-7").await?;
    /// let leader = leaders.next().await?.expect("there is a leader");
    /// assert_eq!(leader.value.as_deref(), Some("node-7"));
    /// # leadership.resign().await }
    /// ```
    #[must_use]
    pub fn observe(&self, interval: Duration) -> Leaders<'_> {
        Leaders { election: self, interval: interval.max(SHORTEST_INTERVAL), seen: None }
    }

    fn key(&self) -> Result<Key> {
        self.key.clone().map_err(|(kind, message)| Error::new(kind, message))
    }
}

/// The clone is the same candidate.
impl Clone for Election {
    fn clone(&self) -> Self {
        Election { locker: self.locker.same_owner(), key: self.key.clone() }
    }
}

/// Returns the error of an invalid name again.
struct Refused(Error);

impl TryFrom<Refused> for Key {
    type Error = Error;
    fn try_from(refused: Refused) -> Result<Key> {
        Err(refused.0)
    }
}

impl Leader {
    fn new(holder: &Holder) -> Self {
        let record = holder.record.as_ref();
        Leader {
            value: record.and_then(|record| record.label.clone()),
            owner: record.map(|record| record.owner.clone()),
            token: holder.token,
        }
    }
}

/// A campaign; made by [`Election::campaign`]. Awaiting it returns a [`Leadership`] once the election is won.
///
/// # Cancel safety
/// Dropping the future withdraws the candidacy, or gives up the leadership if it was just won.
#[derive(Debug)]
#[must_use = "a request does nothing until it is awaited"]
pub struct CampaignRequest(LockRequest);

impl CampaignRequest {
    /// Sets the length of the lease: the time without a leader after the leader has died.
    pub fn ttl(self, ttl: Duration) -> Self {
        CampaignRequest(self.0.ttl(ttl))
    }

    /// Sets the longest time to wait, as [`LockRequest::wait`]; after it the error is of kind `Timeout` and names the
    /// leader.
    pub fn wait(self, most: Duration) -> Self {
        CampaignRequest(self.0.wait(most))
    }

    /// Names the candidate.
    pub fn owner(self, id: impl AsRef<str>) -> Self {
        CampaignRequest(self.0.owner(id))
    }

    /// Sets the time without an election after the leadership was lost, as [`LockRequest::lock_delay`].
    pub fn lock_delay(self, delay: Duration) -> Self {
        CampaignRequest(self.0.lock_delay(delay))
    }

    /// Makes the candidate an owner of its own, as [`LockRequest::as_new_owner`].
    pub fn as_new_owner(self) -> Self {
        CampaignRequest(self.0.as_new_owner())
    }

    /// Sets the metrics label, as [`LockRequest::group`].
    #[cfg(feature = "metrics")]
    pub fn group(self, group: &'static str) -> Self {
        CampaignRequest(self.0.group(group))
    }

    /// Runs `work` as the leader. When the leadership is lost, the work is dropped at its next await, and started
    /// again when the election is won again. When the work completes, the leader resigns.
    ///
    /// The future owns what it needs, so it can be spawned. `async move` moves what the work captures into it, which
    /// a spawned task needs:
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::sync::atomic::{AtomicU64, Ordering};
    /// # use std::time::Duration;
    /// # use distlock::Locker;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let locker = Locker::connect("mem://").await?;
    /// let term = Arc::new(AtomicU64::new(0));
    ///
    /// let seen = term.clone();
    /// let campaign = locker.election("scheduler").campaign("node-7").ttl(Duration::from_secs(5));
    /// let leading = tokio::spawn(campaign.lead(async move |leadership| {
    ///     seen.store(leadership.guard().fencing_token().get(), Ordering::Relaxed);
    /// }));
    /// leading.await??;
    /// assert!(term.load(Ordering::Relaxed) > 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The error of the campaign or of the resignation. A loss of leadership while the work runs is not an error: the
    /// election is re-entered.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and gives up the leadership.
    pub async fn lead<T>(self, mut work: impl AsyncFnMut(&Leadership) -> T) -> Result<T> {
        loop {
            let leadership = Leadership { guard: self.0.repeat().await? };
            match leadership.guard.run(work(&leadership)).await {
                Ok(done) => {
                    leadership.resign().await?;
                    return Ok(done);
                }
                Err(lost) if lost.kind() == ErrorKind::Lost => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl IntoFuture for CampaignRequest {
    type Output = Result<Leadership>;
    type IntoFuture = RequestFuture<Leadership>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(Leadership { guard: self.0.await? }) })
    }
}

/// The leadership of an election. Dropping it resigns in the background; [`resign`](Leadership::resign) confirms it.
#[derive(Debug)]
#[must_use = "dropping it resigns"]
pub struct Leadership {
    guard: LockGuard,
}

impl Leadership {
    /// Returns the guard of the lock behind the election: its loss is the loss of the leadership, its fencing token
    /// the number of this election.
    pub fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// Replaces the value that every client can read.
    ///
    /// # Errors
    /// Kind `Lost` if the leadership is lost; `Unsupported` if the engine cannot replace a record.
    ///
    /// # Cancel safety
    /// If the future is dropped, the value may or may not have been replaced.
    pub async fn proclaim(&self, value: impl Into<Arc<str>>) -> Result<()> {
        self.guard.relabel(value).await
    }

    /// Gives up the leadership and confirms it.
    ///
    /// # Errors
    /// As [`LockGuard::unlock`].
    ///
    /// # Cancel safety
    /// As [`LockGuard::unlock`].
    pub async fn resign(self) -> Result<()> {
        self.guard.unlock().await
    }
}

/// Observes the leader; made by [`Election::observe`].
#[derive(Debug)]
pub struct Leaders<'a> {
    election: &'a Election,
    interval: Duration,
    /// The last leader returned; `None` before the first.
    seen: Option<Option<Leader>>,
}

impl Leaders<'_> {
    /// Returns the next change: first the current leader, then each new leader or new value, `None` when there is no
    /// leader. It may miss a leader between two polls; the tokens show that.
    ///
    /// # Errors
    /// The engine's error. The next call continues where this one was.
    ///
    /// # Cancel safety
    /// Dropping the future loses no change.
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        loop {
            let now = self.election.leader().await?;
            if self.seen.as_ref() != Some(&now) {
                self.seen = Some(now.clone());
                return Ok(now);
            }
            self.election.locker.pause(self.interval).await?;
        }
    }
}
