//! What load balancers are told at a Service's health-check node port.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use weir_telemetry::service_health::{LocalEndpoints, service_health_router};

use crate::shared::{Answers, Running, answers, get, start};

fn start_service(endpoints: &LocalEndpoints, probes: &Arc<Answers>) -> Running {
    start(service_health_router(endpoints.clone(), Arc::<Answers>::clone(probes)), "127.0.0.1:0")
}

#[tokio::test]
async fn a_node_with_ready_endpoints_answers_200_with_the_text_of_kube_proxy() {
    let endpoints = LocalEndpoints::new("shop", "cart", 2);
    let server = start_service(&endpoints, &answers(vec![], true, true));
    let (response, body) = get(server.address, "/").await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(response.headers()["x-content-type-options"], "nosniff");
    assert_eq!(response.headers()["x-load-balancing-endpoint-weight"], "2");
    // What Go's dedent makes of the template in pkg/proxy/healthcheck/service_health.go.
    let expected = "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"cart\"\n\t},\n\
                    \t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}";
    assert_eq!(body, expected);
}

#[tokio::test]
async fn a_node_without_ready_endpoints_answers_503_until_it_has_some() {
    let endpoints = LocalEndpoints::new("shop", "cart", 0);
    let server = start_service(&endpoints, &answers(vec![], true, true));
    let (response, body) = get(server.address, "/").await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["x-load-balancing-endpoint-weight"]),
        (503, &"0".parse().unwrap())
    );
    assert!(body.contains("\"localEndpoints\": 0,"), "{body}");
    endpoints.set(1);
    assert_eq!(get(server.address, "/").await.0.status(), 200);
}

#[tokio::test]
async fn an_unhealthy_proxy_fails_every_service_and_says_so() {
    let server = start_service(&LocalEndpoints::new("shop", "cart", 3), &answers(vec![], false, true));
    let (response, body) = get(server.address, "/").await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["x-load-balancing-endpoint-weight"]),
        (503, &"3".parse().unwrap())
    );
    assert!(body.contains("\"serviceProxyHealthy\": false"), "{body}");
}

#[tokio::test]
async fn a_node_that_is_going_away_still_answers_for_its_services() {
    let server = start_service(&LocalEndpoints::new("shop", "cart", 1), &answers(vec![], true, false));
    assert_eq!(get(server.address, "/").await.0.status(), 200);
}

#[tokio::test]
async fn every_path_and_method_gets_the_answer() {
    let server = start_service(&LocalEndpoints::new("shop", "cart", 1), &answers(vec![], true, true));
    for path in ["/", "/healthz", "/a/b?c=d"] {
        assert_eq!(get(server.address, path).await.0.status(), 200, "{path}");
    }
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("\r\nX-Load-Balancing-Endpoint-Weight: 1\r\n"), "as Go writes it: {answer}");
}
