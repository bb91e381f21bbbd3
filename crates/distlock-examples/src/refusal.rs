//! The response to a request whose lock was not granted, or was lost.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use distlock::{Error, ErrorKind};
use serde_json::json;

/// The response to a request whose lock was not granted, or was lost.
///
/// Its body is JSON with the kind of the error and, if it is known, the holder of the lock. The error itself goes to
/// the log: it may name servers.
#[derive(Debug)]
pub struct Refusal(Error);

impl Refusal {
    /// Returns the status of the response: 423 if another owner holds the lock, 503 if the lock was lost or the engine
    /// cannot be reached, 400 if the request makes an invalid name of a lock, and otherwise 500.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self.0.kind() {
            ErrorKind::Timeout | ErrorKind::AlreadyHeld => StatusCode::LOCKED,
            ErrorKind::Lost | ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::Closed => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            ErrorKind::InvalidInput => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = self.status();
        if status.is_server_error() {
            tracing::warn!(error = %self.0, "request refused");
        }
        let body = json!({ "error": self.0.kind(), "holder": self.0.holder() });
        (status, Json(body)).into_response()
    }
}
