//! What health checks and scrapers are told.

use std::net::SocketAddr;
use std::sync::Arc;

use jiff::Timestamp;
use weir_telemetry::metrics::{CONTENT_TYPE, Metrics};
use weir_telemetry::server::{Component, ProbeCounters, Probes, health_router, metrics_router};

use crate::shared::{Answers, Running, answers, get, start};

fn start_health(probes: &Arc<Answers>) -> Running {
    let probes: Arc<dyn Probes> = Arc::<Answers>::clone(probes);
    start(health_router(probes, &ProbeCounters::default()), "127.0.0.1:0")
}

async fn get_json(address: SocketAddr, path: &str) -> (u16, serde_json::Value) {
    let (response, body) = get(address, path).await;
    assert_eq!(response.headers()["content-type"], "application/json");
    (response.status().as_u16(), serde_json::from_str(&body).unwrap())
}

fn time(body: &str, field: &str) -> Timestamp {
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    body[field].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn healthz_answers_as_kube_proxy_does() {
    let server = start_health(&answers(vec![], true, true));
    let before = Timestamp::now();
    let (response, body) = get(server.address, "/healthz").await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    let current = time(&body, "currentTime");
    assert!(current >= before && current <= Timestamp::now());
    let expected = format!(
        "{{\"lastUpdated\":\"{current}\",\"currentTime\":\"{current}\",\"nodeEligible\":true,\"healthy\":true,\
         \"status\":{{\"IPv4\":{{\"lastUpdated\":\"2026-01-02T03:04:05Z\",\"healthy\":true}},\
         \"IPv6\":{{\"lastUpdated\":\"2026-01-02T03:04:05Z\",\"healthy\":true}}}}}}"
    );
    assert_eq!(body, expected);
}

#[tokio::test]
async fn livez_says_the_same_but_for_the_node() {
    let server = start_health(&answers(vec![], true, true));
    let (healthz, mut body) = get_json(server.address, "/healthz").await;
    let (livez, mut other) = get_json(server.address, "/livez").await;
    assert_eq!((healthz, livez), (200, 200));
    for field in ["lastUpdated", "currentTime"] {
        assert!(body.as_object_mut().unwrap().remove(field).is_some());
        assert!(other.as_object_mut().unwrap().remove(field).is_some());
    }
    assert_eq!(body.as_object_mut().unwrap().remove("nodeEligible"), Some(serde_json::json!(true)));
    assert_eq!(body, other);
}

#[tokio::test]
async fn a_node_that_is_going_away_fails_healthz_and_not_livez() {
    let server = start_health(&answers(vec![], true, false));
    let (code, body) = get_json(server.address, "/healthz").await;
    assert_eq!((code, &body["nodeEligible"]), (503, &serde_json::json!(false)));
    assert_eq!((&body["healthy"], &body["lastUpdated"]), (&true.into(), &"2026-01-02T03:04:05Z".into()));
    let (code, body) = get_json(server.address, "/livez").await;
    assert_eq!((code, body.get("nodeEligible")), (200, None));
}

#[tokio::test]
async fn an_update_that_waits_too_long_fails_healthz_and_livez_and_tells_when_the_last_one_was_done() {
    let server = start_health(&answers(vec![], false, true));
    for path in ["/healthz", "/livez"] {
        let (code, body) = get_json(server.address, path).await;
        assert_eq!((code, &body["healthy"]), (503, &false.into()));
        assert_eq!(body["lastUpdated"], "2026-01-02T03:04:05Z");
        assert_eq!(body["status"]["IPv6"]["healthy"], false);
    }
}

#[tokio::test]
async fn before_the_first_update_kube_proxy_has_no_status_and_a_time_that_never_was() {
    let probes = answers(vec![], true, false);
    probes.0.lock().unwrap().1.last_updated = None;
    let server = start_health(&probes);
    let (code, body) = get_json(server.address, "/healthz").await;
    assert_eq!((code, &body["lastUpdated"], body.get("status")), (503, &"0001-01-01T00:00:00Z".into(), None));
    assert_eq!(get_json(server.address, "/livez").await.0, 200);
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
    let counters = ProbeCounters::register(&mut metrics);
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
