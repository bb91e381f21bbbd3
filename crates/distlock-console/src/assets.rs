//! The page's files, embedded in the program.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};

/// Path, content type and text.
type Asset = (&'static str, &'static str, &'static str);

/// All files of the page.
pub(crate) const ASSETS: [Asset; 11] = [
    ("/", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("/app.js", JAVASCRIPT, include_str!("page/app.js")),
    ("/session.js", JAVASCRIPT, include_str!("page/session.js")),
    ("/stream.js", JAVASCRIPT, include_str!("page/stream.js")),
    ("/table.js", JAVASCRIPT, include_str!("page/table.js")),
    ("/detail.js", JAVASCRIPT, include_str!("page/detail.js")),
    ("/gantt.js", JAVASCRIPT, include_str!("page/gantt.js")),
    ("/waits.js", JAVASCRIPT, include_str!("page/waits.js")),
    ("/words.js", JAVASCRIPT, include_str!("page/words.js")),
];

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// Returns the handler of a file.
pub(crate) fn serve<S: Clone + Send + Sync + 'static>((_, kind, text): Asset) -> MethodRouter<S> {
    get(async move || -> Response { ([(header::CONTENT_TYPE, kind)], text).into_response() })
}
