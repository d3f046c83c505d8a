//! Services and pods come, go and change.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use weir_datapath::PinDir;
use weir_testbed::ask::PATIENCE;
use weir_testbed::{Pod, wait};

use crate::harness::callers::Caller;
use crate::harness::echo::{Echo, Member, Talk, echo, ready, spec};
use crate::harness::shared::Shared;
use crate::harness::{self, Cluster, SOON, serve_in};

static CLUSTER: Shared = Shared::new(&[]);

#[test]
fn a_service_that_is_made_again_with_its_old_cluster_ips_serves_again() {
    let Some(cluster) = CLUSTER.join("services that are made again") else { return };
    let first = cluster.serve_echo(&echo("again", "ClusterIP"), &first_pods(&cluster, 1));
    assert_answered_by_node(&cluster, &first, 1);
    cluster.objects.delete(&first.service).unwrap();
    await_gone(&cluster, &first.cluster_ips(Talk::Tcp));
    let mut service = echo("again", "ClusterIP");
    let old = first.service.spec.as_ref().unwrap();
    spec(&mut service).cluster_ip = old.cluster_ip.clone();
    spec(&mut service).cluster_ips = old.cluster_ips.clone();
    let second = cluster.serve_echo(&service, &first_pods(&cluster, 2));
    assert_eq!(second.cluster_ips(Talk::Tcp), first.cluster_ips(Talk::Tcp));
    assert_answered_by_node(&cluster, &second, 2);
}

#[test]
fn cluster_ips_of_a_deleted_service_serve_the_next_one_that_gets_them() {
    let Some(cluster) = CLUSTER.join("cluster IPs that pass on") else { return };
    let first = cluster.serve_echo(&echo("heir-before", "ClusterIP"), &first_pods(&cluster, 1));
    assert_answered_by_node(&cluster, &first, 1);
    cluster.objects.delete(&first.service).unwrap();
    let mut service = echo("heir-after", "ClusterIP");
    let old = first.service.spec.as_ref().unwrap();
    spec(&mut service).cluster_ip = old.cluster_ip.clone();
    spec(&mut service).cluster_ips = old.cluster_ips.clone();
    let second = cluster.serve_echo(&service, &first_pods(&cluster, 2));
    assert_answered_by_node(&cluster, &second, 2);
}

#[test]
fn a_changed_port_is_served_and_the_old_one_no_longer() {
    let Some(cluster) = CLUSTER.join("changed ports") else { return };
    let mut service = echo("port", "ClusterIP");
    let members = first_pods(&cluster, 1);
    let served = cluster.serve_echo(&service, &members);
    assert_answered_by_node(&cluster, &served, 1);
    let old = served.cluster_ips(Talk::Http);
    spec(&mut service).ports.as_mut().unwrap()[0].port = 8081;
    cluster.objects.apply(&service).unwrap();
    let new = old.map(|socket| SocketAddr::new(socket.ip(), 8081));
    await_gone(&cluster, &old);
    for caller in cluster.callers() {
        for (old, new) in old.into_iter().zip(new) {
            cluster.run_as(&caller, || Talk::Http.ask(new, PATIENCE)).unwrap_or_else(|e| panic!("{caller}: {e}"));
            let answer = cluster.run_as(&caller, || Talk::Http.ask(old, Duration::from_millis(100)));
            assert!(answer.is_err(), "{caller} at {old}: {answer:?}");
        }
    }
}

#[test]
fn a_node_port_that_is_given_up_is_closed_and_may_be_anothers() {
    let Some(cluster) = CLUSTER.join("node ports that are given up") else { return };
    let members = first_pods(&cluster, 1);
    let before = cluster.serve_echo(&echo("given-up", "NodePort"), &members);
    let ports = Talk::ALL.map(|talk| before.node_port(talk));
    cluster.serve_echo(&echo("given-up", "ClusterIP"), &members);
    // The kernel's own refusals of datagrams are few per second and client.
    for node in cluster.world.nodes() {
        node.netns().sysctls(&[("net/ipv4/icmp_ratelimit", "0"), ("net/ipv6/icmp/ratelimit", "0")]).unwrap();
    }
    for (node, talk) in cluster.world.nodes().iter().flat_map(|node| Talk::ALL.map(|talk| (node, talk))) {
        let targets = before.node_ports(node, talk);
        await_gone_from(&cluster.agents[usize::from(node.number()) - 1], &targets);
        for caller in cluster.callers() {
            for target in targets {
                let answer = cluster.run_as(&caller, || talk.ask(target, PATIENCE));
                // The node itself refuses what nobody listens to.
                let failure = answer.map_err(|e| e.io_kind());
                assert_eq!(failure, Err(Some(ErrorKind::ConnectionRefused)), "{caller} at {talk:?} {target}");
            }
        }
    }
    let mut other = echo("taken-over", "NodePort");
    for (port, number) in spec(&mut other).ports.as_mut().unwrap().iter_mut().zip(ports) {
        port.node_port = Some(number.into());
    }
    let after = cluster.serve_echo(&other, &first_pods(&cluster, 2));
    for (node, talk) in cluster.world.nodes().iter().flat_map(|node| Talk::ALL.map(|talk| (node, talk))) {
        for target in after.node_ports(node, talk) {
            let answer = cluster.run_as(&Caller::Outside, || talk.ask(target, PATIENCE)).unwrap();
            assert!(answer.name.starts_with("node2-"), "{talk:?} {target}: {answer:?}");
        }
    }
}

#[test]
fn a_pod_that_comes_later_asks_and_answers_within_2_seconds() {
    let Some(cluster) = CLUSTER.join("pods that come later") else { return };
    let served = cluster.serve_echo(&echo("for-new-pods", "NodePort"), &first_pods(&cluster, 2));
    let start = Instant::now();
    let pod = cluster.world.add_pod(1).unwrap();
    let asks = |talk: Talk, target| pod.netns().enter(|| talk.ask(target, Duration::from_millis(200)));
    for talk in Talk::ALL {
        for target in served.cluster_ips(talk) {
            let what = format!("an answer to {} from {talk:?} {target}", pod.name());
            let answer = || asks(talk, target).map_err(|e| e.to_string());
            let answer = wait::until_some(&what, Duration::from_secs(2), answer).unwrap();
            assert_eq!(answer.client.ip(), pod.address().like(target.ip()));
        }
    }
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    let _servers = serve_in(&pod);
    cluster.set_members(&served, &[Member::ready(&pod)]);
    for caller in cluster.callers() {
        for talk in Talk::ALL {
            for target in served.everywhere(&cluster.world, talk) {
                let answer = cluster.answer(&caller, talk, target);
                assert_eq!(answer.name, pod.name(), "{caller} at {talk:?} {target}");
            }
        }
    }
}

#[test]
fn a_deleted_pod_leaves_no_link_behind() {
    let Some(cluster) = CLUSTER.join("deleted pods") else { return };
    let pod = cluster.world.add_pod(2).unwrap();
    let index = index_of(&cluster, &pod);
    let pins = PinDir::new(&cluster.agents[1].pins);
    let links = || {
        let of_pod = |name: &String| name.rsplit_once('-').is_some_and(|(_, number)| number == index.to_string());
        pins.link_names().unwrap().into_iter().filter(of_pod).collect::<Vec<_>>()
    };
    let all = || {
        let found = links();
        if found.len() == 2 { Ok(()) } else { Err(format!("{found:?}")) }
    };
    wait::until_some("both links of the pod", SOON, all).unwrap();
    pod.delete().unwrap();
    let none = || {
        let found = links();
        if found.is_empty() { Ok(()) } else { Err(format!("{found:?}")) }
    };
    wait::until_some("no link of the pod", SOON, none).unwrap();
}

/// The pods of a node that every test may count on; others come and go.
fn first_pods(cluster: &Cluster, node: u8) -> Vec<Member> {
    let node = cluster.world.node(node);
    ready(&[node.pod(1), node.pod(2)])
}

fn index_of(cluster: &Cluster, pod: &Pod) -> u32 {
    let name = pod.host_interface();
    cluster.world.node(pod.node()).netns().enter(|| nix::net::if_::if_nametoindex(name.as_str()).unwrap())
}

fn await_gone(cluster: &Cluster, sockets: &[SocketAddr]) {
    cluster.agents.iter().for_each(|agent| await_gone_from(agent, sockets));
}

fn await_gone_from(agent: &harness::Agent, sockets: &[SocketAddr]) {
    for socket in sockets {
        agent.await_frontend(socket.ip(), socket.port(), false);
    }
}

fn assert_answered_by_node(cluster: &Cluster, served: &Echo, node: u8) {
    for caller in cluster.callers() {
        for talk in Talk::ALL {
            for target in served.cluster_ips(talk) {
                let answer = cluster.answer(&caller, talk, target);
                assert!(answer.name.starts_with(&format!("node{node}-")), "{caller} at {talk:?} {target}: {answer:?}");
            }
        }
    }
}
