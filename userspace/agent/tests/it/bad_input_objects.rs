//! Objects that the API server accepts although they are wrong, or large beyond reason: what can be served is, the rest
//! is told on the object and in the log, and no other Service notices.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::ServicePort;
use k8s_openapi::api::discovery::v1::EndpointPort;
use weir_abi as abi;
use weir_testbed::address;
use weir_testbed::ask::{self, PATIENCE};
use weir_testbed::load::Load;
use weir_testbed::objects::{self, Endpoint};

use crate::harness::echo::{Talk, echo, ready, slice, spec};
use crate::harness::matrix::{Kind, external};
use crate::harness::shared::Shared;
use crate::harness::traffic::{Client, Traffic};
use crate::harness::{self, Cluster, HTTP, text};

static CLUSTER: Shared = Shared::new(&[]);

/// Does something while others ask another Service, whose every request must be answered.
fn undisturbed<T>(cluster: &Cluster, what: &str, act: impl FnOnce() -> T) -> T {
    let steady = cluster.serve_echo(&echo("steady", "NodePort"), &ready(&cluster.world.node(2).pods()));
    let mut traffic = Traffic::default();
    let (client, pod) = (cluster.world.client(), cluster.world.node(1).pod(1));
    for target in steady.node_ports(cluster.world.node(1), Talk::Http) {
        traffic.stream("outside", Client::Netns(client), target);
    }
    for target in steady.cluster_ips(Talk::Tcp) {
        traffic.connection("pod", Client::Netns(pod.netns()), target);
    }
    let done = act();
    traffic.goes_on();
    traffic.unharmed_by(what);
    done
}

/// Asks from outside over HTTP, and returns who answers.
fn ask(cluster: &Cluster, target: SocketAddr) -> String {
    let answer = cluster.world.client().enter(|| ask::http_ask(target));
    let logs = || cluster.agents.iter().map(harness::Agent::log).collect::<String>();
    answer.unwrap_or_else(|e| panic!("{target}: {e}\n{}", logs())).name
}

/// Waits until every agent's log has a line with all of these words.
fn await_line(cluster: &Cluster, words: &[&str]) {
    for agent in &cluster.agents {
        agent.await_log(words[0]);
        let log = agent.log();
        let found = log.lines().any(|line| words.iter().all(|word| line.contains(word)));
        assert!(found, "no line has {words:?}:\n{log}");
    }
}

#[test]
fn a_slice_of_names_is_told_on_the_slice_and_the_other_slices_are_served() {
    let Some(cluster) = CLUSTER.join("a slice of names") else { return };
    undisturbed(&cluster, "a slice of names", || {
        let served = cluster.serve_echo(&echo("names", "ClusterIP"), &ready(&cluster.world.node(2).pods()));
        let mut names = slice("names", "fqdn", false, &ready(&[cluster.world.node(1).pod(1)]));
        names.address_type = "FQDN".into();
        names.endpoints[0].addresses = vec!["pod1.example.com".into()];
        cluster.objects.apply(&names).unwrap();
        let event = cluster.await_event_about("EndpointSlice", "names-fqdn", "InvalidEndpointSlice");
        assert!(event.note.as_deref().unwrap().contains("addressType \"FQDN\""), "{:?}", event.note);
        await_line(&cluster, &["default/names-fqdn", "FQDN"]);
        let events = cluster.events_about("EndpointSlice", "names-fqdn");
        assert!(events.len() <= cluster.agents.len(), "told more than once by a node: {events:?}");
        for target in served.cluster_ips(Talk::Http) {
            assert!(ask(&cluster, target).starts_with("node2-"), "{target}");
        }
    });
}

#[test]
fn a_port_that_no_packet_can_carry_is_told_on_the_slice_and_the_other_ports_are_served() {
    let Some(cluster) = CLUSTER.join("port 70000") else { return };
    undisturbed(&cluster, "port 70000", || {
        let pods = cluster.world.node(2).pods();
        let service = cluster.objects.apply(&echo("far-out", "ClusterIP")).unwrap();
        for (suffix, v6) in [("v4", false), ("v6", true)] {
            let mut slice = slice("far-out", suffix, v6, &ready(&pods));
            slice.ports.as_mut().unwrap()[1].port = Some(70_000);
            cluster.objects.apply(&slice).unwrap();
        }
        for suffix in ["v4", "v6"] {
            let name = format!("far-out-{suffix}");
            let event = cluster.await_event_about("EndpointSlice", &name, "InvalidEndpointSlice");
            let note = event.note.unwrap();
            assert!(note.contains("70000") && note.contains("\"tcp\""), "{note}");
            await_line(&cluster, &[&format!("default/{name}"), "70000"]);
        }
        let served = harness::echo::Echo { service };
        // Each is told of when it is read; what it says is written a moment later, at the two ports that are left.
        let backends: Vec<IpAddr> = pods.iter().flat_map(|pod| pod.address().both()).flat_map(|ip| [ip; 2]).collect();
        for agent in &cluster.agents {
            served.cluster_ips(Talk::Http).iter().for_each(|at| agent.await_frontend(at.ip(), at.port(), true));
            agent.await_backends("far-out", backends.clone());
        }
        for target in served.cluster_ips(Talk::Http) {
            assert!(ask(&cluster, target).starts_with("node2-"), "{target}");
        }
        for target in served.cluster_ips(Talk::Tcp) {
            let answer = cluster.world.client().enter(|| Talk::Tcp.ask(target, PATIENCE)).map_err(|e| e.io_kind());
            assert_eq!(answer, Err(Some(std::io::ErrorKind::ConnectionRefused)), "{target} has no endpoint");
        }
    });
}

#[test]
fn of_two_services_with_one_external_address_the_first_has_it_until_it_goes() {
    let Some(cluster) = CLUSTER.join("an external address of two services") else { return };
    /// Makes the addresses; no other test of this file has external ones.
    const NUMBER: u8 = 77;
    undisturbed(&cluster, "an external address of two services", || {
        let first = ready(&cluster.world.node(1).pods());
        let first = cluster.serve_echo(&Kind::ExternalIp.service("comes-first", NUMBER), &first);
        let second = ready(&cluster.world.node(2).pods());
        let second = cluster.serve_echo(&Kind::ExternalIp.service("comes-second", NUMBER), &second);
        let event = cluster.await_event(&second.service, "AddressTaken");
        let note = event.note.unwrap();
        assert!(note.contains("203.0.113.77") || note.contains("2001:db8:203::77"), "{note}");
        assert!(note.contains("default/comes-first"), "{note}");
        await_line(&cluster, &["default/comes-second", "default/comes-first", "claim one address"]);
        for ip in external(NUMBER) {
            let target = SocketAddr::new(ip, Talk::Http.port());
            assert!(ask(&cluster, target).starts_with("node1-"), "{target} is the first one's");
        }
        for target in second.cluster_ips(Talk::Http) {
            assert!(ask(&cluster, target).starts_with("node2-"), "{target} is nobody else's");
        }
        cluster.objects.delete(&first.service).unwrap();
        for at in first.cluster_ips(Talk::Udp) {
            cluster.agents.iter().for_each(|agent| agent.await_frontend(at.ip(), at.port(), false));
        }
        for ip in external(NUMBER) {
            let target = SocketAddr::new(ip, Talk::Http.port());
            assert!(ask(&cluster, target).starts_with("node2-"), "{target} has passed on");
        }
    });
}

#[test]
fn one_node_port_number_serves_both_protocols_in_both_families() {
    let Some(cluster) = CLUSTER.join("a node port of two protocols") else { return };
    undisturbed(&cluster, "a node port of two protocols", || {
        let members = ready(&[cluster.world.node(1).pod(1)]);
        let mut service = echo("one-number", "NodePort");
        let number = cluster.serve_echo(&service, &members).node_port(Talk::Tcp);
        let udp =
            spec(&mut service).ports.as_mut().unwrap().iter_mut().find(|port| port.name.as_deref() == Some("udp"));
        udp.unwrap().node_port = Some(number.into());
        let served = cluster.serve_echo(&service, &members);
        assert_eq!([Talk::Tcp, Talk::Udp].map(|talk| served.node_port(talk)), [number; 2]);
        for node in cluster.world.nodes() {
            for target in served.node_ports(node, Talk::Tcp) {
                let asked = || [Talk::Tcp, Talk::Udp].map(|talk| talk.ask(target, PATIENCE));
                for answer in cluster.world.client().enter(asked) {
                    assert!(answer.as_ref().is_ok_and(|answer| answer.name == "node1-pod1"), "{target}: {answer:?}");
                }
            }
        }
    });
}

#[test]
fn an_endpoint_that_is_the_services_own_cluster_ip_harms_nobody_else() {
    let Some(cluster) = CLUSTER.join("an endpoint that is a cluster IP") else { return };
    undisturbed(&cluster, "an endpoint that is a cluster IP", || {
        let service = cluster.objects.apply(&objects::service("circle", 80, "TCP")).unwrap();
        let targets = harness::cluster_sockets(&service);
        for at in &targets {
            let endpoint = Endpoint { ip: at.ip(), node: "node2".into(), ready: true };
            let suffix = if at.is_ipv6() { "v6" } else { "v4" };
            cluster.objects.apply(&objects::endpoint_slice("circle", suffix, 80, "TCP", &[endpoint])).unwrap();
        }
        let addresses: Vec<_> = targets.iter().map(SocketAddr::ip).collect();
        cluster.agents.iter().for_each(|agent| agent.await_backends("circle", addresses.clone()));
        for caller in cluster.callers() {
            for target in &targets {
                let answer = cluster.run_as(&caller, || ask::http_ask_within(*target, Duration::from_millis(100)));
                assert!(answer.is_err(), "{caller} at {target}: {answer:?}");
            }
        }
    });
}

#[test]
fn an_endpoint_that_is_written_several_times_gets_the_share_of_one() {
    /// Of a fair coin's throws so many that fewer than a third or more than two thirds of one side never happen.
    const ASKED: usize = 240;
    let Some(cluster) = CLUSTER.join("duplicate endpoints") else { return };
    undisturbed(&cluster, "duplicate endpoints", || {
        let pods = cluster.world.node(1).pods();
        let service = cluster.publish(&objects::service("twice", 80, "TCP"), HTTP, &pods);
        for ip in pods[0].address().both() {
            let again = vec![Endpoint { ip, node: "node1".into(), ready: true }; 3];
            let suffix = if ip.is_ipv6() { "again-v6" } else { "again-v4" };
            cluster.objects.apply(&objects::endpoint_slice("twice", suffix, HTTP, "TCP", &again)).unwrap();
        }
        let once: Vec<IpAddr> = pods.iter().flat_map(|pod| pod.address().both()).collect();
        cluster.agents.iter().for_each(|agent| agent.await_backends("twice", once.clone()));
        for target in harness::cluster_sockets(&service) {
            let names: Vec<_> = (0..ASKED).map(|_| ask(&cluster, target)).collect();
            let share = names.iter().filter(|name| **name == pods[0].name()).count();
            assert!((ASKED / 3..=ASKED * 2 / 3).contains(&share), "{target}: {share} of {ASKED}");
        }
    });
}

#[test]
fn a_service_with_1000_endpoints_in_each_family_is_served_by_all_of_them() {
    /// Endpoints in a slice, as its controller has it.
    const SLICE: usize = 100;
    let Some(cluster) = CLUSTER.join("1000 endpoints") else { return };
    undisturbed(&cluster, "1000 endpoints", || {
        // One pod answers at all of them.
        let pod = cluster.world.node(1).pod(2);
        pod.netns().ip("route add local 10.250.0.0/22 dev lo\nroute add local fd00:250::/112 dev lo").unwrap();
        let address::Pair { v4, v6 } = pod.address();
        let routes = format!("route add 10.250.0.0/22 via {v4}\nroute add fd00:250::/112 via {v6}");
        cluster.world.node(1).netns().ip(&routes).unwrap();

        let mut service = objects::service("thousand", 80, "TCP");
        spec(&mut service).ip_family_policy = Some("RequireDualStack".into());
        let service = cluster.objects.apply(&service).unwrap();
        let v4 = (0..1000u32).map(|n| IpAddr::V4((0x0afa_0001 + n).into()));
        let v6 = (0..1000u32).map(|n| format!("fd00:250::{:x}", 1 + n).parse().unwrap());
        let all: Vec<IpAddr> = v4.chain(v6).collect();
        for (number, part) in all.chunks(SLICE).enumerate() {
            let endpoints = part.iter().map(|ip| Endpoint { ip: *ip, node: "node1".into(), ready: true });
            let endpoints: Vec<_> = endpoints.collect();
            let slice = objects::endpoint_slice("thousand", &number.to_string(), HTTP, "TCP", &endpoints);
            cluster.objects.apply(&slice).unwrap();
        }
        cluster.agents.iter().for_each(|agent| agent.await_backends("thousand", all.clone()));

        let before = backends_in_use(&cluster, "thousand");
        assert_eq!(before, 0);
        let mut answers = 0;
        for target in harness::cluster_sockets(&service) {
            let load = Load::http(target).concurrency(4).rate(1000).timeout(PATIENCE);
            let report = load.run(cluster.world.client(), Duration::from_secs(1)).unwrap();
            assert_eq!(report.failed(), 0, "{target}: {:?}", report.errors);
            answers += report.answered();
        }
        let used = backends_in_use(&cluster, "thousand");
        println!("{answers} connections went to {used} of {} endpoints", all.len());
        // Of n equal shares, n throws leave 37 % empty.
        assert!(used as u64 * 2 > answers.min(all.len() as u64), "only {used} endpoints for {answers} connections");
        cluster.objects.delete(&service).unwrap();
    });
}

/// Endpoints of a service that node 1's agent has given connections to.
fn backends_in_use(cluster: &Cluster, service: &str) -> usize {
    let view = cluster.agents[0].view();
    let dump = view.dump().unwrap();
    let named = |id: u32| dump.service_names.iter().any(|(known, name)| *known == id && text(&name.name) == service);
    let own = dump.backends.iter().filter(|(_, b)| b.flags & abi::BACKEND_USED != 0 && named(b.service));
    own.filter(|(id, _)| view.backend_counters(*id).unwrap().flows > 0).count()
}

#[test]
fn a_service_with_400_ports_is_served_at_each_of_them() {
    let Some(cluster) = CLUSTER.join("400 ports") else { return };
    let numbers = 2001..=2400;
    undisturbed(&cluster, "400 ports", || {
        let mut service = objects::service("ports", 80, "TCP");
        let port = |port: i32| ServicePort {
            name: Some(format!("p{port}")),
            port,
            protocol: Some("TCP".into()),
            ..ServicePort::default()
        };
        spec(&mut service).ports = Some(numbers.clone().map(port).collect());
        let service = cluster.objects.apply(&service).unwrap();
        for (suffix, v6) in [("v4", false), ("v6", true)] {
            let mut slice = slice("ports", suffix, v6, &ready(&cluster.world.node(1).pods()));
            let port = |port: i32| EndpointPort {
                name: Some(format!("p{port}")),
                port: Some(HTTP.into()),
                protocol: Some("TCP".into()),
                ..EndpointPort::default()
            };
            slice.ports = Some(numbers.clone().map(port).collect());
            cluster.objects.apply(&slice).unwrap();
        }
        let targets = harness::cluster_sockets(&service)
            .into_iter()
            .flat_map(|at| numbers.clone().map(move |port| SocketAddr::new(at.ip(), u16::try_from(port).unwrap())));
        let targets: Vec<_> = targets.collect();
        let pods: Vec<IpAddr> = cluster.world.node(1).pods().iter().flat_map(|pod| pod.address().both()).collect();
        let backends: Vec<_> = pods.iter().flat_map(|ip| vec![*ip; numbers.clone().count()]).collect();
        cluster.agents.iter().for_each(|agent| agent.await_backends("ports", backends.clone()));
        cluster.await_frontend(targets[0].ip(), 2400);
        for target in targets {
            assert!(ask(&cluster, target).starts_with("node1-"), "{target}");
        }
        cluster.objects.delete(&service).unwrap();
    });
}

#[test]
fn an_sctp_port_that_would_need_another_target_port_is_told_on_the_service() {
    let Some(cluster) = CLUSTER.join("SCTP with another target port") else { return };
    undisturbed(&cluster, "SCTP with another target port", || {
        let service = cluster.publish(&objects::service("sigtran", 2905, "SCTP"), 2906, &cluster.world.node(1).pods());
        let event = cluster.await_event(&service, "SctpPortMismatch");
        let note = event.note.unwrap();
        assert!(note.contains("2905") && note.contains("2906") && note.contains("default/sigtran"), "{note}");
        await_line(&cluster, &["default/sigtran port", "SCTP ports cannot be translated"]);
    });
}
