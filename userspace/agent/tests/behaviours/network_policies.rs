//! Rules by which a CNI keeps clients from pods of this node hold whatever frontend they ask by, and from whichever port.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use weir_testbed::ask::PATIENCE;
use weir_testbed::{address, objects, wait};

use crate::CLUSTER;
use crate::harness::clients::{any, fresh_port};
use crate::harness::echo::spec;
use crate::harness::matrix::external;
use crate::harness::{Cluster, SOON, node_port};

/// Of the service and its endpoint; no other test has it, so that the rules hit no other one.
const PORT: u16 = 17_100;
/// Makes its external addresses.
const NUMBER: u8 = 130;

/// Rules of node 1 that keep the client outside from the endpoint, until they are dropped.
struct Policy<'a> {
    cluster: &'a Cluster,
    program: &'static str,
    rule: [String; 10],
}

impl<'a> Policy<'a> {
    fn new(cluster: &'a Cluster, pod: IpAddr) -> Self {
        let program = if pod.is_ipv4() { "iptables" } else { "ip6tables" };
        let (client, pod, port) = (address::CLIENT.like(pod).to_string(), pod.to_string(), PORT.to_string());
        let rule = ["-p", "udp", "-s", &client, "-d", &pod, "--dport", &port, "-j", "DROP"].map(str::to_owned);
        let policy = Self { cluster, program, rule };
        let status = policy.command("-I").args(&policy.rule).status();
        assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{program} -I: {status:?}");
        policy
    }

    fn command(&self, what: &str) -> Command {
        let mut command = self.cluster.world.node(1).netns().command(self.program);
        command.args(["-w", what, "FORWARD"]);
        command
    }

    /// Packets that they have dropped.
    fn dropped(&self) -> String {
        let listed = self.command("-nvxL").output().unwrap().stdout;
        let listed = String::from_utf8_lossy(&listed).into_owned();
        let line = listed.lines().find(|line| line.contains(&format!("dpt:{PORT}"))).unwrap_or_default();
        line.split_whitespace().next().unwrap_or_default().to_owned()
    }
}

impl Drop for Policy<'_> {
    fn drop(&mut self) {
        let _ = self.command("-D").args(&self.rule).status();
    }
}

/// One socket's datagrams to both, which the endpoint could not tell apart by their source.
fn ask(socket: &UdpSocket, targets: [SocketAddr; 2]) -> io::Result<()> {
    targets.iter().try_for_each(|target| socket.send_to(target.to_string().as_bytes(), target).map(drop))
}

#[test]
fn a_client_that_is_kept_from_a_pod_does_not_get_there_by_a_second_frontend_from_the_same_port() {
    let Some(cluster) = CLUSTER.join("network policies and two frontends") else { return };
    let pod = cluster.world.node(1).pod(2);
    let mut service = objects::service("kept-out", PORT, "UDP");
    let addresses = external(NUMBER);
    (spec(&mut service).type_, spec(&mut service).external_ips) =
        (Some("NodePort".into()), Some(addresses.map(|ip| ip.to_string()).to_vec()));
    let made = cluster.publish(&service, PORT, std::slice::from_ref(&pod));
    let agent = &cluster.agents[0];
    agent.await_backends("kept-out", pod.address().both().to_vec());
    for ip in pod.address().both() {
        let own = SocketAddr::new(address::node(1).like(ip), node_port(&made));
        let other = SocketAddr::new(*addresses.iter().find(|at| at.is_ipv4() == ip.is_ipv4()).unwrap(), PORT);
        [own, other].iter().for_each(|at| agent.await_frontend(at.ip(), at.port(), true));
        let server = pod.netns().enter(|| UdpSocket::bind((ip, PORT))).unwrap();
        server.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let port = fresh_port();
        let client = cluster.world.client().enter(|| UdpSocket::bind(any(own, port))).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();

        let policy = Policy::new(&cluster, ip);
        ask(&client, [own, other]).unwrap();
        let both = || if policy.dropped() == "2" { Ok(()) } else { Err(policy.dropped()) };
        wait::until_some("two packets that the rules drop", SOON, both).unwrap();
        let got = server.recv_from(&mut [0; 64]).map_err(|e| e.kind());
        assert_eq!(got, Err(io::ErrorKind::WouldBlock), "{ip}: nothing gets past the rules");
        drop(policy);

        // It is let in: the second flow has another port, and each answer its own way back.
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        ask(&client, [own, other]).unwrap();
        let mut seen = Vec::new();
        for _ in 0..2 {
            let mut buffer = [0; 64];
            let (length, from) = server.recv_from(&mut buffer).unwrap();
            server.send_to(&buffer[..length], from).unwrap();
            seen.push(from);
        }
        let expected = address::CLIENT.like(ip);
        assert!(seen.iter().all(|from| from.ip() == expected) && seen[0] != seen[1], "{seen:?}");
        for _ in 0..2 {
            let mut buffer = [0; 64];
            let (length, from) = client.recv_from(&mut buffer).unwrap();
            assert_eq!(
                String::from_utf8_lossy(&buffer[..length]),
                from.to_string(),
                "the answer is from who was asked"
            );
        }
    }
}
