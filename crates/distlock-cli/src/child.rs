//! The command that runs under the lock.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use rustix::process::{kill_process, kill_process_group, test_kill_process_group, wait};

use crate::exit::{Exit, ExitCode};
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

/// The command's own process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Child {
    pub(crate) pid: Pid,
    pub(crate) placement: Placement,
    /// Its end was taken note of by its parent: any other process may have its number by now.
    pub(crate) is_reaped: bool,
}

impl Child {
    /// Starts `command`, in the foreground in the caller's group. To be called on the main thread: the child is killed
    /// when the thread ends that started it.
    pub(crate) fn spawn(mut command: Command, placement: Placement, mask: SignalSet) -> io::Result<Child> {
        if placement == Placement::OwnGroup {
            command.process_group(0);
        }
        sys::bind_to_parent(&mut command, mask);
        let child = command.spawn()?;
        Ok(Child { pid: Pid::from_child(&child), placement, is_reaped: false })
    }

    /// Sends `signal` to the child's group, or in the foreground to the child alone. A child that has ended and was not
    /// reaped keeps the number of its group from others; one that was reaped does not, and nothing is sent then.
    pub(crate) fn signal(self, signal: Signal) {
        if self.is_reaped {
            return;
        }
        // Gone already is as good as told.
        let _ = match self.placement {
            Placement::OwnGroup => kill_process_group(self.pid, signal),
            Placement::Foreground => kill_process(self.pid, signal),
        };
    }

    /// Whether no process has the number of the child's own group. Nothing but a question, even when the child was
    /// reaped: should others have the number by now, they are waited for.
    pub(crate) fn group_is_gone(self) -> bool {
        match self.placement {
            Placement::OwnGroup => test_kill_process_group(self.pid) == Err(Errno::SRCH),
            Placement::Foreground => true,
        }
    }
}

/// The next child of this process that has ended, reaped; `None` when there is none.
pub(crate) fn next_ended() -> io::Result<Option<(Pid, Outcome)>> {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                if let Some(outcome) = outcome(status) {
                    return Ok(Some((pid, outcome)));
                }
            }
            Ok(None) | Err(Errno::CHILD) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn outcome(status: WaitStatus) -> Option<Outcome> {
    let exited = |code| Outcome::Exited(u8::try_from(code).unwrap_or(u8::MAX));
    status.exit_status().map(exited).or_else(|| status.terminating_signal().map(Outcome::Killed))
}

/// The code for a command that could not be started, as shells give it.
#[must_use]
pub fn exec_failure(error: &io::Error) -> ExitCode {
    match error.kind() {
        io::ErrorKind::NotFound => ExitCode::NotFound,
        _ => ExitCode::CannotExecute,
    }
}
