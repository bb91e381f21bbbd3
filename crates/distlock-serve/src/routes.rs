//! Who comes in, and which handler a request goes to. The OpenAPI document lists the same paths, which a test checks.

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::header::{ALLOW, HOST};
use axum::http::{HeaderValue, Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use distlock::ErrorKind;
use distlock_http::{Answer, Answers, Client, Gate, Incoming, Peer};
use percent_encoding::percent_decode_str;

use crate::api;
use crate::failure::Failure;
use crate::service::Service;

/// Who may come in.
#[derive(Debug)]
pub(crate) enum Access {
    /// Processes of these users, on a unix socket.
    Users(Vec<u32>),
    /// Clients with the token, on TCP.
    Token(Gate),
}

impl Access {
    fn check(&self, request: &Request<Incoming>, client: &Client) -> Result<(), Failure> {
        let refuse = |status, message: &str| Err(Failure::new(status, ErrorKind::Auth.as_str(), message));
        let headers = request.headers();
        match self {
            Access::Users(users) => match client.peer {
                Peer::Process { uid, .. } if users.contains(&uid) => Ok(()),
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
                if request.uri().path() == HEALTH || gate.has_token(headers) {
                    return Ok(());
                }
                let message = "the token is missing or wrong; send `Authorization: Bearer TOKEN`";
                refuse(StatusCode::UNAUTHORIZED, message)
            }
        }
    }
}

/// The one path that needs no token.
const HEALTH: &str = "/healthz";

/// What a path is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Locks,
    Lock,
    Hold,
    Extend,
    Alive,
    Events,
    OpenApi,
    Metrics,
    Health,
}

/// A path of the API: what stands before and after the name or id in it, the methods, and the action.
struct Route(&'static str, Option<&'static str>, &'static str, Action);

const ROUTES: [Route; 9] = [
    Route("/v1/locks/", Some(""), "GET,HEAD,POST", Action::Lock),
    Route("/v1/holds/", Some(""), "DELETE,GET,HEAD", Action::Hold),
    Route("/v1/holds/", Some("/alive"), "POST", Action::Alive),
    Route("/v1/holds/", Some("/extend"), "POST", Action::Extend),
    Route("/v1/holds/", Some("/events"), "GET,HEAD", Action::Events),
    Route("/v1/locks", None, "GET,HEAD", Action::Locks),
    Route("/v1/openapi.json", None, "GET,HEAD", Action::OpenApi),
    Route("/metrics", None, "GET,HEAD", Action::Metrics),
    Route(HEALTH, None, "GET,HEAD", Action::Health),
];

impl Route {
    /// Returns the route of a path, and the name or id in it.
    fn of(path: &str) -> Option<(&'static Route, &str)> {
        ROUTES.iter().find_map(|route| Some((route, route.parameter(path)?)))
    }

    /// Returns the name or id in `path`, empty if this route has none; `None` if the path is not this route's.
    fn parameter<'p>(&self, path: &'p str) -> Option<&'p str> {
        let Some(after) = self.1 else { return (path == self.0).then_some("") };
        let parameter = path.strip_prefix(self.0)?.strip_suffix(after)?;
        (!parameter.is_empty() && !parameter.contains('/')).then_some(parameter)
    }

    fn allows(&self, method: &Method) -> bool {
        self.2.split(',').any(|allowed| allowed == method.as_str())
    }
}

/// The daemon as the HTTP server sees it.
#[derive(Debug, Clone)]
pub(crate) struct Routes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    service: Arc<Service>,
    access: Access,
}

impl Routes {
    pub(crate) fn new(service: Arc<Service>, access: Access) -> Routes {
        Routes(Arc::new(Inner { service, access }))
    }
}

impl Answers for Routes {
    async fn answer(self, request: Request<Incoming>, client: Client) -> Answer {
        let Inner { service, access } = &*self.0;
        if let Err(failure) = access.check(&request, &client) {
            service.log.say(&client.peer, None, format!("refused: {}", failure.message));
            return Ok(failure.into_response());
        }
        // A public path does not make a client one that has the token.
        if request.uri().path() != HEALTH {
            client.authenticated.set();
        }
        Ok(handle(service, client.peer, request).await.unwrap_or_else(Failure::into_response))
    }
}

async fn handle(service: &Arc<Service>, peer: Peer, request: Request<Incoming>) -> Result<Response, Failure> {
    let (head, body) = request.into_parts();
    let Some((route, word)) = Route::of(head.uri.path()) else {
        return Err(Failure::new(StatusCode::NOT_FOUND, "invalid_input", "no such path; see /v1/openapi.json"));
    };
    if !route.allows(&head.method) {
        let message = "no such method; see /v1/openapi.json";
        let mut response = Failure::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_input", message).into_response();
        response.headers_mut().insert(ALLOW, HeaderValue::from_static(route.2));
        return Ok(response);
    }
    match route.3 {
        // Boxed: what waits for the engine is large, and a connection has room for its largest request, also while it streams.
        Action::Lock if head.method == Method::POST => {
            Box::pin(api::acquire(service, peer, &decoded(word)?, &head.headers, body)).await
        }
        Action::Lock => Box::pin(api::lock(service, &decoded(word)?)).await,
        Action::Locks => Box::pin(api::locks(service, &head.uri)).await,
        Action::Hold if head.method == Method::DELETE => Box::pin(api::release(service, peer, word)).await,
        Action::Hold => api::hold(service, peer, word),
        Action::Alive => api::alive(service, peer, word),
        Action::Extend => Box::pin(api::extend(service, peer, word, &head.headers, body)).await,
        Action::Events => api::stream(service, peer, word),
        Action::OpenApi => Ok(api::openapi()),
        Action::Metrics => Ok(api::metrics(service)),
        Action::Health => api::healthz(service),
    }
}

/// Returns the name of a lock as it was before it became part of a path.
fn decoded(name: &str) -> Result<Cow<'_, str>, Failure> {
    percent_decode_str(name).decode_utf8().map_err(|_| Failure::invalid("the name of the lock is not UTF-8"))
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

    /// Returns the path as the document writes it.
    fn pattern(route: &Route) -> String {
        let word = if route.0 == "/v1/locks/" { "{name}" } else { "{id}" };
        route.1.map_or(route.0.to_owned(), |after| format!("{}{word}{after}", route.0))
    }

    #[test]
    fn the_document_describes_every_route_and_no_other() {
        let methods = |item: &Value| {
            let named = item.as_object().unwrap().keys().filter(|key| *key != "parameters");
            let mut methods: Vec<String> = named.map(|key| key.to_uppercase()).collect();
            if methods.iter().any(|method| method == "GET") {
                methods.push("HEAD".into());
            }
            methods.sort();
            methods.join(",")
        };
        let document = document();
        let described: BTreeSet<(String, String)> =
            document["paths"].as_object().unwrap().iter().map(|(path, item)| (path.clone(), methods(item))).collect();
        let routed = ROUTES.iter().map(|route| (pattern(route), route.2.to_owned()));
        assert_eq!(described, routed.collect());
    }

    #[test]
    fn paths_find_their_routes_and_what_is_in_them() {
        let found = |path| Route::of(path).map(|(route, word)| (route.3, word));
        for route in &ROUTES {
            assert_eq!(Route::of(&pattern(route)).map(|(found, _)| found.3), Some(route.3));
        }
        assert_eq!(found("/v1/locks/a%2Fb"), Some((Action::Lock, "a%2Fb")));
        assert_eq!(found("/v1/holds/7f/events"), Some((Action::Events, "7f")));
        assert_eq!(found("/v1/locks/alive"), Some((Action::Lock, "alive")));
        for none in [
            "",
            "/",
            "/v1",
            "/v1/locks/",
            "/v1/locks/a/b",
            "/v1/holds",
            "/v1/holds/",
            "/v1/holds//alive",
            "/v1/holds/alive/",
            "/v1/holds/7f/alive/x",
            "/v1/holds/7f/",
            "/metrics/",
            "//metrics",
        ] {
            assert_eq!(found(none), None, "{none}");
        }
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
