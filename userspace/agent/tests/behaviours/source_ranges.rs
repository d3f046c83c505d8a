//! Load balancers: who is admitted by `loadBalancerSourceRanges`, and which addresses in the status are served at all.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::Duration;

use crate::CLUSTER;
use crate::harness::Cluster;
use crate::harness::callers::Caller;
use crate::harness::echo::{Echo, Talk, echo, ready, slice, spec};
use crate::harness::matrix::{Kind, external};
use k8s_openapi::api::core::v1::{LoadBalancerIngress, LoadBalancerStatus, Service, ServiceStatus};
use weir_abi as abi;
use weir_testbed::ask::PATIENCE;
use weir_testbed::{Node, address, wait};

/// What is not answered within this time is dropped.
const SILENCE: Duration = Duration::from_millis(300);

#[test]
fn only_clients_of_the_ranges_are_admitted_white_space_or_not_and_others_are_dropped() {
    let Some(cluster) = CLUSTER.join("source ranges") else { return };
    let client = address::CLIENT;
    let ranges = [format!(" {}/32 ", client.v4), format!("{}/128", client.v6), "192.0.2.0/24".to_owned()];
    let served = serve(&cluster, "ranges-outside", 10, &ranges);
    assert_admitted(&cluster, &served, 10, |caller, _| matches!(caller, Caller::Outside));
}

#[test]
fn pods_and_processes_are_admitted_by_their_own_addresses() {
    let Some(cluster) = CLUSTER.join("source ranges of pods and nodes") else { return };
    let pods = address::pod_cidrs(1).map(|cidr| cidr.to_string());
    let node = address::node(2);
    let [v4, v6] = pods;
    let ranges = [v4, v6, format!("{}/32", node.v4), format!("{}/128", node.v6)];
    let served = serve(&cluster, "ranges-inside", 20, &ranges);
    assert_admitted(&cluster, &served, 20, |caller, _| match caller {
        Caller::Pod(pod) => pod.node() == 1,
        Caller::Host(node) => *node == 2,
        Caller::Outside => false,
    });
}

#[test]
fn each_family_has_its_own_ranges_and_none_or_a_zero_prefix_admit_everybody() {
    let Some(cluster) = CLUSTER.join("source ranges of one family") else { return };
    let served = serve(&cluster, "ranges-v4", 30, &["192.0.2.0/24".to_owned()]);
    assert_admitted(&cluster, &served, 30, |_, family| family == 1);
    let served = serve(&cluster, "ranges-v6", 31, &["2001:db8:ffff::/48".to_owned()]);
    assert_admitted(&cluster, &served, 31, |_, family| family == 0);
    let zero = ["192.0.2.0/24".to_owned(), "0.0.0.0/0".to_owned(), "2001:db8:ffff::/48".to_owned()];
    let served = serve(&cluster, "ranges-zero", 32, &zero);
    assert_admitted(&cluster, &served, 32, |_, family| family == 0);
}

#[test]
fn ranges_that_change_take_effect_on_a_live_service() {
    let Some(cluster) = CLUSTER.join("source ranges that change") else { return };
    let foreign = ["192.0.2.0/24".to_owned(), "2001:db8:ffff::/48".to_owned()];
    let served = serve(&cluster, "ranges-change", 40, &[]);
    assert_admitted(&cluster, &served, 40, |_, _| true);
    serve(&cluster, "ranges-change", 40, &foreign);
    assert_admitted(&cluster, &served, 40, |_, _| false);
    serve(&cluster, "ranges-change", 40, &[]);
    assert_admitted(&cluster, &served, 40, |_, _| true);
}

#[test]
fn who_is_not_admitted_is_counted_and_told_nothing() {
    let Some(cluster) = CLUSTER.join("counters of source ranges") else { return };
    let foreign = ["192.0.2.0/24".to_owned(), "2001:db8:ffff::/48".to_owned()];
    let served = serve(&cluster, "ranges-counted", 50, &foreign);
    let agent = &cluster.agents[0];
    for (v6, ip) in [false, true].into_iter().zip(external(50)) {
        let before = agent.flows_of(&served, Talk::Udp, v6);
        for caller in [Caller::Pod(cluster.world.node(1).pod(1)), Caller::Outside] {
            let target = SocketAddr::new(ip, Talk::Udp.port());
            let answer = cluster.run_as(&caller, || Talk::Udp.ask(target, SILENCE));
            assert_eq!(answer.map_err(|e| e.io_kind()), Err(Some(ErrorKind::TimedOut)), "{caller} at {target}");
        }
        let after = agent.flows_of(&served, Talk::Udp, v6);
        let seen = (after.dropped - before.dropped, after.rejected - before.rejected);
        assert_eq!(seen, (2, 0), "dropped and rejected of IPv{}", if v6 { 6 } else { 4 });
    }
}

#[test]
fn addresses_of_mode_proxy_and_host_names_in_the_status_get_no_frontend() {
    let Some(cluster) = CLUSTER.join("load balancers that are proxies") else { return };
    let mut service = echo("proxied", "LoadBalancer");
    let ingress = |ip: Option<IpAddr>, mode: Option<&str>, host: Option<&str>| LoadBalancerIngress {
        ip: ip.map(|ip| ip.to_string()),
        ip_mode: mode.map(str::to_owned),
        hostname: host.map(str::to_owned),
        ..LoadBalancerIngress::default()
    };
    let [proxied, vip] = [60, 61].map(external);
    let all = vec![
        ingress(None, None, Some("balancer.example.org")),
        ingress(Some(proxied[0]), Some("Proxy"), None),
        ingress(Some(proxied[1]), Some("Proxy"), None),
        ingress(Some(vip[0]), Some("VIP"), None),
        ingress(Some(vip[1]), None, None),
    ];
    let balancer = LoadBalancerStatus { ingress: Some(all) };
    cluster.objects.apply(&service).unwrap();
    service.status = Some(ServiceStatus { load_balancer: Some(balancer), ..ServiceStatus::default() });
    cluster.objects.apply_status(&service).unwrap();
    for (suffix, v6) in [("v4", false), ("v6", true)] {
        let pods = ready(&cluster.world.node(1).pods());
        cluster.objects.apply(&slice("proxied", suffix, v6, &pods)).unwrap();
    }
    for ip in vip {
        cluster.await_frontend(ip, Talk::Tcp.port());
        let target = SocketAddr::new(ip, Talk::Tcp.port());
        let ask = || cluster.run_as(&Caller::Outside, || Talk::Tcp.ask(target, PATIENCE)).map_err(|e| e.to_string());
        wait::until_some(&format!("an answer at {target}"), crate::harness::SOON, ask).unwrap();
    }
    for agent in &cluster.agents {
        let dump = agent.view().dump().unwrap();
        let wrong: Vec<_> = dump.frontends.iter().filter(|(key, _)| proxied.contains(&key.address)).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}

#[test]
fn a_load_balancer_without_node_ports_is_served_at_its_addresses() {
    let Some(cluster) = CLUSTER.join("load balancers without node ports") else { return };
    let mut service = Kind::LoadBalancer.service("no-node-ports", 70);
    spec(&mut service).allocate_load_balancer_node_ports = Some(false);
    let made = cluster.objects.apply(&service).unwrap();
    let ports = made.spec.as_ref().unwrap().ports.as_ref().unwrap();
    assert!(ports.iter().all(|port| port.node_port.is_none()), "{ports:?}");
    let ingress: Vec<_> = external(70).to_vec();
    let made = cluster.objects.set_load_balancer(&made, &ingress).unwrap();
    let served = Echo { service: made };
    cluster.set_members(&served, &ready(&cluster.world.node(2).pods()));
    let kinds = || {
        let dump = cluster.agents[0].view().dump().unwrap();
        let balancer = dump.frontends.iter().filter(|(key, _)| ingress.contains(&key.address));
        let slots: Vec<_> = balancer.map(|(_, frontend)| frontend.service).collect();
        let of_service = dump.frontends.iter().filter(|(_, frontend)| slots.contains(&frontend.service));
        of_service.map(|(_, frontend)| frontend.kind).collect::<Vec<_>>()
    };
    for ip in &ingress {
        cluster.await_frontend(*ip, Talk::Http.port());
    }
    assert!(!kinds().contains(&abi::KIND_NODE_PORT), "{:?}", kinds());
    for caller in cluster.callers() {
        for talk in Talk::ALL {
            let balancer = Kind::LoadBalancer.targets(&cluster, &served, 70, talk);
            for target in balancer.into_iter().chain(served.cluster_ips(talk)) {
                let answer = cluster.answer(&caller, talk, target);
                assert!(answer.name.starts_with("node2-"), "{caller} at {talk:?} {target}: {answer:?}");
            }
        }
    }
}

/// Makes or changes a load balancer with endpoints everywhere, and waits until the agents know its ranges.
fn serve(cluster: &Cluster, name: &str, number: u8, ranges: &[String]) -> Echo {
    let mut service: Service = Kind::LoadBalancer.service(name, number);
    spec(&mut service).load_balancer_source_ranges = Some(ranges.to_vec());
    let pods: Vec<_> = cluster.world.nodes().iter().flat_map(Node::pods).collect();
    let served = cluster.serve_echo(&service, &ready(&pods));
    // A prefix of length zero stands for none.
    let limits = |v6: bool| {
        let of_family: Vec<_> = ranges.iter().filter(|range| range.contains(':') == v6).collect();
        !of_family.is_empty() && !of_family.iter().any(|range| range.ends_with("/0"))
    };
    let expected = Talk::ALL.len() * [false, true].into_iter().filter(|v6| limits(*v6)).count();
    for agent in &cluster.agents {
        let right = || {
            let slots = agent.slots(name);
            let found = slots.iter().filter(|slot| slot.flags & abi::SERVICE_SOURCE_RANGES != 0).count();
            if slots.len() == 2 * Talk::ALL.len() && found == expected { Ok(()) } else { Err(format!("{slots:?}")) }
        };
        let what = format!("{expected} slots of {name} with source ranges {ranges:?}");
        wait::until_some(&what, crate::harness::SOON, right).unwrap_or_else(|e| panic!("{e}\n{}", agent.log()));
    }
    served
}

/// Asks from everybody in both families: the load balancer's address is as silent as `admitted` says, cluster IP and
/// node ports serve everybody.
fn assert_admitted(cluster: &Cluster, served: &Echo, number: u8, admitted: impl Fn(&Caller, usize) -> bool + Sync) {
    // Silence takes time.
    let wrong: Vec<String> = thread::scope(|scope| {
        let admitted = &admitted;
        let ask = move |caller: Caller| wrong_answers(cluster, served, number, &caller, admitted);
        let threads: Vec<_> = cluster.callers().into_iter().map(|caller| scope.spawn(move || ask(caller))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), served.name(), wrong.join("\n"));
}

fn wrong_answers(
    cluster: &Cluster,
    served: &Echo,
    number: u8,
    caller: &Caller,
    admitted: &dyn Fn(&Caller, usize) -> bool,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for talk in [Talk::Tcp, Talk::Udp] {
        for (family, ip) in external(number).into_iter().enumerate() {
            let target = SocketAddr::new(ip, talk.port());
            // A process is told, where its packets would be dropped.
            let refusal =
                if matches!(caller, Caller::Host(_)) { ErrorKind::HostUnreachable } else { ErrorKind::TimedOut };
            let expected = if admitted(caller, family) { Ok(()) } else { Err(Some(refusal)) };
            let limit = if expected.is_ok() { PATIENCE } else { SILENCE };
            let seen = cluster.run_as(caller, || talk.ask(target, limit)).map(drop).map_err(|e| e.io_kind());
            if seen != expected {
                wrong.push(format!("{caller} at {talk:?} {target}: {seen:?} in place of {expected:?}"));
            }
            let node_ports = cluster.world.nodes().iter().map(|node| served.node_ports(node, talk)[family]);
            for target in node_ports.chain([served.cluster_ips(talk)[family]]) {
                let answer = cluster.run_as(caller, || talk.ask(target, PATIENCE));
                wrong.extend(answer.err().map(|e| format!("{caller} at {talk:?} {target}: {e}")));
            }
        }
    }
    wrong
}
