//! Nodes and their pods.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::address::{self, Pair};
use crate::delay::DelayLink;
use crate::netns::Netns;
use crate::verdict::Pass;
use crate::{Error, Result};

/// Name of a node's NIC.
pub const NIC: &str = "eth0";

/// Name of a node's pod bridge.
pub const POD_BRIDGE: &str = "cni0";

/// The cable between a node's NIC and the switch.
#[derive(Debug)]
pub(crate) enum Uplink {
    /// A veth pair, with the program that lets the switch's end take what XDP sends.
    Wire(#[expect(dead_code, reason = "it is held to keep the program attached")] Pass),
    /// Two TAP devices with a delay between them.
    Delayed(DelayLink),
}

/// A node: a namespace with a NIC on the switch, a bridge for pods, and pods.
#[derive(Debug)]
pub struct Node {
    number: u8,
    uplink: Option<Uplink>,
    netns: Arc<Netns>,
    pods: Mutex<Pods>,
}

/// The pods of a node.
#[derive(Debug, Default)]
struct Pods {
    /// How many were made so far, deleted ones included.
    made: u8,
    all: Vec<Pod>,
}

impl Node {
    /// Makes the namespace with forwarding on and strict reverse-path filtering, as distributions have it; no links yet.
    pub(crate) fn create(prefix: &str, number: u8) -> Result<Self> {
        let netns = Netns::create(&format!("{prefix}node{number}"))?;
        netns.sysctls(&[
            ("net/ipv4/ip_forward", "1"),
            ("net/ipv6/conf/all/forwarding", "1"),
            ("net/ipv4/conf/all/rp_filter", "1"),
            ("net/ipv4/conf/default/rp_filter", "1"),
        ])?;
        no_address_detection(&netns)?;
        Ok(Self { number, uplink: None, netns: Arc::new(netns), pods: Mutex::default() })
    }

    /// Keeps what the NIC hangs on.
    pub(crate) fn set_uplink(&mut self, uplink: Uplink) {
        self.uplink = Some(uplink);
    }

    /// Gives the NIC its addresses, makes the pod bridge, and routes to the pods of the other nodes.
    pub(crate) fn configure(&self, nodes: u8) -> Result<()> {
        let Pair { v4, v6 } = self.address();
        let gateway = address::gateway(self.number);
        let router = address::ROUTER_INSIDE;
        // A fixed bridge address: it would change with the set of ports, and neighbours would be stale.
        let mut script = format!(
            "link set {NIC} up
            addr add {v4}/24 dev {NIC}
            addr add {v6}/64 dev {NIC} nodad
            link add {POD_BRIDGE} address 0a:58:0a:f4:{:02x}:01 type bridge forward_delay 0 mcast_snooping 0
            link set {POD_BRIDGE} up
            addr add {}/24 dev {POD_BRIDGE}
            addr add {}/64 dev {POD_BRIDGE} nodad
            route add default via {}
            route add default via {}\n",
            self.number, gateway.v4, gateway.v6, router.v4, router.v6
        );
        for peer in (1..=nodes).filter(|peer| *peer != self.number) {
            script.push_str(&routes_to_pods_of(peer));
        }
        self.netns.ip(&script)
    }

    /// Its number, from 1.
    #[must_use]
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Its Kubernetes name, `node1` for the first.
    #[must_use]
    pub fn name(&self) -> String {
        format!("node{}", self.number)
    }

    /// Its namespace.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// The addresses of its NIC.
    #[must_use]
    pub fn address(&self) -> Pair {
        address::node(self.number)
    }

    /// The delay link that its NIC hangs on; `None` in a world without delay.
    #[must_use]
    pub fn link(&self) -> Option<&DelayLink> {
        match self.uplink.as_ref()? {
            Uplink::Wire(_) => None,
            Uplink::Delayed(link) => Some(link),
        }
    }

    /// Its pods, in the order of their making, without deleted ones.
    #[must_use]
    pub fn pods(&self) -> Vec<Pod> {
        let mut pods = self.lock_pods();
        pods.all.retain(Pod::exists);
        pods.all.clone()
    }

    /// The pod with this number, from 1.
    ///
    /// # Panics
    /// When there is no such pod, or it was deleted.
    #[must_use]
    pub fn pod(&self, number: u8) -> Pod {
        let found = self.pods().into_iter().find(|pod| pod.number == number);
        found.unwrap_or_else(|| panic!("{} has no pod {number}", self.name()))
    }

    /// Makes one more pod. Numbers of deleted pods are not used again: neighbours remember their addresses for a while.
    ///
    /// # Errors
    /// When the node is full or a command fails.
    pub fn add_pod(&self) -> Result<Pod> {
        let mut pods = self.lock_pods();
        let number = pods.made + 1;
        if number > address::MAX {
            return Err(Error::Invalid(format!("{} is full: {} pods were made on it", self.name(), address::MAX)));
        }
        let pod = Pod::create(&self.netns, self.number, number)?;
        pods.made = number;
        pods.all.push(pod.clone());
        Ok(pod)
    }

    fn lock_pods(&self) -> MutexGuard<'_, Pods> {
        // A panic elsewhere leaves the list whole.
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pod: a namespace behind a veth pair whose host side is in the node's pod bridge. Clones are the same pod.
#[derive(Clone, Debug)]
pub struct Pod {
    node: u8,
    number: u8,
    netns: Arc<Netns>,
    node_netns: Arc<Netns>,
}

impl Pod {
    fn create(node_netns: &Arc<Netns>, node: u8, number: u8) -> Result<Self> {
        let netns = Netns::create(&format!("{}-pod{number}", node_netns.name()))?;
        no_address_detection(&netns)?;
        let pod = Self { node, number, netns: Arc::new(netns), node_netns: Arc::clone(node_netns) };
        let host = pod.host_interface();
        node_netns.ip(&format!(
            "link add {host} type veth peer name {NIC} netns {}
            link set {host} master {POD_BRIDGE} up",
            pod.netns.name()
        ))?;
        let (Pair { v4, v6 }, gateway) = (pod.address(), address::gateway(node));
        pod.netns.ip(&format!(
            "link set {NIC} up
            addr add {v4}/24 dev {NIC}
            addr add {v6}/64 dev {NIC} nodad
            route add default via {}
            route add default via {}",
            gateway.v4, gateway.v6
        ))?;
        Ok(pod)
    }

    /// Makes one CPU handle all packets that the pod gets by its interface, one after the other (receive packet steering).
    ///
    /// A server's kernel looks a connection up without a lock while the last ACK of its handshake puts the socket in the place of the
    /// request. A segment that another CPU handles at that moment finds neither, but the listener, which resets the connection: about
    /// one of 50,000 that a proxy is in the way of (Linux 6.18). Who counts each failed connection of a proxy must keep that out.
    ///
    /// # Errors
    /// When the process may not mount, or the kernel has no receive packet steering.
    pub fn receive_on_one_cpu(&self) -> Result<()> {
        let path = format!("/sys/class/net/{NIC}/queues/rx-0/rps_cpus");
        self.netns.enter(|| {
            // What is at /sys tells of the namespace that it was mounted in. The thread ends with its mounts.
            let own_mounts = unshare(CloneFlags::CLONE_NEWNS)
                .and_then(|()| {
                    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
                })
                .and_then(|()| mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), None::<&str>));
            own_mounts.map_err(Error::nix(format!("mount sysfs for {}", self.name())))?;
            std::fs::write(&path, "1").map_err(Error::io(format!("set {path} in {}", self.name())))
        })
    }

    /// Its name, `node1-pod2` for the second pod of the first node.
    #[must_use]
    pub fn name(&self) -> String {
        format!("node{}-pod{}", self.node, self.number)
    }

    /// The number of its node, from 1.
    #[must_use]
    pub fn node(&self) -> u8 {
        self.node
    }

    /// Its namespace.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Its addresses.
    #[must_use]
    pub fn address(&self) -> Pair {
        address::pod(self.node, self.number)
    }

    /// Its addresses with a port, IPv4 first.
    #[must_use]
    pub fn sockets(&self, port: u16) -> [SocketAddr; 2] {
        self.address().both().map(|ip: IpAddr| SocketAddr::new(ip, port))
    }

    /// The node's interface that leads to it: `veth`, the node's number, and letters for the pod's (`veth1a`).
    #[must_use]
    pub fn host_interface(&self) -> String {
        let mut letters = String::new();
        let mut rest = self.number;
        while rest > 0 {
            letters.insert(0, char::from(b'a' + (rest - 1) % 26));
            rest = (rest - 1) / 26;
        }
        format!("veth{}{letters}", self.node)
    }

    /// False after [`Pod::delete`].
    #[must_use]
    pub fn exists(&self) -> bool {
        self.netns.exists()
    }

    /// Takes the pod away at once: its interface vanishes from the node, and what runs inside is cut off.
    ///
    /// # Errors
    /// When the interface cannot be removed.
    pub fn delete(&self) -> Result<()> {
        if !self.exists() {
            return Ok(());
        }
        // Threads inside would keep the namespace and with it the interface.
        self.node_netns.ip(&format!("link delete {}", self.host_interface()))?;
        self.netns.delete()
    }
}

/// Routes to the pods of a node by way of that node, as lines for `ip`.
pub(crate) fn routes_to_pods_of(node: u8) -> String {
    let via = address::node(node);
    address::pod_cidrs(node).iter().fold(String::new(), |mut script, cidr| {
        // Writing to a string does not fail.
        let _ = writeln!(script, "route add {cidr} via {}", via.like(cidr.addr()));
        script
    })
}

/// Lets IPv6 addresses be used at once, for interfaces that are made from now on.
pub(crate) fn no_address_detection(netns: &Netns) -> Result<()> {
    netns.sysctls(&[
        ("net/ipv6/conf/default/accept_dad", "0"),
        ("net/ipv6/conf/default/dad_transmits", "0"),
        ("net/ipv6/conf/default/accept_ra", "0"),
        ("net/ipv6/conf/default/router_solicitations", "0"),
    ])
}
