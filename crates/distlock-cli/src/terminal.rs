//! Which process group may use the terminal.
//!
//! The child has its own process group, and only one group may read from the terminal. The wrapper hands the terminal
//! over when the child is stopped by SIGTTIN or SIGTTOU, and not before: a pager behind the wrapper in a pipeline
//! keeps its keyboard, and Ctrl-C still reaches the wrapper's whole group.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The controlling terminal, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Terminal {
    lent: Option<OwnedFd>,
}

impl Terminal {
    /// Gives the terminal to `group`; `false` when there is none or another group has it.
    pub(crate) fn lend(&mut self, group: Pid) -> bool {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let Ok(terminal) = rustix::fs::open("/dev/tty", flags, Mode::empty()) else {
            return false;
        };
        let front = tcgetpgrp(&terminal);
        let given = front == Ok(group) || (front == Ok(getpgrp()) && tcsetpgrp(&terminal, group).is_ok());
        if given {
            self.lent = Some(terminal);
        }
        given
    }

    /// Takes the terminal back if `group` still has it; `true` when it had been lent.
    pub(crate) fn take_back(&mut self, group: Pid) -> bool {
        let Some(terminal) = self.lent.take() else {
            return false;
        };
        if tcgetpgrp(&terminal) == Ok(group) {
            // A terminal that was hung up in between cannot be taken back.
            let _ = tcsetpgrp(&terminal, getpgrp());
        }
        true
    }

    /// Whether the child has the terminal.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// Whether the terminal was hung up while the child had it: the kernel has then signalled the child itself.
    pub(crate) fn is_hung_up(&self) -> bool {
        self.lent.as_ref().is_some_and(|terminal| tcgetpgrp(terminal).is_err())
    }
}
