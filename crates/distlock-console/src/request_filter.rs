//! Checks every request, and adds the security headers to every response.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::access::AccessToken;
use crate::failure::Failure;
use crate::host::{self, HostName};
use crate::server::Authenticated;

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

/// The rules for requests.
#[derive(Debug)]
pub(crate) struct RequestFilter {
    token: AccessToken,
    hosts: Vec<HostName>,
}

impl RequestFilter {
    pub(crate) fn new(token: AccessToken, hosts: Vec<HostName>) -> RequestFilter {
        RequestFilter { token, hosts }
    }

    fn check(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Failure> {
        let host =
            single_value(headers, header::HOST).filter(|host| host::is_ours(host, &self.hosts)).ok_or_else(|| {
                let help = "use its address or localhost, or start it with --host NAME";
                Failure::new(
                    StatusCode::MISDIRECTED_REQUEST,
                    "host",
                    "the console does not accept this host name",
                    help,
                )
            })?;
        if !(path.starts_with("/api/") || path == "/metrics") {
            return Ok(());
        }
        self.check_origin(host, headers)?;
        if !self.has_token(headers) {
            let help = "open the URL that `distlock console` printed, or send `Authorization: Bearer TOKEN`";
            return Err(Failure::new(StatusCode::UNAUTHORIZED, "unauthorized", "the token is missing or wrong", help));
        }
        if method != Method::GET && method != Method::HEAD && !headers.contains_key(CHANGE_HEADER) {
            let help = "send the header `X-Distlock-Console: 1`";
            return Err(Failure::new(StatusCode::FORBIDDEN, "csrf", "the header that marks a change is missing", help));
        }
        Ok(())
    }

    /// Checks the page that sent the request, which the browser names. Another port of this machine is another origin.
    fn check_origin(&self, host: &str, headers: &HeaderMap) -> Result<(), Failure> {
        if !headers.contains_key(header::ORIGIN) {
            return Ok(());
        }
        // A proxy may terminate TLS, so the scheme is not compared.
        let asking = single_value(headers, header::ORIGIN).and_then(|origin| origin.split_once("://"));
        if asking.is_some_and(|(scheme, asking)| ["http", "https"].contains(&scheme) && asking == host) {
            return Ok(());
        }
        let help = "only the console's own page may send it";
        Err(Failure::new(StatusCode::FORBIDDEN, "origin", "the request comes from another page", help))
    }

    /// Whether the request has the token. Cookies do not count: browsers send them to every port of the host, and so
    /// to other programs that listen there.
    fn has_token(&self, headers: &HeaderMap) -> bool {
        let word = single_value(headers, header::AUTHORIZATION).and_then(|word| word.strip_prefix("Bearer "));
        word.is_some_and(|word| self.token.is(word))
    }
}

/// Returns the header's value, if the header occurs exactly once.
fn single_value(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Refuses or forwards the request, and adds the security headers to the response.
pub(crate) async fn filter(State(request_filter): State<Arc<RequestFilter>>, request: Request, next: Next) -> Response {
    if let Some(authenticated) =
        request.extensions().get::<Authenticated>().filter(|_| request_filter.has_token(request.headers()))
    {
        authenticated.set();
    }
    let checked = request_filter.check(request.method(), request.uri().path(), request.headers());
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.into_response(),
    };
    let headers = HEADERS.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    response.headers_mut().extend(headers);
    response
}
