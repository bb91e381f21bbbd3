//! The error response: `{"error":{"kind","message"}}`, with the kinds and messages of the library.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use distlock::{Error, ErrorKind};
use serde::Serialize;
use serde_json::Value;

use crate::api::json;
use crate::lock_json::holder_json;

/// An error as it is returned to the client.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Failure {
    #[serde(skip)]
    pub(crate) status: StatusCode,
    pub(crate) kind: &'static str,
    pub(crate) message: String,
    /// The holder of a lock that was not acquired.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<Value>,
    /// Why a lock was lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

impl Failure {
    pub(crate) fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Failure {
        Failure { status, kind, message: message.into(), holder: None, reason: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, ErrorKind::InvalidInput.as_str(), message)
    }

    pub(crate) fn no_such_hold() -> Failure {
        let message = "no hold has this id: it was released, or it ended because its client was silent";
        Failure::new(StatusCode::NOT_FOUND, ErrorKind::NotHeld.as_str(), message)
    }

    pub(crate) fn stopping() -> Failure {
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, ErrorKind::Closed.as_str(), "the daemon is stopping")
    }
}

/// The body of the response.
#[derive(Serialize)]
struct Body<'f> {
    error: &'f Failure,
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        json(self.status, &Body { error: &self })
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Failure {
        let status = match error.kind() {
            ErrorKind::Timeout => StatusCode::LOCKED,
            ErrorKind::AlreadyHeld | ErrorKind::Foreign => StatusCode::CONFLICT,
            ErrorKind::NotHeld => StatusCode::NOT_FOUND,
            ErrorKind::Lost => StatusCode::GONE,
            ErrorKind::InvalidInput => StatusCode::BAD_REQUEST,
            ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
            ErrorKind::Unknown => StatusCode::GATEWAY_TIMEOUT,
            ErrorKind::Unavailable | ErrorKind::Closed => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_GATEWAY,
        };
        Failure {
            holder: error.holder().map(holder_json),
            reason: error.loss_reason().map(distlock::LossReason::as_str),
            ..Failure::new(status, error.kind().as_str(), error.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use distlock::Holder;

    use super::*;

    #[test]
    fn a_held_lock_is_423_with_its_holder_and_other_kinds_keep_their_words() {
        let error = Error::new(ErrorKind::Timeout, "another owner has it").with_holder(Some(Holder::new(None, None)));
        let failure = Failure::from(&error);
        assert_eq!((failure.status.as_u16(), failure.kind), (423, "timeout"));
        assert!(failure.holder.is_some() && failure.message == error.to_string());
        let failure = Failure::from(&Error::unknown("no reply"));
        assert_eq!((failure.status.as_u16(), failure.kind), (504, "unknown"));
        assert_eq!(Failure::from(&Error::unavailable("away")).status.as_u16(), 503);
    }
}
