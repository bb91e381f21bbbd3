//! The error response: `{"error":{"kind","message","help"}}`.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use distlock::{Error, ErrorKind};
use serde::Serialize;
use serde_json::json;

/// An error as it is returned to the client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Failure {
    #[serde(skip)]
    status: StatusCode,
    kind: &'static str,
    message: String,
    help: &'static str,
}

impl Failure {
    pub(crate) fn new(status: StatusCode, kind: &'static str, message: impl Into<String>, help: &'static str) -> Self {
        Failure { status, kind, message: message.into(), help }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Failure {
        Failure::new(StatusCode::BAD_REQUEST, "invalid_input", message, "see /api/v1/openapi.json")
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, Json(json!({"error": self}))).into_response()
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Failure {
        let (status, kind, help) = match error.kind() {
            ErrorKind::NotHeld => (409, "not_held", "another holder has it by now, or it is free; look again"),
            ErrorKind::Foreign => (409, "foreign", "nothing was changed: distlock breaks only its own locks"),
            ErrorKind::InvalidInput => (400, "invalid_input", "nothing was changed"),
            ErrorKind::Unsupported => (501, "unsupported", "end the process that holds it instead"),
            ErrorKind::Unknown => (504, "unknown", "it may or may not have been done; look again"),
            ErrorKind::Timeout | ErrorKind::Unavailable => (503, "unavailable", "the console retries by itself"),
            ErrorKind::Auth => (502, "auth", "the engine refuses the credentials the console was started with"),
            ErrorKind::Config => (502, "config", "the console was started with a configuration that cannot be used"),
            ErrorKind::Closed => (503, "closed", "the console is being stopped"),
            _ => (502, "backend", "the engine's own log may say more"),
        };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
        Failure::new(status, kind, error.to_string(), help)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_outcome_is_not_reported_as_a_bad_request() {
        let failure = Failure::from(&Error::unknown("no reply"));
        assert_eq!((failure.status.as_u16(), failure.kind), (504, "unknown"));
        assert!(failure.message.contains("no reply"));
        let failure = Failure::from(&Error::new(ErrorKind::NotHeld, "gone"));
        assert_eq!(failure.status, StatusCode::CONFLICT);
    }
}
