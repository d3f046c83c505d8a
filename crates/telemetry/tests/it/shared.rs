//! Servers with answers that a test decides on, and a client.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use weir_telemetry::listeners::{Limits, Listeners, Room};
use weir_telemetry::server::{Component, Probes, ProxyHealth};

/// Answers that a test can change.
pub(crate) struct Answers(pub(crate) Mutex<(Vec<Component>, ProxyHealth)>);

impl Probes for Answers {
    fn components(&self) -> Vec<Component> {
        self.0.lock().unwrap().0.clone()
    }

    fn proxy_health(&self) -> ProxyHealth {
        self.0.lock().unwrap().1
    }
}

pub(crate) fn answers(components: Vec<Component>, healthy: bool, node_eligible: bool) -> Arc<Answers> {
    let last_updated = Some("2026-01-02T03:04:05Z".parse().unwrap());
    Arc::new(Answers(Mutex::new((components, ProxyHealth { healthy, node_eligible, last_updated }))))
}

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<()>,
}

pub(crate) fn start(router: axum::Router, address: &str) -> Running {
    start_with(router, address, Limits::DEFAULT)
}

pub(crate) fn start_with(router: axum::Router, address: &str, limits: Limits) -> Running {
    start_in(router, address, &Room::new(limits))
}

pub(crate) fn start_in(router: axum::Router, address: &str, room: &Room) -> Running {
    let listeners = Listeners::bind("tests", &[address.parse().unwrap()]).unwrap().in_room(room);
    let address = listeners.addresses()[0];
    let stop = CancellationToken::new();
    let task = tokio::spawn(listeners.serve(router, stop.clone()));
    Running { address, stop, task }
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> (Response<()>, String) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get(path).header("host", address.to_string()).body(Empty::<Bytes>::new()).unwrap();
    let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (Response::from_parts(parts, ()), String::from_utf8(bytes.to_vec()).unwrap())
}
