//! Checks every request, and adds the security headers to every response.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{HeaderName, HeaderValue};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use distlock_http::{Authenticated, Gate};

use crate::failure::Failure;

/// The header that every change carries. A page of another origin cannot send it without a CORS preflight, which is
/// never allowed.
pub(crate) const CHANGE_HEADER: &str = "x-distlock-console";

/// Only the console's own files, no inline code, no frames, and no text that becomes markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// The headers of every response.
const HEADERS: [(&str, &str); 8] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
    ("cache-control", "no-store"),
];

/// Checks a request before any handler sees it.
fn check(gate: &Gate, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Failure> {
    let Some(host) = gate.host(headers) else {
        let help = "use its address or localhost, or start it with --host NAME";
        let message = "the console does not accept this host name";
        return Err(Failure::new(StatusCode::MISDIRECTED_REQUEST, "host", message, help));
    };
    if !(path.starts_with("/api/") || path == "/metrics") {
        return Ok(());
    }
    if !gate.is_same_origin(host, headers) {
        let help = "only the console's own page may send it";
        return Err(Failure::new(StatusCode::FORBIDDEN, "origin", "the request comes from another page", help));
    }
    if !gate.has_token(headers) {
        let help = "open the URL that `distlock console` printed, or send `Authorization: Bearer TOKEN`";
        return Err(Failure::new(StatusCode::UNAUTHORIZED, "unauthorized", "the token is missing or wrong", help));
    }
    if method != Method::GET && method != Method::HEAD && !headers.contains_key(CHANGE_HEADER) {
        let help = "send the header `X-Distlock-Console: 1`";
        return Err(Failure::new(StatusCode::FORBIDDEN, "csrf", "the header that marks a change is missing", help));
    }
    Ok(())
}

/// Refuses or forwards the request, and adds the security headers to the response.
pub(crate) async fn filter(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    if let Some(authenticated) =
        request.extensions().get::<Authenticated>().filter(|_| gate.has_token(request.headers()))
    {
        authenticated.set();
    }
    let checked = check(&gate, request.method(), request.uri().path(), request.headers());
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.into_response(),
    };
    let headers = HEADERS.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    response.headers_mut().extend(headers);
    response
}
