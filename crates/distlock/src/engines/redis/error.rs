//! What a failure says about the request: certainly not carried out, or perhaps.

use redis::{RedisError, ServerErrorKind};

use crate::types::error::{Error, ErrorKind};

/// When a failure came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Before the connection was of use: nothing of ours was sent.
    Opening,
    /// After the request was handed to the connection.
    Request,
}

/// Sorts every failure of the client crate; one of the connection to `place` names it.
pub(super) fn classify_at(place: &str, error: &RedisError, stage: Stage) -> Error {
    match error.kind() {
        redis::ErrorKind::Io => Error::new(kind_of(error, stage), format!("redis: {place}: {error}")),
        _ => classify(error, stage),
    }
}

/// Sorts every failure of the client crate.
pub(super) fn classify(error: &RedisError, stage: Stage) -> Error {
    let sorted = Error::new(kind_of(error, stage), format!("redis: {error}"));
    // Only the code that follows a redirection reads it. Elsewhere it would repeat the message.
    if error.redirect_node().is_some() || error.code() == Some("TRYAGAIN") {
        return sorted.with_source(error.clone());
    }
    sorted
}

fn kind_of(error: &RedisError, stage: Stage) -> ErrorKind {
    let kind = match error.kind() {
        redis::ErrorKind::Server(kind) => of_server(kind, error),
        // A code that the client crate has no name for.
        redis::ErrorKind::Extension => of_code(error.code().unwrap_or_default(), error),
        redis::ErrorKind::AuthenticationFailed => of_refusal(error),
        redis::ErrorKind::InvalidClientConfig => ErrorKind::Config,
        redis::ErrorKind::RESP3NotSupported => ErrorKind::Unsupported,
        // Found by the client before it wrote anything.
        redis::ErrorKind::Client => ErrorKind::Backend,
        // The same "broken pipe" stands for never written and for written and unanswered.
        redis::ErrorKind::Io => ErrorKind::Unknown,
        // Not understood: it may be the reply to another request.
        redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => ErrorKind::Unknown,
        // Kinds of parts of the crate that are not used here, and those to come.
        _ => ErrorKind::Unknown,
    };
    match (kind, stage) {
        (ErrorKind::Unknown, Stage::Opening) => ErrorKind::Unavailable,
        (kind, _) => kind,
    }
}

/// Whether the server says that it does not know the script.
pub(super) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Whether the server says that it is no master.
pub(super) fn is_demoted(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::ReadOnly)
}

fn of_server(kind: ServerErrorKind, error: &RedisError) -> ErrorKind {
    match kind {
        ServerErrorKind::BusyLoading
        | ServerErrorKind::Moved
        | ServerErrorKind::Ask
        | ServerErrorKind::TryAgain
        | ServerErrorKind::ClusterDown
        | ServerErrorKind::MasterDown
        | ServerErrorKind::ReadOnly
        | ServerErrorKind::NoScript
        | ServerErrorKind::ExecAbort => ErrorKind::Unavailable,
        ServerErrorKind::NoPerm => ErrorKind::Auth,
        ServerErrorKind::CrossSlot => ErrorKind::Backend,
        ServerErrorKind::NotBusy | ServerErrorKind::NoSub => ErrorKind::Backend,
        ServerErrorKind::ResponseError => of_text(error),
        _ => of_code(error.code().unwrap_or_default(), error),
    }
}

fn of_code(code: &str, error: &RedisError) -> ErrorKind {
    match code {
        // The first write of a script decides on these, so a script that fails by them has changed nothing.
        "OOM" | "MISCONF" | "NOREPLICAS" | "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" => ErrorKind::Unavailable,
        "BUSY" | "LOADING" | "TRYAGAIN" | "MOVED" | "ASK" | "UNBLOCKED" => ErrorKind::Unavailable,
        "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" => ErrorKind::Auth,
        "NOPROTO" => ErrorKind::Unsupported,
        "WRONGTYPE" => ErrorKind::Foreign,
        "ERR" => of_text(error),
        // Perhaps from the middle of a script.
        _ => ErrorKind::Unknown,
    }
}

/// A general error. Servers before 7.0 wrap those that a script's commands raise: `… -OOM command not allowed …`.
fn of_text(error: &RedisError) -> ErrorKind {
    let text = error.detail().unwrap_or_default();
    let wrapped = text.split_whitespace().filter_map(|word| word.strip_prefix('-')).find(|code| is_code(code));
    match wrapped {
        Some("ERR") => ErrorKind::Unknown,
        Some(code) => of_code(code, error),
        // What 7.0 says of a right that a script lacks, and what later versions and Valkey say.
        None if text.contains("executing the script can't") => ErrorKind::Auth,
        None if text.contains("ACL failure in script: ") => ErrorKind::Auth,
        None if text.contains("user_script") || text.contains("running script") => ErrorKind::Unknown,
        None if text.contains("max number of clients") => ErrorKind::Unavailable,
        None if text.contains("unknown command") => ErrorKind::Unsupported,
        None => ErrorKind::Backend,
    }
}

fn is_code(word: &str) -> bool {
    word.len() >= 3 && word.bytes().all(|b| b.is_ascii_uppercase())
}

/// The client crate calls every failed log-in the same; a server that is loading refuses it, too.
fn of_refusal(error: &RedisError) -> ErrorKind {
    let text = error.to_string();
    if text.contains("LOADING") || text.contains("max number of clients") {
        ErrorKind::Unavailable
    } else {
        ErrorKind::Auth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(line: &str) -> RedisError {
        let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).expect("a reply");
        reply.extract_error().expect_err("an error")
    }

    #[test]
    fn every_error_of_the_server_has_its_kind() {
        let cases = [
            ("LOADING Redis is loading the dataset in memory", ErrorKind::Unavailable),
            ("BUSY Redis is busy running a script.", ErrorKind::Unavailable),
            ("READONLY You can't write against a read only replica.", ErrorKind::Unavailable),
            ("MASTERDOWN Link with MASTER is down", ErrorKind::Unavailable),
            ("OOM command not allowed when used memory > 'maxmemory'.", ErrorKind::Unavailable),
            ("MISCONF Redis is configured to save RDB snapshots", ErrorKind::Unavailable),
            ("NOREPLICAS Not enough good replicas to write.", ErrorKind::Unavailable),
            ("CLUSTERDOWN The cluster is down", ErrorKind::Unavailable),
            ("MOVED 1 127.0.0.1:1", ErrorKind::Unavailable),
            ("NOSCRIPT No matching script.", ErrorKind::Unavailable),
            ("NOAUTH Authentication required.", ErrorKind::Auth),
            ("NOPERM this user has no permissions", ErrorKind::Auth),
            ("ERR The user executing the script can't run this command or subcommand script: 1", ErrorKind::Auth),
            (
                "ERR The user executing the script can't access at least one of the keys mentioned in the command script: 1",
                ErrorKind::Auth,
            ),
            // Redis 7.2 and 8.
            (
                "ERR ACL failure in script: User app has no permissions to run the 'getrange' command script: 1, on @user_script:7.",
                ErrorKind::Auth,
            ),
            (
                "ERR ACL failure in script: No permissions to access a key script: 1, on @user_script:7.",
                ErrorKind::Auth,
            ),
            // Valkey 8 and 9.
            (
                "ERR ACL failure in script: User app has no permissions to run the 'pexpire' command script: on @user_script:9.",
                ErrorKind::Auth,
            ),
            ("NOPERM ACL failure in script: User app has no permissions to run the 'get' command", ErrorKind::Auth),
            ("WRONGPASS invalid username-password pair", ErrorKind::Auth),
            ("WRONGTYPE Operation against a key", ErrorKind::Foreign),
            ("ERR max number of clients reached", ErrorKind::Unavailable),
            ("ERR unknown command 'EVALSHA'", ErrorKind::Unsupported),
            ("ERR DB index is out of range", ErrorKind::Backend),
            ("ERR user_script:3: Script attempted to access nonexistent global", ErrorKind::Unknown),
            (
                "ERR Error running script (call to f_1): @user_script:9: -OOM command not allowed",
                ErrorKind::Unavailable,
            ),
            ("ERR Error running script (call to f_1): @user_script:9: -ERR no", ErrorKind::Unknown),
            ("SOMETHING new", ErrorKind::Unknown),
        ];
        for (line, kind) in cases {
            assert_eq!(classify(&server(line), Stage::Request).kind(), kind, "{line}");
        }
    }

    #[test]
    fn a_broken_connection_leaves_the_outcome_open_only_after_the_request() {
        let broken = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!(classify(&broken, Stage::Request).kind(), ErrorKind::Unknown);
        assert_eq!(classify(&broken, Stage::Opening).kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn a_broken_connection_is_named_and_its_cause_is_said_once() {
        let broken = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        let error = classify_at("10.0.0.1:6379", &broken, Stage::Request);
        assert_eq!(error.to_string(), "redis: 10.0.0.1:6379: broken pipe");
        assert_eq!(format!("{error:?}"), "Error(Unknown: redis: 10.0.0.1:6379: broken pipe)");
        assert_eq!(format!("{:?}", classify(&server("OOM no"), Stage::Request)).matches("OOM").count(), 1);
    }

    #[test]
    fn a_redirection_can_be_followed() {
        for line in ["MOVED 1 127.0.0.1:1", "ASK 1 127.0.0.1:1", "TRYAGAIN later"] {
            let error = classify_at("10.0.0.1:6379", &server(line), Stage::Request);
            assert!(std::error::Error::source(&error).is_some(), "{line}");
        }
    }
}
