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
}

#[derive(Debug)]
struct Attempt {
    wanted: Wanted,
    outcome: watch::Receiver<Outcome>,
    task: AbortHandle,
    /// How many requests wait for the outcome.
    waiting: usize,
    has_ended: bool,
}

impl Attempts {
    /// Joins the attempt with this key, or begins it.
    ///
    /// # Cancel safety
    /// When the last request of an unfinished attempt is dropped, the attempt is withdrawn.
    pub(crate) async fn join<F>(
        self: &Arc<Self>,
        key: String,
        wanted: &Wanted,
        begin: impl FnOnce() -> F,
    ) -> Result<Arc<Hold>, Failure>
    where
        F: Future<Output = Result<Arc<Hold>, Failure>> + Send + 'static,
    {
        let (mut outcome, _member) = self.enter(key, wanted, begin)?;
        let known = outcome.wait_for(Option::is_some).await;
        known.ok().and_then(|known| known.clone()).unwrap_or_else(|| Err(Failure::stopping()))
    }

    fn enter<F>(
        self: &Arc<Self>,
        key: String,
        wanted: &Wanted,
        begin: impl FnOnce() -> F,
    ) -> Result<(watch::Receiver<Outcome>, Member), Failure>
    where
        F: Future<Output = Result<Arc<Hold>, Failure>> + Send + 'static,
    {
        let mut table = self.table();
        if let Some(attempt) = table.attempts.get_mut(&key) {
            if attempt.wanted != *wanted {
                let message = "the Idempotency-Key was used for another request";
                return Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, ErrorKind::InvalidInput.as_str(), message));
            }
            if attempt.has_ended {
                let message = "the hold of this Idempotency-Key has ended";
                return Err(Failure::new(StatusCode::NOT_FOUND, ErrorKind::NotHeld.as_str(), message));
            }
            attempt.waiting += 1;
            return Ok((attempt.outcome.clone(), Member { attempts: self.clone(), key }));
        }
        let (sender, outcome) = watch::channel(None);
        let work = begin();
        // A task of its own: the attempt outlives the request that began it if another has joined.
        let task = tokio::spawn(async move {
            let done = work.await;
            sender.send_replace(Some(done));
        });
        let attempt = Attempt {
            wanted: wanted.clone(),
            outcome: outcome.clone(),
            task: task.abort_handle(),
            waiting: 1,
            has_ended: false,
        };
        table.attempts.insert(key.clone(), attempt);
        Ok((outcome, Member { attempts: self.clone(), key }))
    }

    /// Records that the hold of this key has ended.
    pub(crate) fn ended(&self, key: &str) {
        let mut table = self.table();
        let Some(attempt) = table.attempts.get_mut(key).filter(|attempt| !attempt.has_ended) else { return };
        attempt.has_ended = true;
        // Lets go of the hold.
        attempt.outcome = watch::channel(None).1;
        table.ended.push_back(key.to_owned());
        if table.ended.len() > MOST_ENDED
            && let Some(oldest) = table.ended.pop_front()
        {
            table.attempts.remove(&oldest);
        }
    }

    fn leave(&self, key: &str) {
        let mut table = self.table();
        let Some(attempt) = table.attempts.get_mut(key) else { return };
        attempt.waiting -= 1;
        if attempt.has_ended || attempt.waiting > 0 {
            return;
        }
        let is_held = match &*attempt.outcome.borrow() {
            Some(Ok(_)) => true,
            Some(Err(_)) => false,
            None => {
                attempt.task.abort();
                false
            }
        };
        if !is_held {
            table.attempts.remove(key);
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request of an attempt.
struct Member {
    attempts: Arc<Attempts>,
    key: String,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.attempts.leave(&self.key);
    }
}
