//! The file's meaning: checks every value and makes the objects of the model.

use std::collections::hash_map::{Entry, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde_saphyr::{Location, Spanned};
use weir_core::model::{
    Endpoint, Family, Node, NodeCapacity, ObjectName, Protocol, Proxy, Service, ServicePort, Slice, SlicePort,
};
use weir_core::settings::{ANNOTATION_PREFIX, Annotations, Key, Overrides, Scope};

use super::health_check::health_check;
use super::values::{
    addresses, name, port, protocol, protocol_name, routed_address, routed_addresses, short_name, traffic_policy,
};
use super::{API_VERSION, Contents, schema};
use crate::convert::{AFFINITY_SECONDS, DEFAULT_AFFINITY_SECONDS, parse_range};
use crate::file::FileError;

/// The namespace of a Service that names none.
const DEFAULT_NAMESPACE: &str = "default";

pub(super) type Result<T> = std::result::Result<T, FileError>;

/// All that the file says.
pub(super) fn contents(document: &schema::Document) -> Result<Contents> {
    if let Some(version) = document.api_version.as_ref().filter(|version| version.value != API_VERSION) {
        let message = format!("apiVersion: \"{}\" is not known here; this version reads {API_VERSION}", version.value);
        return Err(FileError::at(version.referenced, message));
    }
    let nodes = document.nodes.iter().map(node).collect::<Result<Vec<_>>>()?;
    let mut names = Unique::new("node");
    for node in &document.nodes {
        names.claim(node.name.value.clone(), &node.name.value, node.name.referenced)?;
    }
    let mut contents = Contents { nodes, ..Contents::default() };
    let mut names = Unique::new("service");
    let mut frontends = Frontends::default();
    for written in &document.services {
        let service = service(written)?;
        names.claim(service.name.clone(), &service.name, written.name.referenced)?;
        frontends.claim(&service, written)?;
        contents.slices.extend(endpoints(written, &service, &contents.nodes)?);
        contents.checks.extend(health_check(written, &service)?.map(|check| (service.name.clone(), check)));
        contents.services.push(service);
    }
    Ok(contents)
}

/// Refuses what is used twice.
struct Unique<K> {
    what: &'static str,
    seen: HashMap<K, Location>,
}

impl<K: Eq + std::hash::Hash> Unique<K> {
    fn new(what: &'static str) -> Self {
        Self { what, seen: HashMap::new() }
    }

    fn claim(&mut self, key: K, shown: &dyn std::fmt::Display, location: Location) -> Result<()> {
        match self.seen.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(location);
                Ok(())
            }
            Entry::Occupied(entry) => {
                let (what, first) = (self.what, entry.get().line());
                Err(FileError::at(location, format!("{what} \"{shown}\" exists already, in line {first}")))
            }
        }
    }
}

/// Who answers at which address, port and protocol. A node port has no address of its own.
#[derive(Default)]
struct Frontends(HashMap<(Option<IpAddr>, u16, Protocol), ObjectName>);

impl Frontends {
    fn claim(&mut self, service: &Service, written: &schema::Service) -> Result<()> {
        let addresses = [
            (&service.cluster_ips, &written.cluster_ips),
            (&service.external_ips, &written.external_ips),
            (&service.load_balancer_ips, &written.load_balancer_ips),
        ];
        for (port, written_port) in service.ports.iter().zip(&written.ports) {
            for (ip, place) in addresses.iter().flat_map(|(ips, places)| ips.iter().zip(places.iter())) {
                let shown = format!("{} port {}", ip, port.port);
                self.insert((Some(*ip), port.port, port.protocol), service, &shown, place.referenced)?;
            }
            if let (Some(number), Some(place)) = (port.node_port, &written_port.node_port) {
                self.insert((None, number, port.protocol), service, &format!("nodePort {number}"), place.referenced)?;
            }
        }
        Ok(())
    }

    fn insert(
        &mut self,
        key: (Option<IpAddr>, u16, Protocol),
        service: &Service,
        shown: &str,
        place: Location,
    ) -> Result<()> {
        let protocol = protocol_name(key.2);
        match self.0.insert(key, service.name.clone()) {
            None => Ok(()),
            Some(owner) => {
                Err(FileError::at(place, format!("{shown}/{protocol} of {} is used by {owner} already", service.name)))
            }
        }
    }
}

fn node(written: &schema::Node) -> Result<Node> {
    Ok(Node {
        name: Arc::from(name("nodes[].name", &written.name)?),
        zone: Arc::from(written.zone.as_deref().unwrap_or_default()),
        addresses: addresses("nodes[].addresses", &written.addresses)?,
        eligible: true,
        capacity: NodeCapacity::default(),
    })
}

fn service(written: &schema::Service) -> Result<Service> {
    let namespace = written.namespace.as_ref().map_or(Ok(DEFAULT_NAMESPACE), |own| short_name("namespace", own))?;
    let name = ObjectName::new(namespace, short_name("services[].name", &written.name)?);
    let Annotations { overrides, own_series, wrong: _ } = annotations(&name, written)?;
    let service = Service {
        overrides,
        own_series,
        name,
        cluster_ips: addresses("clusterIPs", &written.cluster_ips)?,
        external_ips: routed_addresses("externalIPs", &written.external_ips)?,
        load_balancer_ips: routed_addresses("loadBalancerIPs", &written.load_balancer_ips)?,
        ports: written.ports.iter().map(service_port).collect::<Result<_>>()?,
        internal_policy: traffic_policy("internalTrafficPolicy", written.internal_traffic_policy.as_ref())?,
        external_policy: traffic_policy("externalTrafficPolicy", written.external_traffic_policy.as_ref())?,
        affinity: affinity(written)?,
        source_ranges: source_ranges(written)?,
        health_check_port: None,
        proxy: Proxy::Ours,
    };
    let place = written.name.referenced;
    if service.ports.is_empty() {
        return Err(FileError::at(place, format!("service {} has no ports", service.name)));
    }
    let no_address =
        service.cluster_ips.is_empty() && service.external_ips.is_empty() && service.load_balancer_ips.is_empty();
    if no_address && service.ports.iter().any(|port| port.node_port.is_none()) {
        let message = format!(
            "service {} cannot be reached: give it clusterIPs, externalIPs or loadBalancerIPs, or each port a nodePort",
            service.name
        );
        return Err(FileError::at(place, message));
    }
    all_families_are_served(&service, written)?;
    let mut names = Unique::new("port");
    for (port, written) in service.ports.iter().zip(&written.ports) {
        let place = written.name.as_ref().map_or(written.port.referenced, |name| name.referenced);
        names.claim(Arc::clone(&port.name), &port.name, place)?;
    }
    Ok(service)
}

/// With cluster IPs a service has their families, as in Kubernetes: an address of another one would answer nobody.
fn all_families_are_served(service: &Service, written: &schema::Service) -> Result<()> {
    let served = |ip: &IpAddr| service.cluster_ips.iter().any(|other| Family::of(*other) == Family::of(*ip));
    let lists = [
        ("externalIPs", &service.external_ips, &written.external_ips),
        ("loadBalancerIPs", &service.load_balancer_ips, &written.load_balancer_ips),
    ];
    for (field, ips, places) in lists {
        let unserved = ips.iter().zip(places).find(|(ip, _)| !service.cluster_ips.is_empty() && !served(ip));
        if let Some((ip, place)) = unserved {
            let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
            let message = format!(
                "{field}: {ip} is of {family}, and clusterIPs name no {family} address: a service with cluster IPs has their families; name one, or no clusterIPs"
            );
            return Err(FileError::at(place.referenced, message));
        }
    }
    Ok(())
}

/// What the annotations want, and what is wanted of the steering without them; nothing is wrong. Annotations of others are
/// ignored.
fn annotations(service: &ObjectName, written: &schema::Service) -> Result<Annotations> {
    let schema::Service { annotations, steering, .. } = written;
    for (annotation, value) in annotations {
        let read = Annotations::of(service, [(annotation.as_str(), value.value.as_str())]);
        if let Some(wrong) = read.wrong.first() {
            return Err(FileError::at(value.referenced, format!("annotations: {wrong}")));
        }
    }
    let annotated = annotations.iter().map(|(annotation, value)| (annotation.as_str(), value.value.as_str()));
    let mut read = Annotations::of(service, annotated);
    let mut own = read.overrides.take().unwrap_or_default();
    for (name, value) in steering {
        let wrong = |why: &dyn std::fmt::Display| FileError::at(value.referenced, format!("steering.{name}: {why}"));
        let key: Key = name.parse().map_err(|unknown| wrong(&unknown))?;
        if annotations.contains_key(&format!("{ANNOTATION_PREFIX}{name}")) {
            return Err(wrong(&"an annotation of this service says it, too; leave one of the two out"));
        }
        own.set(key, &value.value, Scope::Service(service)).map_err(|why| wrong(&why))?;
    }
    read.overrides = (*own != Overrides::default()).then_some(own);
    Ok(read)
}

/// For how many seconds a client keeps its endpoint.
fn affinity(written: &schema::Service) -> Result<Option<u32>> {
    let kept = match &written.session_affinity {
        None => false,
        Some(value) => match value.value.as_str() {
            "None" => false,
            "ClientIP" => true,
            other => {
                let message = format!("sessionAffinity: \"{other}\" is neither None nor ClientIP");
                return Err(FileError::at(value.referenced, message));
            }
        },
    };
    let Some(seconds) = &written.session_affinity_seconds else { return Ok(kept.then_some(DEFAULT_AFFINITY_SECONDS)) };
    if !kept {
        let message = "sessionAffinitySeconds: needs sessionAffinity: ClientIP";
        return Err(FileError::at(seconds.referenced, message));
    }
    match u32::try_from(seconds.value) {
        Ok(value) if AFFINITY_SECONDS.contains(&value) => Ok(Some(value)),
        _ => {
            let (least, most) = (AFFINITY_SECONDS.start(), AFFINITY_SECONDS.end());
            let message = format!("sessionAffinitySeconds: {} is not in {least}..{most}", seconds.value);
            Err(FileError::at(seconds.referenced, message))
        }
    }
}

fn source_ranges(written: &schema::Service) -> Result<Vec<IpNet>> {
    let ranges = &written.load_balancer_source_ranges;
    if let (Some(first), true) = (ranges.first(), written.load_balancer_ips.is_empty()) {
        // Whoever writes them wants something guarded.
        let message = "loadBalancerSourceRanges: there are no loadBalancerIPs, and other addresses admit everybody";
        return Err(FileError::at(first.referenced, message));
    }
    ranges.iter().map(source_range).collect()
}

fn source_range(written: &Spanned<String>) -> Result<IpNet> {
    let wrong = || format!("loadBalancerSourceRanges: \"{}\" is not a range such as 192.0.2.0/24", written.value);
    parse_range(&written.value).ok_or_else(|| FileError::at(written.referenced, wrong()))
}

fn service_port(written: &schema::Port) -> Result<ServicePort> {
    Ok(ServicePort {
        name: Arc::from(written.name.as_ref().map_or(Ok(""), |own| short_name("ports[].name", own))?),
        protocol: protocol(written.protocol.as_ref())?,
        port: port("port", &written.port)?,
        node_port: written.node_port.as_ref().map(|value| port("nodePort", value)).transpose()?,
    })
}

/// The slices of a Service: endpoints of one family that serve its ports at the same numbers share one.
fn endpoints(written: &schema::Service, service: &Service, nodes: &[Node]) -> Result<Vec<Slice>> {
    let mut slices: Vec<Slice> = Vec::new();
    let mut seen = Unique::new("endpoint");
    for one in &written.endpoints {
        let endpoint = endpoint(one, nodes)?;
        let family = Family::of(endpoint.address);
        let ports = endpoint_ports(one, written, service)?;
        // Two processes of one machine are two endpoints.
        let numbers: Vec<u16> = ports.iter().map(|port| port.port).collect();
        seen.claim((endpoint.address, numbers), &endpoint.address, one.address.referenced)?;
        let same = slices.iter_mut().find(|slice| slice.family == family && slice.ports == ports);
        if let Some(slice) = same {
            slice.endpoints.push(endpoint);
            continue;
        }
        let name = format!("{}-{}", service.name.name, slices.len() + 1);
        slices.push(Slice {
            name: ObjectName::new(Arc::clone(&service.name.namespace), name),
            service: service.name.clone(),
            family,
            ports,
            endpoints: vec![endpoint],
            triggered: None,
        });
    }
    Ok(slices)
}

fn endpoint(written: &schema::Endpoint, nodes: &[Node]) -> Result<Endpoint> {
    let node = match &written.node {
        None => None,
        Some(name) => {
            // Without this a slip of the pen would turn a local endpoint into a remote one.
            let known = nodes.iter().find(|node| *node.name == *name.value);
            let unknown = || FileError::at(name.referenced, format!("node: \"{}\" is not in `nodes`", name.value));
            Some(Arc::clone(&known.ok_or_else(unknown)?.name))
        }
    };
    let ready = written.ready.unwrap_or(true);
    let uid = |written: &Spanned<String>| {
        let wrong = |cause| FileError::at(written.referenced, format!("pod: \"{}\" is {cause}", written.value));
        written.value.parse().map_err(wrong)
    };
    Ok(Endpoint {
        address: routed_address("address", &written.address)?,
        node,
        ready,
        serving: written.serving.unwrap_or(ready),
        terminating: written.terminating.unwrap_or(false),
        zone_hints: Box::default(),
        node_hints: Box::default(),
        pod: written.pod.as_ref().map(uid).transpose()?,
    })
}

/// Where an endpoint serves each port: where it says itself, else at the `targetPort`, else at the port's own number.
fn endpoint_ports(endpoint: &schema::Endpoint, written: &schema::Service, service: &Service) -> Result<Vec<SlicePort>> {
    if let Some((name, place)) =
        endpoint.ports.iter().find(|(name, _)| !service.ports.iter().any(|p| *p.name == ***name))
    {
        let message = format!("ports: service {} has no port named \"{name}\"", service.name);
        return Err(FileError::at(place.referenced, message));
    }
    let ports = service.ports.iter().zip(&written.ports).map(|(served, written)| {
        let number = match (endpoint.ports.get(&*served.name), &written.target_port) {
            (Some(own), _) => port("ports", own)?,
            (None, Some(target)) => port("targetPort", target)?,
            (None, None) => served.port,
        };
        Ok(SlicePort { name: Arc::clone(&served.name), protocol: served.protocol, port: number })
    });
    ports.collect()
}
