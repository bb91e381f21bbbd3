//! One leader among many: a lock with a word that everybody can read.

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
/// Whoever holds the lock of that name leads. Candidates wait in order, and everybody can see who leads.
///
/// ```
/// # use distlock::Locker;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> distlock::Result<()> {
/// let locker = Locker::connect("mem://").await?;
/// let election = locker.election("scheduler");
///
/// let leadership = election.campaign("node-7").await?; // waits for its turn
/// let leader = election.leader().await?.expect("somebody leads");
/// assert_eq!(leader.value.as_deref(), Some("node-7"));
/// leadership.resign().await?;
/// # Ok(()) }
/// ```
pub struct Election {
    locker: Locker,
    /// A bad name is refused when it is used, each time.
    key: std::result::Result<Key, (ErrorKind, String)>,
}

/// Who leads.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// What the leader says of itself.
    pub value: Option<Arc<str>>,
    /// Who it is; `None` when it is not one of ours.
    pub owner: Option<OwnerId>,
    /// Rises with each election.
    pub token: Option<FencingToken>,
}

impl Election {
    pub(crate) fn new(locker: Locker, key: Result<Key>) -> Self {
        Election { locker, key: key.map_err(|error| (error.kind(), error.to_string())) }
    }

    /// Stands for election, and waits until it is won. `value` is what everybody can read about the leader.
    pub fn campaign(&self, value: impl Into<Arc<str>>) -> CampaignRequest {
        let request = match self.key() {
            Ok(key) => self.locker.lock(key),
            Err(error) => self.locker.lock(Refused(error)),
        };
        CampaignRequest(request.label(value))
    }

    /// Leads with `work` again and again: whenever the leadership is lost the work is dropped at its next await, and
    /// begun anew when the election is won again. Ends with the work, and resigns then.
    ///
    /// # Errors
    /// What campaigning or resigning says. A loss while the work runs is none.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work, and the leadership with it.
    pub async fn lead<T>(&self, value: &str, mut work: impl AsyncFnMut(&Leadership) -> T) -> Result<T> {
        loop {
            let leadership = self.campaign(value).await?;
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

    /// Who leads now; `None` when nobody does.
    ///
    /// # Errors
    /// What the engine says; kind `Unsupported` when it cannot tell.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        let lock = self.locker.inspect().get(self.key()?).await?;
        Ok(lock.and_then(|lock| lock.holder().map(Leader::new)))
    }

    /// Follows who leads, looking every `interval`, at most every 10 ms.
    #[must_use]
    pub fn observe(&self, interval: Duration) -> Leaders<'_> {
        Leaders { election: self, interval: interval.max(SHORTEST_INTERVAL), seen: None }
    }

    fn key(&self) -> Result<Key> {
        self.key.clone().map_err(|(kind, message)| Error::new(kind, message))
    }
}

/// A name that was refused before.
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

/// Stands for election; made by [`Election::campaign`].
///
/// # Cancel safety
/// Dropping the future gives up the candidacy, or the leadership if it was just won.
#[must_use = "a request does nothing until it is awaited"]
pub struct CampaignRequest(LockRequest);

impl CampaignRequest {
    /// The length of the lease: how long nobody leads after the leader has died.
    pub fn ttl(self, ttl: Duration) -> Self {
        CampaignRequest(self.0.ttl(ttl))
    }

    /// The longest time to wait, as [`LockRequest::wait`]; then the error is of kind `Timeout` and says who leads.
    pub fn wait(self, most: Duration) -> Self {
        CampaignRequest(self.0.wait(most))
    }

    /// Names the candidate.
    pub fn owner(self, id: impl AsRef<str>) -> Self {
        CampaignRequest(self.0.owner(id))
    }

    /// How long nobody is elected after the leadership was lost, as [`LockRequest::lock_delay`].
    pub fn lock_delay(self, delay: Duration) -> Self {
        CampaignRequest(self.0.lock_delay(delay))
    }
}

impl IntoFuture for CampaignRequest {
    type Output = Result<Leadership>;
    type IntoFuture = RequestFuture<Leadership>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(Leadership { guard: self.0.await? }) })
    }
}

/// An election that is won. Dropping it resigns in the background.
#[derive(Debug)]
#[must_use = "dropping it resigns"]
pub struct Leadership {
    guard: LockGuard,
}

impl Leadership {
    /// The lock behind it: its loss is the loss of the leadership, its fencing token the number of this election.
    pub fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// Changes what everybody can read about the leader.
    ///
    /// # Errors
    /// Kind `Lost` when it does not lead any more; `Unsupported` where the engine cannot change it.
    ///
    /// # Cancel safety
    /// When the future is dropped it may or may not have been changed.
    pub async fn proclaim(&self, value: impl Into<Arc<str>>) -> Result<()> {
        self.guard.relabel(value).await
    }

    /// Gives up the leadership, once the work has come to its end.
    ///
    /// # Errors
    /// As [`LockGuard::unlock`].
    pub async fn resign(self) -> Result<()> {
        self.guard.unlock().await
    }
}

/// Follows who leads; made by [`Election::observe`].
pub struct Leaders<'a> {
    election: &'a Election,
    interval: Duration,
    /// What was told last; `None` before the first look.
    seen: Option<Option<Leader>>,
}

impl Leaders<'_> {
    /// The next change: first who leads now, then each other leader or word of it, `None` when nobody leads. Between
    /// two looks it may miss a leader; the tokens tell.
    ///
    /// # Errors
    /// What the engine says. Asking again after an error goes on where it was.
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
