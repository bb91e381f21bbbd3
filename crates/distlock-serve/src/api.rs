//! The handlers of `/v1`, `/metrics` and `/healthz`.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Query;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use distlock::backend::LockInfo;
use distlock::{ErrorKind, Key};
use distlock_http::{Incoming, Peer};
use http_body_util::{BodyExt, Limited};
use hyper::body::Body as _;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::timeout;

use crate::events;
use crate::failure::Failure;
use crate::hold::{Hold, HoldId};
use crate::lock_json::lock_json;
use crate::service::Service;
use crate::wanted::{LockBody, Span, Wanted};

pub(crate) const OPENAPI: &str = include_str!("openapi.json");

/// The largest request body, and how long it may take to arrive.
const LARGEST_BODY: usize = 64 * 1024;
const BODY_LIMIT: Duration = Duration::from_secs(5);
/// The longest `Idempotency-Key`.
const LONGEST_ATTEMPT_KEY: usize = 128;

pub(crate) async fn acquire(
    service: &Arc<Service>,
    peer: Peer,
    name: &str,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Response, Failure> {
    let received = service.clock.now();
    let body: LockBody = read(headers, body).await?;
    let wanted = Wanted::new(name, body)?;
    let hold = match attempt_key(headers)? {
        None => service.acquire(&wanted, peer, None).await?,
        Some(key) => join(service, peer, &wanted, key).await?,
    };
    let view = hold.view(&service.clock, received, service.has_leases);
    // Without an answer its client does not know it.
    let view = view.inspect_err(|_| service.discard(&hold))?;
    Ok(json(StatusCode::CREATED, &view))
}

/// Acquires a lock as the attempt with this key.
async fn join(service: &Arc<Service>, peer: Peer, wanted: &Wanted, key: String) -> Result<Arc<Hold>, Failure> {
    let begin = || {
        let (service, wanted, key) = (service.clone(), wanted.clone(), key.clone());
        async move { service.acquire(&wanted, peer, Some(key)).await }
    };
    let owner = service.clone();
    let discard = move |hold: Arc<Hold>| owner.discard(&hold);
    let hold = service.attempts.join(key.clone(), wanted, begin, discard).await?;
    // Another process may have begun the attempt.
    hold.used_by(&peer);
    Ok(hold)
}

pub(crate) fn hold(service: &Service, peer: Peer, id: &str) -> Result<Response, Failure> {
    let received = service.clock.now();
    let hold = find(service, peer, id)?;
    Ok(json(StatusCode::OK, &hold.view(&service.clock, received, service.has_leases)?))
}

pub(crate) fn alive(service: &Service, peer: Peer, id: &str) -> Result<Response, Failure> {
    let received = service.clock.now();
    let hold = find(service, peer, id)?;
    hold.life().sign(received);
    Ok(json(StatusCode::OK, &hold.view(&service.clock, received, service.has_leases)?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExtendBody {
    ttl: Span,
}

pub(crate) async fn extend(
    service: &Service,
    peer: Peer,
    id: &str,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<Response, Failure> {
    let received = service.clock.now();
    let ExtendBody { ttl: Span(ttl) } = read(headers, body).await?;
    let hold = find(service, peer, id)?;
    hold.life().sign(received);
    hold.extend(ttl).await?;
    Ok(json(StatusCode::OK, &hold.view(&service.clock, received, service.has_leases)?))
}

pub(crate) async fn release(service: &Service, peer: Peer, id: &str) -> Result<Response, Failure> {
    service.release(hold_id(id)?, &peer).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(crate) fn stream(service: &Arc<Service>, peer: Peer, id: &str) -> Result<Response, Failure> {
    let hold = find(service, peer, id)?;
    Ok(([(header::CONTENT_TYPE, "text/event-stream")], events::open(service.clone(), hold)).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Filter {
    #[serde(default)]
    prefix: String,
}

pub(crate) async fn locks(service: &Service, uri: &Uri) -> Result<Response, Failure> {
    let filter = Query::<Filter>::try_from_uri(uri);
    let Query(filter) = filter.map_err(|problem| Failure::invalid(problem.to_string()))?;
    let found = service.locker.inspect().list(&filter.prefix).await.map_err(|error| Failure::from(&error))?;
    Ok(json(StatusCode::OK, &json!({"locks": found.iter().map(lock_json).collect::<Vec<_>>()})))
}

pub(crate) async fn lock(service: &Service, name: &str) -> Result<Response, Failure> {
    let key = Key::new(name).map_err(|error| Failure::from(&error))?;
    let found = service.locker.inspect().get(&key).await.map_err(|error| Failure::from(&error))?;
    Ok(json(StatusCode::OK, &lock_json(&found.unwrap_or_else(|| LockInfo::new(key, None, Vec::new())))))
}

pub(crate) fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

pub(crate) fn metrics(service: &Service) -> Response {
    let text = service.counters.text(service.holds.count(), service.news.count());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// Reports whether the daemon accepts requests, and nothing about the engine: it needs no token.
pub(crate) fn healthz(service: &Service) -> Result<Response, Failure> {
    if service.holds.is_stopping() {
        Err(Failure::stopping())
    } else {
        Ok(json(StatusCode::OK, &json!({"status": "ok"})))
    }
}

/// Returns a response with a value as JSON.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let mut text = Vec::with_capacity(256);
    // Writing to memory does not fail, and the values have no keys other than text.
    serde_json::to_writer(&mut text, value).expect("JSON");
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn find(service: &Service, peer: Peer, id: &str) -> Result<Arc<Hold>, Failure> {
    service.hold(hold_id(id)?, &peer)
}

fn hold_id(id: &str) -> Result<HoldId, Failure> {
    id.parse().map_err(|_| Failure::no_such_hold())
}

fn attempt_key(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else { return Ok(None) };
    let key = value.to_str().ok().filter(|key| (1..=LONGEST_ATTEMPT_KEY).contains(&key.len()));
    match (key, values.next()) {
        (Some(key), None) => Ok(Some(key.to_owned())),
        _ => Err(Failure::invalid(format!("Idempotency-Key: give one, of 1 to {LONGEST_ATTEMPT_KEY} characters"))),
    }
}

/// Reads the request body, within the size and time limits. No body is an empty object.
async fn read<T: DeserializeOwned>(headers: &HeaderMap, body: Incoming) -> Result<T, Failure> {
    let bytes = read_bytes(body).await?;
    if bytes.is_empty() {
        return parse(b"{}");
    }
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        let message = format!("the body is {content_type:?}; send application/json");
        return Err(Failure::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, ErrorKind::InvalidInput.as_str(), message));
    }
    parse(&bytes)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    // serde would also read an array, field by field.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(Failure::invalid("the body is not a JSON object"));
    }
    serde_json::from_slice(bytes).map_err(|problem| Failure::invalid(problem.to_string()))
}

async fn read_bytes(body: Incoming) -> Result<Bytes, Failure> {
    let invalid = ErrorKind::InvalidInput.as_str();
    let Ok(read) = timeout(BODY_LIMIT, collect(Limited::new(body, LARGEST_BODY))).await else {
        let message = format!("the request body did not arrive within {BODY_LIMIT:?}");
        return Err(Failure::new(StatusCode::REQUEST_TIMEOUT, invalid, message));
    };
    read.map_err(|problem| {
        let message = format!("the request body is larger than {LARGEST_BODY} bytes or broken: {problem}");
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, invalid, message)
    })
}

/// Returns all bytes of a body. Most bodies are one piece, which is not copied.
async fn collect(mut body: Limited<Incoming>) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
    let Some(first) = body.frame().await else { return Ok(Bytes::new()) };
    let first = first?.into_data().unwrap_or_default();
    if body.is_end_stream() {
        return Ok(first);
    }
    let rest = body.collect().await?.to_bytes();
    Ok([first, rest].concat().into())
}
