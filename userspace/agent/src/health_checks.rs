//! Health-check node ports: one small server for each Service that has one, opened and closed as Services come and go.
//!
//! A task of its own: sockets never keep the writer waiting.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};
use weir_core::health::HealthCheck;
use weir_core::model::ObjectName;
use weir_kube_watch::events::{Events, Regarding};
use weir_telemetry::listeners::Listeners;
use weir_telemetry::server::Probes;
use weir_telemetry::service_health::{LocalEndpoints, service_health_router};

/// When a port that could not be listened on is tried again: whoever has it may have let go.
const RETRY: Duration = Duration::from_secs(5);
/// Reason of the event on a Service, as kube-proxy gives it.
const FAILED: &str = "FailedToStartServiceHealthcheck";

/// What is to be answered, and where.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct HealthChecks {
    /// Addresses to listen on.
    pub(crate) addresses: Vec<IpAddr>,
    /// By Service.
    pub(crate) services: BTreeMap<ObjectName, HealthCheck>,
}

/// See the module's description.
pub(crate) struct HealthCheckServers {
    node: String,
    probes: Arc<dyn Probes>,
    events: Events,
    open: BTreeMap<ObjectName, Open>,
    /// Ports that could not be listened on, and why: told once per cause.
    failed: BTreeMap<ObjectName, String>,
}

/// A server that runs.
struct Open {
    at: Vec<SocketAddr>,
    endpoints: LocalEndpoints,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl HealthCheckServers {
    /// No server yet. `probes` tell whether the proxy is healthy, `events` whom a failure is told.
    pub(crate) fn new(node: &str, probes: Arc<dyn Probes>, events: Events) -> Self {
        Self { node: node.to_owned(), probes, events, open: BTreeMap::new(), failed: BTreeMap::new() }
    }

    /// Follows what is wanted until `stop`, or until nobody tells any more, and closes all ports then.
    pub(crate) async fn run(mut self, mut wanted: watch::Receiver<HealthChecks>, stop: CancellationToken) {
        loop {
            let now = wanted.borrow_and_update().clone();
            self.update(&now).await;
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() { break },
                () = tokio::time::sleep(RETRY), if !self.failed.is_empty() => {}
                () = stop.cancelled() => break,
            }
        }
        self.update(&HealthChecks::default()).await;
    }

    /// Closes first, so that a port that moved to another Service is free for it.
    async fn update(&mut self, wanted: &HealthChecks) {
        let sockets = |port| -> Vec<_> { wanted.addresses.iter().map(|ip| SocketAddr::new(*ip, port)).collect() };
        let still = |name: &ObjectName, open: &Open| {
            wanted.services.get(name).is_some_and(|check| sockets(check.port) == open.at)
        };
        let closing = self.open.extract_if(.., |name, open| !still(name, open)).collect();
        close(closing).await;
        self.failed.retain(|name, _| wanted.services.contains_key(name));
        for (name, check) in &wanted.services {
            match self.open.get(name) {
                Some(open) => open.endpoints.set(check.local_endpoints),
                None => self.open(name, *check, sockets(check.port)),
            }
        }
    }

    fn open(&mut self, name: &ObjectName, check: HealthCheck, at: Vec<SocketAddr>) {
        // The node's addresses are not known yet.
        if at.is_empty() {
            return;
        }
        match Listeners::bind("health checks of a Service", &at) {
            Ok(listeners) => {
                info!(service = %name, port = check.port, "health check opened");
                let ObjectName { namespace, name: service } = name.clone();
                let endpoints = LocalEndpoints::new(namespace, service, check.local_endpoints);
                let stop = CancellationToken::new();
                let router = service_health_router(endpoints.clone(), Arc::clone(&self.probes));
                let task = tokio::spawn(listeners.serve(router, stop.clone()));
                self.open.insert(name.clone(), Open { at, endpoints, stop, task });
                self.failed.remove(name);
            }
            Err(cause) => self.tell(name, check.port, cause.to_string()),
        }
    }

    fn tell(&mut self, name: &ObjectName, port: u16, cause: String) {
        if self.failed.get(name) == Some(&cause) {
            return;
        }
        error!(service = %name, port, cause, "load balancers cannot check the health of a service; trying again");
        let note = format!("node {} failed to start healthcheck \"{name}\" on port {port}: {cause}", self.node);
        self.events.warn(Regarding::service(name.clone()), FAILED, note);
        self.failed.insert(name.clone(), cause);
    }
}

/// Returns when the ports are free. Clients that are being answered delay that by two seconds at most.
async fn close(servers: Vec<(ObjectName, Open)>) {
    servers.iter().for_each(|(_, open)| open.stop.cancel());
    for (name, open) in servers {
        let _ = open.task.await;
        info!(service = %name, "health check closed");
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{Ipv4Addr, TcpListener};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use weir_telemetry::server::{Component, ProxyHealth};

    use super::*;

    const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    struct Healthy;

    impl Probes for Healthy {
        fn components(&self) -> Vec<Component> {
            Vec::new()
        }

        fn proxy_health(&self) -> ProxyHealth {
            ProxyHealth { healthy: true, node_eligible: true, last_updated: None }
        }
    }

    fn servers() -> HealthCheckServers {
        HealthCheckServers::new("edge-1", Arc::new(Healthy), Events::disabled())
    }

    /// Ports of this machine that nobody has right now.
    fn free_ports<const N: usize>() -> [u16; N] {
        let held = [(); N].map(|()| TcpListener::bind((LOCALHOST, 0)).unwrap());
        held.map(|listener| listener.local_addr().unwrap().port())
    }

    fn wanted(services: &[(&str, u16, u32)]) -> HealthChecks {
        let check = |(name, port, local_endpoints): &(&str, u16, u32)| {
            (ObjectName::new("shop", *name), HealthCheck { port: *port, local_endpoints: *local_endpoints })
        };
        HealthChecks { addresses: vec![LOCALHOST], services: services.iter().map(check).collect() }
    }

    /// The first line of an answer and its body, or why there is none.
    async fn ask(port: u16) -> Result<(String, String), ErrorKind> {
        let mut stream = TcpStream::connect((LOCALHOST, port)).await.map_err(|e| e.kind())?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.map_err(|e| e.kind())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.map_err(|e| e.kind())?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        Ok((head.lines().next().unwrap().to_owned(), body.to_owned()))
    }

    async fn assert_answers(port: u16, code: u16, service: &str) {
        let (status, body) = ask(port).await.unwrap();
        assert!(status.starts_with(&format!("HTTP/1.1 {code} ")), "{status}");
        assert!(body.contains(&format!("\"name\": \"{service}\"")), "{body}");
    }

    #[tokio::test]
    async fn ports_open_and_close_as_services_come_and_go() {
        let (mut servers, [a, b]) = (servers(), free_ports());
        servers.update(&wanted(&[("cart", a, 1), ("web", b, 0)])).await;
        assert_answers(a, 200, "cart").await;
        assert_answers(b, 503, "web").await;
        servers.update(&wanted(&[("web", b, 0)])).await;
        assert_eq!(ask(a).await, Err(ErrorKind::ConnectionRefused));
        assert_answers(b, 503, "web").await;
    }

    #[tokio::test]
    async fn the_number_of_endpoints_changes_without_a_new_socket() {
        let (mut servers, [port]) = (servers(), free_ports());
        servers.update(&wanted(&[("cart", port, 0)])).await;
        let mut waiting = TcpStream::connect((LOCALHOST, port)).await.unwrap();
        servers.update(&wanted(&[("cart", port, 2)])).await;
        waiting.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        waiting.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("\"localEndpoints\": 2,"), "{answer}");
    }

    #[tokio::test]
    async fn a_service_can_change_its_port_and_another_one_take_it() {
        let (mut servers, [old, new]) = (servers(), free_ports());
        servers.update(&wanted(&[("web", old, 1)])).await;
        servers.update(&wanted(&[("web", new, 1), ("cart", old, 1)])).await;
        assert_answers(new, 200, "web").await;
        assert_answers(old, 200, "cart").await;
        assert_eq!(servers.failed, BTreeMap::new());
    }

    #[tokio::test]
    async fn a_port_of_somebody_else_fails_its_service_alone_and_is_taken_when_it_is_free() {
        let (mut servers, [free]) = (servers(), free_ports());
        let taken = TcpListener::bind((LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let wanted = wanted(&[("cart", port, 1), ("web", free, 1)]);
        servers.update(&wanted).await;
        assert_answers(free, 200, "web").await;
        let cause = &servers.failed[&ObjectName::new("shop", "cart")];
        assert!(cause.contains(&port.to_string()) && cause.contains("Address already in use"), "{cause}");
        drop(taken);
        servers.update(&wanted).await;
        assert_answers(port, 200, "cart").await;
        assert_eq!(servers.failed, BTreeMap::new());
    }

    #[tokio::test]
    async fn ports_follow_the_addresses_of_the_node() {
        let (mut servers, [port]) = (servers(), free_ports());
        let mut wanted = wanted(&[("cart", port, 1)]);
        servers.update(&wanted).await;
        wanted.addresses = vec![IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2))];
        servers.update(&wanted).await;
        assert_eq!(ask(port).await, Err(ErrorKind::ConnectionRefused));
        assert!(TcpStream::connect((wanted.addresses[0], port)).await.is_ok());
    }

    #[tokio::test]
    async fn the_end_of_the_agent_closes_all_ports() {
        let [port] = free_ports();
        let (sender, receiver) = watch::channel(wanted(&[("cart", port, 1)]));
        let stop = CancellationToken::new();
        let running = tokio::spawn(servers().run(receiver, stop.clone()));
        while ask(port).await == Err(ErrorKind::ConnectionRefused) {
            tokio::task::yield_now().await;
        }
        stop.cancel();
        running.await.unwrap();
        assert_eq!(ask(port).await, Err(ErrorKind::ConnectionRefused));
        drop(sender);
    }
}
