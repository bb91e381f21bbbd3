//! Acquires a lock and reacts to signals while waiting.

use std::fmt::Write;
use std::time::Duration;

use distlock::{Error, ErrorKind, Holder, Key, LockGuard, LockRequest, Mode, OnceGuard, OnceOutcome, OnceRequest};
use rustix::process::Signal;

use crate::advice::explain;
use crate::ancestry::Ancestry;
use crate::commands::run::ends_waiting;
use crate::engine::Engine;
use crate::exit::{Exit, ExitCode};
use crate::flags;
use crate::note::{Note, Notes};
use crate::once::Once;
use crate::plan::Wait;
use crate::progress;
use crate::signal_stream::Signals;

/// The pause before a failed renewal is retried.
const RENEW_PAUSE: Duration = Duration::from_millis(50);

/// A request for a lock.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// The lock.
    pub key: &'a Key,
    /// The lease.
    pub ttl: Duration,
    /// How long to wait.
    pub wait: Wait,
    /// Mode, owner, label and the exit code for a lock that is held by another owner.
    pub flags: &'a flags::Lock,
    /// The label of the lock unless `--reason` is given.
    pub purpose: &'a str,
}

/// Why the lock was not acquired: the exit code and the message.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// How the program ends.
    pub exit: Exit,
    /// One line; `None` when a signal ended the wait.
    pub message: Option<String>,
}

impl Refusal {
    /// Returns the exit code and the message for `error`; `-E` applies only to locks held by another owner.
    #[must_use]
    pub fn new(error: &Error, flags: &flags::Lock) -> Refusal {
        let exit = match (ExitCode::from(error), flags.conflict_exit_code) {
            (ExitCode::NotAcquired, Some(code)) => Exit::Code(code),
            (code, _) => code.into(),
        };
        Refusal { exit, message: Some(explain(error)) }
    }

    /// Appends the number of other holders where the mode allows several: the error names only one.
    async fn with_holder_count(mut self, engine: &Engine, error: &Error) -> Refusal {
        let record = error.holder().and_then(|holder| holder.record.as_ref());
        let Some((key, message)) = error.key().zip(self.message.as_mut()) else { return self };
        if record.is_some_and(|record| record.mode != Mode::Exclusive)
            && let Ok(Some(lock)) = engine.locker.inspect().get(key).await
            && lock.holders.len() > 1
        {
            let _ = write!(message, "; and {} more", lock.holders.len() - 1);
        }
        self
    }

    /// Prints the message and returns the exit code.
    pub fn say(self, notes: &mut Notes) -> Exit {
        if let Some(message) = self.message {
            notes.say(&Note::Failed { message });
        }
        self.exit
    }
}

/// Acquires the lock. An `Err` ends the program; its message was printed.
///
/// # Errors
/// When the lock is not granted, an operation fails, or a signal ends the wait.
pub async fn acquire(
    engine: &Engine,
    wanted: &Wanted<'_>,
    signals: &mut Signals,
    notes: &mut Notes,
) -> Result<LockGuard, Exit> {
    let waiting = wait_for(engine, wanted, interruption(signals));
    match progress::watched(notes, waiting_note(engine, wanted.key), waiting).await {
        Ok((guard, waited)) => {
            notes.say(&Note::Acquired { token: guard.fencing_token(), waited });
            Ok(guard)
        }
        Err(refusal) => Err(refusal.say(notes)),
    }
}

/// Returns the note about a wait, with the holder if the engine tells.
async fn waiting_note(engine: &Engine, key: &Key) -> Note {
    let lock = engine.locker.inspect().get(key).await.ok().flatten();
    Note::Waiting { name: key.to_string(), holder: lock.and_then(|lock| lock.holder().cloned()) }
}

/// Acquires the lock unless `stop` resolves first. Returns the guard and how long the wait took.
///
/// # Errors
/// When the lock is not granted, an operation fails, or `stop` resolves. The place in the queue is given up before
/// this returns.
pub async fn wait_for(
    engine: &Engine,
    wanted: &Wanted<'_>,
    stop: impl Future<Output = Refusal>,
) -> Result<(LockGuard, Duration), Refusal> {
    let clock = distlock::Clock::system();
    let asked = clock.now();
    let granted = async {
        engine.check_reach(wanted.key)?;
        let granted = match held_by_ancestor(engine, wanted).await {
            Err(error) => Err(error),
            Ok(Some(Nested { holder, admits: Admits::None })) => Err(holder_is_ancestor(wanted.key, holder)),
            // A reader queued behind a writer that waits for the ancestor would deadlock: it is tried once.
            Ok(Some(Nested { holder, admits: Admits::Readers })) => {
                let once = request(engine, wanted).wait(Duration::ZERO).await;
                once.map_err(|error| match error.kind() {
                    ErrorKind::Timeout => holder_is_ancestor(wanted.key, holder),
                    _ => error,
                })
            }
            Ok(None) => request(engine, wanted).await,
        };
        let guard = granted?;
        with_full_lease(&guard, wanted.ttl).await?;
        Ok::<_, Error>(guard)
    };
    let outcome = tokio::select! {
        granted = granted => match granted {
            Ok(guard) => Ok(guard),
            Err(error) => Err(Refusal::new(&error, wanted.flags).with_holder_count(engine, &error).await),
        },
        stopped = stop => Err(stopped),
    };
    if outcome.is_err() {
        let _ = engine.locker.close().await;
    }
    Ok((outcome?, clock.now().since(asked)))
}

/// Acquires the lock for a run of a job that runs once, unless its tick is done. An `Err` ends the program; its message was
/// printed.
///
/// # Errors
/// When there is nothing to run, the lock is not granted, an operation fails, or a signal ends the wait.
pub async fn acquire_once(
    engine: &Engine,
    wanted: &Wanted<'_>,
    once: &Once,
    signals: &mut Signals,
    notes: &mut Notes,
) -> Result<OnceGuard, Exit> {
    let clock = distlock::Clock::system();
    let asked = clock.now();
    let decided = async {
        engine.check_reach(wanted.key)?;
        if let Some(Nested { holder, .. }) = held_by_ancestor(engine, wanted).await? {
            return Err(holder_is_ancestor(wanted.key, holder));
        }
        let request = once.request(&engine.locker, wanted.key).ttl(wanted.ttl).label(label(wanted));
        let outcome = wanted.flags.owner.iter().fold(request, OnceRequest::owner).await?;
        if let OnceOutcome::Run(run) = &outcome {
            with_full_lease(run.guard(), wanted.ttl).await?;
        }
        Ok(outcome)
    };
    let outcome = async {
        tokio::select! {
            decided = decided => decided.map_err(|error| Refusal::new(&error, wanted.flags)),
            stopped = interruption(signals) => Err(stopped),
        }
    };
    let outcome = progress::watched(notes, waiting_note(engine, wanted.key), outcome).await;
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(refusal) => {
            let _ = engine.locker.close().await;
            return Err(refusal.say(notes));
        }
    };
    outcome.skew().inspect(|skew| notes.say(&Note::Skewed { skew: *skew }));
    match outcome {
        OnceOutcome::Run(run) => {
            notes.say(&Note::Acquired { token: run.guard().fencing_token(), waited: clock.now().since(asked) });
            return Ok(run);
        }
        OnceOutcome::Done { note, .. } => notes.say(&Note::TickDone { note }),
        OnceOutcome::Running { holder, .. } => notes.say(&Note::TickRuns { holder }),
        OnceOutcome::Exhausted { note, .. } => notes.say(&Note::TickExhausted { note }),
        other => notes.say(&Note::Failed { message: format!("an unknown outcome: {other:?}") }),
    }
    Err(wanted.flags.conflict_exit_code.map_or(Exit::SUCCESS, Exit::Code))
}

/// Renews a short lease before the command starts. A handed-over lock begins with a short lease, which leaves no time
/// to end a command before it is over.
async fn with_full_lease(guard: &LockGuard, ttl: Duration) -> Result<(), Error> {
    while guard.remaining().is_some_and(|left| left < ttl / 2) {
        match guard.extend(ttl).await {
            // The lease holds until its deadline, so there may be time for another try.
            Err(error) if error.is_retryable() => tokio::time::sleep(RENEW_PAUSE).await,
            outcome => return outcome,
        }
    }
    Ok(())
}

/// Resolves when a signal ends the wait. A signal that stops the process stops it here.
pub async fn interruption(signals: &mut Signals) -> Refusal {
    loop {
        match signals.next().await {
            Ok(delivery) if ends_waiting(delivery.signal) => {
                return Refusal { exit: Exit::Signal(delivery.signal.as_raw()), message: None };
            }
            Ok(delivery) if delivery.signal == Signal::TSTP => {
                let _ = signals.stop(Signal::TSTP);
            }
            Ok(_) => {}
            Err(error) => {
                let message = Some(format!("cannot wait for signals: {error}"));
                return Refusal { exit: ExitCode::Internal.into(), message };
            }
        }
    }
}

/// A lock that an ancestor of this process still holds.
struct Nested {
    holder: Holder,
    admits: Admits,
}

/// Which modes the ancestor's lock still admits.
enum Admits {
    None,
    Readers,
}

/// Returns the ancestor for which a wait would deadlock: the ancestor waits for this process.
///
/// # Errors
/// When the engine gave no definite answer: waiting might then be a deadlock.
async fn held_by_ancestor(engine: &Engine, wanted: &Wanted<'_>) -> Result<Option<Nested>, Error> {
    let ancestry = Ancestry::read(|name| std::env::var_os(name));
    if ancestry.is_empty() {
        return Ok(None);
    }
    let lock = match engine.locker.inspect().get(wanted.key).await {
        Ok(Some(lock)) => lock,
        Err(error) if error.is_retryable() => return Err(error),
        // A user who may lock but not inspect can still lock.
        Ok(None) | Err(_) => return Ok(None),
    };
    let is_ancestor = |holder: &Holder| ancestry.has(holder, &engine.name, wanted.key);
    let mut ancestors: Vec<Holder> = lock.holders.into_iter().filter(is_ancestor).collect();
    Ok(ancestors.pop().and_then(|holder| admitted_beside(holder, ancestors.len(), wanted.flags)))
}

/// Returns which requests an ancestor's lock admits; `others` is the number of further ancestors that hold it. `None`:
/// a request with the flags `wanted` does not wait for an ancestor.
fn admitted_beside(holder: Holder, others: usize, wanted: &flags::Lock) -> Option<Nested> {
    let held = holder.record.as_ref().map_or(Mode::Exclusive, |record| record.mode);
    let both_resize = wanted.resize && holder.record.as_ref().is_some_and(|record| record.resizes);
    match (held, wanted.mode()) {
        (Mode::Shared, Mode::Shared) => Some(Nested { holder, admits: Admits::Readers }),
        // A permit is free, or held by a process that is not an ancestor and so will be returned.
        (Mode::Slot { .. }, Mode::Slot { of }) if others + 1 < of as usize => None,
        // The engine refuses a mode that does not agree.
        (held, wanted) if !held.agrees_with(wanted) && !both_resize => None,
        _ => Some(Nested { holder, admits: Admits::None }),
    }
}

fn holder_is_ancestor(key: &Key, holder: Holder) -> Error {
    let message = "the command that started this one runs under it already";
    Error::new(ErrorKind::AlreadyHeld, message).with_key(key).with_holder(Some(holder))
}

/// Prints why the lock was not acquired and returns the exit code.
pub fn refused(error: &Error, flags: &flags::Lock, notes: &mut Notes) -> Exit {
    Refusal::new(error, flags).say(notes)
}

fn request(engine: &Engine, wanted: &Wanted<'_>) -> LockRequest {
    let request = match wanted.flags.mode() {
        Mode::Shared => engine.locker.read(wanted.key),
        Mode::Slot { of } if wanted.flags.resize => engine.locker.semaphore(wanted.key, of).or_resize().acquire(),
        Mode::Slot { of } => engine.locker.semaphore(wanted.key, of).acquire(),
        _ => engine.locker.lock(wanted.key),
    };
    let request = request.ttl(wanted.ttl).label(label(wanted));
    let request = match &wanted.flags.owner {
        Some(owner) => request.owner(owner),
        None => request,
    };
    match wanted.wait {
        Wait::Forever => request,
        Wait::No => request.wait(Duration::ZERO),
        Wait::AtMost(most) => request.wait(most),
    }
}

/// Joins the reason and the labels into one text.
fn label(wanted: &Wanted<'_>) -> String {
    let reason = wanted.flags.reason.as_deref().unwrap_or(wanted.purpose);
    let labels: Vec<_> = wanted.flags.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if labels.is_empty() { reason.to_owned() } else { format!("{reason} [{}]", labels.join(", ")) }
}
