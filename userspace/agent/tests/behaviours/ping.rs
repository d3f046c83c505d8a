//! `--echo-replies`: whether a Service's addresses answer echo requests.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use weir_testbed::address;
use weir_testbed::packet::{Packet, Transport};

use crate::harness::clients::send_raw;
use crate::harness::standalone::{self, Standalone};

/// Of an answer that comes.
const PATIENCE: Duration = Duration::from_secs(2);
/// Of one that does not.
const SILENCE: Duration = Duration::from_millis(300);
/// All kinds of addresses of the service below.
const ADDRESSES: [&str; 6] =
    ["10.96.0.1", "fd00:96::1", "203.0.113.1", "2001:db8:203::1", "203.0.113.2", "2001:db8:203::2"];
/// Of nobody.
const OTHERS: [&str; 2] = ["10.96.0.99", "fd00:96::99"];

fn file() -> String {
    let (node, pod) = (address::node(1), address::pod(1, 1));
    format!(
        "nodes: [{{name: node1, addresses: [{}, \"{}\"]}}]\nservices:\n\
         - name: web\n  clusterIPs: [10.96.0.1, \"fd00:96::1\"]\n  \
         externalIPs: [203.0.113.1, \"2001:db8:203::1\"]\n  \
         loadBalancerIPs: [203.0.113.2, \"2001:db8:203::2\"]\n  \
         ports: [{{port: 80, targetPort: 8080}}]\n  \
         endpoints: [{{address: {}, node: node1}}, {{address: \"{}\", node: node1}}]\n",
        node.v4, node.v6, pod.v4, pod.v6
    )
}

/// Asks once in the calling thread's namespace, and waits for an answer to that.
fn ping(from: IpAddr, to: IpAddr, neighbour: IpAddr, limit: Duration) -> io::Result<()> {
    let (asked, answered, protocol) =
        if to.is_ipv4() { (8, 0, Protocol::ICMPV4) } else { (128, 129, Protocol::ICMPV6) };
    let mut socket = Socket::new(Domain::for_address(SocketAddr::new(to, 0)), Type::RAW, Some(protocol))?;
    let (rest, body) = ([0x12, 0x34, 0, 1], b"is anybody there?".to_vec());
    let request = Transport::Icmp { kind: asked, code: 0, rest, body: body.clone() };
    send_raw(&Packet::new(from, to, request), neighbour)?;
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        let mut buffer = [0; 256];
        let length = socket.read(&mut buffer)?;
        // With IPv4 the IP header comes along.
        let header = if to.is_ipv4() { usize::from(buffer[0] & 15) * 4 } else { 0 };
        let message = &buffer[header..length];
        if message[0] == answered && message[4..] == [&rest[..], &body].concat() {
            return Ok(());
        }
    }
}

/// Asks from outside and from a pod.
fn ping_all(node: &Standalone, ip: IpAddr, limit: Duration) -> [io::Result<()>; 2] {
    let pod = node.world.node(1).pod(2);
    let (own, gateway) = (pod.address().like(ip), address::gateway(1).like(ip));
    let (client, router) = (address::CLIENT.like(ip), address::ROUTER_OUTSIDE.like(ip));
    [node.world.client().enter(|| ping(client, ip, router, limit)), pod.netns().enter(|| ping(own, ip, gateway, limit))]
}

#[test]
fn addresses_of_services_answer_echo_requests_where_the_option_says_so() {
    if !standalone::can_run("echo replies") {
        return;
    }
    let mut node = Standalone::start(2, &file(), &["--echo-replies"]);
    for ip in ADDRESSES {
        let ip: IpAddr = ip.parse().unwrap();
        let seen = ping_all(&node, ip, PATIENCE);
        assert!(seen.iter().all(Result::is_ok), "{ip}: {seen:?}\n{}", node.agent.log());
    }
    for ip in OTHERS {
        let seen = ping_all(&node, ip.parse().unwrap(), SILENCE);
        assert!(seen.iter().all(Result::is_err), "{ip} is nobody's");
    }
    node.agent.stop();
    node.agent.remove_option("--echo-replies");
    node.agent.start_again(&node.world);
    node.agent.await_ready(&node.world);
    for ip in ADDRESSES {
        let seen = ping_all(&node, ip.parse().unwrap(), SILENCE);
        assert!(seen.iter().all(Result::is_err), "{ip} answers without the option");
    }
}
