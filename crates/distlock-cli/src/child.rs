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
    /// In its own process group, so that a signal reaches every member.
    #[default]
    OwnGroup,
    /// In the wrapper's group, as if started by the shell itself; signals reach only the child itself.
    Foreground,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It exited with this code.
    Exited(u8),
    /// It was killed by this signal.
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

/// The command's process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Child {
    pub(crate) pid: Pid,
    pub(crate) placement: Placement,
    /// Its parent has reaped it: the kernel may have reused its process id.
    pub(crate) is_reaped: bool,
}

impl Child {
    /// Starts `command`. Call this on the main thread: the kernel kills the child when the thread that started it
    /// ends.
    pub(crate) fn spawn(mut command: Command, placement: Placement, mask: SignalSet) -> io::Result<Child> {
        if placement == Placement::OwnGroup {
            command.process_group(0);
        }
        sys::bind_to_parent(&mut command, mask);
        let child = command.spawn()?;
        Ok(Child { pid: Pid::from_child(&child), placement, is_reaped: false })
    }

    /// Sends `signal` to the child's group, or in the foreground to the child alone. Sends nothing to a reaped child:
    /// its process id may belong to another process. A zombie keeps the number of its group reserved.
    pub(crate) fn signal(self, signal: Signal) {
        if self.is_reaped {
            return;
        }
        // An error means that the child has ended.
        let _ = match self.placement {
            Placement::OwnGroup => kill_process_group(self.pid, signal),
            Placement::Foreground => kill_process(self.pid, signal),
        };
    }

    /// Whether the child's own group has no process left. Safe for a reaped child: it sends nothing, and at worst
    /// waits for another group that reused the number.
    pub(crate) fn group_is_gone(self) -> bool {
        match self.placement {
            Placement::OwnGroup => test_kill_process_group(self.pid) == Err(Errno::SRCH),
            Placement::Foreground => true,
        }
    }
}

/// Reaps and returns the next child of this process that has ended; `None` when there is none.
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

/// Returns the exit code for a command that could not be started, as shells do.
#[must_use]
pub fn exec_failure(error: &io::Error) -> ExitCode {
    match error.kind() {
        io::ErrorKind::NotFound => ExitCode::NotFound,
        _ => ExitCode::CannotExecute,
    }
}
