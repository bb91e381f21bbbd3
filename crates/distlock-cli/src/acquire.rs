//! Waiting for a lock, with an ear for signals.

use std::io;
use std::time::Duration;

use distlock::{Error, Key, LockGuard, LockRequest};
use rustix::process::Signal;

use crate::commands::run::ends_waiting;
use crate::engine::Engine;
use crate::exit::{Exit, ExitCode};
use crate::flags;
use crate::note::{Note, Notes};
use crate::plan::Wait;
use crate::signal_stream::Signals;

/// What to ask for.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// The lock.
    pub key: &'a Key,
    /// The lease.
    pub ttl: Duration,
    /// How long to wait.
    pub wait: Wait,
    /// Owner, label and the code for a lock that is taken.
    pub flags: &'a flags::Lock,
    /// What the lock is for, unless the flags say.
    pub purpose: &'a str,
}

/// Takes the lock. An `Err` is the end of the program; it has been said.
///
/// # Errors
/// Not granted, failed, or ended by a signal while waiting.
pub async fn acquire(
    engine: &Engine,
    wanted: &Wanted<'_>,
    signals: &mut Signals,
    notes: &mut Notes,
) -> Result<LockGuard, Exit> {
    let clock = distlock::Clock::system();
    let asked = clock.now();
    let outcome = {
        let mut request = std::pin::pin!(request(engine, wanted).into_future());
        loop {
            tokio::select! {
                granted = &mut request => break granted.map_err(Stop::Refused),
                delivery = signals.next() => match delivery {
                    Ok(delivery) if ends_waiting(delivery.signal) => break Err(Stop::Signal(delivery.signal)),
                    Ok(delivery) if delivery.signal == Signal::TSTP => {
                        let _ = signals.stop(Signal::TSTP);
                    }
                    Ok(_) => {}
                    Err(error) => break Err(Stop::Failed(error)),
                },
            }
        }
    };
    let stop = match outcome {
        Ok(guard) => {
            notes.say(&Note::Acquired { token: guard.fencing_token(), waited: clock.now().since(asked) });
            return Ok(guard);
        }
        Err(stop) => stop,
    };
    // The place in the queue is given up before anybody hears that we are gone.
    let _ = engine.locker.close().await;
    Err(match stop {
        Stop::Signal(signal) => Exit::Signal(signal.as_raw()),
        Stop::Refused(error) => refused(&error, wanted.flags, notes),
        Stop::Failed(error) => {
            notes.say(&Note::Failed { message: format!("cannot wait for signals: {error}") });
            ExitCode::Internal.into()
        }
    })
}

/// Why there is no lock.
enum Stop {
    Signal(Signal),
    Refused(Error),
    Failed(io::Error),
}

/// Says why the lock was not acquired, in one line, with the code for it.
pub fn refused(error: &Error, flags: &flags::Lock, notes: &mut Notes) -> Exit {
    notes.say(&Note::Failed { message: error.to_string() });
    match (ExitCode::from(error), flags.conflict_exit_code) {
        (ExitCode::NotAcquired, Some(code)) => Exit::Code(code),
        (code, _) => code.into(),
    }
}

fn request(engine: &Engine, wanted: &Wanted<'_>) -> LockRequest {
    let request = engine.locker.lock(wanted.key).ttl(wanted.ttl).label(label(wanted));
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

/// The reason and the labels as one text.
fn label(wanted: &Wanted<'_>) -> String {
    let reason = wanted.flags.reason.as_deref().unwrap_or(wanted.purpose);
    let labels: Vec<_> = wanted.flags.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if labels.is_empty() { reason.to_owned() } else { format!("{reason} [{}]", labels.join(", ")) }
}
