//! What is wrong with services: told once per cause, in the log and as a Kubernetes event on the Service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tracing::{error, info, warn};
use weir_core::kernel_features::Missing;
use weir_core::model::ObjectName;
use weir_core::plan::{PlanKey, Refusal};
use weir_core::service_networks::LeftOut;
use weir_core::tables::{FrontendConflict, TablesError};
use weir_kube_watch::events::{Events, Regarding};

/// What was told and still holds.
pub(super) struct Complaints {
    events: Events,
    /// Services that could not be written as they are, and why.
    failed: BTreeMap<ObjectName, TablesError>,
    /// Services with endpoints on nodes that have no number.
    unnumbered: BTreeSet<ObjectName>,
    /// Those among them that were written without their load balancer addresses.
    closed: BTreeSet<ObjectName>,
    /// Ports whose new shares could not be written, and why.
    unsteered: BTreeMap<PlanKey, String>,
    conflicts: BTreeSet<FrontendConflict>,
    left_out: Vec<LeftOut>,
    /// By service: what of it cannot be served, as it was last found. Of one cause the numbers may change without being
    /// told again.
    refusals: BTreeMap<ObjectName, BTreeMap<Cause, String>>,
    /// Services with ports that endpoints on their way out serve alone, and how many ports. Nobody is told but who watches:
    /// it is as its owner wants it, or about to end.
    last_resort: BTreeMap<ObjectName, usize>,
    /// What this node's kernel lacks.
    lacking: Vec<Missing>,
    /// Whether node ports do not answer where other nodes would send what they wrap.
    lacks_node_ports: bool,
}

/// What a refusal is about, without the numbers in it: the port's name, and the reason.
type Cause = (Arc<str>, &'static str);

impl Complaints {
    /// Nothing is wrong yet.
    pub(super) const fn new(events: Events) -> Self {
        Self {
            events,
            failed: BTreeMap::new(),
            unnumbered: BTreeSet::new(),
            closed: BTreeSet::new(),
            unsteered: BTreeMap::new(),
            conflicts: BTreeSet::new(),
            left_out: Vec::new(),
            refusals: BTreeMap::new(),
            last_resort: BTreeMap::new(),
            lacking: Vec::new(),
            lacks_node_ports: false,
        }
    }

    /// A service could not be written: what the maps held before stays in force.
    pub(super) fn not_written(&mut self, name: &ObjectName, cause: TablesError) {
        self.closed.remove(name);
        if self.failed.get(name) != Some(&cause) {
            error!(service = %name, %cause, "service not written, its old state stays in force");
            let note = format!("not written, what was served before goes on: {cause}");
            self.events.warn(Regarding::service(name.clone()), "ServiceNotWritten", note);
            self.failed.insert(name.clone(), cause);
        }
    }

    /// A service was written without its load balancer addresses, which would be open to all for want of source ranges.
    pub(super) fn closed(&mut self, name: &ObjectName, cause: TablesError) {
        self.closed.insert(name.clone());
        if self.failed.get(name) != Some(&cause) {
            error!(service = %name, %cause, "load balancer addresses not served, their source ranges find no room");
            let note = format!("load balancer addresses are not served, their source ranges find no room: {cause}");
            self.events.warn(Regarding::service(name.clone()), "SourceRangesNotWritten", note);
            self.failed.insert(name.clone(), cause);
        }
    }

    /// A service was written, but new flows go to some of its endpoints only.
    pub(super) fn thinned(&mut self, name: &ObjectName, cause: TablesError) {
        self.closed.remove(name);
        if self.failed.get(name) != Some(&cause) {
            error!(service = %name, %cause, "new flows go to some of the endpoints only");
            let note = format!("new flows go to some of the endpoints only: {cause}");
            self.events.warn(Regarding::service(name.clone()), "EndpointsNotWritten", note);
            self.failed.insert(name.clone(), cause);
        }
    }

    /// A service was written with weights in place of Maglev's table.
    pub(super) fn without_table(&mut self, name: &ObjectName, cause: TablesError) {
        self.closed.remove(name);
        if self.failed.get(name) != Some(&cause) {
            error!(service = %name, %cause, "no room for Maglev's table, new flows go by weight");
            let note = format!(
                "no room for Maglev's table: new flows go by weight, and one may have another endpoint at another node: {cause}"
            );
            self.events.warn(Regarding::service(name.clone()), "TableNotWritten", note);
            self.failed.insert(name.clone(), cause);
        }
    }

    /// Endpoints of a service are on nodes that find no number; None: all have one. Clients notice nothing, so that its owner is not told.
    pub(super) fn unnumbered(&mut self, name: &ObjectName, cause: Option<TablesError>) {
        let Some(cause) = cause else {
            self.unnumbered.remove(name);
            return;
        };
        if self.unnumbered.insert(name.clone()) {
            warn!(service = %name, %cause, "endpoints are told without their nodes");
        }
    }

    /// A service was written.
    pub(super) fn written(&mut self, name: &ObjectName) {
        self.closed.remove(name);
        if self.failed.remove(name).is_some() {
            info!(service = %name, "written after all");
        }
    }

    /// A service is none of ours any more.
    pub(super) fn forget(&mut self, name: &ObjectName) {
        self.closed.remove(name);
        self.failed.remove(name);
        self.unnumbered.remove(name);
        self.refusals.remove(name);
        self.last_resort.remove(name);
        self.keep_unsteered(name, |_| false);
    }

    /// New shares of a port could not be written: the old ones stay in force. True if that was not known.
    pub(super) fn not_steered(&mut self, port: &PlanKey, cause: String) -> bool {
        if self.unsteered.get(port) == Some(&cause) {
            return false;
        }
        let PlanKey { service, port_name, protocol: _, family } = port;
        warn!(%service, %port_name, ?family, %cause, "new shares not written, the old ones stay in force");
        let note = format!("port {port_name:?} does not follow the load, its last shares stay in force: {cause}");
        self.events.warn(Regarding::service(service.clone()), "SharesNotWritten", note);
        self.unsteered.insert(port.clone(), cause);
        true
    }

    /// Shares of a port were written. True if they could not be before.
    pub(super) fn steered(&mut self, port: &PlanKey) -> bool {
        let known = self.unsteered.remove(port).is_some();
        if known {
            let PlanKey { service, port_name, protocol: _, family } = port;
            info!(%service, %port_name, ?family, "new shares written after all");
        }
        known
    }

    /// Of a service only these ports are steered any more.
    pub(super) fn keep_unsteered(&mut self, service: &ObjectName, keep: impl Fn(&PlanKey) -> bool) {
        self.unsteered.retain(|port, _| port.service != *service || keep(port));
    }

    /// Ports whose new shares could not be written, and why.
    pub(super) const fn unsteered(&self) -> &BTreeMap<PlanKey, String> {
        &self.unsteered
    }

    /// Services that could not be written, and why.
    pub(super) const fn failed(&self) -> &BTreeMap<ObjectName, TablesError> {
        &self.failed
    }

    /// How many of them would find room in larger maps.
    pub(super) fn without_room(&self) -> usize {
        self.failed.values().filter(|cause| cause.is_of_room()).count()
    }

    /// Whether a service was written without its load balancer addresses.
    pub(super) fn is_closed(&self, name: &ObjectName) -> bool {
        self.closed.contains(name)
    }

    /// All networks of ServiceCIDRs that are not in force now.
    pub(super) fn left_out(&mut self, now: Vec<LeftOut>) {
        for LeftOut { name, network, cause } in now.iter().filter(|one| !self.left_out.contains(one)) {
            warn!(service_cidr = %name, %network, %cause, "packets to its unused cluster IPs are not dropped");
            let note = format!("packets to unused cluster IPs of {network} are not dropped: {cause}");
            self.events.warn(Regarding::service_cidr(name), "NetworkLeftOut", note);
        }
        self.left_out = now;
    }

    /// All that the kernel of this node lacks now.
    pub(super) fn lacking(&mut self, node: &str, now: Vec<Missing>) {
        for missing in now.iter().filter(|missing| !self.lacking.contains(missing)) {
            warn!("{missing}");
            self.events.warn(Regarding::node(node), missing.reason(), missing.to_string());
        }
        self.lacking = now;
    }

    /// Whether other nodes wrap nothing for this one now, although it would answer: it cannot tell whose it is.
    pub(super) fn lacks_node_ports(&mut self, now: bool) {
        if now && !self.lacks_node_ports {
            warn!(
                "--external-mode dsr: other nodes translate what they send here, as node ports do not answer at this node's first address \
                 of each family; see --nodeport-addresses"
            );
        }
        self.lacks_node_ports = now;
    }

    /// All addresses that two services claim now.
    pub(super) fn conflicts(&mut self, now: Vec<FrontendConflict>) {
        // An address whose unused ports two services claim is the same conflict as that of a port, or none at all.
        let now: BTreeSet<_> = now.into_iter().filter(|conflict| conflict.key.port != 0).collect();
        for FrontendConflict { key, kept_by, refused } in now.difference(&self.conflicts) {
            let (address, port) = (key.address, key.port);
            warn!(%address, port, %kept_by, %refused, "two services claim one address");
            let note = format!(
                "{address} port {port} is not served: it is Service {kept_by}'s; give one of the two another address or \
                 port"
            );
            self.events.warn(Regarding::service(refused.clone()), "AddressTaken", note);
        }
        self.conflicts = now;
    }

    /// All that cannot be served of a service now.
    pub(super) fn refusals(&mut self, name: &ObjectName, now: &[Refusal]) {
        let told = self.refusals.remove(name).unwrap_or_default();
        for refusal in now.iter().filter(|refusal| !told.contains_key(&cause(refusal))) {
            warn!(service = %name, "{refusal}");
            self.events.warn(Regarding::service(name.clone()), refusal.reason(), refusal.to_string());
        }
        if !now.is_empty() {
            let causes = now.iter().map(|refusal| (cause(refusal), refusal.to_string()));
            self.refusals.insert(name.clone(), causes.collect());
        }
    }

    /// So many ports of a service are served by endpoints on their way out alone.
    pub(super) fn at_last_resort(&mut self, name: &ObjectName, ports: usize) {
        if ports == 0 {
            self.last_resort.remove(name);
        } else {
            self.last_resort.insert(name.clone(), ports);
        }
    }

    /// How many ports of all services are.
    pub(super) fn last_resort(&self) -> usize {
        self.last_resort.values().sum()
    }

    /// How many ports of services cannot be served as asked, and what is wrong with one of them.
    pub(super) fn refused(&self) -> (usize, Option<&str>) {
        let ports =
            |causes: &BTreeMap<Cause, String>| causes.keys().map(|(port, _)| port).collect::<BTreeSet<_>>().len();
        let example = self.refusals.values().flat_map(BTreeMap::values).next();
        (self.refusals.values().map(ports).sum(), example.map(String::as_str))
    }
}

fn cause(refusal: &Refusal) -> Cause {
    match refusal {
        Refusal::SctpEndpoints { port_name, .. } | Refusal::SctpNodePort { port_name, .. } => {
            (Arc::clone(port_name), refusal.reason())
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_core::model::{Family, Protocol};

    use super::*;

    fn name(name: &str) -> ObjectName {
        ObjectName::new("shop", name)
    }

    fn full(map: &'static str) -> TablesError {
        TablesError::Full { map, size: 16, option: "--max" }
    }

    fn node_port(service: &ObjectName, port_name: &str) -> Refusal {
        Refusal::SctpNodePort { service: service.clone(), port_name: port_name.into(), port: 9899, node_port: 30_099 }
    }

    fn endpoints(service: &ObjectName, port_name: &str, left_out: usize) -> Refusal {
        let example = "10.0.1.5".parse().unwrap();
        let (service, port_name) = (service.clone(), port_name.into());
        Refusal::SctpEndpoints { service, port_name, port: 9899, example, target_port: 9900, left_out, endpoints: 4 }
    }

    #[test]
    fn a_port_that_is_refused_for_two_reasons_is_one_port() {
        let (mut complaints, cart, web) = (Complaints::new(Events::disabled()), name("cart"), name("web"));
        assert_eq!(complaints.refused(), (0, None));
        complaints.refusals(&cart, &[endpoints(&cart, "a", 1), node_port(&cart, "a"), node_port(&cart, "b")]);
        complaints.refusals(&web, &[node_port(&web, "a")]);
        let (ports, example) = complaints.refused();
        assert_eq!((ports, example.map(|text| text.starts_with("shop/cart port \"a\": SCTP"))), (3, Some(true)));
    }

    #[test]
    fn refusals_are_as_last_found_and_end_with_their_cause_or_their_service() {
        let (mut complaints, cart, web) = (Complaints::new(Events::disabled()), name("cart"), name("web"));
        complaints.refusals(&cart, &[endpoints(&cart, "a", 1)]);
        complaints.refusals(&cart, &[endpoints(&cart, "a", 3)]);
        assert!(complaints.refused().1.unwrap().contains("3 of 4 endpoints"), "{:?}", complaints.refused());
        complaints.refusals(&web, &[node_port(&web, "a")]);
        complaints.refusals(&cart, &[]);
        complaints.forget(&web);
        assert_eq!(complaints.refused(), (0, None));
    }

    #[test]
    fn shares_that_are_not_written_are_told_once_per_cause_until_they_are_or_the_port_is_not_steered() {
        let plan = |port_name: &str| PlanKey {
            service: name("cart"),
            port_name: port_name.into(),
            protocol: Protocol::Tcp,
            family: Family::V4,
        };
        let (http, dns, full) = (plan("http"), plan("dns"), "map lines is full");
        let mut complaints = Complaints::new(Events::disabled());
        let told: Vec<_> = (0..4).map(|_| complaints.not_steered(&http, full.to_owned())).collect();
        assert_eq!(told, [true, false, false, false]);
        assert!(complaints.not_steered(&http, "another cause".to_owned()));
        assert_eq!([complaints.steered(&http), complaints.steered(&http)], [true, false]);
        for port in [&http, &dns] {
            assert!(
                complaints.not_steered(port, full.to_owned()),
                "told anew after it was written or for another port"
            );
        }
        complaints.keep_unsteered(&name("web"), |_| false);
        complaints.keep_unsteered(&name("cart"), |port| *port == dns);
        assert_eq!(complaints.unsteered().keys().collect::<Vec<_>>(), [&dns]);
        complaints.forget(&name("cart"));
        assert_eq!(complaints.unsteered().len(), 0);
    }

    #[test]
    fn ports_at_their_last_resort_are_counted_until_they_are_not_or_the_service_is_gone() {
        let (mut complaints, cart, web) = (Complaints::new(Events::disabled()), name("cart"), name("web"));
        complaints.at_last_resort(&cart, 2);
        complaints.at_last_resort(&web, 1);
        assert_eq!(complaints.last_resort(), 3);
        complaints.at_last_resort(&cart, 0);
        assert_eq!(complaints.last_resort(), 1);
        complaints.forget(&web);
        assert_eq!(complaints.last_resort(), 0);
    }

    #[test]
    fn what_no_larger_map_would_mend_is_not_for_want_of_room() {
        let mut complaints = Complaints::new(Events::disabled());
        let (service, port_name) = (name("cart"), "http".into());
        complaints.closed(&name("cart"), TablesError::TooManySourceRanges { service, port_name, ranges: 2000 });
        assert_eq!((complaints.failed().len(), complaints.without_room()), (1, 0));
        complaints.not_written(&name("web"), full("backends"));
        assert_eq!((complaints.failed().len(), complaints.without_room()), (2, 1));
    }

    #[test]
    fn a_service_is_closed_until_it_is_written_as_it_is_or_gone() {
        let ends: [fn(&mut Complaints); 4] = [
            |complaints| complaints.written(&name("cart")),
            |complaints| complaints.thinned(&name("cart"), full("lines")),
            |complaints| complaints.forget(&name("cart")),
            |complaints| complaints.not_written(&name("cart"), full("backends")),
        ];
        for end in ends {
            let mut complaints = Complaints::new(Events::disabled());
            complaints.closed(&name("cart"), full("source_ranges"));
            assert!(complaints.is_closed(&name("cart")) && complaints.failed().contains_key(&name("cart")));
            end(&mut complaints);
            assert!(!complaints.is_closed(&name("cart")));
        }
    }
}
