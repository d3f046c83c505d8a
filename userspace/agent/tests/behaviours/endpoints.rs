//! Which endpoints a Service has: slices, ports and protocols, ports that differ by endpoint, hints, labels, families.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::CLUSTER;
use crate::harness::callers::Caller;
use crate::harness::echo::{Echo, Member, Talk, echo, ready, slice, spec};
use crate::harness::{Cluster, HTTP, SOON};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{EndpointHints, EndpointSlice, ForNode, ForZone};
use weir_testbed::ask::PATIENCE;
use weir_testbed::{Pod, objects, serve, wait};

/// Another port on which a pod may serve HTTP.
const OTHER_HTTP: u16 = 8089;
/// How long a service that moved to another proxy may be served here, with a little patience.
const HANDED_OVER: Duration = Duration::from_secs(25);

const FAMILIES: [(&str, bool); 2] = [("v4", false), ("v6", true)];

#[test]
fn a_named_target_port_may_be_another_number_on_each_endpoint() {
    let Some(cluster) = CLUSTER.join("named target ports") else { return };
    let [usual, other] = [cluster.world.node(1).pod(1), cluster.world.node(1).pod(2)];
    let _server = serve::http(other.netns(), "other-port", OTHER_HTTP).unwrap();
    let service = objects::service("named-port", 80, "TCP");
    let made = cluster.objects.apply(&service).unwrap();
    for (pod, port, suffix) in [(&usual, HTTP, "usual"), (&other, OTHER_HTTP, "other")] {
        for (family, v6) in FAMILIES {
            let ip: IpAddr = if v6 { pod.address().v6.into() } else { pod.address().v4.into() };
            let endpoint = objects::Endpoint { ip, node: "node1".into(), ready: true };
            let slice = objects::endpoint_slice("named-port", &format!("{suffix}-{family}"), port, "TCP", &[endpoint]);
            cluster.objects.apply(&slice).unwrap();
        }
    }
    let all = [&usual, &other].iter().flat_map(|pod| pod.address().both()).collect::<Vec<_>>();
    cluster.agents.iter().for_each(|agent| agent.await_backends("named-port", all.clone()));
    for target in crate::harness::cluster_sockets(&made) {
        cluster.await_frontend(target.ip(), target.port());
        for caller in cluster.callers() {
            let names: BTreeSet<_> = cluster.names(&caller, Talk::Http, target, 24).into_iter().collect();
            assert_eq!(
                names,
                BTreeSet::from(["node1-pod1".to_owned(), "other-port".to_owned()]),
                "{caller} at {target}"
            );
        }
    }
}

/// A slice of the ports that `talks` name.
fn part(service: &str, suffix: &str, v6: bool, talks: &[Talk], members: &[Member]) -> EndpointSlice {
    let mut slice = slice(service, suffix, v6, members);
    let named = |name: Option<&str>| talks.iter().any(|talk| Some(talk.name()) == name);
    slice.ports.as_mut().unwrap().retain(|port| named(port.name.as_deref()));
    slice
}

#[test]
fn the_slices_of_a_service_are_merged_by_port_and_family() {
    let Some(cluster) = CLUSTER.join("several slices") else { return };
    let [a, b] = [cluster.world.node(1).pod(1), cluster.world.node(1).pod(2)];
    let made = Echo { service: cluster.objects.apply(&echo("many-slices", "ClusterIP")).unwrap() };
    for (family, v6) in FAMILIES {
        let apply = |suffix: &str, talks: &[Talk], pods: &[Pod]| {
            let slice = part("many-slices", &format!("{suffix}-{family}"), v6, talks, &ready(pods));
            cluster.objects.apply(&slice).unwrap();
        };
        apply("web", &[Talk::Http], std::slice::from_ref(&a));
        apply("tcp", &[Talk::Tcp], std::slice::from_ref(&b));
        apply("udp-1", &[Talk::Udp], std::slice::from_ref(&a));
        // The same endpoint twice, and another one.
        apply("udp-2", &[Talk::Udp], &[a.clone(), b.clone()]);
    }
    let names = |talk, target, count| {
        let from_pod = Caller::Pod(cluster.world.node(1).pod(1));
        cluster.names(&from_pod, talk, target, count).into_iter().collect::<BTreeSet<_>>()
    };
    for (talk, expected) in [(Talk::Http, vec![&a]), (Talk::Tcp, vec![&b]), (Talk::Udp, vec![&a, &b])] {
        let expected: BTreeSet<_> = expected.iter().map(|pod| pod.name()).collect();
        for target in made.cluster_ips(talk) {
            let answered =
                || cluster.run_as(&Caller::Host(1), || talk.ask(target, PATIENCE)).map_err(|e| e.to_string());
            wait::until_some(&format!("an answer at {talk:?} {target}"), SOON, answered).unwrap();
            let right = || {
                let seen = names(talk, target, 24);
                if seen == expected { Ok(()) } else { Err(format!("{seen:?}")) }
            };
            wait::until_some(&format!("answers of {expected:?} at {talk:?} {target}"), SOON, right).unwrap();
        }
    }
}

#[test]
fn a_service_that_gains_and_loses_its_second_family_keeps_its_connections_in_the_first() {
    let Some(cluster) = CLUSTER.join("services that become dual-stack") else { return };
    let mut service = echo("gains-v6", "NodePort");
    spec(&mut service).ip_family_policy = Some("SingleStack".into());
    spec(&mut service).ip_families = Some(vec!["IPv4".into()]);
    let pod = cluster.world.node(1).pod(1);
    let made = cluster.objects.apply(&service).unwrap();
    for (suffix, v6) in FAMILIES {
        cluster.objects.apply(&slice("gains-v6", suffix, v6, &[Member::ready(&pod)])).unwrap();
    }
    let v4 = SocketAddr::new(crate::harness::cluster_sockets(&made)[0].ip(), Talk::Tcp.port());
    cluster.await_frontend(v4.ip(), v4.port());
    for agent in &cluster.agents {
        assert_eq!(agent.slots("gains-v6").len(), Talk::ALL.len(), "one family\n{}", agent.log());
    }
    let callers = [Caller::Pod(cluster.world.node(2).pod(1)), Caller::Outside];
    let answered = || cluster.run_as(&Caller::Outside, || Talk::Tcp.ask(v4, PATIENCE)).map_err(|e| e.to_string());
    wait::until_some(&format!("an answer at {v4}"), SOON, answered).unwrap();
    let connections = callers.map(|caller| (format!("{caller} to {v4}"), cluster.connect(&caller, v4)));

    spec(&mut service).ip_family_policy = Some("RequireDualStack".into());
    spec(&mut service).ip_families = Some(vec!["IPv4".into(), "IPv6".into()]);
    let dual = Echo { service: cluster.objects.apply(&service).unwrap() };
    cluster.await_members(&dual, &[Member::ready(&pod)]);
    let v6 = dual.cluster_ips(Talk::Tcp)[1];
    cluster.await_frontend(v6.ip(), v6.port());
    for caller in cluster.callers() {
        for talk in Talk::ALL {
            let targets = dual.cluster_ips(talk).into_iter().chain(dual.node_ports(cluster.world.node(1), talk));
            for target in targets {
                let answer = cluster.answer(&caller, talk, target);
                assert_eq!(answer.name, pod.name(), "{caller} at {talk:?} {target}");
            }
        }
    }
    spec(&mut service).ip_family_policy = Some("SingleStack".into());
    spec(&mut service).ip_families = Some(vec!["IPv4".into()]);
    cluster.objects.apply(&service).unwrap();
    cluster.agents.iter().for_each(|agent| agent.await_frontend(v6.ip(), v6.port(), false));
    for (what, connection) in connections {
        connection.await_exchanges(5, SOON).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(connection.close().error, None, "{what}");
    }
}

/// Changes what the slices of a Service say about where each of its pods is to be used: zones and nodes.
fn hint(cluster: &Cluster, service: &str, pods: &[Pod], hints: &[Option<EndpointHints>]) {
    for (suffix, v6) in FAMILIES {
        let mut slice = slice(service, suffix, v6, &ready(pods));
        for (endpoint, hints) in slice.endpoints.iter_mut().zip(hints) {
            endpoint.hints.clone_from(hints);
        }
        cluster.objects.apply(&slice).unwrap();
    }
}

fn zone(name: &str) -> Option<EndpointHints> {
    Some(EndpointHints { for_zones: Some(vec![ForZone { name: name.into() }]), ..EndpointHints::default() })
}

fn zone_and_node(zone: &str, node: &str) -> Option<EndpointHints> {
    let for_nodes = Some(vec![ForNode { name: node.into() }]);
    Some(EndpointHints { for_nodes, for_zones: Some(vec![ForZone { name: zone.into() }]) })
}

#[test]
fn hints_for_zones_and_nodes_are_followed_if_all_endpoints_have_them_and_one_is_meant_for_here() {
    let Some(cluster) = CLUSTER.join("topology hints") else { return };
    for node in cluster.world.nodes() {
        let (addresses, zone) = (node.address().both(), format!("zone{}", node.number()));
        cluster.objects.apply(&objects::node(&node.name(), &addresses, Some(&zone))).unwrap();
    }
    let pods = [cluster.world.node(1).pod(1), cluster.world.node(2).pod(1)];
    let served = cluster.serve_echo(&echo("hinted", "ClusterIP"), &ready(&pods));
    let callers = [Caller::Pod(cluster.world.node(1).pod(2)), Caller::Host(1), Caller::Outside];
    // Each pod is meant for the other node: nobody would go there by himself.
    for (what, hints, expected) in [
        ("no hints", [None, None], &pods[0]),
        ("zones", [zone("zone2"), zone("zone1")], &pods[1]),
        ("a hint is missing", [None, zone("zone1")], &pods[0]),
        ("nodes", [zone_and_node("zone1", "node2"), zone_and_node("zone2", "node1")], &pods[1]),
        (
            "a zone for this node, a node for nobody here",
            [zone_and_node("zone2", "node7"), zone_and_node("zone1", "node8")],
            &pods[1],
        ),
        ("nothing for this zone", [zone("zone2"), zone("zone2")], &pods[0]),
    ] {
        hint(&cluster, "hinted", &pods, &hints);
        for caller in &callers {
            for target in served.cluster_ips(Talk::Tcp) {
                let right = || {
                    let names = cluster.names(caller, Talk::Tcp, target, 6);
                    if names.iter().all(|name| *name == expected.name()) { Ok(()) } else { Err(format!("{names:?}")) }
                };
                let what = format!("answers of {} to {caller} at {target} with {what}", expected.name());
                wait::until_some(&what, SOON, right).unwrap();
            }
        }
    }
}

#[test]
fn an_endpoint_that_is_ready_while_it_terminates_is_ready() {
    let Some(cluster) = CLUSTER.join("endpoints that are ready and terminating") else { return };
    let [own, other] = [cluster.world.node(1).pod(1), cluster.world.node(1).pod(2)];
    // What publishNotReadyAddresses makes of pods that terminate and are not ready.
    let published = Member { serving: false, terminating: true, ..Member::ready(&own) };
    let served = cluster.serve_echo(&echo("published", "NodePort"), &[published, Member::ready(&other)]);
    for target in served.cluster_ips(Talk::Tcp).into_iter().chain(served.node_ports(cluster.world.node(1), Talk::Tcp)) {
        for caller in cluster.callers().into_iter().filter(|caller| caller.node() != Some(2)) {
            let names: BTreeSet<_> = cluster.names(&caller, Talk::Tcp, target, 24).into_iter().collect();
            assert_eq!(names, BTreeSet::from([own.name(), other.name()]), "{caller} at {target}");
        }
    }
}

fn labelled(name: &str, label: Option<(&str, &str)>) -> Service {
    let mut service = echo(name, "ClusterIP");
    service.metadata.labels = label.map(|(key, value)| [(key.to_owned(), value.to_owned())].into());
    service
}

/// A Service gets a label that says it is none of ours and loses it again, while another one is served.
fn assert_label_is_followed(name: &str, label: (&str, &str), limit: Duration) {
    let Some(cluster) = CLUSTER.join("labels that change") else { return };
    let pods = cluster.world.node(1).pods();
    let served = cluster.serve_echo(&labelled(name, None), &ready(&pods));
    let other = cluster.serve_echo(&echo(&format!("{name}-other"), "ClusterIP"), &ready(&pods));
    cluster.objects.apply(&labelled(name, Some(label))).unwrap();
    for target in served.cluster_ips(Talk::Http) {
        for agent in &cluster.agents {
            let there = |key: &weir_core::ops::FrontendKey| key.address == target.ip();
            let gone = || {
                let left: Vec<_> = agent.view().dump().unwrap().frontends;
                let left: Vec<_> = left.into_iter().filter(|(key, _)| there(key)).collect();
                if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
            };
            wait::until_some(&format!("the end of frontends of {name}"), limit, gone)
                .unwrap_or_else(|e| panic!("{e}\n{}", agent.log()));
        }
    }
    for caller in cluster.callers() {
        for target in other.cluster_ips(Talk::Http) {
            cluster.run_as(&caller, || Talk::Http.ask(target, PATIENCE)).unwrap_or_else(|e| panic!("{caller}: {e}"));
        }
    }
    cluster.serve_echo(&labelled(name, None), &ready(&pods));
    for caller in cluster.callers() {
        for talk in Talk::ALL {
            for target in served.cluster_ips(talk) {
                let answer = cluster.run_as(&caller, || talk.ask(target, PATIENCE));
                answer.unwrap_or_else(|e| panic!("{caller} at {talk:?} {target}, label removed: {e}"));
            }
        }
    }
}

#[test]
fn a_service_that_is_given_to_another_proxy_at_run_time_is_left_to_it_and_comes_back() {
    assert_label_is_followed("to-another", ("service.kubernetes.io/service-proxy-name", "another"), HANDED_OVER);
}

#[test]
fn a_service_that_is_labelled_headless_at_run_time_is_left_alone_and_comes_back() {
    assert_label_is_followed("to-headless", ("service.kubernetes.io/headless", ""), SOON);
}

#[test]
fn the_api_servers_own_service_keeps_its_endpoints_when_its_slice_says_that_there_are_none() {
    let Some(cluster) = CLUSTER.join("the API server's own Service") else { return };
    let mut service = objects::service("kubernetes", 443, "TCP");
    let service = cluster.objects.get(&service).unwrap().unwrap_or_else(|| std::mem::take(&mut service));
    let target = crate::harness::cluster_sockets(&service)[0];
    cluster.await_frontend(target.ip(), target.port());
    let callers = [Caller::Pod(cluster.world.node(2).pod(1)), Caller::Host(1), Caller::Host(2)];
    let assert_reachable = |when: &str| {
        for caller in &callers {
            let connected = cluster.run_as(caller, || TcpStream::connect_timeout(&target, PATIENCE));
            connected.unwrap_or_else(|e| panic!("{caller} to {target}, {when}: {e}"));
        }
    };
    assert_reachable("before");
    let mut own = objects::endpoint_slice("kubernetes", "", 1, "TCP", &[]);
    own.metadata.name = Some("kubernetes".into());
    let mut current = cluster.objects.get(&own).unwrap().unwrap_or_else(|| panic!("the API server has no slice yet"));
    current.metadata.managed_fields = None;
    current.metadata.resource_version = None;
    current.metadata.uid = None;
    // It writes its slice anew every few seconds: the changes in between are what counts.
    let mut unready = current.clone();
    for endpoint in &mut unready.endpoints {
        endpoint.conditions.get_or_insert_default().ready = Some(false);
    }
    let mut emptied = current.clone();
    emptied.endpoints.clear();
    for (number, (when, slice)) in
        [("unready", Some(&unready)), ("emptied", Some(&emptied)), ("deleted", None)].into_iter().enumerate()
    {
        match slice {
            Some(slice) => drop(cluster.objects.apply(slice).unwrap()),
            None => cluster.objects.delete(&current).unwrap(),
        }
        // A slice that is written later is seen later.
        let marker = format!("after-{number}");
        cluster.serve_echo(&echo(&marker, "ClusterIP"), &[Member::ready(&cluster.world.node(1).pod(1))]);
        for agent in &cluster.agents {
            let slots = agent.slots("kubernetes");
            assert!(slots.iter().any(|slot| slot.endpoints > 0), "{when}: {slots:?}\n{}", agent.log());
        }
        assert_reachable(when);
        cluster.objects.apply(&current).unwrap();
    }
}
