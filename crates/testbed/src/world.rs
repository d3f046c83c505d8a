//! A whole world: nodes on a switch, and a client that reaches them through a router.
//!
//! ```text
//!   client ── router ── switch ──┬── eth0 node1 cni0 ──┬── veth1a pod1
//!                                │                     └── veth1b pod2
//!                                └── eth0 node2 cni0 ── …
//! ```
//!
//! The router sends cluster IPs and external IPs to node 1 until [`World::route_via`] says otherwise, and pod addresses to
//! their nodes. Addresses are in [`crate::address`]. Node NICs see frames as a wire carries them: full checksums, no
//! segments to split, and room for what XDP sends back.

use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ipnet::IpNet;
use socket2::{Domain, Socket, Type};

use crate::address::{self, Pair};
use crate::bpffs;
use crate::cgroup::is_alive;
use crate::delay::DelayLink;
use crate::netns::{self, Netns};
use crate::node::{self, NIC, Node, POD_BRIDGE, Pod, Uplink, no_address_detection};
use crate::verdict::Pass;
use crate::{Error, Result, ip, wait};

/// How long a new world may take until every address answers.
const READY_LIMIT: Duration = Duration::from_secs(15);

/// A probe's patience above the delay of the links.
const PROBE_LIMIT: Duration = Duration::from_millis(200);

/// Where agents have their admin sockets, under the names of their pin directories (`weir_telemetry::admin`).
const ADMIN_SOCKETS: &str = "/run/weir";

/// What the switch is called inside its namespace.
const SWITCH_BRIDGE: &str = "br0";

/// What a world shall look like.
#[derive(Clone, Debug)]
pub struct Builder {
    nodes: u8,
    pods_per_node: u8,
    round_trip: Duration,
}

impl Builder {
    /// Number of nodes, 1 to [`address::MAX`]; 2 unless set.
    #[must_use]
    pub fn nodes(mut self, nodes: u8) -> Self {
        self.nodes = nodes;
        self
    }

    /// Number of pods on each node, 0 to [`address::MAX`]; 1 unless set.
    #[must_use]
    pub fn pods_per_node(mut self, pods: u8) -> Self {
        self.pods_per_node = pods;
        self
    }

    /// Round-trip time between any two nodes; half of it between the router and a node. Zero, the default, makes plain
    /// veth links, whose delay cannot be changed later.
    #[must_use]
    pub fn delay(mut self, round_trip: Duration) -> Self {
        self.round_trip = round_trip;
        self
    }

    /// Builds the world and waits until the router reaches every node and every pod in both families. Sweeps first.
    ///
    /// # Errors
    /// When a number is out of range, a command fails, or an address stays silent.
    pub fn build(&self) -> Result<World> {
        let Self { nodes, pods_per_node, round_trip } = *self;
        if nodes == 0 || nodes > address::MAX || pods_per_node > address::MAX {
            let most = address::MAX;
            return Err(Error::Invalid(format!("a world has 1 to {most} nodes with up to {most} pods each")));
        }
        World::sweep()?;
        let mut world = World::create()?;
        for number in 1..=nodes {
            let mut node = Node::create(&world.prefix, number)?;
            node.set_uplink(world.plug(&node, round_trip)?);
            node.configure(nodes)?;
            for _ in 0..pods_per_node {
                node.add_pod()?;
            }
            world.nodes.push(node);
        }
        world.configure_router(nodes)?;
        world.await_ready(READY_LIMIT + round_trip)?;
        Ok(world)
    }
}

/// Nodes, pods, router and client. Everything is removed on drop; what a killed process leaves, [`World::sweep`] removes.
#[derive(Debug)]
pub struct World {
    prefix: String,
    nodes: Vec<Node>,
    client: Netns,
    router: Netns,
    switch: Netns,
}

impl World {
    /// A world of two nodes with one pod each, to be changed before it is built.
    #[must_use]
    pub fn builder() -> Builder {
        Builder { nodes: 2, pods_per_node: 1, round_trip: Duration::ZERO }
    }

    /// What the names of all its namespaces start with; no other world shares it.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Its nodes; the first is node 1.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node with this number, from 1.
    ///
    /// # Panics
    /// When there is no such node.
    #[must_use]
    pub fn node(&self, number: u8) -> &Node {
        let found = self.nodes.iter().find(|node| node.number() == number);
        found.unwrap_or_else(|| panic!("the world has {} nodes, node {number} is not one of them", self.nodes.len()))
    }

    /// The client outside the cluster.
    #[must_use]
    pub fn client(&self) -> &Netns {
        &self.client
    }

    /// The router between client and nodes.
    #[must_use]
    pub fn router(&self) -> &Netns {
        &self.router
    }

    /// Makes one more pod on a node and waits until the router reaches it.
    ///
    /// # Errors
    /// As [`Node::add_pod`], and when the pod stays silent.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn add_pod(&self, node: u8) -> Result<Pod> {
        let pod = self.node(node).add_pod()?;
        self.await_answers(&pod.address().both(), READY_LIMIT)?;
        Ok(pod)
    }

    /// Lets the router send `prefix` to a node.
    ///
    /// # Errors
    /// When `ip` refuses the prefix.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn route_via(&self, prefix: IpNet, node: u8) -> Result<()> {
        let via = self.node(node).address().like(prefix.addr());
        self.router.ip(&format!("route replace {prefix} via {via}"))
    }

    /// Takes IPv4 away from all nodes and their pods, but for loopback. Router and client keep both families.
    ///
    /// # Errors
    /// When an address is gone already.
    pub fn remove_v4(&self) -> Result<()> {
        for node in &self.nodes {
            let (nic, bridge) = (node.address().v4, address::gateway(node.number()).v4);
            node.netns().ip(&format!("addr del {nic}/24 dev {NIC}\naddr del {bridge}/24 dev {POD_BRIDGE}"))?;
            for pod in node.pods() {
                pod.netns().ip(&format!("addr del {}/24 dev {NIC}", pod.address().v4))?;
            }
        }
        Ok(())
    }

    /// Switches IPv6 off in all nodes and their pods. Router and client keep both families.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn remove_v6(&self) -> Result<()> {
        const OFF: [(&str, &str); 1] = [("net/ipv6/conf/all/disable_ipv6", "1")];
        for node in &self.nodes {
            node.netns().sysctls(&OFF)?;
            node.pods().iter().try_for_each(|pod| pod.netns().sysctls(&OFF))?;
        }
        Ok(())
    }

    /// Cuts a node's uplink behind its NIC: the NIC keeps its carrier, its routes stay, and no frame passes in either
    /// direction.
    ///
    /// # Errors
    /// When the switch refuses.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn cut_uplink(&self, node: u8) -> Result<()> {
        self.set_port(node, "disabled")
    }

    /// Undoes [`World::cut_uplink`].
    ///
    /// # Errors
    /// When the switch refuses.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn restore_uplink(&self, node: u8) -> Result<()> {
        self.set_port(node, "forwarding")
    }

    /// Removes the namespaces of worlds whose process is gone, and pins and admin sockets of agents that were killed in them.
    ///
    /// # Errors
    /// When one of them cannot be deleted.
    pub fn sweep() -> Result<()> {
        let is_abandoned = |name: &str| owner(name).is_some_and(|pid| !is_alive(pid));
        let abandoned = netns::list()?.into_iter().filter(|name| is_abandoned(name));
        abandoned.into_iter().try_for_each(|name| netns::delete_named(&name))?;
        for entry in fs::read_dir(bpffs::PATH).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(is_abandoned) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let sockets = Path::new(ADMIN_SOCKETS);
        if !sockets.exists() {
            return Ok(());
        }
        for entry in fs::read_dir(sockets).map_err(Error::file("list", sockets))? {
            let entry = entry.map_err(Error::file("list", sockets))?;
            if entry.file_name().to_str().is_some_and(is_abandoned) {
                // Somebody else sweeps, too.
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }

    /// Switch, router and client, joined.
    fn create() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("w{}-{}-", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let netns = |name| {
            let netns = Netns::create(&format!("{prefix}{name}"))?;
            no_address_detection(&netns)?;
            Ok(netns)
        };
        let (switch, router, client) = (netns("switch")?, netns("router")?, netns("client")?);
        switch.ip(&format!(
            "link add {SWITCH_BRIDGE} type bridge forward_delay 0 mcast_snooping 0
            link set {SWITCH_BRIDGE} up
            link add router type veth peer name eth0 netns {}
            link set router master {SWITCH_BRIDGE} up",
            router.name()
        ))?;
        router.ip(&format!("link add eth1 type veth peer name eth0 netns {}", client.name()))?;
        Ok(Self { prefix, nodes: Vec::new(), client, router, switch })
    }

    /// Connects a node's NIC with the switch; with a delay if there is one.
    fn plug(&self, node: &Node, round_trip: Duration) -> Result<Uplink> {
        let port = port_name(node.number());
        let uplink = if round_trip.is_zero() {
            self.switch.ip(&format!("link add {port} type veth peer name {NIC} netns {}", node.netns().name()))?;
            // The sender's side of the cable does what NIC and wire would do: finish checksums and segments.
            self.switch.offloads(&port, &["tx", "off", "tso", "off", "gso", "off", "gro", "on"])?;
            Uplink::Wire(Pass::attach(&self.switch, &port)?)
        } else {
            // Two uplinks, there and back: each passage takes a quarter.
            Uplink::Delayed(DelayLink::create([(node.netns(), NIC), (&self.switch, &port)], round_trip / 4)?)
        };
        self.switch.ip(&format!("link set {port} master {SWITCH_BRIDGE} up"))?;
        Ok(uplink)
    }

    fn configure_router(&self, nodes: u8) -> Result<()> {
        self.router.sysctls(&[
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
            ("net/ipv4/conf/all/rp_filter", "0"),
        ])?;
        let (inside, outside) = (address::ROUTER_INSIDE, address::ROUTER_OUTSIDE);
        let mut script = addresses("eth0", inside) + &addresses("eth1", outside);
        for number in 1..=nodes {
            script.push_str(&node::routes_to_pods_of(number));
        }
        self.router.ip(&script)?;
        for prefix in address::cluster_ips().into_iter().chain(address::external_ips()) {
            self.route_via(prefix, 1)?;
        }
        let mut script = addresses("eth0", address::CLIENT);
        for via in outside.both() {
            // Writing to a string does not fail.
            let _ = writeln!(script, "route add default via {via}");
        }
        self.client.ip(&script)
    }

    fn await_ready(&self, limit: Duration) -> Result<()> {
        let mut wanted = address::CLIENT.both().to_vec();
        for node in &self.nodes {
            wanted.extend(node.address().both());
            wanted.extend(node.pods().iter().flat_map(|pod| pod.address().both()));
        }
        self.await_answers(&wanted, limit)
    }

    /// Waits until the router gets an answer from each of the addresses.
    fn await_answers(&self, wanted: &[IpAddr], limit: Duration) -> Result<()> {
        let slowest = self.nodes.iter().filter_map(|node| node.link()).map(DelayLink::delay).max().unwrap_or_default();
        let patience = PROBE_LIMIT + 4 * slowest;
        self.router.enter(|| {
            wanted.iter().try_for_each(|ip| {
                let what = format!("an answer from {ip} to {}router", self.prefix);
                wait::until_some(&what, limit, || probe(*ip, patience))
            })
        })
    }

    fn set_port(&self, node: u8, state: &str) -> Result<()> {
        let mut bridge = self.switch.command("bridge");
        bridge.args(["link", "set", "dev", &port_name(self.node(node).number()), "state", state]);
        ip::checked(bridge, "iproute2").map(drop)
    }
}

/// Whether a host is there: a closed port is refused by the host itself. Must run inside the asking namespace.
fn probe(ip: IpAddr, patience: Duration) -> std::result::Result<(), String> {
    /// The discard service, which nobody runs.
    const CLOSED_PORT: u16 = 9;
    let target = SocketAddr::new(ip, CLOSED_PORT);
    let answer = Socket::new(Domain::for_address(target), Type::STREAM, None)
        .and_then(|socket| socket.connect_timeout(&target.into(), patience));
    match answer {
        Err(error) if error.kind() != ErrorKind::ConnectionRefused => Err(error.to_string()),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The process that made a namespace of this name, or pins, if a world did.
fn owner(name: &str) -> Option<u32> {
    let (pid, rest) = name.strip_prefix('w')?.split_once('-')?;
    let (count, part) = rest.split_once('-')?;
    if count == "idle" {
        return pid.parse().ok();
    }
    count.parse::<u32>().ok()?;
    let known = ["client", "node", "router", "switch"].iter().any(|kind| part.starts_with(kind));
    if known { pid.parse().ok() } else { None }
}

fn port_name(node: u8) -> String {
    format!("port{node}")
}

/// Lines for `ip` that take an interface up with its addresses.
fn addresses(interface: &str, Pair { v4, v6 }: Pair) -> String {
    format!(
        "link set {interface} up
        addr add {v4}/24 dev {interface}
        addr add {v6}/64 dev {interface} nodad\n"
    )
}

#[cfg(test)]
mod tests {
    use super::owner;

    #[test]
    fn only_names_that_a_world_gives_have_an_owner() {
        assert_eq!(owner("w4711-0-node1-pod2"), Some(4711));
        assert_eq!(owner("w4711-3-switch"), Some(4711));
        for foreign in ["w4711-switch", "web-0-node1", "w4711-0-database", "blue"] {
            assert_eq!(owner(foreign), None, "{foreign}");
        }
    }
}
