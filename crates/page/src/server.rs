//! The page over HTTP: its files, and `/events`. Everything is read-only: GET and HEAD are all there is.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router, middleware};
use serde::Deserialize;
use weir_telemetry::listeners::{HangUp, Limits};

use crate::recorder::Page;
use crate::stream::{LIFE, STREAMS, Viewer};
use crate::{assets, guard};

/// Port that the page is served at unless it is told otherwise: beside the mesh's.
const PORT: u16 = 10298;
/// Where the page is served unless it is told otherwise: for this machine alone.
pub const ADDRESSES: [SocketAddr; 2] = [
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), PORT),
    SocketAddr::new(std::net::IpAddr::V6(Ipv6Addr::LOCALHOST), PORT),
];

/// For a few people with a few windows each. A stream holds its connection; as many more load the page.
pub const LIMITS: Limits = Limits {
    connections: 2 * STREAMS,
    keep_alive: true,
    header: Duration::from_secs(5),
    connection: LIFE.saturating_add(Duration::from_secs(60)),
    header_bytes: 8192,
};

/// What is asked of a stream.
#[derive(Debug, Deserialize)]
struct Question {
    /// Everything about this service, too: `namespace/name`.
    service: Option<String>,
}

/// Everything that the page is. Serve it in a room with [`LIMITS`].
pub fn router(page: Page) -> Router {
    let events = Router::new().route("/events", get(events)).with_state(page);
    assets::router()
        .merge(events)
        .fallback(|| async { (StatusCode::NOT_FOUND, "there is no such thing here; the page is at /\n") })
        .method_not_allowed_fallback(|| async {
            (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET,HEAD")], "the page is for reading: GET or HEAD\n")
        })
        .layer(middleware::from_fn(guard::guard))
}

async fn events(
    State(page): State<Page>,
    Query(Question { service }): Query<Question>,
    hang_up: Option<Extension<HangUp>>,
    headers: HeaderMap,
) -> Response {
    if guard::is_foreign(&headers) {
        return (StatusCode::FORBIDDEN, "only the page itself may follow its events\n").into_response();
    }
    let Ok(place) = Arc::clone(&page.places).try_acquire_owned() else {
        let text = format!("{STREAMS} windows look at this page already; close one\n");
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "10")], text).into_response();
    };
    let hang_up = hang_up.map(|Extension(hang_up)| hang_up);
    let body = Viewer { page, service, hang_up, place }.start();
    ([(header::CONTENT_TYPE, "text/event-stream")], body).into_response()
}
