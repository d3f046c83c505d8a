//! The page over HTTP: what is served, to whom, and what is refused.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use weir_page::{Page, Recorder, server};
use weir_telemetry::listeners::{Limits, Listeners, Room};

use crate::world::{Told, sample, service};

/// Far more than anything here takes.
const SOON: Duration = Duration::from_secs(10);

fn page() -> (Recorder, Page) {
    Recorder::new(Told::new(sample(vec![service("shop/web", 3.0)])))
}

fn request(method: Method, target: &str) -> Request<Body> {
    Request::builder().method(method).uri(target).header("host", "127.0.0.1:10298").body(Body::empty()).unwrap()
}

async fn answer(request: Request<Body>) -> Response<Body> {
    server::router(page().1).oneshot(request).await.unwrap()
}

async fn text(response: Response<Body>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().into()).unwrap()
}

#[tokio::test]
async fn all_that_the_page_names_is_served_and_nothing_comes_from_elsewhere() {
    let html = text(answer(request(Method::GET, "/")).await).await;
    let named = |text: &str, before: &str| -> Vec<String> {
        let rest = text.split(before).skip(1).filter_map(|rest| rest.split('"').next());
        rest.map(|name| format!("/{}", name.trim_start_matches("./"))).collect()
    };
    let mut wanted: Vec<_> = named(&html, "href=\"").into_iter().filter(|name| !name.contains('#')).collect();
    wanted.extend(named(&html, "src=\""));
    assert!(wanted.contains(&"/main.js".to_owned()), "{wanted:?}");
    let mut seen = std::collections::BTreeSet::new();
    while let Some(path) = wanted.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let response = answer(request(Method::GET, &path)).await;
        assert_eq!(response.status(), 200, "{path}");
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        let expected = match path.rsplit('.').next() {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            other => panic!("{path} is of no known kind: {other:?}"),
        };
        assert_eq!(kind, expected, "{path}");
        let text = text(response).await;
        assert!(!text.replace("http://www.w3.org/", "").contains("://"), "{path} leads elsewhere");
        wanted.extend(named(&text, "from \"./").into_iter().map(|name| name.replace("//", "/")));
    }
    assert!(seen.len() > 12, "{seen:?}");
}

#[tokio::test]
async fn browsers_may_run_the_pages_own_files_and_nothing_else() {
    for path in ["/", "/main.js", "/events", "/nothing"] {
        let response = answer(request(Method::GET, path)).await;
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        let policy = header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self';") && !policy.contains("unsafe"), "{policy}");
        assert_eq!([header("x-content-type-options"), header("cache-control")], ["nosniff", "no-store"], "{path}");
        assert!(!response.headers().contains_key("access-control-allow-origin"), "{path}");
    }
    let html = text(answer(request(Method::GET, "/")).await).await;
    assert!(!html.contains("style=") && !html.contains("onclick") && !html.contains("<style"), "inline");
}

#[tokio::test]
async fn a_path_is_a_name_and_leads_to_no_file() {
    for path in [
        "/../../etc/passwd",
        "/..%2f..%2fetc/passwd",
        "/%2e%2e/Cargo.toml",
        "//etc/passwd",
        "/main.js/",
        "/main.js%00.html",
        "/assets/main.js",
        "/page.html",
    ] {
        let response = answer(request(Method::GET, path)).await;
        assert_eq!(response.status(), 404, "{path}");
        assert_eq!(text(response).await, "there is no such thing here; the page is at /\n");
    }
}

#[tokio::test]
async fn only_reading_is_possible() {
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH, Method::OPTIONS, Method::TRACE] {
        for path in ["/", "/events"] {
            let response = answer(request(method.clone(), path)).await;
            assert_eq!(response.status(), 405, "{method} {path}");
            assert_eq!(response.headers()["allow"], "GET,HEAD");
        }
    }
    let head = answer(request(Method::HEAD, "/")).await;
    assert_eq!((head.status(), text(head).await), (StatusCode::OK, String::new()));
}

#[tokio::test]
async fn a_name_of_somebody_else_that_leads_here_gets_nothing() {
    let mut rebound = request(Method::GET, "/events");
    rebound.headers_mut().insert("host", "rebind.example:10298".parse().unwrap());
    let response = answer(rebound).await;
    assert_eq!(response.status(), StatusCode::MISDIRECTED_REQUEST);
    assert!(text(response).await.contains("ask for http://127.0.0.1"));
}

#[tokio::test]
async fn another_site_in_the_same_browser_may_not_follow_the_events() {
    for (site, status) in [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)] {
        let mut asked = request(Method::GET, "/events");
        asked.headers_mut().insert("sec-fetch-site", site.parse().unwrap());
        assert_eq!(answer(asked).await.status(), status, "{site}");
    }
}

#[tokio::test]
async fn an_address_that_is_too_long_is_refused() {
    let long = format!("/events?service={}", "x".repeat(2000));
    assert_eq!(answer(request(Method::GET, &long)).await.status(), StatusCode::URI_TOO_LONG);
}

/// A page on a socket, with a room of its own.
async fn ask_socket(limits: Limits, question: &[u8]) -> String {
    let listeners = Listeners::bind("the page", &["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = listeners.addresses()[0];
    let stop = CancellationToken::new();
    let served = listeners.in_room(&Room::new(limits)).serve(server::router(page().1), stop.clone());
    let served = tokio::spawn(served);
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(question).await.unwrap();
    let mut answer = Vec::new();
    // A reset that follows the answer of who did not read everything is an end, too.
    let _ = timeout(SOON, stream.read_to_end(&mut answer)).await.unwrap();
    stop.cancel();
    served.await.unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_request_that_is_too_large_or_too_slow_is_told_so() {
    let header = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    let large = ask_socket(server::LIMITS, header.as_bytes()).await;
    assert!(large.starts_with("HTTP/1.1 431 "), "{large}");
    let brief = Limits { header: Duration::from_millis(50), ..server::LIMITS };
    let slow = ask_socket(brief, b"GET / HTTP/1.1\r\nHost: local").await;
    assert!(slow.starts_with("HTTP/1.1 408 "), "{slow}");
    let body = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n";
    let posted = ask_socket(brief, body).await;
    assert!(posted.starts_with("HTTP/1.1 405 "), "{posted}");
}
