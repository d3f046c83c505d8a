//! Kubernetes events against a real API server, with the rights that the agent has and no more.

use std::future::Future;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::networking::v1::{ServiceCIDR, ServiceCIDRSpec};
use k8s_openapi::api::rbac::v1::PolicyRule;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;
use weir_core::cluster::{Cluster, Event as ClusterEvent};
use weir_core::model::ObjectName;
use weir_kube_watch::client::{ClientOptions, connect};
use weir_kube_watch::convert;
use weir_kube_watch::events::{Events, Regarding};
use weir_kube_watch::status::StatusWriter;
use weir_kube_watch::watch::{WatchOptions, run};
use weir_testbed::apiserver::User;
use weir_testbed::objects::{Objects, node, service};
use weir_testbed::{ApiServer, role};

/// More than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

async fn client(api: &ApiServer, user: User) -> Client {
    let kubeconfig = Some(api.kubeconfig(user, &api.url()).unwrap());
    connect(&ClientOptions { kubeconfig, ..ClientOptions::default() }).await.unwrap()
}

/// The watches of an agent, with their events.
struct Watching {
    news: mpsc::Receiver<ClusterEvent>,
    cluster: Cluster,
}

impl Watching {
    fn start(client: Client, events: Events) -> Self {
        let (sink, news) = mpsc::channel(64);
        let (writer, _status) = StatusWriter::new();
        tokio::spawn(run(client, WatchOptions::default(), sink, writer, events));
        Self { news, cluster: Cluster::default() }
    }

    /// Applies news until the cluster is as wanted.
    async fn until(&mut self, what: &str, wanted: impl Fn(&Cluster) -> bool) {
        within(what, async {
            while !wanted(&self.cluster) {
                self.cluster.apply(self.news.recv().await.unwrap());
            }
        })
        .await;
    }
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("never came to be: {what}"))
}

/// Looks until there is something.
async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    within(what, async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

/// Our events about an object. The API server has some, too: it repairs cluster IPs that its own start has overtaken.
async fn events_about(admin: &Client, name: &str) -> Vec<Event> {
    let all = Api::<Event>::namespaced(admin.clone(), "default").list(&ListParams::default()).await.unwrap();
    all.into_iter()
        .filter(|event| event.regarding.as_ref().is_some_and(|it| it.name.as_deref() == Some(name)))
        .filter(|event| event.reporting_controller.as_deref() == Some("weir"))
        .collect()
}

async fn first_about(admin: &Client, name: &str) -> Event {
    eventually(&format!("an event about {name}"), async || events_about(admin, name).await.into_iter().next()).await
}

/// Our event about an object that has this reason.
async fn await_event(admin: &Client, name: &str, reason: &str) -> Event {
    let is_wanted = |event: &Event| event.reason.as_deref() == Some(reason);
    let what = format!("an event {reason} about {name}");
    eventually(&what, async || events_about(admin, name).await.into_iter().find(is_wanted)).await
}

/// A slice of names, which the API allows and nobody can balance.
fn slice_of_names(name: &str, note: &str) -> EndpointSlice {
    let labels = json!({"kubernetes.io/service-name": "web"});
    let metadata = json!({"namespace": "default", "name": name, "labels": labels, "annotations": {"note": note}});
    let endpoints = json!([{"addresses": ["example.net"]}]);
    serde_json::from_value(json!({"metadata": metadata, "addressType": "FQDN", "endpoints": endpoints, "ports": []}))
        .unwrap()
}

fn uid(object: &EndpointSlice) -> Option<String> {
    object.metadata.uid.clone()
}

/// A server, and an agent that has listed everything.
struct Scene {
    api: ApiServer,
    objects: Objects,
    admin: Client,
    events: Events,
    watching: Watching,
}

impl Scene {
    /// The agent has these rights.
    async fn start(rights: Vec<PolicyRule>) -> Self {
        let api = ApiServer::start(None).unwrap();
        let objects = api.objects().unwrap();
        role::allow_agent(&objects, rights).unwrap();
        let (admin, agent) = (client(&api, User::Admin).await, client(&api, User::Agent).await);
        let events = Events::start(agent.clone(), "edge-1");
        let mut watching = Watching::start(agent, events.clone());
        watching.until("the first lists", Cluster::synced).await;
        Self { api, objects, admin, events, watching }
    }
}

/// To watch, and to publish events.
fn all_rights() -> Vec<PolicyRule> {
    [role::to_watch(), role::to_report()].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slice_that_cannot_be_served_has_one_event_that_describe_finds() {
    if !ApiServer::require("events of a real API server") {
        return;
    }
    let Scene { api: _api, objects, admin, events, watching: _watching } = Scene::start(all_rights()).await;

    let slice = objects.apply(&slice_of_names("names", "first")).unwrap();
    let event = first_about(&admin, "names").await;
    let regarding = event.regarding.unwrap();
    assert_eq!((regarding.kind.as_deref(), regarding.uid), (Some("EndpointSlice"), uid(&slice)));
    assert_eq!((event.type_.as_deref(), event.reason.as_deref()), (Some("Warning"), Some("InvalidEndpointSlice")));
    assert_eq!(event.note.as_deref(), Some("addressType \"FQDN\" is not IPv4 or IPv6; the whole slice is left out"));
    let reporter = (event.reporting_controller, event.reporting_instance);
    assert_eq!(reporter, (Some("weir".to_owned()), Some("edge-1".to_owned())));

    // Events come in order: when that of the second slice is there, no other of the first one will be.
    objects.apply(&slice_of_names("names", "second")).unwrap();
    let mut foreign = slice_of_names("foreign-names", "first");
    foreign.metadata.labels.get_or_insert_default().insert(convert::PROXY_NAME_LABEL.into(), "other".into());
    objects.apply(&foreign).unwrap();
    objects.apply(&slice_of_names("more-names", "first")).unwrap();
    first_about(&admin, "more-names").await;
    assert_eq!(events_about(&admin, "names").await.len(), 1, "the same mistake is told once");
    assert_eq!(events_about(&admin, "foreign-names").await.len(), 0, "what another proxy serves is not ours to judge");

    // Whatever else the server checks, it takes.
    let web = objects.apply(&service("web", 80, "TCP")).unwrap();
    objects.apply(&node("edge-1", &[], None)).unwrap();
    events.warn(Regarding::service(ObjectName::new("default", "web")), "AddressTaken", "ä".repeat(2000));
    events.warn(Regarding::service(ObjectName::new("default", "gone")), "AddressTaken", "");
    events.warn(Regarding::node("edge-1"), "InvalidNode", "status.addresses");
    events.inform(Regarding::node("edge-2"), "SpillEnded", "nothing to mend");
    let regarding = async |name: &str| first_about(&admin, name).await.regarding.unwrap();
    assert_eq!(regarding("web").await.uid, web.metadata.uid, "with a note that is too long");
    assert_eq!(regarding("gone").await.uid, None);
    assert_eq!(regarding("edge-1").await.kind.as_deref(), Some("Node"));
    assert_eq!(first_about(&admin, "edge-2").await.type_.as_deref(), Some("Normal"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_annotation_has_an_event_of_its_own() {
    if !ApiServer::require("events of a real API server") {
        return;
    }
    let Scene { api: _api, objects, admin, watching: _watching, .. } = Scene::start(all_rights()).await;
    let mut web = service("web", 80, "TCP");
    web.metadata.annotations = Some([("weir.dev/policy".to_owned(), "ripe".to_owned())].into());
    let web = objects.apply(&web).unwrap();

    let event = first_about(&admin, "web").await;
    assert_eq!(event.regarding.unwrap().uid, web.metadata.uid);
    assert_eq!((event.type_.as_deref(), event.reason.as_deref()), (Some("Warning"), Some("WrongAnnotation")));
    let note = event.note.unwrap();
    assert!(
        note.starts_with("annotation weir.dev/policy: policy \"ripe\" does not exist: use waterfill, rap"),
        "{note}"
    );
}

/// Asserts that an event warns of an object, in these words.
fn assert_warns(event: Event, object: &ObjectMeta, note: &str) {
    let told = (event.type_.as_deref(), event.note.as_deref());
    assert_eq!(told, (Some("Warning"), Some(note)));
    assert_eq!(event.regarding.unwrap().uid, object.uid, "{note}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_of_a_service_a_node_or_a_service_cidr_has_an_event() {
    if !ApiServer::require("events of a real API server") {
        return;
    }
    let Scene { api, objects, admin, watching: _watching, .. } = Scene::start(all_rights()).await;

    // The server does not look at these addresses.
    let mut far = node("far", &["192.0.2.7".parse().unwrap()], None);
    far.status.as_mut().unwrap().addresses.as_mut().unwrap()[0].address = "far.example.net".into();
    let metadata = objects.apply(&far).unwrap().metadata;
    objects.apply_status(&far).unwrap();
    let event = await_event(&admin, "far", "InvalidNode").await;
    assert_warns(event, &metadata, "status.addresses: \"far.example.net\" is not an IP address; it is left out");

    // It would not take these today.
    let mut web = objects.apply(&service("web", 80, "TCP")).unwrap();
    web.spec.as_mut().unwrap().external_ips = Some(vec!["web.example.net".into()]);
    api.store("services/specs/default/web", &web).unwrap();
    let event = await_event(&admin, "web", "InvalidService").await;
    let note = "spec.externalIPs: \"web.example.net\" is not an IP address; it is left out";
    assert_warns(event, &web.metadata, note);

    let spec = ServiceCIDRSpec { cidrs: Some(vec!["10.200.0.0/24".into()]) };
    let metadata = ObjectMeta { name: Some("more".into()), ..ObjectMeta::default() };
    let mut more = objects.apply(&ServiceCIDR { metadata, spec: Some(spec), status: None }).unwrap();
    more.spec.as_mut().unwrap().cidrs = Some(vec!["10.200.0.0".into()]);
    api.store("servicecidrs/more", &more).unwrap();
    let event = await_event(&admin, "more", "InvalidServiceCIDR").await;
    let note = "spec.cidrs: \"10.200.0.0\" is not a network such as 10.96.0.0/16; it is left out";
    assert_warns(event, &more.metadata, note);
}

/// What the log says.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Lines that hold all the words.
    fn lines(&self, words: &[&str]) -> usize {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_may_not_publish_events_says_so_once_and_serves_on() {
    if !ApiServer::require("an agent without the right to publish events") {
        return;
    }
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_env_filter("weir_kube_watch=debug")
        .with_writer(move || writer.clone());
    // Not that of a thread: lines that another thread comes upon first would be lost to it. So this log holds what the
    // other tests of this program cause, too.
    tracing::subscriber::set_global_default(subscriber.finish()).unwrap();
    let Scene { api: _api, objects, admin, mut watching, .. } = Scene::start(role::to_watch()).await;

    objects.apply(&slice_of_names("secret-1", "")).unwrap();
    objects.apply(&slice_of_names("secret-2", "")).unwrap();
    const FAILED: &str = "cannot publish a Kubernetes event";
    let refused = async |name: &str| {
        eventually(&format!("a line about {name}"), async || (log.lines(&[FAILED, name]) > 0).then_some(())).await;
    };
    refused("default/secret-1").await;
    refused("default/secret-2").await;
    assert_eq!(log.lines(&["WARN", FAILED, "default/secret-", "grant the agent `create` on events"]), 1);
    assert_eq!(log.lines(&["WARN", "cannot look up the uid", "default/secret-", "grant the agent `get` on"]), 1);
    assert_eq!(
        log.lines(&["WARN", "refused a part of an object", "default/secret-"]),
        2,
        "the log knows what the events were about"
    );
    assert_eq!(events_about(&admin, "secret-1").await.len(), 0);

    objects.apply(&service("web", 80, "TCP")).unwrap();
    let name = ObjectName::new("default", "web");
    watching.until("the service", |cluster| cluster.service(&name).is_some()).await;
}
