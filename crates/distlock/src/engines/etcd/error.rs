//! What became of a request that was not answered as hoped: definite or unknown, decided in one place.

use std::error::Error as StdError;

use tonic::{Code, ConnectError, Status};

use crate::types::error::{Error, ErrorKind};

/// Why a request failed.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) fault: Fault,
    message: String,
}

/// What a failure means for the request. Only [`Fault::Unknown`] leaves open whether it was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// No connection: nothing was sent.
    Unreachable,
    /// This server refuses for now and did nothing; another may not.
    Refused,
    /// The cluster refuses for now and did nothing.
    Full,
    /// The token of our login is not known any more.
    LoggedOut,
    /// The credentials are wrong, or do not allow this.
    Forbidden,
    /// The lease that the request names is not there.
    LeaseGone,
    /// The request is not acceptable, now or later.
    Rejected,
    /// It may or may not have been carried out.
    Unknown,
}

impl Failure {
    /// No reply came in time.
    pub(super) fn timeout() -> Self {
        Failure { fault: Fault::Unknown, message: "etcd did not answer in time".into() }
    }

    pub(super) fn new(fault: Fault, message: impl Into<String>) -> Self {
        Failure { fault, message: message.into() }
    }
}

impl Failure {
    /// Whether these are the server's words.
    pub(super) fn says(&self, words: &str) -> bool {
        self.message.contains(words)
    }

    /// Whether another request, or a part of this one, might be accepted.
    pub(super) fn blames_the_request(&self) -> bool {
        matches!(self.fault, Fault::Full | Fault::Forbidden | Fault::LeaseGone | Fault::Rejected)
    }

    /// The same for a request that only prepared another one, which certainly was not sent.
    pub(super) fn into_refusal(self) -> Self {
        Failure { fault: Fault::Full, message: self.message }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        let fault = if is_connect_error(&status) { Fault::Unreachable } else { fault_of(&status) };
        let message = match (status.message(), StdError::source(&status)) {
            ("", None) => status.code().to_string(),
            ("", Some(source)) => innermost(source),
            (message, Some(source)) if fault == Fault::Unreachable => format!("{message}: {}", innermost(source)),
            (message, _) => message.to_owned(),
        };
        Failure { fault, message }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let kind = match failure.fault {
            Fault::Unreachable | Fault::Refused | Fault::Full | Fault::LeaseGone => ErrorKind::Unavailable,
            Fault::LoggedOut | Fault::Forbidden => ErrorKind::Auth,
            Fault::Rejected => ErrorKind::Backend,
            Fault::Unknown => ErrorKind::Unknown,
        };
        let message = match failure.fault {
            Fault::Unreachable => format!("no etcd endpoint can be reached: {}", failure.message),
            _ => failure.message,
        };
        Error::new(kind, message)
    }
}

/// The one place where a reply of the server becomes definite or unknown.
fn fault_of(status: &Status) -> Fault {
    let message = status.message();
    // The same codes come from gRPC itself, then after the request was carried out: a reply that is too long, say.
    let by_etcd = message.starts_with("etcdserver:") || message.starts_with("auth:");
    match status.code() {
        Code::Unauthenticated => Fault::LoggedOut,
        Code::PermissionDenied => Fault::Forbidden,
        Code::InvalidArgument if message.contains("authentication failed") => Fault::Forbidden,
        // Said to a token that is older than the last change of users or roles.
        Code::InvalidArgument if message.contains("revision of auth store is old") => Fault::LoggedOut,
        Code::InvalidArgument if message.contains("user name is empty") => Fault::Forbidden,
        Code::FailedPrecondition if message.contains("authentication is not enabled") => Fault::Forbidden,
        Code::NotFound if message.contains("lease not found") => Fault::LeaseGone,
        // Said before anything is proposed; the other reasons to be unavailable come later than that.
        Code::Unavailable if message.contains("no leader") || message.contains("not capable") => Fault::Refused,
        Code::Unavailable if message.contains("learner") => Fault::Refused,
        Code::ResourceExhausted if by_etcd => Fault::Full,
        Code::FailedPrecondition if message.contains("not leader") => Fault::Refused,
        Code::InvalidArgument | Code::NotFound | Code::AlreadyExists | Code::FailedPrecondition | Code::OutOfRange
            if by_etcd =>
        {
            Fault::Rejected
        }
        Code::Unimplemented => Fault::Rejected,
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::InvalidArgument
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::ResourceExhausted
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::OutOfRange
        | Code::Internal
        | Code::Unavailable
        | Code::DataLoss => Fault::Unknown,
    }
}

/// Only a connection that never was proves that nothing was sent: tonic says "unavailable" to much else.
fn is_connect_error(status: &Status) -> bool {
    let mut source = StdError::source(status);
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_etcd_refuses_is_definite_and_what_it_may_have_done_is_unknown() {
        let cases = [
            (Code::Unauthenticated, "etcdserver: invalid auth token", Fault::LoggedOut),
            (Code::PermissionDenied, "etcdserver: permission denied", Fault::Forbidden),
            (Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password", Fault::Forbidden),
            (Code::NotFound, "etcdserver: requested lease not found", Fault::LeaseGone),
            (Code::Unavailable, "etcdserver: no leader", Fault::Refused),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", Fault::Full),
            (Code::ResourceExhausted, "etcdserver: too many requests", Fault::Full),
            (Code::InvalidArgument, "etcdserver: duplicate key given in txn request", Fault::Rejected),
            (Code::Unavailable, "etcdserver: request timed out", Fault::Unknown),
            (Code::Unavailable, "etcdserver: leader changed", Fault::Unknown),
            (Code::Unavailable, "etcdserver: server stopped", Fault::Unknown),
            (Code::ResourceExhausted, "grpc: received message larger than max", Fault::Unknown),
            (Code::OutOfRange, "decoded message length too large", Fault::Unknown),
            (Code::Unknown, "h2 protocol error: error reading a body from connection", Fault::Unknown),
            (Code::DeadlineExceeded, "context deadline exceeded", Fault::Unknown),
            (Code::Internal, "stream terminated", Fault::Unknown),
        ];
        for (code, message, fault) in cases {
            let failure = Failure::from(Status::new(code, message));
            assert_eq!(failure.fault, fault, "{code:?} {message}");
            assert_eq!(Error::from(failure).may_be_applied(), fault == Fault::Unknown, "{message}");
        }
    }

    #[test]
    fn without_a_connection_nothing_was_sent() {
        let error = Box::<dyn StdError + Send + Sync>::from(ConnectError("refused".into()));
        let failure = Failure::from(Status::from_error(error));
        assert_eq!(failure.fault, Fault::Unreachable);
        let error = Error::from(failure);
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Unavailable, true));
    }
}
