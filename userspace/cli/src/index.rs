//! What the control plane wrote, by slot and with names: the tables that rows are made from.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ipnet::IpNet;
use thiserror::Error;
use weir_abi as abi;
use weir_core::ops::{Dump, FrontendKey, SourceRange};

use crate::args::Scope;
use crate::share::{self, Spread};

/// One port of a service in one family: the owner of a slot in `services`.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Port {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) port: u16,
    pub(crate) protocol: u8,
    pub(crate) family: u8,
    pub(crate) port_name: String,
    /// Seconds on the kernel's clock.
    pub(crate) created: u32,
}

impl Port {
    fn new(name: &abi::ServiceName) -> Self {
        let abi::ServiceName { namespace, name, port_name, port, proto, family, created } = name;
        Self {
            namespace: text(namespace),
            name: text(name),
            port: *port,
            protocol: *proto,
            family: *family,
            port_name: text(port_name),
            created: *created,
        }
    }

    /// A slot that is in use and has no name: its number must do.
    fn nameless(slot: u32) -> Self {
        Self {
            namespace: String::new(),
            name: format!("#{slot}"),
            port: 0,
            protocol: 0,
            family: 0,
            port_name: String::new(),
            created: 0,
        }
    }

    /// `80/TCP`.
    pub(crate) fn number(&self) -> String {
        format!("{}/{}", self.port, protocol_name(self.protocol))
    }

    /// `IPv4`, `IPv6`, or nothing if it is not known.
    pub(crate) const fn family_name(&self) -> &'static str {
        match self.family {
            4 => "IPv4",
            6 => "IPv6",
            _ => "",
        }
    }

    /// `shop/web:80/TCP`.
    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}:{}", self.namespace, self.name, self.number())
    }
}

/// Which services to look at.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Filter {
    namespace: Option<String>,
    name: Option<String>,
}

/// There is no such service.
#[derive(Debug, Error)]
#[error("no service {0} in the maps of this node; `weir services -A` lists all of them")]
pub(crate) struct NoSuchService(String);

impl Filter {
    /// Of the options. A name may bring its namespace along: `NAMESPACE/NAME`.
    pub(crate) fn new(scope: &Scope, name: Option<&str>) -> Self {
        let namespace = (!scope.all_namespaces).then(|| scope.namespace.clone());
        match name.map(|name| (name, name.split_once('/'))) {
            None => Self { namespace, name: None },
            Some((name, None)) => Self { namespace, name: Some(name.to_owned()) },
            Some((_, Some((namespace, name)))) => {
                Self { namespace: Some(namespace.to_owned()), name: Some(name.to_owned()) }
            }
        }
    }

    /// Whether a service port is to be shown. One without a name is in every namespace.
    pub(crate) fn admits(&self, port: &Port) -> bool {
        let fits = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted == is);
        (fits(&self.namespace, &port.namespace) || port.namespace.is_empty()) && fits(&self.name, &port.name)
    }

    /// An error unless the named service has a port in the maps.
    pub(crate) fn require(&self, index: &Index<'_>) -> Result<(), NoSuchService> {
        let Some(name) = &self.name else { return Ok(()) };
        if index.ports.values().any(|port| self.admits(port)) {
            return Ok(());
        }
        let namespace = self.namespace.as_deref().unwrap_or("*");
        Err(NoSuchService(format!("{namespace}/{name}")))
    }

    /// What to tell people about an empty answer.
    pub(crate) fn nothing(&self, what: &str) -> String {
        match &self.namespace {
            Some(namespace) => format!("no {what} in namespace {namespace}; -A looks into all of them"),
            None => format!("no {what} on this node"),
        }
    }
}

/// What the control plane wrote.
#[derive(Debug)]
pub(crate) struct Index<'a> {
    /// Service ports by slot.
    pub(crate) ports: BTreeMap<u32, Port>,
    /// Services by slot.
    pub(crate) services: BTreeMap<u32, &'a abi::Service>,
    /// Backends in use by slot.
    pub(crate) backends: BTreeMap<u32, &'a abi::Backend>,
    /// Backends that were given up, by slot.
    pub(crate) vacant: HashMap<u32, &'a abi::Backend>,
    /// Frontends by service, sorted.
    pub(crate) frontends: BTreeMap<u32, Vec<(FrontendKey, u32)>>,
    /// Clients that load balancer addresses admit, by service, sorted; of those that do not admit all.
    pub(crate) source_ranges: BTreeMap<u32, Vec<IpNet>>,
    lines: HashMap<u32, &'a abi::Line>,
    nodes: HashMap<u32, String>,
}

impl<'a> Index<'a> {
    /// Sorts a dump out.
    pub(crate) fn new(dump: &'a Dump) -> Self {
        let Dump { services, backends, lines, frontends, service_names, node_names, source_ranges } = dump;
        let names: HashMap<u32, &abi::ServiceName> = service_names.iter().map(|(id, name)| (*id, name)).collect();
        let port = |id: &u32| names.get(id).map_or_else(|| Port::nameless(*id), |name| Port::new(name));
        let mut by_service: BTreeMap<u32, Vec<(FrontendKey, u32)>> = BTreeMap::new();
        for (key, frontend) in frontends {
            by_service.entry(frontend.service).or_default().push((*key, frontend.kind));
        }
        by_service.values_mut().for_each(|list| list.sort_unstable());
        let mut ranges: BTreeMap<u32, Vec<IpNet>> = BTreeMap::new();
        for SourceRange { service, net } in source_ranges {
            ranges.entry(*service).or_default().push(*net);
        }
        ranges.values_mut().for_each(|list| list.sort_unstable());
        let used = |backend: &abi::Backend| backend.flags & abi::BACKEND_USED != 0;
        Self {
            ports: services.iter().map(|(id, _)| (*id, port(id))).collect(),
            services: services.iter().map(|(id, service)| (*id, service)).collect(),
            backends: backends.iter().filter(|(_, b)| used(b)).map(|(id, b)| (*id, b)).collect(),
            vacant: backends.iter().filter(|(_, b)| !used(b)).map(|(id, b)| (*id, b)).collect(),
            frontends: by_service,
            source_ranges: ranges,
            lines: lines.iter().map(|(id, line)| (*id, line)).collect(),
            nodes: node_names.iter().map(|(id, name)| (*id, text(&name.name))).collect(),
        }
    }

    /// Service ports that a filter admits, by name.
    pub(crate) fn sorted_ports(&self, filter: &Filter) -> Vec<(u32, &Port)> {
        let mut ports: Vec<_> =
            self.ports.iter().filter(|(_, port)| filter.admits(port)).map(|(id, port)| (*id, port)).collect();
        ports.sort_by_key(|(id, port)| (*port, *id));
        ports
    }

    /// Name of a node; empty if it is not known.
    pub(crate) fn node(&self, id: u32) -> &str {
        self.nodes.get(&id).map_or("", String::as_str)
    }

    /// Where the new flows of each traffic class of a service go.
    pub(crate) fn spreads(&self, service: &abi::Service) -> [Spread; abi::CLASS_COUNT] {
        service.tiers.map(|tiers| share::spread(&tiers, &|id| self.lines.get(&id).copied()))
    }

    /// Backends in use of every service.
    pub(crate) fn backends_by_service(&self) -> HashMap<u32, Vec<(u32, &'a abi::Backend)>> {
        let mut by_service: HashMap<u32, Vec<_>> = HashMap::new();
        for (id, backend) in &self.backends {
            by_service.entry(backend.service).or_default().push((*id, *backend));
        }
        by_service
    }
}

/// Backends that some traffic class leads to.
pub(crate) fn selectable(spreads: &[Spread]) -> BTreeSet<u32> {
    spreads.iter().flat_map(|spread| spread.backends.keys().copied()).collect()
}

/// A name as the maps hold it.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Name of an IP protocol, as Kubernetes spells it.
pub(crate) fn protocol_name(number: u8) -> String {
    match number {
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        132 => "SCTP".to_owned(),
        other => other.to_string(),
    }
}
