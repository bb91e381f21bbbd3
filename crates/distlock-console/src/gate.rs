//! Who may come in, and what every answer says to the browser.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::access::AccessToken;
use crate::door::Known;
use crate::failure::Failure;
use crate::host::{self, HostName};

/// The header that every change carries. A page of another origin cannot send it without asking us first, and we never
/// say yes.
pub(crate) const CHANGE_HEADER: &str = "x-distlock-console";

/// Nothing but our own files, nothing inline, no frames, and no text that becomes markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// What every answer says.
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

/// What the door keeper knows.
#[derive(Debug)]
pub(crate) struct Gate {
    token: AccessToken,
    hosts: Vec<HostName>,
}

impl Gate {
    pub(crate) fn new(token: AccessToken, hosts: Vec<HostName>) -> Gate {
        Gate { token, hosts }
    }

    fn check(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Failure> {
        let host = one(headers, header::HOST).filter(|host| host::is_ours(host, &self.hosts)).ok_or_else(|| {
            let help = "call it by its address or as localhost, or start it with --host NAME";
            Failure::new(StatusCode::MISDIRECTED_REQUEST, "host", "the console does not go by that name", help)
        })?;
        if !(path.starts_with("/api/") || path == "/metrics") {
            return Ok(());
        }
        self.check_origin(host, headers)?;
        if !self.knows(headers) {
            let help = "open the URL that `distlock console` printed, or send `Authorization: Bearer TOKEN`";
            return Err(Failure::new(StatusCode::UNAUTHORIZED, "unauthorized", "the token is missing or wrong", help));
        }
        if method != Method::GET && method != Method::HEAD && !headers.contains_key(CHANGE_HEADER) {
            let help = "send the header `X-Distlock-Console: 1`";
            return Err(Failure::new(StatusCode::FORBIDDEN, "csrf", "a change must be meant", help));
        }
        Ok(())
    }

    /// A browser says which page asks. Another port of this machine is another origin.
    fn check_origin(&self, host: &str, headers: &HeaderMap) -> Result<(), Failure> {
        if !headers.contains_key(header::ORIGIN) {
            return Ok(());
        }
        // A proxy may encrypt for us, so the scheme is not compared.
        let asking = one(headers, header::ORIGIN).and_then(|origin| origin.split_once("://"));
        if asking.is_some_and(|(scheme, asking)| ["http", "https"].contains(&scheme) && asking == host) {
            return Ok(());
        }
        let help = "only the console's own page may ask";
        Err(Failure::new(StatusCode::FORBIDDEN, "origin", "the request comes from another page", help))
    }

    /// Whether the request shows the token. No cookie counts: browsers send those to every port of the host, and so to
    /// whatever else listens there.
    fn knows(&self, headers: &HeaderMap) -> bool {
        let word = one(headers, header::AUTHORIZATION).and_then(|word| word.strip_prefix("Bearer "));
        word.is_some_and(|word| self.token.is(word))
    }
}

/// The header's value, if it is there once.
fn one(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Lets in who may, and adds to every answer what browsers must know.
pub(crate) async fn keep(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    if let Some(known) = request.extensions().get::<Known>().filter(|_| gate.knows(request.headers())) {
        known.set();
    }
    let checked = gate.check(request.method(), request.uri().path(), request.headers());
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.into_response(),
    };
    let headers = HEADERS.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    response.headers_mut().extend(headers);
    response
}
