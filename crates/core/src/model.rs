//! Compact views of the objects that Weir watches. They hold what planning needs and nothing else: a cluster has many.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::settings::Overrides;

/// Bytes of the longest name of a service, a namespace or a port: what the maps hold of one. Kubernetes allows no more.
pub const LONGEST_NAME: usize = weir_abi::NAME_SIZE - 1;

/// Namespace and name of an object.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ObjectName {
    /// Namespace; empty for objects of the whole cluster.
    pub namespace: Arc<str>,
    /// Name within the namespace.
    pub name: Arc<str>,
}

impl ObjectName {
    /// The name of an object in a namespace.
    pub fn new(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Transport protocol of a port.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP: served where the endpoint's port is the service's, since its checksum forbids to change ports.
    Sctp,
}

impl Protocol {
    /// The IP protocol number.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

/// Address family.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    #[must_use]
    pub const fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// 4 or 6.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::V4 => 4,
            Self::V6 => 6,
        }
    }
}

/// `internalTrafficPolicy` and `externalTrafficPolicy`.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum TrafficPolicy {
    /// Any endpoint of the cluster.
    #[default]
    Cluster,
    /// Only endpoints on the node where the traffic arrived.
    Local,
}

/// A Service that is to be served: headless and ExternalName services never become one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Service {
    /// Namespace and name.
    pub name: ObjectName,
    /// Cluster IPs, one per family.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// Load balancer ingress IPs of `ipMode: VIP`.
    pub load_balancer_ips: Vec<IpAddr>,
    /// The ports, each one balanced on its own.
    pub ports: Vec<ServicePort>,
    /// For traffic to the cluster IP.
    pub internal_policy: TrafficPolicy,
    /// For traffic to node ports, load balancer and external IPs.
    pub external_policy: TrafficPolicy,
    /// `sessionAffinity: ClientIP`: seconds for which a client keeps its endpoint, 1..86400.
    pub affinity: Option<u32>,
    /// `spec.loadBalancerSourceRanges`: clients that load balancer IPs admit; empty admits all.
    pub source_ranges: Vec<IpNet>,
    /// `spec.healthCheckNodePort` of a load balancer with the external policy Local.
    pub health_check_port: Option<u16>,
    /// Who serves it.
    pub proxy: Proxy,
    /// What its annotations want of the steering. Most Services want nothing.
    pub overrides: Option<Box<Overrides>>,
    /// Whether it asks for series of its own in the metrics, see [`crate::service_series`].
    pub own_series: bool,
}

impl Service {
    /// One that has a name and nothing else: no address and no port, open to all, and ours.
    #[must_use]
    pub const fn new(name: ObjectName) -> Self {
        Self {
            name,
            cluster_ips: Vec::new(),
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            ports: Vec::new(),
            internal_policy: TrafficPolicy::Cluster,
            external_policy: TrafficPolicy::Cluster,
            affinity: None,
            source_ranges: Vec::new(),
            health_check_port: None,
            proxy: Proxy::Ours,
            overrides: None,
            own_series: false,
        }
    }
}

/// Who serves a Service, by its label `service.kubernetes.io/service-proxy-name`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Proxy {
    /// This one.
    #[default]
    Ours,
    /// Whoever serves what nobody is named for, and we have a name: another one, until this node has been moved to us. See
    /// [`crate::stage`].
    Unlabelled,
    /// Another one. Connections that began here go on as long as their endpoints do.
    Other,
}

/// One port of a Service.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ServicePort {
    /// Name, which finds the port in the slices; empty for the only port of a service.
    pub name: Arc<str>,
    /// Protocol.
    pub protocol: Protocol,
    /// Port at the cluster IP, load balancer and external IPs.
    pub port: u16,
    /// Port at the node's addresses.
    pub node_port: Option<u16>,
}

/// An EndpointSlice of a Service.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Slice {
    /// Namespace and name of the slice itself.
    pub name: ObjectName,
    /// The Service (same namespace) that its `kubernetes.io/service-name` label names.
    pub service: ObjectName,
    /// Family of all its addresses.
    pub family: Family,
    /// Ports; an endpoint offers all of them.
    pub ports: Vec<SlicePort>,
    /// Endpoints.
    pub endpoints: Vec<Endpoint>,
    /// What made its controller write it: `endpoints.kubernetes.io/last-change-trigger-time`, in milliseconds since the
    /// epoch.
    pub triggered: Option<i64>,
}

/// One port of an EndpointSlice.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SlicePort {
    /// Name of the service port that it serves.
    pub name: Arc<str>,
    /// Protocol.
    pub protocol: Protocol,
    /// The endpoint's own port.
    pub port: u16,
}

/// One endpoint of an EndpointSlice.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Endpoint {
    /// Its address. Of several in a slice the first counts, as kube-proxy has it.
    pub address: IpAddr,
    /// The node that it runs on.
    pub node: Option<Arc<str>>,
    /// `conditions.ready`; unset means true. True for `publishNotReadyAddresses`, even when terminating.
    pub ready: bool,
    /// `conditions.serving`; unset means true, as kube-proxy has it.
    pub serving: bool,
    /// `conditions.terminating`; unset means false.
    pub terminating: bool,
    /// `hints.forZones`.
    pub zone_hints: Box<[Arc<str>]>,
    /// `hints.forNodes`.
    pub node_hints: Box<[Arc<str>]>,
    /// The Pod that it is (`targetRef`); None of an endpoint that is none.
    pub pod: Option<PodUid>,
}

impl Endpoint {
    /// One that is ready, and of which nothing else is known.
    #[must_use]
    pub fn new(address: IpAddr) -> Self {
        Self {
            address,
            node: None,
            ready: true,
            serving: true,
            terminating: false,
            zone_hints: Box::default(),
            node_hints: Box::default(),
            pod: None,
        }
    }
}

/// `metadata.uid` of a Pod, by which its cgroup is found: a UUID (RFC 9562) as the API server makes them. Nothing is
/// known of the load of a Pod whose uid is written in another form.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PodUid([u8; 16]);

/// Digits between the dashes of a UUID.
const UUID_GROUPS: [usize; 5] = [8, 4, 4, 4, 12];

/// A text that is no UUID in lower case.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("not a UUID in lower case, such as 9b7b5d0a-3f6e-4f0c-8d57-0a1b2c3d4e5f")]
pub struct NotUuid;

impl FromStr for PodUid {
    type Err = NotUuid;

    fn from_str(text: &str) -> Result<Self, NotUuid> {
        let mut digits = Vec::with_capacity(32);
        let mut groups = text.split('-');
        for length in UUID_GROUPS {
            let group = groups.next().filter(|group| group.len() == length).ok_or(NotUuid)?;
            digits.extend(group.bytes());
        }
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(NotUuid),
        };
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        if groups.next().is_some() { Err(NotUuid) } else { Ok(Self(bytes)) }
    }
}

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.0.iter();
        for (group, length) in UUID_GROUPS.into_iter().enumerate() {
            if group > 0 {
                f.write_str("-")?;
            }
            for byte in bytes.by_ref().take(length / 2) {
                write!(f, "{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// A ServiceCIDR: where the API server takes cluster IPs from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ServiceCidr {
    /// Name.
    pub name: Arc<str>,
    /// `spec.cidrs`, without bits beyond their prefixes.
    pub networks: Vec<IpNet>,
}

/// A Node.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Node {
    /// Name.
    pub name: Arc<str>,
    /// `topology.kubernetes.io/zone`; empty if unknown.
    pub zone: Arc<str>,
    /// Internal IPs, in the order of `status.addresses`.
    pub addresses: Vec<IpAddr>,
    /// Whether load balancers outside should send it traffic: it is neither being deleted nor marked for it by the
    /// cluster autoscaler (KEP-3836).
    pub eligible: bool,
    /// What it has.
    pub capacity: NodeCapacity,
}

/// What a node has, the system's part included: `status.capacity`. 0 is unknown.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct NodeCapacity {
    /// CPU, in thousandths of a core.
    pub millicores: u32,
    /// Memory.
    pub bytes: u64,
}
