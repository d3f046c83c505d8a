//! Whom an endpoint sees as its client, by `--masquerade`.

use std::net::{IpAddr, SocketAddr};

use weir_testbed::address::{self, CLIENT, Pair};
use weir_testbed::ask::{self, PATIENCE};

use crate::harness::HTTP;
use crate::harness::echo::Talk;
use crate::harness::standalone::{self, Standalone};

const CLUSTER_IP: Pair = pair(1);
const EXTERNAL_IP: Pair = pair(2);
const LOCAL_IP: Pair = pair(3);

/// Of the clients' datagrams, below those that sockets are given.
const FIRST_PORT: u16 = 20_000;

const fn pair(n: u8) -> Pair {
    let v6 = std::net::Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, n as u16);
    Pair { v4: std::net::Ipv4Addr::new(10, 96, 7, n), v6 }
}

/// One endpoint behind a Service under each external policy.
fn file() -> String {
    let (node, pod) = (address::node(1), address::pod(1, 1));
    let service = |name: &str, ip: Pair, external: Pair, policy: &str| {
        format!(
            "- name: {name}\n  clusterIPs: [{}, \"{}\"]\n  externalIPs: [{}, \"{}\"]\n  externalTrafficPolicy: {policy}\n  \
             ports:\n  - {{name: http, port: 80, targetPort: {HTTP}}}\n  - {{name: udp, port: {}, protocol: UDP, \
             targetPort: {}}}\n  endpoints: [{{address: {}, node: node1}}, {{address: \"{}\", node: node1}}]\n",
            ip.v4,
            ip.v6,
            external.v4,
            external.v6,
            Talk::Udp.port(),
            Talk::Udp.target(),
            pod.v4,
            pod.v6
        )
    };
    format!(
        "nodes: [{{name: node1, addresses: [{}, \"{}\"]}}]\nservices:\n{}{}",
        node.v4,
        node.v6,
        service("everywhere", CLUSTER_IP, EXTERNAL_IP, "Cluster"),
        service("here", pair(4), LOCAL_IP, "Local")
    )
}

/// Whom the endpoint sees, of a client outside and of a pod. A datagram comes from this port: a client that came to one
/// endpoint through two frontends from one port would get the node's name, whatever the option says.
fn seen(node: &Standalone, frontend: Pair, talk: Talk, v6: bool, port: u16) -> [IpAddr; 2] {
    let pick = |pair: Pair| if v6 { IpAddr::from(pair.v6) } else { pair.v4.into() };
    let target = SocketAddr::new(pick(frontend), talk.port());
    let ask = || {
        let answer = match talk {
            Talk::Http | Talk::Tcp => talk.ask(target, PATIENCE),
            Talk::Udp => ask::udp_ask_from(port, target, PATIENCE),
        };
        answer.map(|answer| answer.client.ip())
    };
    let outside = node.world.client().enter(ask);
    let pod = node.world.node(1).pod(2).netns().enter(ask);
    [outside, pod].map(|seen| seen.unwrap_or_else(|e| panic!("{target}: {e}\n{}", node.agent.log())))
}

#[test]
fn endpoints_see_the_node_where_the_option_says_so_and_their_clients_elsewhere() {
    let what = "masquerading by option";
    let Some(mut node) = standalone::can_run(what).then(|| Standalone::start(2, &file(), &["--masquerade=needed"]))
    else {
        return;
    };
    let (this, clients) = (address::node(1), [CLIENT, address::pod(1, 2)]);
    let mut ports = FIRST_PORT..;
    // Of clients outside and of pods: external addresses under policy Cluster and Local, and cluster IPs.
    for (option, external, local, cluster) in [
        ("needed", [false, false], [false, false], [false, false]),
        ("external", [true, true], [false, false], [true, false]),
        ("all", [true, true], [false, false], [true, true]),
    ] {
        node.agent.kill();
        node.agent.set_option(&format!("--masquerade={option}"));
        node.agent.start_again(&node.world);
        node.agent.await_ready(&node.world);
        for (frontend, masqueraded) in [(EXTERNAL_IP, external), (LOCAL_IP, local), (CLUSTER_IP, cluster)] {
            for (talk, v6) in [(Talk::Http, false), (Talk::Http, true), (Talk::Udp, false), (Talk::Udp, true)] {
                let expected: [IpAddr; 2] = std::array::from_fn(|i| {
                    let pair = if masqueraded[i] { this } else { clients[i] };
                    if v6 { pair.v6.into() } else { pair.v4.into() }
                });
                let seen = seen(&node, frontend, talk, v6, ports.next().expect("there are enough ports"));
                assert_eq!(seen, expected, "--masquerade={option} {frontend:?} {talk:?}");
            }
        }
    }
}
