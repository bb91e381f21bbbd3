//! Why a request failed, and its response.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use distlock_examples::Refusal;
use serde_json::json;

#[derive(Debug)]
pub(crate) enum Failure {
    /// The lock was not granted, or was lost.
    Lock(distlock::Error),
    /// The fence refused the write: a later holder has written. To the client it is a lost lock.
    Stale,
    Database(rusqlite::Error),
}

impl From<distlock::Error> for Failure {
    fn from(error: distlock::Error) -> Self {
        Failure::Lock(error)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Failure::Database(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Failure::Lock(error) => Refusal::from(error).into_response(),
            Failure::Stale => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "error": "stale" }))).into_response(),
            Failure::Database(error) => {
                tracing::error!(%error, "database");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}
