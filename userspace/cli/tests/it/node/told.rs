//! An agent that only talks: its admin socket, with answers that a test decides on.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use axum::Router;
use axum::routing::get;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use weir_telemetry::admin::AdminSocket;
use weir_telemetry::effective::{self, Configuration};
use weir_telemetry::server::{Component, ProbeCounters, Probes, ProxyHealth, health_router};
use weir_telemetry::weights::{PATH, Weights};

/// All is well.
struct Content;

impl Probes for Content {
    fn components(&self) -> Vec<Component> {
        let part = |name, reason: Option<&str>| Component { name, ready: true, reason: reason.map(str::to_owned) };
        vec![
            part("api-server", None),
            part("maps", None),
            part("interfaces", Some("1 interfaces of the node, 2 of pods")),
        ]
    }

    fn proxy_health(&self) -> ProxyHealth {
        ProxyHealth { healthy: true, node_eligible: true, last_updated: None }
    }
}

/// That of an agent of this version.
fn configuration() -> Configuration {
    let mut configuration: Configuration =
        serde_json::from_str(include_str!("../fixtures/configuration.json")).unwrap();
    env!("CARGO_PKG_VERSION").clone_into(&mut configuration.version);
    configuration
}

/// Talks until it is dropped.
pub(crate) struct Told {
    dir: TempDir,
    stop: CancellationToken,
    server: Option<JoinHandle<()>>,
}

impl Told {
    /// With these weights, and with the configuration of `fixtures/configuration.json`.
    pub(crate) fn start(weights: &Weights) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let socket = {
            let _inside = runtime.enter();
            AdminSocket::bind(&dir.path().join("weir/agent.sock")).unwrap()
        };
        let text = serde_json::to_string(weights).unwrap();
        let configuration = serde_json::to_string(&configuration()).unwrap();
        let told = Router::new()
            .route(PATH, get(move || async move { text }))
            .route(effective::PATH, get(move || async move { configuration }));
        let router = health_router(Arc::new(Content), &ProbeCounters::default()).merge(told);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let server = std::thread::spawn(move || runtime.block_on(socket.serve(router, stopped)));
        Self { dir, stop, server: Some(server) }
    }

    /// The socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("weir/agent.sock")
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.stop.cancel();
        let ended = self.server.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))) || std::thread::panicking());
    }
}
