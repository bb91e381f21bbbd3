//! All routes. The OpenAPI document lists the same, which a test checks.

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, get, post};

use crate::api::{self, App};
use crate::failure::Failure;
use crate::{assets, request_filter};

/// A path with its methods.
type Route = (&'static str, &'static [&'static str], MethodRouter<App>);

/// Returns all routes except the page's files.
fn routes() -> Vec<Route> {
    vec![
        ("/api/v1/session", &["get", "post"], get(api::session).post(api::session)),
        ("/api/v1/locks", &["get"], get(api::locks)),
        ("/api/v1/lock", &["get"], get(api::lock)),
        ("/api/v1/locks/{name}", &["get"], get(api::lock_at_path)),
        ("/api/v1/waits", &["get"], get(api::waits)),
        ("/api/v1/losses", &["get"], get(api::losses)),
        ("/api/v1/break", &["post"], post(api::break_lock)),
        ("/api/v1/events", &["get"], get(api::events)),
        ("/api/v1/audit", &["get"], get(api::audit)),
        ("/api/v1/openapi.json", &["get"], get(api::openapi)),
        ("/metrics", &["get"], get(api::metrics)),
        ("/healthz", &["get"], get(api::healthz)),
    ]
}

/// Returns the router of the whole console.
pub(crate) fn router(app: App) -> Router {
    let gate = app.gate.clone();
    let router = routes().into_iter().fold(Router::new(), |router, (path, _, methods)| router.route(path, methods));
    let router = assets::ASSETS.into_iter().fold(router, |router, asset| router.route(asset.0, assets::serve(asset)));
    router
        .fallback(async || Failure::new(StatusCode::NOT_FOUND, "not_found", "no such path", "see /api/v1/openapi.json"))
        .method_not_allowed_fallback(async || {
            let help = "see /api/v1/openapi.json";
            Failure::new(StatusCode::METHOD_NOT_ALLOWED, "method", "method not allowed", help)
        })
        .layer(from_fn_with_state(gate, request_filter::filter))
        .with_state(app)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn the_document_describes_every_route_and_no_other() {
        let document: Value = serde_json::from_str(api::OPENAPI).unwrap();
        let paths = document["paths"].as_object().unwrap();
        let methods =
            |item: &Value| item.as_object().unwrap().keys().filter(|key| *key != "parameters").cloned().collect();
        let described: BTreeSet<(String, Vec<String>)> =
            paths.iter().map(|(path, item)| (path.clone(), methods(item))).collect();
        let routed = routes()
            .into_iter()
            .map(|(path, methods, _)| (path.to_owned(), methods.iter().map(|method| (*method).to_owned()).collect()));
        assert_eq!(described, routed.collect());
    }

    #[test]
    fn what_the_document_refers_to_is_in_it() {
        let document: Value = serde_json::from_str(api::OPENAPI).unwrap();
        let text = api::OPENAPI;
        let references: BTreeSet<&str> =
            text.split("\"$ref\": \"#").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(references.len() > 3);
        for reference in references {
            assert!(document.pointer(reference).is_some(), "{reference}");
        }
    }
}
