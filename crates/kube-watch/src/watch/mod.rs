//! List and watch of the Kubernetes API: a stream for each kind, each converted at once, none stored.
//!
//! A re-list is sent as one event with the whole new list, so that the cluster is never seen half-empty, and what was
//! deleted while the connection was down goes away with it.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use futures::{StreamExt, TryStreamExt, future};
use k8s_openapi::api::core::v1 as k8s;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::Instant;
use weir_core::cluster::Event;
use weir_core::model::{Node, Proxy, Service, ServiceCidr, Slice};

use crate::convert::{self, HEADLESS_LABEL, Problem};
use crate::events::Events;
use crate::status::{Change, Kind, StatusWriter};
use contact::Contact;
use report::{Objections, withheld};

mod contact;
pub mod pods;
mod report;

/// Seconds after which the API server ends a watch, to be taken up again where it ended. Five seconds later the
/// client takes a silent connection for dead, so this is how long a cut uplink can go unnoticed. The library's 290
/// is long for an edge node; one request in 40 s for each node is little for the server.
const WATCH_SECONDS: u32 = 120;

/// The first pause after a failure. Jitter makes each up to twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(800);
/// The longest pause, without its jitter. The library's 30 s can make a node miss a change for a minute after an outage.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// Pauses are short again when the last failure is this long ago.
const FORGIVEN: Duration = Duration::from_secs(120);
/// The pause before a kind is asked for again that the server has not, or does not show. Jitter makes it up to twice as
/// long: a cluster's nodes must not come at once.
const SELDOM: Duration = Duration::from_secs(300);

/// What to watch, and how.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct WatchOptions {
    /// Our own `service.kubernetes.io/service-proxy-name`: Services that carry it are ours. Empty: those that carry
    /// none. The others are delivered as Services of another proxy.
    pub service_proxy_name: String,
    /// Objects in each page of a list. Smaller pages need less memory at once and more requests.
    pub page_size: u32,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self { service_proxy_name: String::new(), page_size: 250 }
    }
}

/// Follows the Kubernetes API until `sink` is closed. It never gives up on the server: it retries with growing pauses
/// of up to half a minute and tells `status` what is wrong meanwhile. What is wrong with an object becomes one of
/// `events`.
pub async fn run(
    client: Client,
    options: WatchOptions,
    sink: mpsc::Sender<Event>,
    status: StatusWriter,
    events: Events,
) {
    let outlet = Outlet { sink: &sink, status: &status, events: &events };
    let services = follow::<k8s::Service>(&client, &options, outlet);
    let slices = follow::<EndpointSlice>(&client, &options, outlet);
    let nodes = follow::<k8s::Node>(&client, &options, outlet);
    let service_cidrs = follow::<ServiceCIDR>(&client, &options, outlet);
    tokio::select! {
        _ = future::join4(services, slices, nodes, service_cidrs) => {}
        () = sink.closed() => {}
    }
}

/// Where news go.
#[derive(Clone, Copy)]
struct Outlet<'a> {
    sink: &'a mpsc::Sender<Event>,
    status: &'a StatusWriter,
    events: &'a Events,
}

/// A kind of object of the API and what becomes of it.
trait Watched: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static {
    const KIND: Kind;
    /// Set if Services can be served while the server has no such kind or does not let us see it: what does not happen
    /// then.
    const WITHOUT: Option<&'static str> = None;
    type Compact: Send;

    /// Selects on the server what cannot be served anyway. An object whose labels change out of the selection arrives
    /// as deleted, one whose labels change into it as added: the server compares the old and the new object.
    fn selector() -> Option<String> {
        None
    }
    /// Whether its mistakes are ours to tell.
    fn is_ours(&self, _proxy_name: &str) -> bool {
        true
    }
    /// `None`: not to be served.
    fn compact(&self, proxy_name: &str, problems: &mut Vec<Problem>) -> Option<Self::Compact>;
    fn put(object: Self::Compact) -> Event;
    fn gone(&self) -> Event;
    fn reset(objects: Vec<Self::Compact>) -> Event;
}

impl Watched for k8s::Service {
    const KIND: Kind = Kind::Services;
    type Compact = Service;

    // A Service that has moved to another proxy is wanted: its flows are to go on.
    fn selector() -> Option<String> {
        Some(format!("!{HEADLESS_LABEL}"))
    }

    fn is_ours(&self, proxy_name: &str) -> bool {
        convert::proxy(&self.metadata, proxy_name) == Proxy::Ours
    }

    fn compact(&self, proxy_name: &str, problems: &mut Vec<Problem>) -> Option<Service> {
        convert::service(self, proxy_name, problems)
    }

    fn put(object: Service) -> Event {
        Event::Service(object)
    }

    fn gone(&self) -> Event {
        Event::ServiceGone(convert::object_name(&self.metadata))
    }

    fn reset(objects: Vec<Service>) -> Event {
        Event::Services(objects)
    }
}

impl Watched for EndpointSlice {
    const KIND: Kind = Kind::Slices;
    type Compact = Slice;

    fn selector() -> Option<String> {
        Some(format!("!{HEADLESS_LABEL}"))
    }

    fn is_ours(&self, proxy_name: &str) -> bool {
        convert::proxy(&self.metadata, proxy_name) == Proxy::Ours
    }

    fn compact(&self, _: &str, problems: &mut Vec<Problem>) -> Option<Slice> {
        convert::endpoint_slice(self, problems)
    }

    fn put(object: Slice) -> Event {
        Event::Slice(object)
    }

    fn gone(&self) -> Event {
        Event::SliceGone(convert::object_name(&self.metadata))
    }

    fn reset(objects: Vec<Slice>) -> Event {
        Event::Slices(objects)
    }
}

impl Watched for k8s::Node {
    const KIND: Kind = Kind::Nodes;
    type Compact = Node;

    fn compact(&self, _: &str, problems: &mut Vec<Problem>) -> Option<Node> {
        Some(convert::node(self, problems))
    }

    fn put(object: Node) -> Event {
        Event::Node(object)
    }

    fn gone(&self) -> Event {
        Event::NodeGone(convert::object_name(&self.metadata).name)
    }

    fn reset(objects: Vec<Node>) -> Event {
        Event::Nodes(objects)
    }
}

impl Watched for ServiceCIDR {
    const KIND: Kind = Kind::ServiceCidrs;
    const WITHOUT: Option<&'static str> = Some(
        "packets to cluster IPs that no Service has are not dropped; it takes Kubernetes 1.33 and the rights to list and \
         watch servicecidrs of networking.k8s.io",
    );
    type Compact = ServiceCidr;

    fn compact(&self, _: &str, problems: &mut Vec<Problem>) -> Option<ServiceCidr> {
        Some(convert::service_cidr(self, problems))
    }

    fn put(object: ServiceCidr) -> Event {
        Event::ServiceCidr(object)
    }

    fn gone(&self) -> Event {
        Event::ServiceCidrGone(convert::object_name(&self.metadata).name)
    }

    fn reset(objects: Vec<ServiceCidr>) -> Event {
        Event::ServiceCidrs(objects)
    }
}

fn back_off() -> impl Backoff {
    let pauses = ExponentialBuilder::default()
        .with_min_delay(FIRST_PAUSE)
        .with_max_delay(LONGEST_PAUSE)
        .with_factor(2.0)
        .without_max_times()
        .with_jitter();
    ResetTimerBackoff::new(watcher::ExponentialBackoff::from(pauses), FORGIVEN)
}

/// Follows one kind until the sink is closed. While the server withholds one that can be done without, there are none.
async fn follow<K: Watched>(client: &Client, options: &WatchOptions, outlet: Outlet<'_>) {
    let contact = Contact::new(K::KIND, outlet.status.clone());
    let pauses = ExponentialBuilder::default().with_min_delay(SELDOM).with_max_delay(SELDOM).with_jitter();
    let mut pauses = pauses.without_max_times().build();
    while let Ended::Withheld = follow_while_shown::<K>(client, options, outlet, &contact).await {
        if outlet.sink.send(K::reset(Vec::new())).await.is_err() {
            return;
        }
        outlet.status.delivered(K::KIND, Change::Relisted);
        tokio::time::sleep(pauses.next().unwrap_or(SELDOM)).await;
    }
}

/// Why a kind is no longer followed.
enum Ended {
    /// Nobody listens any more.
    Closed,
    /// The server has no such kind, or does not show it.
    Withheld,
}

async fn follow_while_shown<K: Watched>(
    client: &Client,
    options: &WatchOptions,
    outlet: Outlet<'_>,
    contact: &Arc<Contact>,
) -> Ended {
    let Outlet { sink, status, events: warnings } = outlet;
    let api = Api::<K>::all(contact.observe(client));
    let config = watcher::Config {
        label_selector: K::selector(),
        page_size: Some(options.page_size),
        timeout: Some(WATCH_SECONDS),
        ..watcher::Config::default()
    };
    // The start of a list is announced before the server has answered. It must not reach the back-off, which would take
    // it for success and never grow while lists fail.
    let mut desync = Desync::default();
    let events = watcher(api, config)
        .filter(move |event| future::ready(!desync.is_forgiven(event)))
        .try_filter(|event| future::ready(!matches!(event, watcher::Event::Init)))
        .backoff(back_off());
    let mut events = pin!(events);
    let objections = Objections::new(K::KIND, warnings.clone());
    let mut delivery = Delivery::<K> { proxy_name: &options.service_proxy_name, list: Vec::new(), objections };
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                let Some(event) = delivery.event(event) else { continue };
                let change = Change::of(&event);
                if sink.send(event).await.is_err() {
                    return Ended::Closed;
                }
                status.delivered(K::KIND, change);
            }
            Err(error) => {
                // Half a list is no list: it starts again from its first page.
                delivery.list.clear();
                if let (Some(effect), Some(_)) = (K::WITHOUT, withheld(&error)) {
                    contact.withheld(&error, effect);
                    return Ended::Withheld;
                }
                contact.lost(&error);
            }
        }
    }
    Ended::Closed
}

/// A server that came back with an empty history answers a watch with 410 Gone: a new list is all that it asks for, and no
/// reason to pause, unless it happens over and over.
#[derive(Debug, Default)]
struct Desync {
    last: Option<Instant>,
}

impl Desync {
    fn is_forgiven<K>(&mut self, event: &watcher::Result<watcher::Event<K>>) -> bool {
        const GONE: u16 = 410;
        match event {
            Err(watcher::Error::WatchError(status)) if status.code == GONE => {
                let last = self.last.replace(Instant::now());
                last.is_none_or(|last| last.elapsed() > LONGEST_PAUSE)
            }
            Err(_) | Ok(_) => false,
        }
    }
}

/// Turns events of the API into events of the cluster.
struct Delivery<'a, K: Watched> {
    proxy_name: &'a str,
    /// A list of which not all pages have come yet.
    list: Vec<K::Compact>,
    objections: Objections,
}

impl<K: Watched> Delivery<'_, K> {
    fn event(&mut self, event: watcher::Event<K>) -> Option<Event> {
        match event {
            watcher::Event::Init => None,
            watcher::Event::InitApply(object) => {
                let compact = self.compact(&object);
                self.list.extend(compact);
                None
            }
            watcher::Event::InitDone => Some(K::reset(std::mem::take(&mut self.list))),
            watcher::Event::Apply(object) => Some(self.compact(&object).map_or_else(|| object.gone(), K::put)),
            watcher::Event::Delete(object) => {
                self.objections.withdraw(&convert::object_name(object.meta()));
                Some(object.gone())
            }
        }
    }

    fn compact(&mut self, object: &K) -> Option<K::Compact> {
        let mut problems = Vec::new();
        let compact = object.compact(self.proxy_name, &mut problems);
        if !object.is_ours(self.proxy_name) {
            // The other proxy may see it differently.
            problems.clear();
        }
        self.objections.raise(convert::object_name(object.meta()), problems);
        compact
    }
}
