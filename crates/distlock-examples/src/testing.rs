//! Requests to a router without a network, for the tests.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use serde_json::Value;
use tower::ServiceExt;

/// Longer than any step of a test takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Sends `POST path` and returns the status and the body: JSON, or text.
pub(crate) async fn post(router: &Router, path: &str) -> (StatusCode, Value) {
    let request = Request::post(path).body(Body::empty()).expect("a request");
    let response = tokio::time::timeout(LIMIT, router.clone().oneshot(request)).await.expect("a response in time");
    let response = response.expect("a router does not fail");
    let (status, body) = (response.status(), to_bytes(response.into_body(), 1 << 20).await.expect("a body"));
    let text = String::from_utf8(body.to_vec()).expect("text");
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}
