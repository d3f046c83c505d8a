//! Cluster IPs that no Service has: what is sent there never leaves a node, in all networks of the ServiceCIDRs.
//!
//! Clusters of their own: a Service of another proxy, as other tests have it, takes the networks out of force.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use k8s_openapi::api::networking::v1::{ServiceCIDR, ServiceCIDRSpec};
use kube::api::ObjectMeta;
use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use weir_abi as abi;
use weir_testbed::apiserver::User;
use weir_testbed::ask::PATIENCE;
use weir_testbed::{Capture, address, role, wait};

use crate::harness::callers::Caller;
use crate::harness::clients::any;
use crate::harness::echo::{Talk, echo, ready, spec};
use crate::harness::{self, Agent, Cluster, SOON};

/// From the part of the API server's ranges that it gives out last.
const UNASSIGNED: [&str; 2] = ["10.96.0.200", "fd00:96::c8"];
/// A ServiceCIDR that is added, and an address of each family in it.
const SECOND: [&str; 2] = ["10.97.3.0/24", "fd00:97::/112"];
const IN_SECOND: [&str; 2] = ["10.97.3.9", "fd00:97::9"];

/// What is not answered within this time is dropped.
const SILENCE: Duration = Duration::from_millis(200);
/// Nobody's port.
const PORT: u16 = 4711;

fn ips(texts: [&str; 2]) -> [IpAddr; 2] {
    texts.map(|text| text.parse().unwrap())
}

/// What is sent to an address.
#[derive(Clone, Copy, Debug)]
enum Probe {
    Tcp,
    Udp,
    Echo,
}

impl Probe {
    const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Echo];

    /// Sends it from the calling thread's namespace. Some senders learn at once that it was dropped.
    fn send(self, to: IpAddr) -> io::Result<()> {
        match self.try_send(to) {
            Err(error) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => Ok(()),
            sent => sent,
        }
    }

    fn try_send(self, to: IpAddr) -> io::Result<()> {
        let target = SocketAddr::new(to, PORT);
        match self {
            Self::Tcp => {
                let error = Talk::Tcp.ask(target, SILENCE).unwrap_err();
                // What leaves goes round between node and router; its sender may learn in time that it was too long.
                let silent = matches!(error.io_kind(), Some(io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable));
                assert!(silent, "{target}: {error}");
                Ok(())
            }
            Self::Udp => UdpSocket::bind(any(target, 0))?.send_to(b"who", target).map(drop),
            Self::Echo => {
                // The kernel sums up ICMPv6; the sum of the other one, without a body, is a constant.
                let (protocol, request) = match to {
                    IpAddr::V4(_) => (Protocol::ICMPV4, [8, 0, 0xf7, 0xff, 0, 0, 0, 0]),
                    IpAddr::V6(_) => (Protocol::ICMPV6, [128, 0, 0, 0, 0, 0, 0, 0]),
                };
                let socket = Socket::new(Domain::for_address(target), Type::RAW, Some(protocol))?;
                socket.send_to(&request, &SocketAddr::new(to, 0).into()).map(drop)
            }
        }
    }
}

/// Those whose packets meet node 1.
fn callers(cluster: &Cluster) -> [Caller; 3] {
    [Caller::Pod(cluster.world.node(1).pod(1)), Caller::Host(1), Caller::Outside]
}

/// How many packets node 1's agent has counted as sent to nobody.
fn dropped(cluster: &Cluster) -> u64 {
    cluster.agents[0].packets(abi::HOOK_NIC_EGRESS, abi::REASON_NO_SERVICE)
}

fn capture(cluster: &Cluster) -> Capture {
    Capture::start(cluster.world.node(1).netns(), "eth0").unwrap()
}

/// Everybody sends everything to these addresses, and nothing of it leaves node 1.
fn assert_dropped(cluster: &Cluster, targets: [IpAddr; 2]) {
    let left = capture(cluster);
    for caller in callers(cluster) {
        for probe in Probe::ALL {
            for target in targets {
                let before = dropped(cluster);
                cluster.run_as(&caller, || probe.send(target)).unwrap();
                let what = format!("{probe:?} of {caller} to {target} to be counted");
                wait::until(&what, SOON, || dropped(cluster) > before)
                    .unwrap_or_else(|e| panic!("{e}\n{}", cluster.agents[0].log()));
            }
        }
    }
    let seen = left.destinations().unwrap();
    assert!(!seen.iter().any(|ip| targets.contains(ip)), "left the node: {seen:?}");
}

/// The same, and all of it leaves node 1.
fn assert_left_alone(cluster: &Cluster, targets: [IpAddr; 2]) {
    let before = dropped(cluster);
    for caller in callers(cluster) {
        for probe in Probe::ALL {
            for target in targets {
                let left = capture(cluster);
                cluster.run_as(&caller, || probe.send(target)).unwrap();
                let what = format!("{probe:?} of {caller} to {target} to leave the node");
                wait::until(&what, SOON, || left.destinations().unwrap().contains(&target)).unwrap();
            }
        }
    }
    assert_eq!(dropped(cluster), before);
}

/// Everybody is answered at these sockets.
fn assert_answered(cluster: &Cluster, sockets: [SocketAddr; 2], talk: Talk) {
    for caller in callers(cluster) {
        for socket in sockets {
            let answer = cluster.run_as(&caller, || talk.ask(socket, PATIENCE));
            answer.unwrap_or_else(|e| panic!("{caller} at {talk:?} {socket}: {e}\n{}", cluster.agents[0].log()));
        }
    }
}

/// Waits until an agent's maps have exactly these networks.
fn await_networks(agent: &Agent, networks: &[&str]) {
    let right = || {
        let seen = in_force(agent);
        if seen == networks { Ok(()) } else { Err(format!("{seen:?}")) }
    };
    let what = format!("networks {networks:?} in {}", agent.pins.display());
    wait::until_some(&what, SOON, right).unwrap_or_else(|e| panic!("{e}\n{}", agent.log()));
}

fn in_force(agent: &Agent) -> Vec<String> {
    let config = agent.view().config().unwrap();
    let used = &config.service_network[..config.service_networks as usize];
    used.iter().map(|network| format!("{}/{}", network.addr.ip(), network.prefix())).collect()
}

fn service_cidr(name: &str, cidrs: &[&str]) -> ServiceCIDR {
    let cidrs = cidrs.iter().map(|cidr| (*cidr).to_owned()).collect();
    ServiceCIDR {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        spec: Some(ServiceCIDRSpec { cidrs: Some(cidrs) }),
        status: None,
    }
}

#[test]
fn what_is_sent_to_a_cluster_ip_that_no_service_has_never_leaves_a_node_until_a_service_has_it() {
    if !harness::can_run("cluster IPs that no Service has") {
        return;
    }
    let cluster = Cluster::start(2, 2, &[]);
    let pods = cluster.world.node(2).pods();
    await_networks(
        &cluster.agents[0],
        &address::cluster_ips().map(|net| net.to_string()).each_ref().map(String::as_str),
    );
    let other = cluster.serve_echo(&echo("neighbour", "ClusterIP"), &ready(&pods));
    assert_dropped(&cluster, ips(UNASSIGNED));
    let counted = "weir_drops_total{hook=\"nic_egress\",reason=\"no_service\"}";
    assert!(cluster.agents[0].metric(&cluster.world, counted) >= 18.0, "three callers, three protocols, two families");
    for talk in Talk::ALL {
        assert_answered(&cluster, other.cluster_ips(talk), talk);
    }

    let mut late = echo("late", "ClusterIP");
    spec(&mut late).cluster_ip = Some(UNASSIGNED[0].to_owned());
    spec(&mut late).cluster_ips = Some(UNASSIGNED.map(str::to_owned).to_vec());
    let late = cluster.serve_echo(&late, &ready(&pods));
    for talk in Talk::ALL {
        assert_eq!(late.cluster_ips(talk).map(|socket| socket.ip()), ips(UNASSIGNED));
        assert_answered(&cluster, late.cluster_ips(talk), talk);
    }
    cluster.objects.delete(&late.service).unwrap();
    for target in late.cluster_ips(Talk::Tcp) {
        cluster.agents[0].await_frontend(target.ip(), target.port(), false);
    }
    assert_dropped(&cluster, ips(UNASSIGNED));
}

#[test]
fn service_cidrs_come_and_go_at_run_time_and_stay_in_force_without_an_agent() {
    if !harness::can_run("ServiceCIDRs that come and go") {
        return;
    }
    let mut cluster = Cluster::start(1, 1, &[]);
    for network in SECOND {
        cluster.world.route_via(network.parse().unwrap(), 1).unwrap();
    }
    let first = address::cluster_ips().map(|net| net.to_string());
    let [v4, v6] = first.each_ref().map(String::as_str);
    await_networks(&cluster.agents[0], &[v4, v6]);
    assert_left_alone(&cluster, ips(IN_SECOND));

    let second = service_cidr("second", &SECOND);
    cluster.objects.apply(&second).unwrap();
    await_networks(&cluster.agents[0], &[v4, SECOND[0], v6, SECOND[1]]);
    assert_dropped(&cluster, ips(IN_SECOND));

    cluster.agents[0].kill();
    assert_dropped(&cluster, ips(IN_SECOND));
    cluster.agents[0].start_again(&cluster.world);
    cluster.agents[0].await_ready(&cluster.world);
    assert_dropped(&cluster, ips(IN_SECOND));
    let log = cluster.agents[0].last_log();
    assert!(!log.contains("dropping what leaves"), "nothing has changed:\n{log}");

    cluster.objects.delete(&second).unwrap();
    await_networks(&cluster.agents[0], &[v4, v6]);
    assert_left_alone(&cluster, ips(IN_SECOND));
    assert_dropped(&cluster, ips(UNASSIGNED));
}

#[test]
fn networks_that_hold_a_node_or_find_no_room_are_told_to_their_owners_and_the_others_are_in_force() {
    if !harness::can_run("ServiceCIDRs that cannot be in force") {
        return;
    }
    let cluster = Cluster::start(1, 1, &[]);
    let first = address::cluster_ips().map(|net| net.to_string());
    let [v4, v6] = first.each_ref().map(String::as_str);
    await_networks(&cluster.agents[0], &[v4, v6]);
    cluster.objects.apply(&service_cidr("nodes", &["172.30.0.0/24"])).unwrap();
    let told = cluster.await_event_about("ServiceCIDR", "nodes", "NetworkLeftOut").note.unwrap();
    assert!(told.contains("172.30.0.0/24") && told.contains("172.30.0.11"), "{told}");
    await_networks(&cluster.agents[0], &[v4, v6]);

    let more: Vec<_> = (1..=7).map(|number| format!("10.200.{}.0/24", 2 * number)).collect();
    for (number, network) in more.iter().enumerate() {
        cluster.objects.apply(&service_cidr(&format!("more-{number}"), &[network])).unwrap();
    }
    // The last one in the order of addresses.
    cluster.await_event_about("ServiceCIDR", "kubernetes", "NetworkLeftOut");
    let fit: Vec<_> = [v4].into_iter().chain(more.iter().map(String::as_str)).collect();
    await_networks(&cluster.agents[0], &fit);
    cluster.objects.delete(&service_cidr("more-3", &[])).unwrap();
    let fit: Vec<_> = fit.into_iter().filter(|network| *network != more[3]).chain([v6]).collect();
    await_networks(&cluster.agents[0], &fit);
}

#[test]
fn beside_another_proxy_packets_are_left_to_it_and_so_they_are_while_it_has_a_service() {
    if !harness::can_run("cluster IPs beside another proxy") {
        return;
    }
    let mut cluster = Cluster::start(1, 1, &["--service-proxy-name=weir"]);
    assert_left_alone(&cluster, ips(UNASSIGNED));

    cluster.agents[0].stop();
    cluster.agents[0].remove_option("--service-proxy-name");
    cluster.agents[0].start_again(&cluster.world);
    cluster.agents[0].await_ready(&cluster.world);
    let first = address::cluster_ips().map(|net| net.to_string());
    await_networks(&cluster.agents[0], &first.each_ref().map(String::as_str));
    assert_dropped(&cluster, ips(UNASSIGNED));

    let mut theirs = echo("theirs", "ClusterIP");
    theirs.metadata.labels = Some([("service.kubernetes.io/service-proxy-name".into(), "other".into())].into());
    cluster.objects.apply(&theirs).unwrap();
    await_networks(&cluster.agents[0], &[]);
    assert_left_alone(&cluster, ips(UNASSIGNED));
    cluster.objects.delete(&theirs).unwrap();
    await_networks(&cluster.agents[0], &first.each_ref().map(String::as_str));
}

#[test]
fn an_agent_that_may_not_see_service_cidrs_is_ready_and_says_once_what_it_lacks() {
    if !harness::can_run("forbidden ServiceCIDRs") {
        return;
    }
    let mut cluster = Cluster::without_agents(1, 1);
    let rules = role::to_watch().into_iter().filter(|rule| rule.resources != Some(vec!["servicecidrs".into()]));
    role::allow_agent(&cluster.objects, rules.collect()).unwrap();
    let url = cluster.api.url_at(address::ROUTER_INSIDE.v4.into());
    let kubeconfig = cluster.api.kubeconfig(User::Agent, &url).unwrap();
    let source = ["--kubeconfig".to_owned(), kubeconfig.display().to_string()];
    cluster.agents.push(Agent::with_source(&cluster.world, 1, source, &[]));
    cluster.agents[0].await_ready(&cluster.world);
    cluster.agents[0].await_log("rights to list and watch servicecidrs");
    assert_left_alone(&cluster, ips(UNASSIGNED));
    let log = cluster.agents[0].log();
    assert_eq!(log.matches("servicecidrs.networking.k8s.io is forbidden").count(), 1, "{log}");
    cluster.agents[0].await_ready(&cluster.world);
}
