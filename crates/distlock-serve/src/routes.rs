//! All routes. The OpenAPI document lists the same, which a test checks.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::HOST;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use distlock::ErrorKind;
use distlock_http::{Authenticated, Gate, Peer};

use crate::api;
use crate::failure::Failure;
use crate::service::Service;

/// A path with its methods.
type Route = (&'static str, &'static [&'static str], MethodRouter<Arc<Service>>);

fn routes() -> Vec<Route> {
    vec![
        ("/v1/locks", &["get"], get(api::locks)),
        ("/v1/locks/{name}", &["get", "post"], get(api::lock).post(api::acquire)),
        ("/v1/holds/{id}", &["delete", "get"], get(api::hold).delete(api::release)),
        ("/v1/holds/{id}/extend", &["post"], post(api::extend)),
        ("/v1/holds/{id}/alive", &["post"], post(api::alive)),
        ("/v1/holds/{id}/events", &["get"], get(api::stream)),
        ("/v1/openapi.json", &["get"], get(api::openapi)),
        ("/metrics", &["get"], get(api::metrics)),
        ("/healthz", &["get"], get(api::healthz)),
    ]
}

/// Who may come in.
#[derive(Debug)]
pub(crate) enum Access {
    /// Processes of these users, on a unix socket.
    Users(Vec<u32>),
    /// Clients with the token, on TCP.
    Token(Gate),
}

impl Access {
    fn check(&self, request: &Request) -> Result<(), Failure> {
        let refuse = |status, message: &str| Err(Failure::new(status, ErrorKind::Auth.as_str(), message));
        let headers = request.headers();
        match self {
            Access::Users(users) => match request.extensions().get::<Peer>() {
                Some(Peer::Process { uid, .. }) if users.contains(uid) => Ok(()),
                _ => refuse(StatusCode::FORBIDDEN, "this socket is for another user"),
            },
            Access::Token(gate) => {
                let Some(host) = gate.host(headers) else {
                    let given = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
                    let message = format!(
                        "the host name {given:?} is not accepted; use an address or localhost, or start with --host"
                    );
                    return refuse(StatusCode::MISDIRECTED_REQUEST, &message);
                };
                if !gate.is_same_origin(host, headers) {
                    return refuse(StatusCode::FORBIDDEN, "the request comes from a page of another origin");
                }
                if request.uri().path() == "/healthz" || gate.has_token(headers) {
                    return Ok(());
                }
                let message = "the token is missing or wrong; send `Authorization: Bearer TOKEN`";
                refuse(StatusCode::UNAUTHORIZED, message)
            }
        }
    }
}

/// Returns the router of the whole daemon.
pub(crate) fn router(service: Arc<Service>, access: Access) -> Router {
    let router = routes().into_iter().fold(Router::new(), |router, (path, _, methods)| router.route(path, methods));
    let not_found = || Failure::new(StatusCode::NOT_FOUND, "invalid_input", "no such path; see /v1/openapi.json");
    let no_method =
        || Failure::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_input", "no such method; see /v1/openapi.json");
    router
        .fallback(async move || not_found())
        .method_not_allowed_fallback(async move || no_method())
        .layer(from_fn_with_state((service.clone(), Arc::new(access)), filter))
        .with_state(service)
}

async fn filter(
    State((service, access)): State<(Arc<Service>, Arc<Access>)>,
    request: Request,
    next: Next,
) -> Response {
    match access.check(&request) {
        Ok(()) => {
            // A public path does not make a client one that has the token.
            if let Some(authenticated) =
                request.extensions().get::<Authenticated>().filter(|_| request.uri().path() != "/healthz")
            {
                authenticated.set();
            }
            next.run(request).await
        }
        Err(failure) => {
            if let Some(peer) = request.extensions().get::<Peer>() {
                service.log.say(peer, None, format!("refused: {}", failure.message));
            }
            failure.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::wanted::LockBody;

    fn document() -> Value {
        serde_json::from_str(api::OPENAPI).unwrap()
    }

    #[test]
    fn the_document_describes_every_route_and_no_other() {
        let methods = |item: &Value| {
            let mut methods: Vec<_> =
                item.as_object().unwrap().keys().filter(|key| *key != "parameters").cloned().collect();
            methods.sort();
            methods
        };
        let document = document();
        let described: BTreeSet<(String, Vec<String>)> =
            document["paths"].as_object().unwrap().iter().map(|(path, item)| (path.clone(), methods(item))).collect();
        let routed = routes().into_iter().map(|(path, methods, _)| {
            (path.to_owned(), methods.iter().map(|method| (*method).to_owned()).collect::<Vec<_>>())
        });
        assert_eq!(described, routed.collect());
    }

    #[test]
    fn the_document_has_the_fields_that_requests_may_have() {
        let fields_of = |problem: String| -> BTreeSet<String> {
            let expected = problem.split_once("expected ").expect("a list of fields").1;
            expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
        };
        let unknown = r#"{"?": 1}"#;
        let bodies = [
            ("LockRequest", serde_json::from_str::<LockBody>(unknown).unwrap_err().to_string()),
            ("ExtendRequest", serde_json::from_str::<api::ExtendBody>(unknown).err().unwrap().to_string()),
        ];
        for (name, problem) in bodies {
            let document = document();
            let described = document["components"]["schemas"][name]["properties"].as_object().unwrap();
            assert_eq!(fields_of(problem), described.keys().cloned().collect(), "{name}");
        }
    }

    #[test]
    fn what_the_document_refers_to_is_in_it() {
        let document = document();
        let references: BTreeSet<&str> =
            api::OPENAPI.split("\"$ref\": \"#").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(references.len() > 8);
        for reference in references {
            assert!(document.pointer(reference).is_some(), "{reference}");
        }
    }
}
