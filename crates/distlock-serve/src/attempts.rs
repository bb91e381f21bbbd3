//! Requests that carry an `Idempotency-Key`: those with the same key are one attempt.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use distlock::ErrorKind;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::failure::Failure;
use crate::hold::Hold;
use crate::wanted::Wanted;

/// How many keys of ended holds are remembered, so that a late repeat acquires nothing.
const MOST_ENDED: usize = 10_000;

type Outcome = Option<Result<Arc<Hold>, Failure>>;

/// All attempts that have a key.
#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    attempts: HashMap<String, Attempt>,
    /// The keys of ended holds, the oldest first.
    ended: VecDeque<String>,
    /// How many attempts there have been.
    count: u64,
}

#[derive(Debug)]
struct Attempt {
    wanted: Wanted,
    /// Tells attempts of the same key apart.
    number: u64,
    state: State,
    /// How many requests wait for the outcome.
    waiting: usize,
}

#[derive(Debug)]
enum State {
    /// The lock is being acquired, by a task of its own: the attempt outlives the request that began it if another has joined.
    UnderWay(watch::Sender<Outcome>, AbortHandle),
    Known(Result<Arc<Hold>, Failure>),
    /// Its hold has ended.
    Ended,
}

impl Attempts {
    /// Joins the attempt with this key, or begins it. `discard` gets a hold that was granted after the last request had left.
    ///
    /// # Cancel safety
    /// When the last request of an unfinished attempt is dropped, the attempt is withdrawn.
    pub(crate) async fn join<F>(
        self: &Arc<Self>,
        key: String,
        wanted: &Wanted,
        begin: impl FnOnce() -> F,
        discard: impl FnOnce(Arc<Hold>) + Send + 'static,
    ) -> Result<Arc<Hold>, Failure>
    where
        F: Future<Output = Result<Arc<Hold>, Failure>> + Send + 'static,
    {
        let (mut outcome, _member) = self.enter(key, wanted, begin, discard)?;
        let known = outcome.wait_for(Option::is_some).await;
        known.ok().and_then(|known| known.clone()).unwrap_or_else(|| Err(Failure::stopping()))
    }

    fn enter<F>(
        self: &Arc<Self>,
        key: String,
        wanted: &Wanted,
        begin: impl FnOnce() -> F,
        discard: impl FnOnce(Arc<Hold>) + Send + 'static,
    ) -> Result<(watch::Receiver<Outcome>, Member), Failure>
    where
        F: Future<Output = Result<Arc<Hold>, Failure>> + Send + 'static,
    {
        let mut table = self.table();
        if let Some(attempt) = table.attempts.get_mut(&key) {
            let outcome = attempt.join(wanted)?;
            let number = attempt.number;
            return Ok((outcome, Member { attempts: self.clone(), key, number }));
        }
        table.count += 1;
        let (sender, number) = (watch::Sender::new(None), table.count);
        let (work, attempts, name) = (begin(), self.clone(), key.clone());
        let task = tokio::spawn(async move {
            let done = work.await;
            if let Some(hold) = attempts.finish(&name, number, done) {
                discard(hold);
            }
        });
        let outcome = sender.subscribe();
        let state = State::UnderWay(sender, task.abort_handle());
        table.attempts.insert(key.clone(), Attempt { wanted: wanted.clone(), number, state, waiting: 1 });
        Ok((outcome, Member { attempts: self.clone(), key, number }))
    }

    /// Tells the requests of an attempt its outcome. Returns a hold that no request is left for.
    fn finish(&self, key: &str, number: u64, done: Result<Arc<Hold>, Failure>) -> Option<Arc<Hold>> {
        let mut table = self.table();
        let Some(attempt) = table.attempts.get_mut(key).filter(|attempt| attempt.number == number) else {
            return done.ok();
        };
        if let State::UnderWay(sender, _) = std::mem::replace(&mut attempt.state, State::Known(done.clone())) {
            sender.send_replace(Some(done));
        }
        None
    }

    /// Records that the hold of this key has ended.
    pub(crate) fn ended(&self, key: &str) {
        let mut table = self.table();
        let Some(attempt) = table.attempts.get_mut(key).filter(|attempt| !matches!(attempt.state, State::Ended)) else {
            return;
        };
        attempt.state = State::Ended;
        table.ended.push_back(key.to_owned());
        if table.ended.len() > MOST_ENDED
            && let Some(oldest) = table.ended.pop_front()
        {
            table.attempts.remove(&oldest);
        }
    }

    fn leave(&self, key: &str, number: u64) {
        let mut table = self.table();
        let Some(attempt) = table.attempts.get_mut(key).filter(|attempt| attempt.number == number) else { return };
        attempt.waiting -= 1;
        if attempt.waiting > 0 {
            return;
        }
        match &attempt.state {
            State::UnderWay(_, task) => task.abort(),
            State::Known(Err(_)) => {}
            State::Known(Ok(_)) | State::Ended => return,
        }
        table.attempts.remove(key);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attempt {
    /// Adds a request that waits for the outcome.
    fn join(&mut self, wanted: &Wanted) -> Result<watch::Receiver<Outcome>, Failure> {
        if self.wanted != *wanted {
            let message = "the Idempotency-Key was used for another request";
            return Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, ErrorKind::InvalidInput.as_str(), message));
        }
        let outcome = match &self.state {
            State::UnderWay(sender, _) => sender.subscribe(),
            State::Known(done) => watch::channel(Some(done.clone())).1,
            State::Ended => {
                let message = "the hold of this Idempotency-Key has ended";
                return Err(Failure::new(StatusCode::NOT_FOUND, ErrorKind::NotHeld.as_str(), message));
            }
        };
        self.waiting += 1;
        Ok(outcome)
    }
}

/// A request of an attempt.
struct Member {
    attempts: Arc<Attempts>,
    key: String,
    number: u64,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.attempts.leave(&self.key, self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use distlock::backend::memory::Memory;
    use distlock::{Clock, Locker};
    use distlock_http::Peer;
    use tokio::sync::oneshot;

    use super::*;
    use crate::liveness::{Liveness, Proof};

    /// On two threads the last request may leave while the task is about to tell it of the grant.
    #[tokio::test]
    async fn a_grant_that_no_request_is_left_for_is_discarded() {
        let wanted = Wanted::new("a", serde_json::from_str("{}").unwrap()).map_err(|failure| failure.message).unwrap();
        let guard = Locker::new(Memory::new()).unwrap().lock("a").await.unwrap();
        let life = Liveness::new(Proof::Stream, Duration::ZERO, Duration::ZERO, Clock::system().now());
        let hold = Arc::new(Hold::new(guard, Peer::Process { pid: None, uid: 0 }, None, life));
        let (attempts, is_discarded) = (Arc::<Attempts>::default(), Arc::new(AtomicBool::new(false)));
        let (last_request, leaves) = oneshot::channel::<Member>();
        let begin = || async move {
            drop(leaves.await);
            Ok(hold)
        };
        let discarded = is_discarded.clone();
        let discard = move |_hold| discarded.store(true, Ordering::Relaxed);
        let (outcome, member) = attempts.enter("k".into(), &wanted, begin, discard).map_err(|_| ()).unwrap();
        drop(outcome);
        last_request.send(member).map_err(|_| ()).unwrap();
        while Arc::strong_count(&attempts) > 1 {
            tokio::task::yield_now().await;
        }
        assert!(is_discarded.load(Ordering::Relaxed));
        assert!(attempts.table().attempts.is_empty());
    }
}
