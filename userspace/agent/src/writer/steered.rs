//! The writer's side of the steering: which services are steered, and the shares that come back.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use anyhow::Result;
use tokio::sync::{mpsc, watch};
use weir_core::cluster::Cluster;
use weir_core::model::{Node, ObjectName, Service};
use weir_core::plan::{PlanKey, ServicePlan, Spread};
use weir_core::policies::Kind;
use weir_core::service_series;
use weir_core::settings::{ServiceSettings, Settings};
use weir_core::steering::{Target, Write};
use weir_core::tables::Tables;
use weir_signals::open_flows::OpenByBackend;

use super::Writer;
use crate::steering::{Feed, OtherNode};

/// Who is steered, and how they are told apart.
pub(crate) struct Steered {
    feed: mpsc::UnboundedSender<Feed>,
    /// What is in force; with every change of it services are planned anew.
    pub(super) settings: watch::Receiver<Arc<Settings>>,
    /// Open flows as they were last counted.
    pub(super) open: watch::Receiver<OpenByBackend>,
    /// Nodes that take clients' packets as they are.
    pub(super) direct: watch::Receiver<BTreeSet<Arc<str>>>,
    /// Whether the others were told that this one does.
    announced: bool,
    /// Whether services are steered that do not ask for it by an annotation.
    all: bool,
    /// What a service follows whose policy nobody has set.
    usual: Kind,
    /// Most Services that have series of their own in the metrics.
    most_series: usize,
    /// Whether others may have them than the loop was told.
    series_changed: bool,
    /// Who has them as the loop was told, if it was.
    series: Option<BTreeSet<ObjectName>>,
    /// By service, of each slot who has it and which plan.
    published: HashMap<ObjectName, Vec<Published>>,
    next: u64,
}

#[derive(Clone, Debug)]
struct Published {
    key: PlanKey,
    slot: u32,
    revision: u64,
}

impl Steered {
    /// Nobody is steered yet. `all`: everybody will be, and not only who has an annotation. `most_series`: Services that may
    /// have series of their own in the metrics.
    pub(crate) fn new(
        feed: mpsc::UnboundedSender<Feed>,
        settings: watch::Receiver<Arc<Settings>>,
        (open, direct): (watch::Receiver<OpenByBackend>, watch::Receiver<BTreeSet<Arc<str>>>),
        all: bool,
        spread: Spread,
        most_series: usize,
    ) -> Self {
        let usual = match spread {
            Spread::LocalFirst => Kind::Waterfill,
            Spread::Random => Kind::Random,
        };
        Self {
            feed,
            settings,
            open,
            direct,
            announced: false,
            all,
            usual,
            most_series,
            series_changed: most_series > 0,
            series: None,
            published: HashMap::new(),
            next: 1,
        }
    }

    /// What is wanted of a service that is served, if it is steered.
    pub(super) fn settings_of(&self, service: &Service) -> Option<ServiceSettings> {
        let annotated = service.overrides.as_deref();
        if !self.all && annotated.is_none() {
            return None;
        }
        let in_force = self.settings.borrow();
        let named = annotated.and_then(|own| own.policy).or_else(|| {
            let namespace = in_force.namespaces.get(&service.name.namespace);
            namespace.and_then(|own| own.policy).or(in_force.defaults.policy)
        });
        let settings = in_force.of(&service.name, annotated);
        Some(ServiceSettings { policy: named.unwrap_or(self.usual), ..settings })
    }

    /// Tells the loop what the maps hold of a service from now on.
    pub(super) fn publish(
        &mut self,
        tables: &Tables,
        here: &Arc<str>,
        name: &ObjectName,
        plans: &[ServicePlan],
        settings: Option<&ServiceSettings>,
    ) {
        let before = self.published.remove(name);
        let mut targets = Vec::new();
        let mut published = Vec::new();
        for (plan, settings) in settings.into_iter().flat_map(|settings| plans.iter().map(move |plan| (plan, settings)))
        {
            // What keeps its last endpoints is not what was planned: its shares stay, too.
            let Some((slot, backends)) = tables.slots_of(plan) else { continue };
            self.next += 1;
            let revision = self.next;
            let backends: Vec<_> = backends.into_iter().map(|id| (id, tables.generation(id))).collect();
            let held = tables.held_spill(slot);
            targets.push(Target::new(plan, here, slot, &backends, settings.clone(), held, revision));
            published.push(Published { key: plan.key.clone(), slot, revision });
        }
        if before.is_none() && targets.is_empty() {
            return;
        }
        if !published.is_empty() {
            self.published.insert(name.clone(), published);
        }
        // The loop ends with the agent only.
        let _ = self.feed.send(Feed::Service(name.clone(), targets));
    }

    /// Services came, went, or have other annotations.
    pub(super) const fn services_changed(&mut self) {
        self.series_changed = self.most_series > 0;
    }

    /// Tells the loop who has series of their own in the metrics, if that is news.
    pub(super) fn publish_series(&mut self, cluster: &Cluster) {
        if !std::mem::take(&mut self.series_changed) {
            return;
        }
        let own = service_series::own(cluster, self.most_series);
        if self.series.as_ref() != Some(&own) {
            let _ = self.feed.send(Feed::OwnSeries(own.clone()));
            self.series = Some(own);
        }
    }

    /// Tells the loop whether this node takes clients' packets from others as they are. True if that is news.
    pub(super) fn announce(&mut self, unwraps: bool) -> bool {
        let news = std::mem::replace(&mut self.announced, unwraps) != unwraps;
        if news {
            let _ = self.feed.send(Feed::Unwraps(unwraps));
        }
        news
    }

    /// Whether the loop was told of a port.
    pub(super) fn is_published(&self, port: &PlanKey) -> bool {
        self.published.get(&port.service).into_iter().flatten().any(|known| known.key == *port)
    }

    /// Whether a decision is about what the maps hold.
    fn is_current(&self, write: &Write) -> bool {
        let known = self.published.get(&write.key.service);
        known.into_iter().flatten().any(|known| known.slot == write.slot && known.revision == write.revision)
    }

    /// Asks for the shares of ports that were not written.
    pub(super) fn not_written<'a>(&self, ports: impl IntoIterator<Item = &'a PlanKey>) {
        for port in ports {
            let _ = self.feed.send(Feed::NotWritten(port.clone()));
        }
    }
}

impl Writer {
    /// Writes new shares. What finds no room is tried again when shares move again, or with the grace period, since
    /// slots come free then.
    pub(super) fn steer(&mut self, writes: Vec<Write>) -> Result<()> {
        let (mut ops, mut news) = (Vec::new(), false);
        for write in writes {
            // The loop has heard of the new plan, or is about to.
            if !self.steered.is_current(&write) {
                continue;
            }
            match self.tables.steer(write.slot, &write.shares) {
                Ok(new) => {
                    ops.extend(new);
                    news |= self.complaints.steered(&write.key);
                }
                Err(cause) => news |= self.complaints.not_steered(&write.key, cause.to_string()),
            }
        }
        self.apply(&ops)?;
        if news {
            self.publish();
        }
        Ok(())
    }

    /// Open flows were counted anew.
    pub(super) fn write_bases(&mut self) -> Result<()> {
        let ops = self.tables.bases(|slot, generation| base(&self.steered.open.borrow(), slot, generation));
        self.apply(&ops)
    }

    /// The last count, for a service that was just written.
    pub(super) fn write_bases_of(&mut self, name: &ObjectName) -> Result<()> {
        let ops = self.tables.bases_of(name, |slot, generation| base(&self.steered.open.borrow(), slot, generation));
        self.apply(&ops)
    }

    /// Tells the loop where the nodes are.
    pub(super) fn publish_nodes(&self) {
        let here = &self.settings.plan.node;
        let others = self.cluster.nodes().filter(|node| node.name != *here);
        let other = |node: &Node| OtherNode {
            name: Arc::clone(&node.name),
            addresses: node.addresses.clone(),
            capacity: node.capacity,
        };
        let peers = others.map(other).collect();
        let zone = self.cluster.node(here).map(|node| Arc::clone(&node.zone)).unwrap_or_default();
        let _ = self.steered.feed.send(Feed::Nodes { zone, own: self.node_addresses(), peers });
    }

    /// All services are planned anew with other settings.
    pub(super) fn settings_changed(&mut self) {
        self.dirty.services.extend(self.cluster.services().map(|service| service.name.clone()));
    }
}

/// What a backend would have begun or failed without an open flow; None if it was not counted.
fn base(open: &OpenByBackend, slot: u32, generation: u32) -> Option<u32> {
    open.get(&(slot, generation)).map(|open| open.base())
}

#[cfg(test)]
mod tests {
    use weir_core::cluster::Event;

    use super::*;

    #[test]
    fn the_loop_hears_who_has_series_when_that_is_news_and_only_then() {
        let (feed, mut heard) = mpsc::unbounded_channel();
        let told = (watch::channel(OpenByBackend::default()).1, watch::channel(BTreeSet::new()).1);
        let settings = watch::channel(Arc::default()).1;
        let mut steered = Steered::new(feed, settings, told, true, Spread::LocalFirst, 1);
        let mut cluster = Cluster::default();
        let mut after = |event: Option<Event>| {
            event.into_iter().for_each(|event| drop(cluster.apply(event)));
            steered.services_changed();
            steered.publish_series(&cluster);
            std::iter::from_fn(|| heard.try_recv().ok()).map(|feed| format!("{feed:?}")).collect::<Vec<_>>()
        };
        let name = |name: &str| ObjectName::new("shop", name);
        let service = |service: &str| Some(Event::Service(Service::new(name(service))));
        let series = |services: &[&str]| {
            vec![format!("{:?}", Feed::OwnSeries(services.iter().map(|service| name(service)).collect()))]
        };
        assert_eq!(after(None), series(&[]), "that nobody has any is news at first");
        assert_eq!(after(service("b")), series(&["b"]));
        assert!(after(service("b")).is_empty() && after(service("c")).is_empty(), "b has them still");
        assert_eq!(after(service("a")), series(&["a"]));
    }
}
