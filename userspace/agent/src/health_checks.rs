//! Health-check node ports: one small server for each address of each Service that has one, opened and closed as
//! Services come and go. All share one room for connections: how many servers there are is the cluster's choice, how
//! many files may be open is ours.
//!
//! A task of its own: sockets never keep the writer waiting.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info};
use weir_core::health::HealthCheck;
use weir_core::model::{Family, ObjectName};
use weir_kube_watch::events::{Events, Regarding};
use weir_telemetry::listeners::{Limits, Listeners, Room};
use weir_telemetry::server::Probes;
use weir_telemetry::service_health::{LocalEndpoints, service_health_router};

/// When an address that could not be listened on is tried again: whoever has it may have let go.
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

impl HealthChecks {
    /// Keeps load balancers away from a service that the datapath does not serve: no endpoint here can be reached.
    pub(crate) fn withhold(&mut self, unserved: &ObjectName) {
        if let Some(check) = self.services.get_mut(unserved) {
            check.local_endpoints = check.local_endpoints.map(|here| here.map(|_| 0));
        }
    }
}

/// See the module's description.
pub(crate) struct HealthCheckServers {
    node: String,
    probes: Arc<dyn Probes>,
    events: Events,
    room: Room,
    open: BTreeMap<Place, Open>,
    /// Addresses that could not be listened on, and why: told once per cause.
    failed: BTreeMap<Place, String>,
}

/// Where a Service's health is told.
type Place = (ObjectName, SocketAddr);

/// A server that runs.
struct Open {
    endpoints: LocalEndpoints,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl HealthCheckServers {
    /// No server yet. `probes` tell whether the proxy is healthy, `events` whom a failure is told.
    pub(crate) fn new(node: &str, probes: Arc<dyn Probes>, events: Events) -> Self {
        let (open, failed) = (BTreeMap::new(), BTreeMap::new());
        Self { node: node.to_owned(), probes, events, room: Room::new(Limits::PROBES), open, failed }
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

    /// Closes first, so that a port that moved to another Service is free for it. Every address stands by itself: one
    /// that the node lacks, such as `::1` without IPv6, must not keep the others closed.
    async fn update(&mut self, wanted: &HealthChecks) {
        let places_of = |(name, check): (&ObjectName, &HealthCheck)| {
            let (name, check) = (name.clone(), *check);
            wanted.addresses.iter().filter_map(move |ip| {
                Some(((name.clone(), SocketAddr::new(*ip, check.port)), check.at(Family::of(*ip))?))
            })
        };
        let places: BTreeMap<Place, u32> = wanted.services.iter().flat_map(places_of).collect();
        let closing = self.open.extract_if(.., |place, _| !places.contains_key(place)).collect();
        close(closing).await;
        self.failed.retain(|place, _| places.contains_key(place));
        for (place, here) in places {
            match self.open.get(&place) {
                Some(open) => open.endpoints.set(here),
                None => self.open(place, here),
            }
        }
    }

    /// here: endpoints of this node that are ready.
    fn open(&mut self, place: Place, here: u32) {
        let (name, address) = &place;
        match Listeners::bind("health checks of a Service", &[*address]) {
            Ok(listeners) => {
                info!(service = %name, %address, "health check opened");
                let ObjectName { namespace, name: service } = name.clone();
                let endpoints = LocalEndpoints::new(namespace, service, here);
                let stop = CancellationToken::new();
                let router = service_health_router(endpoints.clone(), Arc::clone(&self.probes));
                let task = tokio::spawn(listeners.in_room(&self.room).serve(router, stop.clone()));
                self.failed.remove(&place);
                self.open.insert(place, Open { endpoints, stop, task });
            }
            // Nobody outside asks there.
            Err(error) if error.is_loopback_without_ipv6() => debug!("{error}: IPv6 is off"),
            Err(error) => self.tell(place, error.to_string()),
        }
    }

    /// `cause` names the address.
    fn tell(&mut self, place: Place, cause: String) {
        if self.failed.get(&place) == Some(&cause) {
            return;
        }
        let (name, port) = (&place.0, place.1.port());
        error!(service = %name, port, cause, "load balancers cannot check the health of a service; trying again");
        let note = format!("node {} failed to start healthcheck \"{name}\" on port {port}: {cause}", self.node);
        self.events.warn(Regarding::service(name.clone()), FAILED, note);
        self.failed.insert(place, cause);
    }
}

/// Returns when the ports are free. Clients that are being answered delay that by two seconds at most.
async fn close(servers: Vec<(Place, Open)>) {
    servers.iter().for_each(|(_, open)| open.stop.cancel());
    for ((name, address), open) in servers {
        let _ = open.task.await;
        info!(service = %name, %address, "health check closed");
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use weir_telemetry::server::{Component, ProxyHealth};
    use weir_testbed::loopback;

    use super::*;

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

    fn wanted(services: &[(&str, u16, u32)]) -> HealthChecks {
        let check = |(name, port, local_endpoints): &(&str, u16, u32)| {
            let local_endpoints = [Some(*local_endpoints), None];
            (ObjectName::new("shop", *name), HealthCheck { port: *port, local_endpoints })
        };
        HealthChecks { addresses: vec![loopback::address().into()], services: services.iter().map(check).collect() }
    }

    /// The first line of an answer and its body, or why there is none.
    async fn ask(port: u16) -> Result<(String, String), ErrorKind> {
        ask_at(SocketAddr::from((loopback::address(), port))).await
    }

    async fn ask_at(address: SocketAddr) -> Result<(String, String), ErrorKind> {
        let mut stream = TcpStream::connect(address).await.map_err(|e| e.kind())?;
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
        let (mut servers, [a, b]) = (servers(), loopback::ports().unwrap());
        servers.update(&wanted(&[("cart", a, 1), ("web", b, 0)])).await;
        assert_answers(a, 200, "cart").await;
        assert_answers(b, 503, "web").await;
        servers.update(&wanted(&[("web", b, 0)])).await;
        assert_eq!(ask(a).await, Err(ErrorKind::ConnectionRefused));
        assert_answers(b, 503, "web").await;
    }

    #[tokio::test]
    async fn the_number_of_endpoints_changes_without_a_new_socket() {
        let (mut servers, [port]) = (servers(), loopback::ports().unwrap());
        servers.update(&wanted(&[("cart", port, 0)])).await;
        let mut waiting = TcpStream::connect((loopback::address(), port)).await.unwrap();
        servers.update(&wanted(&[("cart", port, 2)])).await;
        waiting.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        waiting.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("\"localEndpoints\": 2,"), "{answer}");
    }

    #[tokio::test]
    async fn a_service_can_change_its_port_and_another_one_take_it() {
        let (mut servers, [old, new]) = (servers(), loopback::ports().unwrap());
        servers.update(&wanted(&[("web", old, 1)])).await;
        servers.update(&wanted(&[("web", new, 1), ("cart", old, 1)])).await;
        assert_answers(new, 200, "web").await;
        assert_answers(old, 200, "cart").await;
        assert_eq!(servers.failed, BTreeMap::new());
    }

    #[tokio::test]
    async fn a_port_of_somebody_else_fails_its_service_alone_and_is_taken_when_it_is_free() {
        let (mut servers, [free]) = (servers(), loopback::ports().unwrap());
        let taken = TcpListener::bind((loopback::address(), 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let wanted = wanted(&[("cart", port, 1), ("web", free, 1)]);
        servers.update(&wanted).await;
        assert_answers(free, 200, "web").await;
        let address = SocketAddr::from((loopback::address(), port));
        let cause = &servers.failed[&(ObjectName::new("shop", "cart"), address)];
        assert!(cause.contains(&address.to_string()) && cause.contains("Address already in use"), "{cause}");
        drop(taken);
        servers.update(&wanted).await;
        assert_answers(port, 200, "cart").await;
        assert_eq!(servers.failed, BTreeMap::new());
    }

    #[tokio::test]
    async fn an_address_that_the_node_lacks_is_named_and_does_not_keep_the_others_closed() {
        let (mut servers, [port]) = (servers(), loopback::ports().unwrap());
        let mut wanted = wanted(&[("cart", port, 1)]);
        let lacking = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
        wanted.addresses.insert(0, lacking);
        servers.update(&wanted).await;
        assert_answers(port, 200, "cart").await;
        let told: Vec<_> = servers.failed.iter().map(|((_, address), cause)| (address.ip(), cause.as_str())).collect();
        assert!(matches!(told[..], [(ip, cause)] if ip == lacking && cause.contains("192.0.2.1")), "{told:?}");
    }

    /// As a family whose endpoints are all on other nodes, or which a service does not have.
    #[tokio::test]
    async fn each_family_tells_of_its_own_endpoints() {
        let (mut servers, [both, one]) = (servers(), loopback::ports().unwrap());
        let (v4, v6) = (IpAddr::from(loopback::address()), IpAddr::from(Ipv6Addr::LOCALHOST));
        let mut wanted = wanted(&[("cart", both, 1), ("web", one, 1)]);
        wanted.addresses.push(v6);
        wanted.services.get_mut(&ObjectName::new("shop", "cart")).unwrap().local_endpoints[1] = Some(0);
        servers.update(&wanted).await;
        let code = |answer: Result<(String, String), ErrorKind>| answer.map(|(status, _)| status[9..12].to_owned());
        assert_eq!(code(ask_at(SocketAddr::new(v4, both)).await), Ok("200".into()));
        assert_eq!(code(ask_at(SocketAddr::new(v6, both)).await), Ok("503".into()));
        assert_eq!(code(ask_at(SocketAddr::new(v4, one)).await), Ok("200".into()));
        assert_eq!(code(ask_at(SocketAddr::new(v6, one)).await), Err(ErrorKind::ConnectionRefused));
        assert_eq!(servers.failed, BTreeMap::new());
    }

    #[tokio::test]
    async fn all_services_share_one_room_for_connections() {
        let (mut servers, [cart, web]) = (servers(), loopback::ports().unwrap());
        servers.room = Room::new(Limits { connections: 1, keep_alive: true, ..Limits::PROBES });
        servers.update(&wanted(&[("cart", cart, 1), ("web", web, 1)])).await;
        let mut held = TcpStream::connect((loopback::address(), cart)).await.unwrap();
        held.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        // An answer proves that it has the only place.
        assert!(held.read(&mut [0; 512]).await.unwrap() > 0);
        let mut other = Box::pin(ask(web));
        assert!(tokio::time::timeout(Duration::from_millis(100), &mut other).await.is_err(), "beyond the limit");
        drop(held);
        assert!(other.await.unwrap().0.starts_with("HTTP/1.1 200 "));
    }

    #[test]
    fn a_service_that_is_not_served_has_no_endpoints_here() {
        let mut checks = wanted(&[("cart", 30_001, 2), ("web", 30_002, 1)]);
        checks.withhold(&ObjectName::new("shop", "cart"));
        checks.withhold(&ObjectName::new("shop", "unknown"));
        assert_eq!(checks, wanted(&[("cart", 30_001, 0), ("web", 30_002, 1)]));
    }

    #[tokio::test]
    async fn ports_follow_the_addresses_of_the_node() {
        let (mut servers, [port]) = (servers(), loopback::ports().unwrap());
        let mut wanted = wanted(&[("cart", port, 1)]);
        servers.update(&wanted).await;
        wanted.addresses = vec![IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2))];
        servers.update(&wanted).await;
        assert_eq!(ask(port).await, Err(ErrorKind::ConnectionRefused));
        assert!(TcpStream::connect((wanted.addresses[0], port)).await.is_ok());
    }

    #[tokio::test]
    async fn the_end_of_the_agent_closes_all_ports() {
        let [port] = loopback::ports().unwrap();
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
