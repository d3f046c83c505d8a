//! The watches against a real API server, with the rights that the agent has and no more.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use tokio::sync::{mpsc, watch};
use weir_core::cluster::{Cluster, Event};
use weir_core::model::{ObjectName, Protocol, Proxy};
use weir_kube_watch::client::{ClientOptions, connect};
use weir_kube_watch::events::Events;
use weir_kube_watch::status::{Status, StatusWriter};
use weir_kube_watch::watch::{WatchOptions, run};
use weir_testbed::apiserver::User;
use weir_testbed::objects::{Endpoint, endpoint_slice, node, service};
use weir_testbed::role;
use weir_testbed::{ApiServer, address};

/// Longer than the longest pause between two attempts, twice over.
const PATIENCE: Duration = Duration::from_secs(120);

/// The cluster as the events tell it.
struct Watching {
    events: mpsc::Receiver<Event>,
    status: watch::Receiver<Status>,
    cluster: Cluster,
}

impl Watching {
    async fn start(api: &ApiServer, user: User) -> Self {
        let kubeconfig = Some(api.kubeconfig(user, &api.url()).unwrap());
        let client = connect(&ClientOptions { kubeconfig, ..ClientOptions::default() }).await.unwrap();
        let (sink, events) = mpsc::channel(64);
        let (writer, status) = StatusWriter::new();
        tokio::spawn(run(client, WatchOptions::default(), sink, writer, Events::disabled()));
        Self { events, status, cluster: Cluster::default() }
    }

    /// Applies events until the cluster is as wanted.
    async fn until(&mut self, what: &str, wanted: impl Fn(&Cluster) -> bool) {
        let applied = async {
            while !wanted(&self.cluster) {
                let event = self.events.recv().await.unwrap();
                self.cluster.apply(event);
            }
        };
        if tokio::time::timeout(PATIENCE, applied).await.is_err() {
            panic!("never came to be: {what}; status {:?}", *self.status.borrow());
        }
    }

    async fn status(&mut self, what: &str, wanted: impl FnMut(&Status) -> bool) -> Status {
        match tokio::time::timeout(PATIENCE, self.status.wait_for(wanted)).await {
            Ok(status) => status.unwrap().clone(),
            Err(_) => panic!("never came to be: {what}"),
        }
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn labelled(mut object: Service, key: &str, value: &str) -> Service {
    object.metadata.labels = Some([(key.to_owned(), value.to_owned())].into());
    object
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_come_and_go_with_their_labels() {
    if !ApiServer::require("watching a real API server") {
        return;
    }
    let api = ApiServer::start(None).unwrap();
    let objects = api.objects().unwrap();
    let mut watching = Watching::start(&api, User::Agent).await;

    let refused = watching.status("a refusal", |status| status.nodes.error.is_some()).await.nodes.error.unwrap();
    assert!(refused.starts_with("API server does not let us list and watch nodes: "), "{refused}");
    role::allow_agent(&objects, role::to_watch()).unwrap();
    watching.until("the first lists", Cluster::synced).await;
    assert_eq!(watching.status("synced", Status::synced).await.problem(), None);
    // Without the right they are none. It came meanwhile, and is asked for again only after minutes.
    let cidrs = |cluster: &Cluster| {
        let known = cluster.service_cidrs().into_iter().flatten();
        known.flat_map(|cidr| cidr.networks.clone()).collect::<Vec<_>>()
    };
    watching.until("the ServiceCIDRs, of which it sees none", |cluster| cluster.service_cidrs().is_some()).await;
    assert_eq!(cidrs(&watching.cluster), []);
    let mut with_rights = Watching::start(&api, User::Agent).await;
    with_rights.until("the server's own ServiceCIDR", |cluster| cidrs(cluster) == address::cluster_ips()).await;

    let edge: Node = node("edge-1", &[ip("192.0.2.11")], Some("hall-a"));
    objects.apply(&edge).unwrap();
    objects.apply_status(&edge).unwrap();
    let known = |cluster: &Cluster| {
        cluster.node("edge-1").is_some_and(|node| &*node.zone == "hall-a" && node.addresses == [ip("192.0.2.11")])
    };
    watching.until("the node", known).await;

    let web = service("web", 80, "TCP");
    let name = ObjectName::new("default", "web");
    let served = |cluster: &Cluster| cluster.service(&name).is_some();
    objects.apply(&web).unwrap();
    watching.until("the service", served).await;
    let port = &watching.cluster.service(&name).unwrap().ports[0];
    assert_eq!((&*port.name, port.port, port.protocol), ("tcp", 80, Protocol::Tcp));

    let slice: EndpointSlice = endpoint_slice(
        "web",
        "v4",
        8080,
        "TCP",
        &[Endpoint { ip: ip("10.0.1.5"), node: "edge-1".into(), ready: true }],
    );
    objects.apply(&slice).unwrap();
    watching.until("the slice", |cluster| cluster.slices(&name).count() == 1).await;
    let found = watching.cluster.slices(&name).next().unwrap().clone();
    assert_eq!((found.ports[0].port, found.endpoints[0].address), (8080, ip("10.0.1.5")));

    let proxy = |cluster: &Cluster| cluster.service(&name).map(|service| service.proxy);
    let labelled = |key: &str, value: &str| labelled(web.clone(), key, value);
    objects.apply(&labelled("service.kubernetes.io/headless", "")).unwrap();
    watching.until("the headless service is gone", |cluster| proxy(cluster).is_none()).await;
    objects.apply(&web).unwrap();
    watching.until("the service without the label is back", |cluster| proxy(cluster) == Some(Proxy::Ours)).await;
    objects.apply(&labelled("service.kubernetes.io/service-proxy-name", "other")).unwrap();
    watching.until("the service is another proxy's", |cluster| proxy(cluster) == Some(Proxy::Other)).await;
    objects.apply(&web).unwrap();
    watching.until("the service is ours again", |cluster| proxy(cluster) == Some(Proxy::Ours)).await;

    let mut headless = slice.clone();
    headless.metadata.labels.as_mut().unwrap().insert("service.kubernetes.io/headless".into(), String::new());
    objects.apply(&headless).unwrap();
    watching.until("the slice of a headless service is gone", |cluster| cluster.slices(&name).count() == 0).await;
    objects.apply(&slice).unwrap();
    watching.until("the slice is back", |cluster| cluster.slices(&name).count() == 1).await;
    objects.delete(&slice).unwrap();
    watching.until("the slice is gone", |cluster| cluster.slices(&name).count() == 0).await;
    objects.delete(&web).unwrap();
    watching.until("the service is gone", |cluster| !served(cluster)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_of_the_api_server_takes_nothing_away_and_changes_after_it_arrive() {
    if !ApiServer::require("an outage of a real API server") {
        return;
    }
    let mut api = ApiServer::start(None).unwrap();
    let objects = api.objects().unwrap();
    objects.apply(&service("before", 80, "TCP")).unwrap();
    let mut watching = Watching::start(&api, User::Admin).await;
    let has = |cluster: &Cluster, name: &str| cluster.service(&ObjectName::new("default", name)).is_some();
    watching.until("the first lists", |cluster| cluster.synced() && has(cluster, "before")).await;

    api.stop().unwrap();
    let status = watching.status("every kind is lost", |status| {
        [&status.services, &status.slices, &status.nodes].iter().all(|kind| !kind.connected)
    });
    let problem = status.await.problem().unwrap();
    assert!(problem.starts_with("API server unreachable: "), "{problem}");
    // What came before the outage may still be on its way.
    while let Ok(event) = watching.events.try_recv() {
        watching.cluster.apply(event);
    }
    assert!(has(&watching.cluster, "before"), "an outage takes nothing away");

    api.start_again().unwrap();
    watching.status("every kind is back", Status::connected).await;
    api.objects().unwrap().apply(&service("after", 80, "TCP")).unwrap();
    watching.until("a change after the outage", |cluster| has(cluster, "before") && has(cluster, "after")).await;
}
