//! A run of a job for a tick: its lock, and the notes that are written under it.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::api::guard::LockGuard;
use crate::types::clock::Moment;
use crate::types::error::{Error, Result};
use crate::types::tick::{ClockSkew, TickNote, millis};

/// For how long a note or a read is tried again while the lock is held, and the first and the longest pause.
const TRY_FOR: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How long the reply to a request is awaited that was under way when the lock was lost.
const LATE_REPLY: Duration = Duration::from_secs(1);

/// A run of a job; in [`OnceOutcome::Run`](crate::OnceOutcome::Run). Dropping it without [`done`](OnceGuard::done) means that the run has failed: the lock is released in the
/// background, and another request may run in the same tick.
#[derive(Debug)]
#[must_use = "dropping it means that the run has failed"]
pub struct OnceGuard {
    pub(crate) guard: LockGuard,
    pub(crate) note: TickNote,
    pub(crate) keep: Duration,
    /// When the run was started, by the clock of leases.
    pub(crate) read_at: Moment,
    pub(crate) skew: Option<ClockSkew>,
}

impl OnceGuard {
    /// Returns the guard of the lock: its loss ends the run, and its fencing token tells runs apart.
    pub fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// Returns the note of this run: its tick, and how many runs were started for it.
    pub fn note(&self) -> &TickNote {
        &self.note
    }

    /// Marks the tick as done and releases the lock. Returns the tick's note.
    ///
    /// # Errors
    /// Kind `Lost`: the lock was lost before, and the tick is not done. `Unknown`: the tick may be done or not; another
    /// request finds out. A failure to release the lock is not an error of this: the release is retried in the background.
    ///
    /// # Cancel safety
    /// If the future is dropped, the tick may or may not be done; the lock is released in the background.
    pub async fn done(self) -> Result<TickNote> {
        self.guard.check()?;
        let took = self.guard.family().clock.now().since(self.read_at);
        let now_ms = self.note.started_ms.saturating_add(millis(took));
        let note = self.note.done(took, now_ms, self.keep);
        write(&self.guard, &note).await?;
        leave(self.guard).await;
        Ok(note)
    }

    /// Returns the guard of the lock alone. The run counts as failed.
    pub fn into_guard(self) -> LockGuard {
        self.guard
    }

    /// Ends the run as failed and releases the lock.
    ///
    /// # Errors
    /// As [`LockGuard::unlock`].
    ///
    /// # Cancel safety
    /// As [`LockGuard::unlock`].
    pub async fn failed(self) -> Result<()> {
        self.guard.unlock().await
    }
}

/// Writes a note as the holder of the lock.
pub(crate) async fn write(guard: &LockGuard, note: &TickNote) -> Result<()> {
    let claim = guard.claim();
    match persist(guard, || guard.family().backend.note_tick(&claim, note)).await? {
        true => Ok(()),
        false => Err(guard.taken_away()),
    }
}

/// Releases the lock. What matters is noted by now, and a release without a reply is repeated in the background.
pub(crate) async fn leave(guard: LockGuard) {
    if let Err(error) = guard.unlock().await {
        tracing::debug!(target: "distlock", %error, "a job's lock is not released yet");
    }
}

/// Makes a request until it has a definite reply, while the lock is held. If the lock is lost while a request is under way,
/// its reply is awaited for a while: it may be definite.
pub(crate) async fn persist<T, F>(guard: &LockGuard, mut request: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let clock = &guard.family().clock;
    let (until, mut pause, mut in_doubt) = (clock.now().after(TRY_FOR), FIRST_PAUSE, false);
    loop {
        let Some(reply) = reply_in_time(guard, request()).await? else { return Err(unknown(guard)) };
        let error = match reply {
            Ok(reply) => return Ok(reply),
            Err(error) if error.is_retryable() && clock.now() < until => error,
            Err(error) => return Err(error.with_key(guard.key())),
        };
        in_doubt |= error.may_be_applied();
        match guard.run(guard.family().sleep_until(clock.now().after(pause))).await {
            Ok(slept) => slept?,
            Err(_) if in_doubt => return Err(unknown(guard)),
            Err(lost) => return Err(lost),
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Returns the reply to a request; `None` if there is none a while after the lock was lost.
async fn reply_in_time<T>(guard: &LockGuard, request: impl Future<Output = T>) -> Result<Option<T>> {
    let mut request = pin!(request);
    if let Ok(reply) = guard.run(request.as_mut()).await {
        return Ok(Some(reply));
    }
    let family = guard.family();
    let mut limit = pin!(family.sleep_until(family.clock.now().after(LATE_REPLY)));
    std::future::poll_fn(|context| match request.as_mut().poll(context) {
        Poll::Ready(reply) => Poll::Ready(Ok(Some(reply))),
        Poll::Pending => limit.as_mut().poll(context).map(|slept| slept.map(|()| None)),
    })
    .await
}

fn unknown(guard: &LockGuard) -> Error {
    let message = "the lock was lost before the engine replied: whether the tick was noted is unknown";
    Error::unknown(message).with_key(guard.key()).with_help("the next request for the tick finds out")
}
