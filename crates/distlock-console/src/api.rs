//! The handlers of `/api/v1`, `/metrics` and `/healthz`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use distlock::{ErrorKind, FencingToken, Key, Locker};
use distlock_http::{Gate, Peer};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::audit::{Audit, AuditEvent, Row};
use crate::failure::Failure;
use crate::metrics as numbers;
use crate::watcher::Watcher;

pub(crate) const OPENAPI: &str = include_str!("page/openapi.json");

/// The largest request body, which holds a name, a token and a reason; below, how long it may take to arrive.
const LARGEST_BODY: usize = 16 * 1024;
const BODY: Duration = Duration::from_secs(5);

/// The state shared by all handlers.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) gate: Arc<Gate>,
    pub(crate) watcher: Arc<Watcher>,
    pub(crate) audit: Arc<Audit>,
    pub(crate) locker: Arc<Locker>,
    /// The engine's name, without secrets.
    pub(crate) engine: Arc<str>,
    pub(crate) read_only: bool,
}

impl App {
    fn about(&self) -> Value {
        let can = self.locker.capabilities();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "engine": &*self.engine,
            "leases": can.leases,
            "fair": can.fair,
            "breaks": can.breaks,
            "history": can.history,
            "read_only": self.read_only,
        })
    }
}

pub(crate) async fn session(State(app): State<App>) -> Json<Value> {
    Json(app.about())
}

#[derive(Deserialize)]
pub(crate) struct Filter {
    #[serde(default)]
    prefix: String,
}

pub(crate) async fn locks(
    State(app): State<App>,
    filter: Result<Query<Filter>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(filter) = filter.map_err(|problem| Failure::bad_request(problem.to_string()))?;
    app.watcher.list(&filter.prefix).await.map(as_json)
}

#[derive(Deserialize)]
pub(crate) struct Named {
    name: String,
}

/// Returns one lock of any name.
pub(crate) async fn lock(
    State(app): State<App>,
    named: Result<Query<Named>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(Named { name }) = named.map_err(|problem| Failure::bad_request(problem.to_string()))?;
    detail(&app, &name).await
}

/// Returns one lock by its path. Clients remove `.` and `..` from a path before they send it, also as `%2E`.
pub(crate) async fn lock_at_path(
    State(app): State<App>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Failure> {
    let Path(name) = name.map_err(|problem| Failure::bad_request(problem.to_string()))?;
    detail(&app, &name).await
}

async fn detail(app: &App, name: &str) -> Result<Response, Failure> {
    let key = Key::new(name).map_err(|error| Failure::from(&error))?;
    app.watcher.detail(&key).await.map(as_json)
}

pub(crate) async fn waits(State(app): State<App>) -> Result<Response, Failure> {
    app.watcher.waits().await.map(as_json)
}

pub(crate) async fn losses(State(app): State<App>) -> Result<Response, Failure> {
    app.watcher.lost().await.map(as_json)
}

fn as_json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

pub(crate) async fn events(State(app): State<App>) -> Result<Response, Failure> {
    let Some(frames) = app.watcher.join().await else {
        let help = "close a browser, or use /api/v1/locks instead";
        return Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "busy", "too many browsers are connected", help));
    };
    Ok(([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(frames)).into_response())
}

pub(crate) async fn audit(State(app): State<App>) -> Json<Value> {
    Json(json!({"rows": app.audit.rows()}))
}

pub(crate) async fn openapi() -> Response {
    as_json(OPENAPI.to_owned())
}

pub(crate) async fn metrics(State(app): State<App>) -> Response {
    let text = numbers::text(app.watcher.totals().await, &app.watcher, &app.audit);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// Reports that the console runs, and nothing about the engine: it needs no token.
pub(crate) async fn healthz() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BreakRequest {
    name: String,
    token: String,
    reason: String,
}

pub(crate) async fn break_lock(
    State(app): State<App>,
    Extension(peer): Extension<Peer>,
    body: Body,
) -> Result<Json<Value>, Failure> {
    if app.read_only {
        let help = "start it without --read-only, or use `distlock break`";
        return Err(Failure::new(StatusCode::FORBIDDEN, "read_only", "this console is read-only", help));
    }
    let body = read(body).await?;
    let request: BreakRequest =
        serde_json::from_slice(&body).map_err(|problem| Failure::bad_request(problem.to_string()))?;
    let key = Key::new(&request.name).map_err(|error| Failure::from(&error))?;
    let token = request.token.parse().map_err(|_| Failure::bad_request("token: write the number as text"))?;
    let reason = request.reason.trim().to_owned();
    if reason.is_empty() {
        return Err(Failure::bad_request("reason: say why"));
    }
    let request = (key, FencingToken::new(token), reason);
    // In a task of its own: a browser that disconnects must not leave a break without its audit row.
    let done = tokio::spawn(break_and_audit(app, request, peer)).await;
    done.unwrap_or_else(|problem| Err(internal(&format!("the break did not end: {problem}")))).map(Json)
}

/// Reads the request body, within the size and time limits.
async fn read(body: Body) -> Result<Bytes, Failure> {
    let Ok(read) = timeout(BODY, to_bytes(body, LARGEST_BODY)).await else {
        let help = "send the whole body at once";
        return Err(Failure::new(
            StatusCode::REQUEST_TIMEOUT,
            "timeout",
            "the request body did not arrive in time",
            help,
        ));
    };
    read.map_err(|problem| {
        let help = "a name, a token and a reason are enough";
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", problem.to_string(), help)
    })
}

async fn break_and_audit(
    app: App,
    (key, token, reason): (Key, FencingToken, String),
    peer: Peer,
) -> Result<Value, Failure> {
    let inspect = app.locker.inspect();
    // Only for the audit row: the break itself needs the token, not the holder.
    let found = inspect.get(&key).await.ok().flatten();
    let holder = found.and_then(|lock| lock.holders.into_iter().find(|holder| holder.token == Some(token)));
    let asked = Row::asked(key.clone(), token, holder, reason.clone(), peer.host());
    write(&app.audit, asked.clone()).await.map_err(|problem| internal(&problem))?;
    let outcome = inspect.force_release(&key, token, &reason).await;
    let row = match &outcome {
        Ok(()) => asked.ended(AuditEvent::Broken, None),
        Err(error) if error.kind() == ErrorKind::Unknown => asked.ended(AuditEvent::Unknown, Some(error.to_string())),
        Err(error) => asked.ended(AuditEvent::Refused, Some(error.to_string())),
    };
    let written = write(&app.audit, row.clone()).await;
    app.watcher.broadcast(&row);
    outcome.map_err(|error| Failure::from(&error))?;
    written.map_err(|problem| internal(&format!("the lock was broken, but {problem}")))?;
    Ok(json!({"row": row}))
}

async fn write(audit: &Arc<Audit>, row: Row) -> Result<(), String> {
    let audit = audit.clone();
    let written = tokio::task::spawn_blocking(move || audit.write(&row)).await;
    let written = written.map_err(|problem| problem.to_string())?;
    written.map_err(|problem| format!("the audit file cannot be written: {problem}"))
}

fn internal(message: &str) -> Failure {
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message, "check the log of the console's machine")
}
