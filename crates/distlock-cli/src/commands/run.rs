//! `distlock run`: runs a command under a lock.

use std::io;
use std::os::fd::OwnedFd;

use distlock::{Clock, ErrorKind, LockGuard, LossReason, Moment, OnceGuard};
use rustix::io::FdFlags;
use rustix::process::Signal;

use crate::acquire::{Wanted, acquire, acquire_once, refused};
use crate::advice::{about_command, explain};
use crate::child;
use crate::commands::{block_on, fail};
use crate::engine::{Engine, Settings};
use crate::environment::Identity;
use crate::exit::{Exit, ExitCode};
use crate::flags::Run;
use crate::hold::Hold;
use crate::note::{Note, Notes};
use crate::plan::Plan;
use crate::policy::{OnLost, Policy};
use crate::progress;
use crate::signal_stream::{FORWARDED, Signals};
use crate::supervise::{Ending, SuperviseError, supervise};
use crate::sys;

/// How often the lock is acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// Once: a loss ends the program.
    Once,
    /// Again after each loss.
    UntilCommandEnds,
}

pub(super) fn main(flags: &Run) -> Exit {
    run_repeatedly(flags, Repeat::Once)
}

/// Runs the command of `flags` under its lock.
pub(super) fn run_repeatedly(flags: &Run, repeat: Repeat) -> Exit {
    let mut notes = match notes(flags) {
        Ok(notes) => notes,
        Err(problem) => return fail(ExitCode::Usage, problem),
    };
    block_on(run(flags, repeat, &mut notes))
}

async fn run(flags: &Run, repeat: Repeat, notes: &mut Notes) -> Exit {
    let settings = match Settings::read(&flags.engine) {
        Ok(settings) => settings,
        Err(error) => return refused(&error, &flags.lock, notes),
    };
    let plan = match Plan::new(flags, settings.config.default_ttl) {
        Ok(plan) => plan,
        Err(problem) => {
            notes.say(&Note::Failed { message: problem });
            return ExitCode::Usage.into();
        }
    };
    // Before any thread is started, so that no thread takes a signal that is meant for the command.
    let mut signals = match Signals::take_over() {
        Ok(signals) => signals,
        Err(error) => return internal(&error, notes),
    };
    let engine = match progress::watched(notes, settings.connecting(), settings.open()).await {
        Ok(engine) => engine,
        Err(error) => return refused(&error, &flags.lock, notes),
    };
    loop {
        let result = run_locked(&plan, &engine, flags, &mut signals, notes).await;
        if repeat == Repeat::Once || !result.is_ended_by_loss {
            progress::watched(notes, engine.releasing(), engine.finish()).await;
            return result.exit;
        }
    }
}

/// The result of one run of the command under the lock.
struct RunResult {
    exit: Exit,
    /// The command was ended because of a loss.
    is_ended_by_loss: bool,
}

impl From<Exit> for RunResult {
    fn from(exit: Exit) -> RunResult {
        RunResult { exit, is_ended_by_loss: false }
    }
}

async fn run_locked(plan: &Plan, engine: &Engine, flags: &Run, signals: &mut Signals, notes: &mut Notes) -> RunResult {
    let purpose = plan.program();
    let wanted = Wanted { key: &plan.key, ttl: plan.ttl, wait: plan.wait, flags: &flags.lock, purpose: &purpose };
    let held = match &plan.once {
        Some(once) => acquire_once(engine, &wanted, once, signals, notes).await.map(Held::Once),
        None => acquire(engine, &wanted, signals, notes).await.map(Held::Lock),
    };
    let held = match held {
        Ok(held) => held,
        Err(exit) => return exit.into(),
    };
    let guard = held.guard();
    let inherited = match if flags.child.close { Ok(None) } else { inherit(guard) } {
        Ok(inherited) => inherited,
        Err(error) => return internal(&error, notes).into(),
    };
    let identity = Identity {
        name: &plan.key,
        token: guard.fencing_token(),
        owner: guard.owner().as_str(),
        ttl: guard.deadline().map(|_| plan.ttl),
        slot: guard.slot(),
        engine: &engine.name,
    };
    let result = run_once(plan, guard, &identity, signals, notes).await;
    drop(inherited);
    match held {
        Held::Once(run) if result.exit == Exit::SUCCESS => mark_done(run, engine, notes).await,
        Held::Once(run) => release(run.into_guard(), engine, result, plan, notes).await,
        Held::Lock(guard) => release(guard, engine, result, plan, notes).await,
    }
}

/// What the command runs under.
enum Held {
    Lock(LockGuard),
    Once(OnceGuard),
}

impl Held {
    fn guard(&self) -> &LockGuard {
        match self {
            Held::Lock(guard) => guard,
            Held::Once(run) => run.guard(),
        }
    }
}

/// Marks the tick as done after the command has succeeded, and releases the lock.
async fn mark_done(run: OnceGuard, engine: &Engine, notes: &mut Notes) -> RunResult {
    match progress::watched(notes, engine.releasing(), run.done()).await {
        Ok(note) => {
            notes.say(&Note::TickNoted { note });
            notes.say(&Note::Released);
            Exit::SUCCESS.into()
        }
        Err(error) => {
            notes.say(&Note::Failed { message: format!("the command succeeded, but its tick is not done: {error}") });
            let _ = engine.locker.close().await;
            Exit::from(ExitCode::from(&error)).into()
        }
    }
}

/// Returns the lock's descriptor, which the command inherits: if the wrapper dies, the lock stays held until the
/// command has ended.
fn inherit(guard: &LockGuard) -> io::Result<Option<OwnedFd>> {
    let descriptor = guard.descriptor().map_err(io::Error::other)?;
    if let Some(descriptor) = &descriptor {
        rustix::io::fcntl_setfd(descriptor, FdFlags::empty())?;
    }
    Ok(descriptor)
}

/// Releases the lock after the command. A loss found only now is reported like any other.
async fn release(guard: LockGuard, engine: &Engine, result: RunResult, plan: &Plan, notes: &mut Notes) -> RunResult {
    let was_lost = guard.is_lost();
    let unlocked = progress::watched(notes, engine.releasing(), async { guard.unlock().await }).await;
    let Err(error) = unlocked else {
        notes.say(&Note::Released);
        return result;
    };
    if error.kind() == ErrorKind::Lost {
        if was_lost || plan.policy.on_lost == OnLost::Ignore {
            return result;
        }
        notes.say(&Note::Lost { reason: error.loss_reason().cloned().unwrap_or(LossReason::Revoked) });
        return Exit::from(ExitCode::Lost).into();
    }
    notes.say(&Note::Failed { message: explain(&error) });
    // `close` retries the release for a while. A lost lease ends by itself about now.
    if !result.is_ended_by_loss {
        let _ = engine.locker.close().await;
    }
    result
}

/// Returns the notes of a run.
///
/// # Errors
/// When `--status-fd` names a descriptor that is not open.
pub fn notes(flags: &Run) -> Result<Notes, String> {
    let notes = Notes::new((&flags.output).into(), flags.output.json);
    match flags.status_fd {
        Some(number) => notes.with_status(number).map_err(|error| {
            format!("--status-fd {number}: {error} (the shell opens it: `distlock run --status-fd {number} … {number}> FILE`)")
        }),
        None => Ok(notes),
    }
}

/// Runs the plan's command under `hold`. When this returns, the command has ended and the lock may be released.
pub async fn run_held<H: Hold>(
    plan: &Plan,
    hold: &H,
    identity: &Identity<'_>,
    signals: &mut Signals,
    notes: &mut Notes,
) -> Exit {
    run_once(plan, hold, identity, signals, notes).await.exit
}

async fn run_once<H: Hold>(
    plan: &Plan,
    hold: &H,
    identity: &Identity<'_>,
    signals: &mut Signals,
    notes: &mut Notes,
) -> RunResult {
    let started = Clock::system().now();
    let mut command = plan.command();
    identity.apply(&mut command, |name| std::env::var_os(name));
    match supervise(command, &plan.policy, hold, signals, notes).await {
        Ok(ending) if ending.loss.is_some() => {
            RunResult { exit: exit_of(&ending, &plan.policy), is_ended_by_loss: ending.by_loss }
        }
        Ok(ending) => {
            let until = plan.at_least.map_or(started, |least| started.after(least));
            let ended = linger(until, &plan.policy, hold, signals, notes).await;
            ended.unwrap_or_else(|| exit_of(&ending, &plan.policy)).into()
        }
        Err(SuperviseError::Exec(error)) => {
            let advice = about_command(&plan.program(), &error);
            notes.say(&Note::Failed { message: format!("cannot run {:?}: {error} ({advice})", plan.program()) });
            Exit::from(child::exec_failure(&error)).into()
        }
        Err(SuperviseError::Internal(error)) => internal(&error, notes).into(),
    }
}

fn internal(error: &io::Error, notes: &mut Notes) -> Exit {
    notes.say(&Note::Failed { message: format!("cannot supervise the command: {error}") });
    ExitCode::Internal.into()
}

fn exit_of(ending: &Ending, policy: &Policy) -> Exit {
    let reports_loss = policy.on_lost != OnLost::Ignore || ending.loss == Some(LossReason::MaxHold);
    match ending.outcome.map(Exit::from) {
        None => ExitCode::Lost.into(),
        Some(_) if ending.loss.is_some() && reports_loss => ExitCode::Lost.into(),
        Some(Exit::Signal(signal)) if ending.by_terminal => Exit::TerminalSignal(signal),
        Some(exit) => exit,
    }
}

/// Keeps the lock until `until`. Returns an exit that takes precedence over the command's own.
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

/// Whether a signal ends the wrapper while no command runs. A signal that was ignored at the start, as by nohup(1),
/// does not.
#[must_use]
pub fn ends_waiting(signal: Signal) -> bool {
    FORWARDED.contains(&signal) && !sys::is_ignored(signal.as_raw())
}
