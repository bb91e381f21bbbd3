//! The command that runs under the lock.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, test_kill_process_group, wait};

use crate::exit::{Exit, ExitCode};
use crate::guardian::{Guardian, Target};
use crate::sys::{self, SignalSet};

/// Where the child runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// In a process group of its own, so that a signal reaches all of it.
    #[default]
    OwnGroup,
    /// In the wrapper's group, as if started by the shell itself; signals reach the direct child only.
    Foreground,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// With this code.
    Exited(u8),
    /// By this signal.
    Killed(i32),
}

impl From<Outcome> for Exit {
    fn from(outcome: Outcome) -> Exit {
        match outcome {
            Outcome::Exited(code) => Exit::Code(code),
            Outcome::Killed(signal) => Exit::Signal(signal),
        }
    }
}

/// What became of a process since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Ended(Outcome),
    Stopped(i32),
}

/// The direct child.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Child {
    pub(crate) pid: Pid,
    pub(crate) placement: Placement,
}

impl Child {
    /// Starts `command`, watched by `guardian`. To be called on the main thread: the child is killed when the thread
    /// ends that started it.
    pub(crate) fn spawn(
        mut command: Command,
        placement: Placement,
        mask: SignalSet,
        guardian: &Guardian,
    ) -> io::Result<Child> {
        let announce: fn(Pid) -> [u8; 4] = match placement {
            Placement::OwnGroup => {
                command.process_group(0);
                |pid| Target::Group(pid).encode()
            }
            Placement::Foreground => |pid| Target::Process(pid).encode(),
        };
        sys::bind_to_parent(&mut command, mask, guardian.control(), announce);
        let child = command.spawn()?;
        Ok(Child { pid: Pid::from_child(&child), placement })
    }

    /// Whom signals are sent to.
    pub(crate) fn target(self) -> Target {
        match self.placement {
            Placement::OwnGroup => Target::Group(self.pid),
            Placement::Foreground => Target::Process(self.pid),
        }
    }

    /// Whether nobody is left in the child's own group.
    pub(crate) fn group_is_gone(self) -> bool {
        match self.placement {
            Placement::OwnGroup => test_kill_process_group(self.pid) == Err(Errno::SRCH),
            Placement::Foreground => true,
        }
    }

    /// Sends `signal`.
    pub(crate) fn signal(self, signal: Signal) {
        self.target().signal(signal);
    }
}

/// The next change of any process below this one; `None` when nothing has changed.
pub(crate) fn next_change() -> io::Result<Option<(Pid, Change)>> {
    loop {
        match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) => {
                if let Some(change) = change(status) {
                    return Ok(Some((pid, change)));
                }
            }
            Ok(None) | Err(Errno::CHILD) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn change(status: WaitStatus) -> Option<Change> {
    let exited = |code| Change::Ended(Outcome::Exited(u8::try_from(code).unwrap_or(u8::MAX)));
    let killed = || status.terminating_signal().map(|signal| Change::Ended(Outcome::Killed(signal)));
    let stopped = || status.stopping_signal().map(Change::Stopped);
    status.exit_status().map(exited).or_else(killed).or_else(stopped)
}

/// The code for a command that could not be started, as shells give it.
#[must_use]
pub fn exec_failure(error: &io::Error) -> ExitCode {
    match error.kind() {
        io::ErrorKind::NotFound => ExitCode::NotFound,
        _ => ExitCode::CannotExecute,
    }
}
