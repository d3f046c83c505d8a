//! The snapshot: what the cluster looks like right now, fed by watches or a static file.
//!
//! Every change answers with what it touched, so that planning looks at nothing else. Applying what is already known
//! touches nothing: watches repeat every object every few minutes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use crate::intern::Interner;
use crate::last_resort::{LastResort, is_api_server};
use crate::model::{Endpoint, Node, ObjectName, Service, ServiceCidr, Slice};
use crate::stage::Stage;

/// A change of the cluster. The plurals are the whole new list of a kind: what is missing from them is gone.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// A service is new or has changed.
    Service(Service),
    /// A service is gone, or is no longer to be served.
    ServiceGone(ObjectName),
    /// All services.
    Services(Vec<Service>),
    /// A slice is new or has changed.
    Slice(Slice),
    /// A slice is gone.
    SliceGone(ObjectName),
    /// All slices.
    Slices(Vec<Slice>),
    /// A node is new or has changed.
    Node(Node),
    /// A node is gone.
    NodeGone(Arc<str>),
    /// All nodes.
    Nodes(Vec<Node>),
    /// A ServiceCIDR is new or has changed.
    ServiceCidr(ServiceCidr),
    /// A ServiceCIDR is gone.
    ServiceCidrGone(Arc<str>),
    /// All ServiceCIDRs; none where the API has no such objects, or does not show them.
    ServiceCidrs(Vec<ServiceCidr>),
}

/// Nodes, by name and by address.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Places {
    /// Their names.
    pub nodes: BTreeSet<Arc<str>>,
    /// Addresses that they have, or have had.
    pub addresses: BTreeSet<IpAddr>,
}

impl Places {
    fn add(&mut self, node: &Node) {
        self.nodes.insert(Arc::clone(&node.name));
        self.addresses.extend(&node.addresses);
    }

    fn has(&self, endpoint: &Endpoint) -> bool {
        self.addresses.contains(&endpoint.address)
            || endpoint.node.as_ref().is_some_and(|node| self.nodes.contains(node))
    }
}

/// What a change touched.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Dirty {
    /// Services to plan again; some may no longer exist.
    pub services: BTreeSet<ObjectName>,
    /// Whether a node changed.
    pub nodes: bool,
    /// Where endpoints may be planned in another way, as a node's zone or addresses changed.
    pub places: Places,
    /// Whether other networks may be in force now: see [`crate::service_networks`].
    pub service_networks: bool,
}

impl Dirty {
    /// Whether nothing was touched.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.nodes && !self.service_networks
    }

    /// Adds what another change touched.
    pub fn merge(&mut self, other: Self) {
        let Self { services, nodes, places, service_networks } = other;
        self.services.extend(services);
        self.nodes |= nodes;
        self.places.nodes.extend(places.nodes);
        self.places.addresses.extend(places.addresses);
        self.service_networks |= service_networks;
    }
}

/// Services, slices, nodes and ServiceCIDRs, indexed for planning.
#[derive(Debug, Default)]
pub struct Cluster {
    names: Interner,
    services: BTreeMap<ObjectName, Service>,
    stage: Stage,
    /// How many services are another proxy's.
    others: usize,
    /// By service; each list is sorted by the slices' own names.
    slices: HashMap<ObjectName, Vec<Slice>>,
    /// From a slice's own name to its service.
    slice_service: HashMap<ObjectName, ObjectName>,
    api_server: LastResort,
    nodes: BTreeMap<Arc<str>, Node>,
    /// How many nodes claim an address.
    node_addresses: HashMap<IpAddr, u32>,
    service_cidrs: BTreeMap<Arc<str>, ServiceCidr>,
    services_listed: bool,
    slices_listed: bool,
    nodes_listed: bool,
    service_cidrs_listed: bool,
}

impl Cluster {
    /// Takes a change in and says what it touched.
    pub fn apply(&mut self, event: Event) -> Dirty {
        let mut dirty = Dirty::default();
        let had_other_proxy = self.has_other_proxy();
        match event {
            Event::Service(service) => self.put_service(service, &mut dirty),
            Event::ServiceGone(name) => self.remove_service(&name, &mut dirty),
            Event::Services(list) => {
                self.services_listed = true;
                let listed: BTreeSet<_> = list.iter().map(|service| &service.name).collect();
                let gone: Vec<_> = self.services.keys().filter(|name| !listed.contains(name)).cloned().collect();
                gone.iter().for_each(|name| self.remove_service(name, &mut dirty));
                list.into_iter().for_each(|service| self.put_service(service, &mut dirty));
            }
            Event::Slice(slice) => self.put_slice(slice, &mut dirty),
            Event::SliceGone(name) => self.remove_slice(&name, &mut dirty),
            Event::Slices(list) => {
                self.slices_listed = true;
                let listed: BTreeSet<_> = list.iter().map(|slice| &slice.name).collect();
                let gone: Vec<_> = self.slice_service.keys().filter(|name| !listed.contains(name)).cloned().collect();
                gone.iter().for_each(|name| self.remove_slice(name, &mut dirty));
                list.into_iter().for_each(|slice| self.put_slice(slice, &mut dirty));
            }
            Event::Node(node) => self.put_node(node, &mut dirty),
            Event::NodeGone(name) => self.remove_node(&name, &mut dirty),
            Event::Nodes(list) => {
                self.nodes_listed = true;
                let listed: BTreeSet<_> = list.iter().map(|node| &node.name).collect();
                let gone: Vec<_> = self.nodes.keys().filter(|name| !listed.contains(name)).cloned().collect();
                gone.iter().for_each(|name| self.remove_node(name, &mut dirty));
                list.into_iter().for_each(|node| self.put_node(node, &mut dirty));
            }
            Event::ServiceCidr(cidr) => self.put_service_cidr(cidr, &mut dirty),
            Event::ServiceCidrGone(name) => dirty.service_networks = self.service_cidrs.remove(&name).is_some(),
            Event::ServiceCidrs(list) => {
                let listed = list.into_iter().map(|cidr| (Arc::clone(&cidr.name), cidr)).collect();
                // That there is none is news, too.
                dirty.service_networks = !self.service_cidrs_listed || self.service_cidrs != listed;
                self.service_cidrs_listed = true;
                self.service_cidrs = listed;
            }
        }
        dirty.service_networks |= self.has_other_proxy() != had_other_proxy;
        if let Some(api_server) = dirty.services.iter().find(|service| is_api_server(service)) {
            self.api_server.update(self.slices.get(api_server).map_or(&[], Vec::as_slice));
        }
        dirty
    }

    /// Another stage is in force from now on. Says what that touched.
    pub fn set_stage(&mut self, stage: Stage) -> Dirty {
        let had_other_proxy = self.has_other_proxy();
        let before = std::mem::replace(&mut self.stage, stage);
        let moved =
            self.services.values().filter(|service| before.serves(service.proxy) != stage.serves(service.proxy));
        let services = moved.map(|service| service.name.clone()).collect();
        self.others = self.services.values().filter(|service| !stage.serves(service.proxy)).count();
        Dirty { services, service_networks: self.has_other_proxy() != had_other_proxy, ..Dirty::default() }
    }

    /// Whether clients find a service here.
    #[must_use]
    pub const fn serves(&self, service: &Service) -> bool {
        self.stage.serves(service.proxy)
    }

    /// A service by its name.
    #[must_use]
    pub fn service(&self, name: &ObjectName) -> Option<&Service> {
        self.services.get(name)
    }

    /// All services, in the order of their names.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values()
    }

    /// All slices of a service, in the order of their names. If those of the API server's own service
    /// (`default/kubernetes`) name no usable endpoint of a family any more, the last ones that did stand in for them.
    pub fn slices(&self, service: &ObjectName) -> impl Iterator<Item = &Slice> {
        let last_resort = is_api_server(service).then_some(&self.api_server);
        let replaced = move |slice: &&Slice| last_resort.is_some_and(|last| last.replaces(slice.family));
        let slices = self.slices.get(service).into_iter().flatten();
        slices.filter(move |slice| !replaced(slice)).chain(last_resort.into_iter().flat_map(LastResort::slices))
    }

    /// A node by its name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.get(name)
    }

    /// All nodes, in the order of their names.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    /// Whether an address is some known node's own.
    #[must_use]
    pub fn is_node_address(&self, address: IpAddr) -> bool {
        self.node_addresses.contains_key(&address)
    }

    /// All ServiceCIDRs, in the order of their names; `None` before they are known, which nothing waits for.
    #[must_use]
    pub fn service_cidrs(&self) -> Option<impl Iterator<Item = &ServiceCidr>> {
        self.service_cidrs_listed.then(|| self.service_cidrs.values())
    }

    /// Whether another proxy serves one of the services.
    #[must_use]
    pub const fn has_other_proxy(&self) -> bool {
        self.others > 0
    }

    /// Whether services, slices and nodes were each listed at least once. Before that, what is absent proves nothing.
    #[must_use]
    pub fn synced(&self) -> bool {
        self.services_listed && self.slices_listed && self.nodes_listed
    }

    fn put_service(&mut self, mut service: Service, dirty: &mut Dirty) {
        if self.services.get(&service.name) == Some(&service) {
            return;
        }
        self.share(&mut service.name);
        service.ports.iter_mut().for_each(|port| self.names.share(&mut port.name));
        dirty.services.insert(service.name.clone());
        self.others += usize::from(!self.serves(&service));
        let before = self.services.insert(service.name.clone(), service);
        self.others -= usize::from(before.is_some_and(|before| !self.serves(&before)));
    }

    /// The services with an endpoint at one of these places.
    pub fn services_at(&self, places: &Places) -> impl Iterator<Item = ObjectName> {
        let is_there = |name: &&ObjectName| self.slices(name).flat_map(|slice| &slice.endpoints).any(|e| places.has(e));
        self.services.keys().filter(is_there).cloned()
    }

    fn remove_service(&mut self, name: &ObjectName, dirty: &mut Dirty) {
        if let Some(service) = self.services.remove(name) {
            self.others -= usize::from(!self.serves(&service));
            dirty.services.insert(service.name);
        }
    }

    fn put_slice(&mut self, mut slice: Slice, dirty: &mut Dirty) {
        if self.stored_slice(&slice.name) == Some(&slice) {
            return;
        }
        self.remove_slice(&slice.name, dirty);
        self.share_slice(&mut slice);
        dirty.services.insert(slice.service.clone());
        self.slice_service.insert(slice.name.clone(), slice.service.clone());
        let list = self.slices.entry(slice.service.clone()).or_default();
        let at = list.partition_point(|other| other.name < slice.name);
        // Most services have one slice; growing by doubling would keep room for four.
        list.reserve_exact(1);
        list.insert(at, slice);
    }

    fn stored_slice(&self, name: &ObjectName) -> Option<&Slice> {
        let list = self.slices.get(self.slice_service.get(name)?)?;
        let at = list.binary_search_by(|slice| slice.name.cmp(name)).ok()?;
        list.get(at)
    }

    fn remove_slice(&mut self, name: &ObjectName, dirty: &mut Dirty) {
        let Some(service) = self.slice_service.remove(name) else { return };
        if let Some(list) = self.slices.get_mut(&service) {
            list.retain(|slice| slice.name != *name);
            if list.is_empty() {
                self.slices.remove(&service);
            }
        }
        dirty.services.insert(service);
    }

    fn put_node(&mut self, mut node: Node, dirty: &mut Dirty) {
        if self.nodes.get(&node.name) == Some(&node) {
            return;
        }
        let before = self.take_node(&node.name);
        if before.as_ref().is_none_or(|before| (&before.zone, &before.addresses) != (&node.zone, &node.addresses)) {
            before.iter().chain([&node]).for_each(|node| dirty.places.add(node));
        }
        self.names.share(&mut node.name);
        self.names.share(&mut node.zone);
        for address in &node.addresses {
            *self.node_addresses.entry(*address).or_default() += 1;
        }
        self.nodes.insert(Arc::clone(&node.name), node);
        dirty.nodes = true;
    }

    fn remove_node(&mut self, name: &str, dirty: &mut Dirty) {
        if let Some(node) = self.take_node(name) {
            dirty.places.add(&node);
            dirty.nodes = true;
        }
    }

    fn take_node(&mut self, name: &str) -> Option<Node> {
        let node = self.nodes.remove(name)?;
        for address in &node.addresses {
            if let Some(claims) = self.node_addresses.get_mut(address) {
                *claims -= 1;
                if *claims == 0 {
                    self.node_addresses.remove(address);
                }
            }
        }
        Some(node)
    }

    fn put_service_cidr(&mut self, cidr: ServiceCidr, dirty: &mut Dirty) {
        if self.service_cidrs.get(&cidr.name) != Some(&cidr) {
            self.service_cidrs.insert(Arc::clone(&cidr.name), cidr);
            dirty.service_networks = true;
        }
    }

    fn share(&mut self, name: &mut ObjectName) {
        self.names.share(&mut name.namespace);
        self.names.share(&mut name.name);
    }

    fn share_slice(&mut self, slice: &mut Slice) {
        self.names.share(&mut slice.name.namespace);
        self.share(&mut slice.service);
        slice.ports.iter_mut().for_each(|port| self.names.share(&mut port.name));
        for endpoint in &mut slice.endpoints {
            let hints = endpoint.zone_hints.iter_mut().chain(&mut endpoint.node_hints);
            endpoint.node.iter_mut().chain(hints).for_each(|name| self.names.share(name));
        }
        slice.ports.shrink_to_fit();
        slice.endpoints.shrink_to_fit();
    }
}
