//! Who may ask, and what browsers may do with an answer.
//!
//! The page names nodes, services and addresses. It listens on loopback, but a browser on this machine runs the scripts of
//! the whole world: they must not get at it by a name of theirs that leads here (DNS rebinding), nor take its places.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Bytes of a path with its question: the longest name of a service is not half of it.
const TARGET: usize = 1024;

/// Scripts and styles of its own and nothing else: no inline ones, no frames, no forms, nobody else's.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// On every answer.
const HEADERS: [(HeaderName, HeaderValue); 6] = [
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
];

/// Lets through what is short enough and meant for this machine; every answer gets [`HEADERS`].
pub(crate) async fn guard(request: Request, next: Next) -> Response {
    let mut answer = match refusal(&request) {
        Some((code, text)) => (code, text).into_response(),
        None => next.run(request).await,
    };
    answer.headers_mut().extend(HEADERS);
    answer
}

fn refusal(request: &Request) -> Option<(StatusCode, &'static str)> {
    let target = request.uri().path_and_query().map_or("", |target| target.as_str());
    if target.len() > TARGET {
        return Some((StatusCode::URI_TOO_LONG, "the page has no address as long as that\n"));
    }
    if !host_is_plain(request.headers()) {
        let text = "the page is served under localhost or an IP address alone, so that no name of somebody else's leads \
                    here; ask for http://127.0.0.1 with the page's port\n";
        return Some((StatusCode::MISDIRECTED_REQUEST, text));
    }
    None
}

/// Whether the host that is asked for is an address or `localhost`: no name that somebody could let lead elsewhere. On
/// any port, since `kubectl port-forward` has its own.
fn host_is_plain(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Ok(authority) = Authority::try_from(host.as_bytes()) else { return false };
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || address.parse::<IpAddr>().is_ok()
}

/// Whether a page of somebody else's makes the browser ask (Fetch Metadata Request Headers, W3C).
pub(crate) fn is_foreign(headers: &HeaderMap) -> bool {
    headers.get("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_or_localhost_is_asked_for_on_any_port_and_no_name() {
        let plain =
            |host: &'static str| host_is_plain(&HeaderMap::from_iter([(header::HOST, HeaderValue::from_static(host))]));
        for host in
            ["127.0.0.1:10298", "127.0.0.1", "[::1]:10298", "[::1]", "localhost:8080", "LOCALHOST", "192.0.2.7:80"]
        {
            assert!(plain(host), "{host}");
        }
        for host in ["rebind.example:10298", "localhost.example", "127.0.0.1.example", "127.0.0.1@x.example", "", "a b"]
        {
            assert!(!plain(host), "{host}");
        }
        assert!(!host_is_plain(&HeaderMap::new()));
        let mut headers = HeaderMap::new();
        for host in ["localhost", "rebind.example"] {
            headers.append(header::HOST, HeaderValue::from_static(host));
        }
        assert!(!host_is_plain(&headers));
    }
}
