//! metrics.k8s.io over HTTP, with and without a metrics-server behind it.

use std::convert::Infallible;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use kube::{Client, Config};
use tokio::net::{TcpListener, TcpSocket};
use weir_signals::metrics_api::MetricsApi;
use weir_signals::{Failure, FailureKind};

use crate::build::near;

const NODES: &str = r#"{"kind":"NodeMetricsList","apiVersion":"metrics.k8s.io/v1beta1","metadata":{},"items":[
 {"metadata":{"name":"worker1","creationTimestamp":"2026-01-02T03:04:20Z","labels":{"a":"b"}},
  "timestamp":"2026-01-02T03:04:05Z","window":"20.044s","usage":{"cpu":"137402904n","memory":"1024Ki"}},
 {"metadata":{"name":"worker2"},"timestamp":"2026-01-02T03:04:06Z","window":"20s","usage":{"cpu":"-1","memory":"1Gi"}},
 {"metadata":{"name":"worker3"},"timestamp":"2026-01-02T03:04:06Z","window":"20s",
  "usage":{"cpu":"NaN","memory":"1Gi"}}]}"#;

const PODS: &str = r#"{"items":[
 {"metadata":{"name":"web-0","namespace":"shop"},"timestamp":"2026-01-02T03:04:05Z","window":"20s",
  "containers":[{"name":"web","usage":{"cpu":"250m","memory":"64Mi"}},
   {"name":"proxy","usage":{"cpu":"50m","memory":"16Mi"}}]},
 {"metadata":{"name":"web-1","namespace":"shop"},"timestamp":"2026-01-02T03:04:05Z","window":"20s","containers":[]}]}"#;

/// An API server that answers every request like this, with `{path}` replaced by what was asked. Ends with the runtime.
async fn api(status: StatusCode, body: &'static str) -> MetricsApi {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let answer = service_fn(move |request: Request<_>| {
                let body = body.replace("{path}", &request.uri().to_string());
                let response = Response::builder().status(status).header("content-type", "application/json");
                std::future::ready(Ok::<_, Infallible>(response.body(Full::new(Bytes::from(body))).unwrap()))
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
        }
    });
    client(&url)
}

fn client(url: &str) -> MetricsApi {
    let mut config = Config::new(url.parse().unwrap());
    config.default_retry = false;
    MetricsApi::new(Client::try_from(config).unwrap())
}

#[tokio::test]
async fn nodes_are_read_each_with_its_usage_or_what_is_wrong_with_it() {
    let nodes = api(StatusCode::OK, NODES).await.nodes().await.unwrap();
    let names: Vec<_> = nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["worker1", "worker2", "worker3"]);
    let usage = nodes[0].usage.as_ref().unwrap();
    assert!(near(usage.cores, 0.137_402_904) && near(usage.bytes, 1_048_576.0));
    assert_eq!(usage.at, "2026-01-02T03:04:05Z".parse().unwrap());
    let failure = nodes[1].usage.as_ref().unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Lie);
    assert!(failure.to_string().starts_with("metrics of node worker2 lies: cores in use of -1"), "{failure}");
    assert_eq!(nodes[2].usage.as_ref().unwrap_err().kind(), FailureKind::Malformed);
}

#[tokio::test]
async fn a_pod_is_the_sum_of_its_containers_and_without_any_it_is_not_idle() {
    let pods = api(StatusCode::OK, PODS).await.pods("shop", "app=web").await.unwrap();
    assert_eq!((pods[0].namespace.as_str(), pods[0].name.as_str()), ("shop", "web-0"));
    let usage = pods[0].usage.as_ref().unwrap();
    assert!(near(usage.cores, 0.3) && near(usage.bytes, 80.0 * 1024.0 * 1024.0));
    let failure = pods[1].usage.as_ref().unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Malformed);
}

#[tokio::test]
async fn what_is_asked_for_is_encoded() {
    let body = r#"{"items":[{"metadata":{"name":"{path}"},"timestamp":"2026-01-02T03:04:05Z","containers":[]}]}"#;
    let pods = api(StatusCode::OK, body).await.pods("shop", "app in (a, b)").await.unwrap();
    let expected = "/apis/metrics.k8s.io/v1beta1/namespaces/shop/pods?labelSelector=app%20in%20%28a%2C%20b%29";
    assert_eq!(pods[0].name, expected);
}

#[tokio::test]
async fn without_a_metrics_server_the_signal_is_missing_with_or_without_a_status_as_body() {
    let not_found = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}"#;
    for (status, body) in [
        (StatusCode::NOT_FOUND, not_found),
        (StatusCode::NOT_FOUND, "404 page not found\n"),
        (StatusCode::SERVICE_UNAVAILABLE, "service unavailable\n"),
    ] {
        let failure = api(status, body).await.nodes().await.unwrap_err();
        let expected = "cannot read /apis/metrics.k8s.io/v1beta1/nodes: the cluster has no metrics-server, or it is \
                        not ready; what it would tell is unknown until it can be read";
        assert_eq!(failure.to_string(), expected, "{body}");
        assert_eq!(failure.kind(), FailureKind::Missing);
    }
}

#[tokio::test]
async fn what_may_not_be_asked_is_missing_with_the_servers_words() {
    let forbidden = r#"{"kind":"Status","apiVersion":"v1","status":"Failure",
                        "message":"nodes.metrics.k8s.io is forbidden","reason":"Forbidden","code":403}"#;
    let failure = api(StatusCode::FORBIDDEN, forbidden).await.nodes().await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Missing);
    assert!(failure.to_string().contains("nodes.metrics.k8s.io is forbidden"), "{failure}");
}

#[tokio::test]
async fn an_answer_that_is_no_list_or_was_cut_is_malformed() {
    for body in
        ["", "{}", "[]", r#"{"items":7}"#, &NODES[..NODES.len() / 2], r#"{"items":[{"metadata":{"name":"a"}}]}"#]
    {
        let failure = api(StatusCode::OK, body).await.nodes().await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::Malformed, "{body}: {failure}");
    }
}

#[tokio::test]
async fn a_server_that_is_down_is_missing() {
    // A port that is held and not listened at refuses, and is no other test's meanwhile.
    let held = TcpSocket::new_v4().unwrap();
    held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let failure = client(&format!("http://{}", held.local_addr().unwrap())).nodes().await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Missing);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_takes_the_request_and_never_answers_has_stalled() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = client(&format!("http://{}", listener.local_addr().unwrap()));
    // Accepts and holds the connection until the end of the test.
    let silent = tokio::spawn(async move { listener.accept().await });
    let failure = api.nodes().await.unwrap_err();
    assert!(matches!(failure, Failure::Stalled { silence, .. } if silence.as_secs() == 10), "{failure}");
    drop(silent);
}
