//! What a failure says about the request: certainly not carried out, or perhaps.

use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::types::error::{Error, ErrorKind};

/// When a failure came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Before the connection was of use: nothing of ours was sent.
    Opening,
    /// After the request was handed to the connection.
    Request,
}

/// What a failure means for the connection that it came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Keep,
    /// It is of no more use, or leads to the wrong server.
    Drop,
}

/// Sorts every failure of the client crate.
pub(super) fn classify(place: &str, error: &tokio_postgres::Error, stage: Stage) -> (Error, Verdict) {
    match error.as_db_error() {
        Some(refusal) => of_server(place, refusal, stage),
        None => {
            // The same error stands for never written and for written and unanswered.
            let kind = if stage == Stage::Opening { ErrorKind::Unavailable } else { ErrorKind::Unknown };
            let kind = if is_of_password(error) { ErrorKind::Auth } else { kind };
            (Error::new(kind, format!("postgres: {place}: {}", cause(error))), Verdict::Drop)
        }
    }
}

/// Returns whether the client crate failed because it has no password to show, or not the server's proof.
fn is_of_password(error: &tokio_postgres::Error) -> bool {
    let text = error.to_string();
    text.contains("invalid configuration") || text.contains("authentication error")
}

fn cause(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// An error that the server reports. A statement is a transaction of its own: with severity `ERROR` all of it is undone.
/// Any other severity ends the session, perhaps after the commit.
fn of_server(place: &str, refusal: &DbError, stage: Stage) -> (Error, Verdict) {
    let is_undone = refusal.parsed_severity() == Some(Severity::Error) || stage == Stage::Opening;
    let kind = if is_undone { of_code(refusal.code().code()) } else { ErrorKind::Unknown };
    let message = format!("postgres: {place}: {} ({})", refusal.message(), refusal.code().code());
    let error = match help(refusal.code().code()) {
        Some(help) => Error::new(kind, message).with_help(help),
        None => Error::new(kind, message),
    };
    // A server that is read-only is no primary any more; the plans of a session do not survive a schema that was replaced, and
    // its prepared statements not a pooler that was not found out.
    let is_stale = matches!(refusal.code().code(), "25006" | "0A000" | "26000" | "XX000");
    (error, if is_undone && !is_stale { Verdict::Keep } else { Verdict::Drop })
}

/// Sorts an error whose statement was undone.
fn of_code(code: &str) -> ErrorKind {
    match code {
        // The schema, or a function of it, is missing.
        "3F000" | "42883" | "42P01" | "42703" | "3D000" => ErrorKind::Config,
        // A set-up of an older version than the schema has.
        "DL002" => ErrorKind::Config,
        // A reply of another shape than prepared for: the schema was replaced.
        "0A000" => ErrorKind::Unavailable,
        // A prepared statement that is not there.
        "26000" => ErrorKind::Unavailable,
        "42501" => ErrorKind::Auth,
        // Characters that the database's encoding does not have.
        "22021" | "22P05" => ErrorKind::InvalidInput,
        // Deadlock, serialization failure, lock or statement timeout, read-only, starting up or shutting down.
        "40001" | "40P01" | "55P03" | "57014" | "25006" | "57P01" | "57P02" | "57P03" | "57P04" => {
            ErrorKind::Unavailable
        }
        _ => match code.get(..2) {
            Some("28") => ErrorKind::Auth,
            // Connection trouble that a pooler reports before it had a server; out of memory, disk or connections; a
            // system error.
            Some("08" | "53" | "58") => ErrorKind::Unavailable,
            _ => ErrorKind::Backend,
        },
    }
}

fn help(code: &str) -> Option<&'static str> {
    match code {
        "3F000" | "42883" | "42P01" | "42703" => Some("make its tables and functions with `distlock setup URL`"),
        "3D000" => Some("create the database, or name another one in the URL"),
        "42501" => Some("the user needs USAGE on the schema"),
        "55P03" => Some("another transaction uses the schema, such as a backup; try again when it has ended"),
        "DL002" => Some("use the newer version of distlock"),
        _ => None,
    }
}

/// Returns whether the settings of a session were refused: by a pooler, or by a server that is too old to know them all.
pub(super) fn is_settings_refusal(error: &tokio_postgres::Error) -> bool {
    let is_unknown = error.code() == Some(&SqlState::UNDEFINED_OBJECT);
    is_unknown || error.as_db_error().is_some_and(|refusal| refusal.message().contains("unsupported startup parameter"))
}
