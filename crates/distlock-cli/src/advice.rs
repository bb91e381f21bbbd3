//! What to do next about an error that does not say so itself.

use std::io;

use distlock::{Error, ErrorKind};

use crate::exit::ExitCode;

/// The next step where this machine, and not the engine, has failed.
pub(crate) const RESTART: &str = "mend what the system names, and start it again";

/// Returns the error's message, with the next step behind it.
#[must_use]
pub fn explain(error: &Error) -> String {
    match next_step(error) {
        Some(step) if error.help().is_none() => format!("{error} ({step})"),
        _ => error.to_string(),
    }
}

/// Returns the next step; `None` where the message itself says what is wrong and where.
fn next_step(error: &Error) -> Option<&'static str> {
    if error.holder().is_some() {
        return None;
    }
    if ExitCode::from(error) == ExitCode::CannotCreate && error.kind() != ErrorKind::Foreign {
        return Some(
            "a name with a / is the path of the lock file: make its directory first, or write a name without /",
        );
    }
    match error.kind() {
        ErrorKind::AlreadyHeld | ErrorKind::Timeout => Some("`distlock show` tells who holds it and who waits"),
        ErrorKind::NotHeld | ErrorKind::Lost => Some("stop the work that it protected, and acquire it again"),
        ErrorKind::Unknown => Some("it may have been done or not: `distlock show` tells"),
        ErrorKind::Unavailable | ErrorKind::Backend => Some("`distlock doctor` with the same URL tells what is wrong"),
        ErrorKind::Unsupported => Some("docs/cli.md says which engines can do this"),
        ErrorKind::Foreign => Some("choose another name, or remove that when no program needs it"),
        ErrorKind::Config => Some("`distlock help` lists the settings"),
        ErrorKind::Auth => Some("check user and password; `distlock doctor` names missing rights"),
        _ => None,
    }
}

/// Returns the next step about a command that could not be started.
#[must_use]
pub fn about_command(program: &str, error: &io::Error) -> &'static str {
    match error.kind() {
        _ if program.starts_with('-') => "options go before the name of the lock",
        io::ErrorKind::NotFound => "check its name, and PATH",
        io::ErrorKind::PermissionDenied => "it must be a program that you may execute",
        _ => "run it without distlock to see why",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_without_help_gets_a_next_step() {
        let bare = Error::unavailable("redis://x cannot be reached");
        assert_eq!(
            explain(&bare),
            "redis://x cannot be reached (`distlock doctor` with the same URL tells what is wrong)"
        );
        let helped = Error::unavailable("no answer").with_help("wait");
        assert_eq!(explain(&helped), "no answer (wait)", "its own help is not repeated");
    }

    #[test]
    fn a_command_that_cannot_be_started_is_explained() {
        let not_found = io::Error::from(io::ErrorKind::NotFound);
        assert_eq!(about_command("-w", &not_found), "options go before the name of the lock");
        assert_eq!(about_command("nosuch", &not_found), "check its name, and PATH");
    }
}
