//! The server, asked over real sockets.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use weir_telemetry::metrics::{CONTENT_TYPE, Metrics};
use weir_telemetry::server::{Component, Listeners, ProbeCounters, Probes, ProxyHealth, health_router, metrics_router};

/// Answers that a test can change.
struct Answers(Mutex<(Vec<Component>, ProxyHealth)>);

impl Probes for Answers {
    fn components(&self) -> Vec<Component> {
        self.0.lock().unwrap().0.clone()
    }

    fn proxy_health(&self) -> ProxyHealth {
        self.0.lock().unwrap().1
    }
}

fn answers(components: Vec<Component>, healthy: bool, node_eligible: bool) -> Arc<Answers> {
    let last_updated = "2026-01-02T03:04:05Z".parse().unwrap();
    Arc::new(Answers(Mutex::new((components, ProxyHealth { healthy, node_eligible, last_updated }))))
}

struct Running {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

fn start(router: axum::Router, address: &str) -> Running {
    let listeners = Listeners::bind("tests", &[address.parse().unwrap()]).unwrap();
    let address = listeners.addresses()[0];
    let stop = CancellationToken::new();
    let task = tokio::spawn(listeners.serve(router, stop.clone()));
    Running { address, stop, task }
}

fn start_health(probes: &Arc<Answers>) -> Running {
    let probes: Arc<dyn Probes> = Arc::<Answers>::clone(probes);
    start(health_router(probes, &ProbeCounters::default()), "127.0.0.1:0")
}

async fn get(address: SocketAddr, path: &str) -> (Response<()>, String) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(path).header("host", address.to_string()).body(Empty::<Bytes>::new()).unwrap();
    let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (Response::from_parts(parts, ()), String::from_utf8(bytes.to_vec()).unwrap())
}

async fn get_json(address: SocketAddr, path: &str) -> (u16, serde_json::Value) {
    let (response, body) = get(address, path).await;
    assert_eq!(response.headers()["content-type"], "application/json");
    (response.status().as_u16(), serde_json::from_str(&body).unwrap())
}

#[tokio::test]
async fn healthz_answers_as_kube_proxy_does() {
    let server = start_health(&answers(vec![], true, true));
    let before = Timestamp::now();
    let (code, body) = get_json(server.address, "/healthz").await;
    assert_eq!(code, 200);
    assert_eq!(body["lastUpdated"], "2026-01-02T03:04:05Z");
    assert_eq!(body["nodeEligible"], true);
    let current: Timestamp = body["currentTime"].as_str().unwrap().parse().unwrap();
    assert!(current >= before && current <= Timestamp::now());
    assert_eq!(body.as_object().unwrap().len(), 3);
}

#[tokio::test]
async fn a_node_that_is_going_away_fails_healthz_and_not_livez() {
    let server = start_health(&answers(vec![], true, false));
    let (code, body) = get_json(server.address, "/healthz").await;
    assert_eq!((code, &body["nodeEligible"]), (503, &serde_json::json!(false)));
    let (code, body) = get_json(server.address, "/livez").await;
    assert_eq!((code, body.get("nodeEligible")), (200, None));
}

#[tokio::test]
async fn an_update_that_waits_too_long_fails_healthz_and_livez() {
    let server = start_health(&answers(vec![], false, true));
    assert_eq!(get_json(server.address, "/healthz").await.0, 503);
    assert_eq!(get_json(server.address, "/livez").await.0, 503);
}

#[tokio::test]
async fn readyz_names_every_component_and_the_reason_of_those_that_are_not_ready() {
    let datapath = Component { name: "datapath", ready: true, reason: None };
    let reason = "API server unreachable: Connection refused (os error 111)";
    let lost = Component { name: "watch", ready: false, reason: Some(reason.to_owned()) };
    let probes = answers(vec![datapath.clone(), lost], true, true);
    let server = start_health(&probes);
    let (code, body) = get_json(server.address, "/readyz").await;
    assert_eq!(code, 503);
    let expected = serde_json::json!({"ready": false, "components": [
        {"name": "datapath", "ready": true},
        {"name": "watch", "ready": false, "reason": reason},
    ]});
    assert_eq!(body, expected);

    probes.0.lock().unwrap().0 = vec![datapath];
    let (code, body) = get_json(server.address, "/readyz").await;
    assert_eq!((code, &body["ready"]), (200, &serde_json::json!(true)));
}

#[tokio::test]
async fn metrics_are_served_as_openmetrics_and_count_health_checks() {
    let mut metrics = Metrics::new();
    let counters = ProbeCounters::register(metrics.root());
    let probes: Arc<dyn Probes> = answers(vec![], true, true);
    let router = health_router(probes, &counters).merge(metrics_router(Arc::new(metrics), "weir"));
    let server = start(router, "127.0.0.1:0");
    for _ in 0..2 {
        get(server.address, "/healthz").await;
    }
    let (response, body) = get(server.address, "/metrics").await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], CONTENT_TYPE);
    assert!(body.contains("kubeproxy_proxy_healthz_total{code=\"200\"} 2\n"), "{body}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    assert_eq!(get(server.address, "/proxyMode").await.1, "weir");
    assert_eq!(get(server.address, "/nothing").await.0.status(), 404);
}

#[tokio::test]
async fn the_server_listens_on_ipv6_beside_ipv4_on_one_port() {
    let v4 = Listeners::bind("tests", &["0.0.0.0:0".parse().unwrap()]).unwrap();
    let port = v4.addresses()[0].port();
    let v6 = match Listeners::bind("tests", &[SocketAddr::new("::".parse().unwrap(), port)]) {
        Ok(v6) => v6,
        Err(error) if error.cause.raw_os_error() == Some(97) => {
            eprintln!("SKIPPED: this kernel has no IPv6");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let probes: Arc<dyn Probes> = answers(vec![], true, true);
    let stop = CancellationToken::new();
    tokio::spawn(v6.serve(health_router(probes, &ProbeCounters::default()), stop.clone()));
    let address = SocketAddr::new("::1".parse().unwrap(), port);
    assert_eq!(get(address, "/livez").await.0.status(), 200);
    stop.cancel();
}

#[tokio::test]
async fn an_address_in_use_is_an_error_that_names_it_and_its_purpose() {
    let first = Listeners::bind("tests", &["127.0.0.1:0".parse().unwrap()]).unwrap();
    let address = first.addresses()[0];
    let error = Listeners::bind("health checks", &[address]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("cannot listen on {address} for health checks: Address already in use (os error 98)")
    );
}

#[tokio::test]
async fn a_stop_closes_the_port_and_ends_the_server() {
    let server = start_health(&answers(vec![], true, true));
    assert_eq!(get(server.address, "/livez").await.0.status(), 200);
    server.stop.cancel();
    server.task.await.unwrap();
    let error = TcpStream::connect(server.address).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}
