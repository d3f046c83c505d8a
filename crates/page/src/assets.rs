//! The page itself: no build step, nothing from elsewhere.

use axum::Router;
use axum::http::header;
use axum::routing::get;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// A file below `assets/` with its path and type.
macro_rules! asset {
    ($path:literal, $file:literal, $kind:expr) => {
        ($path, $kind, include_str!(concat!("../assets/", $file)))
    };
}

/// Path, type and text of each file.
pub(crate) const FILES: &[(&str, &str, &str)] = &[
    asset!("/", "page.html", HTML),
    asset!("/icon.svg", "icon.svg", SVG),
    asset!("/page.css", "page.css", CSS),
    asset!("/picture.css", "picture.css", CSS),
    asset!("/main.js", "main.js", SCRIPT),
    asset!("/stream.js", "stream.js", SCRIPT),
    asset!("/past.js", "past.js", SCRIPT),
    asset!("/picture.js", "picture.js", SCRIPT),
    asset!("/layout.js", "layout.js", SCRIPT),
    asset!("/basin.js", "basin.js", SCRIPT),
    asset!("/services.js", "services.js", SCRIPT),
    asset!("/detail.js", "detail.js", SCRIPT),
    asset!("/charts.js", "charts.js", SCRIPT),
    asset!("/dom.js", "dom.js", SCRIPT),
    asset!("/words.js", "words.js", SCRIPT),
    asset!("/theme.js", "theme.js", SCRIPT),
];

/// Serves them.
pub(crate) fn router() -> Router {
    FILES.iter().fold(Router::new(), |router, (path, kind, text)| {
        router.route(path, get(move || async move { ([(header::CONTENT_TYPE, *kind)], *text) }))
    })
}
