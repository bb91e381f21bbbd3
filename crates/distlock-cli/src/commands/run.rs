//! `distlock run`: a command under a lock.

use std::io;

use distlock::{Clock, LossReason, Moment};
use rustix::process::Signal;

use crate::child;
use crate::commands::fail;
use crate::environment::Identity;
use crate::exit::{Exit, ExitCode};
use crate::flags::Run;
use crate::hold::Hold;
use crate::note::{Note, Notes};
use crate::plan::Plan;
use crate::policy::{OnLost, Policy};
use crate::signal_stream::{FORWARDED, Signals};
use crate::supervise::{Ending, Failure, supervise};

pub(super) fn main(flags: &Run) -> Exit {
    match Plan::new(flags) {
        // Until the library's lockers are here.
        Ok(_) => fail(ExitCode::Internal, "this command is not there yet"),
        Err(problem) => fail(ExitCode::Usage, problem),
    }
}

/// Where the notes of a run go.
///
/// # Errors
/// When `--status-fd` names a descriptor that is not open.
pub fn notes(flags: &Run) -> Result<Notes, String> {
    let notes = Notes::new((&flags.output).into(), flags.output.json);
    match flags.status_fd {
        Some(number) => notes.with_status(number).map_err(|error| format!("--status-fd {number}: {error}")),
        None => Ok(notes),
    }
}

/// Runs the plan's command under `hold`. When this returns, the command is gone and the lock may be released.
pub async fn run_held<H: Hold>(
    plan: &Plan,
    hold: &H,
    identity: &Identity<'_>,
    signals: &mut Signals,
    notes: &mut Notes,
) -> Exit {
    let started = Clock::system().now();
    let mut command = plan.command();
    identity.apply(&mut command, |name| std::env::var(name).ok());
    match supervise(command, &plan.policy, hold, signals, notes).await {
        Ok(ending) if ending.loss.is_some() => verdict(&ending, &plan.policy),
        Ok(ending) => {
            let until = plan.at_least.map_or(started, |least| started.after(least));
            linger(until, &plan.policy, hold, signals, notes).await.unwrap_or_else(|| verdict(&ending, &plan.policy))
        }
        Err(Failure::Exec(error)) => {
            notes.say(&Note::Failed { message: format!("cannot run {:?}: {error}", plan.program()) });
            child::exec_failure(&error).into()
        }
        Err(Failure::Internal(error)) => internal(&error, notes),
    }
}

fn internal(error: &io::Error, notes: &mut Notes) -> Exit {
    notes.say(&Note::Failed { message: format!("cannot supervise the command: {error}") });
    ExitCode::Internal.into()
}

fn verdict(ending: &Ending, policy: &Policy) -> Exit {
    let tells = policy.on_lost != OnLost::Ignore || ending.loss == Some(LossReason::MaxHold);
    match Exit::from(ending.outcome) {
        _ if ending.loss.is_some() && tells => ExitCode::Lost.into(),
        Exit::Signal(signal) if ending.by_terminal => Exit::TerminalSignal(signal),
        exit => exit,
    }
}

/// Keeps the lock until `until`. Returns an end that goes before the command's own.
async fn linger<H: Hold>(
    until: Moment,
    policy: &Policy,
    hold: &H,
    signals: &mut Signals,
    notes: &mut Notes,
) -> Option<Exit> {
    let clock = Clock::system();
    while clock.now() < until {
        tokio::select! {
            delivery = signals.next() => match delivery {
                Ok(delivery) if ends_waiting(delivery.signal) => return Some(Exit::Signal(delivery.signal.as_raw())),
                Ok(_) => {}
                Err(error) => return Some(internal(&error, notes)),
            },
            reason = hold.lost(), if policy.on_lost != OnLost::Ignore => {
                notes.say(&Note::Lost { reason });
                return Some(ExitCode::Lost.into());
            }
            () = clock.sleep_until(until) => {}
        }
    }
    None
}

/// Whether a signal that reaches the wrapper while no command runs ends it.
#[must_use]
pub fn ends_waiting(signal: Signal) -> bool {
    FORWARDED.contains(&signal)
}
