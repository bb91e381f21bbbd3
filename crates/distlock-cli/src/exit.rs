//! How the program ends: with its own code, the child's code, or the child's signal.

use std::error::Error as _;

use distlock::{Error, ErrorKind};
use rustix::process::Signal;

use crate::sys;

/// The program's own exit codes; every other code is the child's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitCode {
    /// The command line is invalid.
    Usage = 64,
    /// The engine cannot be reached.
    Unavailable = 69,
    /// An internal error.
    Internal = 70,
    /// The lock cannot be created at its path.
    CannotCreate = 73,
    /// The lock is held by another owner.
    NotAcquired = 75,
    /// The engine refused the credentials.
    NoPermission = 77,
    /// The configuration is invalid.
    Config = 78,
    /// The lock was lost, whatever the child's code is.
    Lost = 79,
    /// The command was found and cannot be executed.
    CannotExecute = 126,
    /// The command was not found.
    NotFound = 127,
}

impl From<ErrorKind> for ExitCode {
    fn from(kind: ErrorKind) -> ExitCode {
        match kind {
            ErrorKind::AlreadyHeld | ErrorKind::Timeout => ExitCode::NotAcquired,
            // A client that renews or releases a lock that it does not hold has lost it.
            ErrorKind::NotHeld | ErrorKind::Lost => ExitCode::Lost,
            ErrorKind::Unknown | ErrorKind::Unavailable => ExitCode::Unavailable,
            ErrorKind::InvalidInput => ExitCode::Usage,
            ErrorKind::Foreign => ExitCode::CannotCreate,
            ErrorKind::Config | ErrorKind::Unsupported => ExitCode::Config,
            ErrorKind::Auth => ExitCode::NoPermission,
            _ => ExitCode::Internal,
        }
    }
}

impl From<&Error> for ExitCode {
    fn from(error: &Error) -> ExitCode {
        // The file engine reports this when it cannot create a lock file or its directory.
        let is_io_error = error.source().is_some_and(|source| source.is::<std::io::Error>());
        match error.kind() {
            ErrorKind::Backend if is_io_error => ExitCode::CannotCreate,
            kind => kind.into(),
        }
    }
}

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// With the child's code, or 0.
    Code(u8),
    /// With one of the program's own codes.
    Own(ExitCode),
    /// By this signal, which ended the child.
    Signal(i32),
    /// By this signal, which the terminal sent to the child alone: the rest of the wrapper's process group receives it
    /// now.
    TerminalSignal(i32),
}

impl Exit {
    /// Exit code 0.
    pub const SUCCESS: Exit = Exit::Code(0);

    /// Ends the process.
    pub fn leave(self) -> ! {
        match self {
            Exit::Code(code) => std::process::exit(i32::from(code)),
            Exit::Own(code) => std::process::exit(code as i32),
            Exit::Signal(signal) => sys::die_by(signal),
            Exit::TerminalSignal(signal) => {
                if let Some(named) = Signal::from_named_raw(signal) {
                    // Cannot fail: this process is in the group.
                    let _ = rustix::process::kill_current_process_group(named);
                }
                sys::die_by(signal)
            }
        }
    }
}

impl From<ExitCode> for Exit {
    fn from(code: ExitCode) -> Exit {
        Exit::Own(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_as_documented() {
        let codes = [
            (ExitCode::Usage, 64),
            (ExitCode::Unavailable, 69),
            (ExitCode::Internal, 70),
            (ExitCode::CannotCreate, 73),
            (ExitCode::NotAcquired, 75),
            (ExitCode::NoPermission, 77),
            (ExitCode::Config, 78),
            (ExitCode::Lost, 79),
            (ExitCode::CannotExecute, 126),
            (ExitCode::NotFound, 127),
        ];
        for (code, number) in codes {
            assert_eq!(code as i32, number, "{code:?}");
        }
    }

    #[test]
    fn every_error_kind_maps_to_its_code() {
        let kinds = [
            (ErrorKind::AlreadyHeld, 75),
            (ErrorKind::NotHeld, 79),
            (ErrorKind::Timeout, 75),
            (ErrorKind::Lost, 79),
            (ErrorKind::Unknown, 69),
            (ErrorKind::Unavailable, 69),
            (ErrorKind::Unsupported, 78),
            (ErrorKind::InvalidInput, 64),
            (ErrorKind::Foreign, 73),
            (ErrorKind::Config, 78),
            (ErrorKind::Auth, 77),
            (ErrorKind::Closed, 70),
            (ErrorKind::Backend, 70),
        ];
        for (kind, number) in kinds {
            assert_eq!(ExitCode::from(&Error::new(kind, "x")) as i32, number, "{kind:?}");
        }
    }
}
