//! Ports of a cluster IP that no Service port has are refused, as ports of a host on which nobody listens; those of external
//! addresses end here rather than go round; and what is refused, what is dropped where a Service has nobody to answer.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use etherparse::TcpHeader;
use nix::libc;
use socket2::{Domain, Socket, Type};
use weir_abi as abi;
use weir_testbed::ask::PATIENCE;
use weir_testbed::packet::{Packet, Transport};
use weir_testbed::{Capture, address};

use crate::CLUSTER;
use crate::harness::callers::Caller;
use crate::harness::clients::send_raw;
use crate::harness::echo::{Echo, Talk, echo, ready, spec};
use crate::harness::matrix::{Kind, external};
use crate::harness::{Cluster, SOON};

/// What is refused is refused within this time.
const AT_ONCE: Duration = Duration::from_millis(500);
/// Nobody's port.
const UNUSED: u16 = 4711;

#[test]
fn unused_ports_of_a_cluster_ip_are_refused_to_everybody_and_its_ports_are_served() {
    let Some(cluster) = CLUSTER.join("unused ports") else { return };
    let served = cluster.serve_echo(&echo("unused", "ClusterIP"), &ready(&cluster.world.node(2).pods()));
    assert_unused_ports_refused(&cluster, &served);
    for caller in cluster.callers() {
        for talk in Talk::ALL {
            for target in served.cluster_ips(talk) {
                cluster.answer(&caller, talk, target);
            }
        }
    }
}

#[test]
fn unused_ports_are_refused_whether_or_not_the_service_has_endpoints_and_whichever_ports_it_loses() {
    let Some(cluster) = CLUSTER.join("unused ports of services that change") else { return };
    let mut service = echo("unused-changing", "ClusterIP");
    let served = cluster.serve_echo(&service, &[]);
    assert_unused_ports_refused(&cluster, &served);
    // The port that the others come after, and one in the middle.
    for lost in [0, 0] {
        let port = spec(&mut service).ports.as_mut().unwrap().remove(lost);
        cluster.objects.apply(&service).unwrap();
        let number = u16::try_from(port.port).unwrap();
        let talk = Talk::ALL.into_iter().find(|talk| Some(talk.name()) == port.name.as_deref()).unwrap();
        for target in served.cluster_ips(talk) {
            await_gone(&cluster, target, talk);
            for caller in cluster.callers() {
                assert_refused(&cluster, &caller, talk, SocketAddr::new(target.ip(), number));
            }
        }
        assert_unused_ports_refused(&cluster, &served);
    }
}

#[test]
fn nothing_is_left_of_a_deleted_services_cluster_ips_and_the_next_owner_has_its_own_ports() {
    let Some(cluster) = CLUSTER.join("unused ports of deleted services") else { return };
    let first = cluster.serve_echo(&echo("unused-before", "ClusterIP"), &ready(&cluster.world.node(1).pods()));
    cluster.objects.delete(&first.service).unwrap();
    for agent in &cluster.agents {
        for target in first.cluster_ips(Talk::Tcp) {
            agent.await_frontend(target.ip(), target.port(), false);
            agent.await_frontend(target.ip(), 0, false);
        }
    }
    let mut service = echo("unused-after", "ClusterIP");
    let old = first.service.spec.as_ref().unwrap();
    spec(&mut service).cluster_ip = old.cluster_ip.clone();
    spec(&mut service).cluster_ips = old.cluster_ips.clone();
    spec(&mut service).ports.as_mut().unwrap().remove(0);
    let made = Echo { service: cluster.objects.apply(&service).unwrap() };
    cluster.set_members(&made, &[]);
    for target in made.cluster_ips(Talk::Http) {
        cluster.await_frontend(target.ip(), Talk::Tcp.port());
        for caller in cluster.callers() {
            assert_refused(&cluster, &caller, Talk::Http, target);
        }
    }
}

#[test]
fn ports_of_a_node_are_nobodys_business_and_of_external_addresses_only_the_address_is_known() {
    let Some(cluster) = CLUSTER.join("ports of other addresses") else { return };
    let served = cluster.serve_echo(&Kind::ExternalIp.service("not-ours", 80), &ready(&cluster.world.node(1).pods()));
    let rest_of = |agent: &crate::harness::Agent, ips: [IpAddr; 2]| {
        let dump = agent.view().dump().unwrap();
        let any = |ip| dump.frontends.iter().find(|(key, _)| key.address == ip && key.port == 0);
        ips.map(|ip| any(ip).map(|(_, frontend)| frontend.kind))
    };
    for agent in &cluster.agents {
        let cluster_ips = served.cluster_ips(Talk::Http).map(|socket| socket.ip());
        assert_eq!(rest_of(agent, cluster_ips), [Some(abi::KIND_UNUSED_PORT); 2]);
        assert_eq!(rest_of(agent, external(80)), [Some(abi::KIND_ADDRESS); 2]);
        assert_eq!(rest_of(agent, cluster.world.node(1).address().both()), [None; 2]);
    }
    // The agent's own server.
    for ip in cluster.world.node(1).address().both() {
        let reply =
            cluster.run_as(&Caller::Outside, || crate::harness::http::get(SocketAddr::new(ip, 10256), "/livez"));
        match reply {
            Ok(reply) => assert_eq!(reply.status, 200, "{reply:?}"),
            // By default it listens in one family.
            Err(error) => assert!(ip.is_ipv6(), "{ip}: {error}"),
        }
    }
}

/// A SYN, a datagram and a ping of the client outside, none of which any Service has.
fn unserved(to: IpAddr) -> [Packet; 3] {
    let (from, target) = (SocketAddr::new(address::CLIENT.like(to), 40_000), SocketAddr::new(to, UNUSED));
    let kind = if to.is_ipv4() { 8 } else { 128 };
    let ping = Transport::Icmp { kind, code: 0, rest: [0, 1, 0, 1], body: b"who".to_vec() };
    let syn = TcpHeader { syn: true, ..TcpHeader::default() };
    [Packet::tcp(from, target, syn, b""), Packet::udp(from, target, b"who"), Packet::new(from.ip(), to, ping)]
}

#[test]
fn what_nobody_serves_at_an_external_address_comes_to_a_node_once_and_not_back_from_its_router() {
    let Some(cluster) = CLUSTER.join("packets that come round") else { return };
    let (world, agent) = (&cluster.world, &cluster.agents[0]);
    let dropped = || agent.packets(abi::HOOK_NIC_EGRESS, abi::REASON_NO_SERVICE);
    for (kind, number) in [(Kind::ExternalIp, 93), (Kind::LoadBalancer, 94)] {
        let name = format!("round-{}", format!("{kind:?}").to_lowercase());
        cluster.serve_echo(&kind.service(&name, number), &ready(&world.node(1).pods()));
        let left = Capture::start(world.node(1).netns(), "eth0").unwrap();
        for ip in external(number) {
            cluster.await_frontend(ip, 0);
            for packet in unserved(ip) {
                let before = dropped();
                let router = address::ROUTER_OUTSIDE.like(ip);
                cluster.run_as(&Caller::Outside, || send_raw(&packet, router)).unwrap();
                let what = format!("{packet:?} to be dropped");
                weir_testbed::wait::until(&what, SOON, || dropped() > before)
                    .unwrap_or_else(|e| panic!("{e}\n{}", agent.log()));
            }
        }
        let seen = left.destinations().unwrap();
        assert!(!seen.iter().any(|ip| external(number).contains(ip)), "left the node: {seen:?}");
    }
}

#[test]
fn without_any_endpoint_a_policy_of_local_refuses_too_at_every_kind_of_address() {
    let Some(cluster) = CLUSTER.join("policies without endpoints") else { return };
    for (kind, number) in [(Kind::NodePort, 90), (Kind::LoadBalancer, 91), (Kind::ExternalIp, 92)] {
        let name = format!("nobody-{}", format!("{kind:?}").to_lowercase());
        let mut service = kind.service(&name, number);
        spec(&mut service).internal_traffic_policy = Some("Local".into());
        spec(&mut service).external_traffic_policy = Some("Local".into());
        let served = cluster.serve_echo(&service, &[]);
        for caller in cluster.callers() {
            for talk in [Talk::Tcp, Talk::Udp] {
                let targets = kind.targets(&cluster, &served, number, talk);
                for target in targets.into_iter().chain(served.cluster_ips(talk)) {
                    assert_refused(&cluster, &caller, talk, target);
                }
            }
        }
    }
}

/// Who has yet to compute a checksum leaves it to the card, as pods do: that ties an answer's length to where it lies.
#[test]
fn a_connection_with_options_before_its_transport_header_is_refused_as_any_other() {
    let Some(cluster) = CLUSTER.join("refusals of packets with options") else { return };
    let served = cluster.serve_echo(&echo("optional", "ClusterIP"), &[]);
    for caller in [Caller::Pod(cluster.world.node(1).pod(1)), Caller::Outside] {
        for target in served.cluster_ips(Talk::Tcp) {
            let connect = || {
                let socket = Socket::new(Domain::for_address(target), Type::STREAM, None)?;
                set_options(&socket, target)?;
                let start = Instant::now();
                Ok((socket.connect_timeout(&target.into(), PATIENCE).map_err(|e| e.kind()), start.elapsed()))
            };
            let (refused, took) = cluster.run_as(&caller, connect).map_err(|e: io::Error| e).unwrap();
            assert_eq!(refused, Err(ErrorKind::ConnectionRefused), "{caller} at {target} after {took:?}");
            assert!(took < AT_ONCE, "{caller} at {target}: refused after {took:?}");
        }
    }
}

/// Has a socket put options that say nothing in front of what it sends there.
fn set_options(socket: &Socket, target: SocketAddr) -> io::Result<()> {
    let (level, name, options): (_, _, &[u8]) = if target.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_OPTIONS, &[1, 1, 1, 1])
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_DSTOPTS, &[0, 0, 1, 4, 0, 0, 0, 0])
    };
    let length = options.len().try_into().expect("options are short");
    // SAFETY: the kernel copies so many bytes of the slice, which outlives the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, options.as_ptr().cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Everybody is refused at ports that this Service does not have, also at one that it has for the other protocol.
fn assert_unused_ports_refused(cluster: &Cluster, served: &Echo) {
    for caller in cluster.callers() {
        for ip in served.cluster_ips(Talk::Http).map(|socket| socket.ip()) {
            for (talk, port) in [(Talk::Tcp, UNUSED), (Talk::Udp, UNUSED), (Talk::Udp, Talk::Http.port())] {
                assert_refused(cluster, &caller, talk, SocketAddr::new(ip, port));
            }
        }
    }
}

fn assert_refused(cluster: &Cluster, caller: &Caller, talk: Talk, target: SocketAddr) {
    let (answer, took) = cluster.run_as(caller, || {
        let start = Instant::now();
        (talk.ask(target, PATIENCE), start.elapsed())
    });
    let seen = answer.map_err(|e| e.io_kind());
    assert_eq!(seen, Err(Some(ErrorKind::ConnectionRefused)), "{caller} at {talk:?} {target} after {took:?}");
    assert!(took < AT_ONCE, "{caller} at {talk:?} {target}: refused after {took:?}");
}

/// Waits until no agent has a frontend of this protocol any more; TCP and UDP may share a port's number.
fn await_gone(cluster: &Cluster, target: SocketAddr, talk: Talk) {
    let protocol = if talk.protocol() == "UDP" { 17 } else { 6 };
    for agent in &cluster.agents {
        let gone = || {
            let dump = agent.view().dump().unwrap();
            let same = |key: &weir_core::ops::FrontendKey| {
                (key.address, key.port, key.protocol) == (target.ip(), target.port(), protocol)
            };
            !dump.frontends.iter().any(|(key, _)| same(key))
        };
        let what = format!("the end of frontend {talk:?} {target}");
        weir_testbed::wait::until(&what, SOON, gone).unwrap_or_else(|e| panic!("{e}\n{}", agent.log()));
    }
}
