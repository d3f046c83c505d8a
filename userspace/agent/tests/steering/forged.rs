//! First packets in others' names: what shares follow does not know of them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use etherparse::TcpHeader;
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};
use weir_testbed::load::Load;
use weir_testbed::packet::Packet;
use weir_testbed::wait;

use crate::harness::SOON;
use crate::harness::standalone::{self, Standalone, Web, yaml};

/// `IPPROTO_RAW`: packets with headers of their own.
const RAW: i32 = 255;
/// Connections a second that are meant.
const RATE: u32 = 40;
/// SYNs at each look, many times as many.
const FORGED: u8 = 250;

/// New flows a second that the agent's decisions are about, and open ones.
fn load(node: &Standalone, service: &str) -> [f64; 2] {
    let weights: Value = serde_json::from_str(&node.agent.told("/weights")).unwrap();
    let services = weights["services"].as_array().unwrap();
    let of_v4 = |told: &&Value| told["name"] == service && told["family"] == 4;
    let told = services.iter().find(of_v4);
    ["offered", "openLocal"].map(|name| told.map_or(0.0, |told| told[name].as_f64().unwrap()))
}

/// Sends SYNs of hosts that nobody has heard of.
fn forge(node: &Standalone, to: SocketAddr, round: u8) {
    let raw = || Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(RAW))).unwrap();
    let socket = node.world.client().enter(raw);
    for host in 0..FORGED {
        let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 18, round, host)), 1024 + u16::from(host));
        let syn = Packet::tcp(from, to, TcpHeader { syn: true, ..TcpHeader::default() }, &[]);
        socket.send_to(&syn.ip_bytes(), &SocketAddr::new(to.ip(), 0).into()).unwrap();
    }
}

#[test]
fn forged_first_packets_are_no_load_for_who_follows_it() {
    if !standalone::can_run("forged first packets and load") {
        return;
    }
    let web = Web::new("web", 1, &[1, 2]);
    let annotated = "    annotations: {weir.dev/policy: random}\n    clusterIPs";
    let node = Standalone::start(2, &yaml(std::slice::from_ref(&web)).replace("    clusterIPs", annotated), &[]);
    let to = web.sockets()[0];
    let asked = Load::http(to).concurrency(4).rate(RATE).start(node.world.client()).unwrap();
    wait::until("the load to be known", SOON, || load(&node, "web")[0] > f64::from(RATE) / 2.0)
        .unwrap_or_else(|e| panic!("{e}\n{}", node.agent.log()));
    let begun = || node.agent.metric(&node.world, r#"weir_selections_total{tier="node"}"#);
    let (before, mut round, mut most) = (begun(), 0, [0.0_f64; 2]);
    wait::until("SYNs for a few decisions", 4 * SOON, || {
        forge(&node, to, round);
        round += 1;
        let [offered, open] = load(&node, "web");
        most = [most[0].max(offered), most[1].max(open)];
        round == 100
    })
    .unwrap();
    wait::until("nearly all of them to be counted", SOON, || begun() - before > 90.0 * f64::from(FORGED)).unwrap();
    // Of thousands; on a machine that is busy those that are meant come in bursts.
    assert!(most.iter().all(|most| *most < f64::from(20 * RATE)), "connections a second, and open ones: {most:?}");
    let report = asked.stop().unwrap();
    assert_eq!(report.failed(), 0, "{:?}", report.errors);
}
