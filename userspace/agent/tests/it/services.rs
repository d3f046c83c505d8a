//! Every type of Service from every kind of client, in both families, over TCP and UDP, against the real API server.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};

use weir_testbed::ask::PATIENCE;
use weir_testbed::{address, serve};

use crate::harness::callers::Caller;
use crate::harness::echo::{Member, Talk, echo, ready, spec};
use crate::harness::matrix::{Kind, assert_serves, external};
use crate::harness::shared::Shared;
use crate::harness::{self, HTTP, TCP, UDP};

static CLUSTER: Shared = Shared::new(&[]);

#[test]
fn a_cluster_ip_is_served_to_everybody_on_the_node_where_they_enter() {
    if let Some(cluster) = CLUSTER.join("cluster IPs") {
        assert_serves(&cluster, Kind::ClusterIp, 10);
    }
}

#[test]
fn a_node_port_is_served_at_every_node_to_everybody() {
    if let Some(cluster) = CLUSTER.join("node ports") {
        assert_serves(&cluster, Kind::NodePort, 20);
    }
}

#[test]
fn a_load_balancers_ip_is_served_to_everybody() {
    if let Some(cluster) = CLUSTER.join("load balancer IPs") {
        assert_serves(&cluster, Kind::LoadBalancer, 30);
    }
}

#[test]
fn an_external_ip_is_served_to_everybody() {
    if let Some(cluster) = CLUSTER.join("external IPs") {
        assert_serves(&cluster, Kind::ExternalIp, 40);
    }
}

#[test]
fn headless_services_and_external_names_get_no_frontend() {
    let Some(cluster) = CLUSTER.join("headless services") else { return };
    let mut headless = echo("headless", "ClusterIP");
    spec(&mut headless).cluster_ip = Some("None".into());
    let mut named = echo("named", "ExternalName");
    spec(&mut named).external_name = Some("example.org".into());
    spec(&mut named).ip_family_policy = None;
    let pods = cluster.world.node(1).pods();
    for (service, number) in [(&mut headless, 50), (&mut named, 51)] {
        spec(service).external_ips = Some(external(number).map(|ip| ip.to_string()).to_vec());
        let name = cluster.objects.apply(service).unwrap().metadata.name.unwrap();
        for (suffix, v6) in [("v4", false), ("v6", true)] {
            let slice = harness::echo::slice(&name, suffix, v6, &ready(&pods));
            cluster.objects.apply(&slice).unwrap();
        }
    }
    // A Service that is made later is seen later.
    cluster.serve_echo(&Kind::ExternalIp.service("after-headless", 52), &ready(&pods));
    for agent in &cluster.agents {
        let dump = agent.view().dump().unwrap();
        let served = |ip: &IpAddr| dump.frontends.iter().any(|(key, _)| key.address == *ip);
        assert!(external(52).iter().all(served));
        assert!(!external(50).iter().chain(&external(51)).any(served), "{:?}", dump.frontends);
    }
}

#[test]
fn a_pod_that_is_the_only_endpoint_reaches_itself() {
    let Some(cluster) = CLUSTER.join("hairpins") else { return };
    let pod = cluster.world.node(2).pod(2);
    let served = cluster.serve_echo(&echo("hairpin", "NodePort"), &[Member::ready(&pod)]);
    let own = Caller::Pod(pod.clone());
    for talk in Talk::ALL {
        for target in served.cluster_ips(talk).into_iter().chain(served.node_ports(cluster.world.node(2), talk)) {
            for _ in 0..3 {
                let answer = cluster.run_as(&own, || talk.ask(target, PATIENCE)).unwrap();
                assert_eq!(answer.name, pod.name());
                assert_eq!(answer.client.ip(), address::node(2).like(target.ip()), "{talk:?} {target}");
            }
        }
    }
}

#[test]
fn an_endpoint_with_its_nodes_address_is_served_to_everybody() {
    let Some(cluster) = CLUSTER.join("endpoints in the host network") else { return };
    let node = cluster.world.node(2);
    let _servers = [
        serve::http(node.netns(), "on-host", HTTP).unwrap(),
        serve::tcp_echo(node.netns(), "on-host", TCP).unwrap(),
        serve::udp_echo(node.netns(), "on-host", UDP).unwrap(),
    ];
    let served = cluster.serve_echo(&echo("on-host", "NodePort"), &[Member::on_host(node)]);
    for caller in cluster.callers() {
        for talk in Talk::ALL {
            for target in served.everywhere(&cluster.world, talk) {
                let answer = cluster.answer(&caller, talk, target);
                assert_eq!(answer.name, "on-host");
                let entry = caller.entry(target.ip());
                let expected = match &caller {
                    _ if caller.node() != Some(entry) && entry != node.number() => address::node(entry),
                    Caller::Pod(pod) => pod.address(),
                    Caller::Host(node) => address::node(*node),
                    Caller::Outside => address::CLIENT,
                };
                assert_eq!(answer.client.ip(), expected.like(target.ip()), "{caller} at {talk:?} {target}");
            }
        }
    }
}

#[test]
fn a_thread_is_on_the_host_whichever_of_its_namespace_and_its_cgroup_it_entered_first() {
    let Some(cluster) = CLUSTER.join("threads on the host") else { return };
    let served = cluster.serve_echo(&echo("thread", "ClusterIP"), &ready(&cluster.world.node(1).pods()));
    let (netns, cgroup) = (cluster.world.node(1).netns(), &cluster.agents[0].cgroup);
    for talk in Talk::ALL {
        for target in served.cluster_ips(talk) {
            let ask = || talk.ask(target, PATIENCE).unwrap().client.ip();
            assert_eq!(cgroup.enter(|| netns.enter(ask)).unwrap(), address::gateway(1).like(target.ip()));
            assert_eq!(netns.enter(|| cgroup.enter(ask)).unwrap(), address::gateway(1).like(target.ip()));
        }
    }
}

#[test]
fn sockets_on_the_host_see_the_services_address() {
    let Some(cluster) = CLUSTER.join("socket addresses on the host") else { return };
    let pods = cluster.world.node(2).pods();
    let served = cluster.serve_echo(&echo("sight", "NodePort"), &ready(&pods));
    let host = Caller::Host(1);
    for talk in Talk::ALL {
        let node_ports = served.node_ports(cluster.world.node(1), talk);
        for target in served.cluster_ips(talk).into_iter().chain(node_ports) {
            let peer = cluster.run_as(&host, || match talk {
                Talk::Http | Talk::Tcp => TcpStream::connect(target).unwrap().peer_addr().unwrap(),
                Talk::Udp => {
                    let socket = UdpSocket::bind(if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
                    socket.connect(target).unwrap();
                    socket.peer_addr().unwrap()
                }
            });
            assert_eq!(peer, target, "{talk:?}");
        }
    }
    for target in served.cluster_ips(Talk::Udp).into_iter().chain(served.node_ports(cluster.world.node(1), Talk::Udp)) {
        let socket = cluster.socket(&host, target);
        // The second one finds the way that the first one has made.
        let heard = [(); 2].map(|()| sent_and_received(&socket, target));
        assert_eq!(heard, [target; 2]);
    }
}

/// Who answers, by its address.
fn sent_and_received(socket: &UdpSocket, target: SocketAddr) -> SocketAddr {
    socket.send_to(b"who", target).unwrap();
    socket.recv_from(&mut [0; 1024]).unwrap().1
}
