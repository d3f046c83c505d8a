//! The watch of one node's pods against a real API server.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Namespace, Pod, PodIP, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::watch;
use weir_core::pod_sockets::{ANNOTATION, HookedPods};
use weir_kube_watch::client::{ClientOptions, connect};
use weir_kube_watch::watch::WatchOptions;
use weir_kube_watch::watch::pods::follow;
use weir_testbed::ApiServer;
use weir_testbed::apiserver::User;
use weir_testbed::objects::Objects;

const PATIENCE: Duration = Duration::from_secs(30);

fn metadata(name: &str, namespace: Option<&str>, wish: Option<&str>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        namespace: namespace.map(str::to_owned),
        annotations: wish.map(|wish| [(ANNOTATION.to_owned(), wish.to_owned())].into()),
        ..ObjectMeta::default()
    }
}

/// A pod that runs on a node.
fn pod(name: &str, node: &str, address: &str, wish: Option<&str>) -> Pod {
    let container = Container { name: "main".into(), image: Some("main".into()), ..Container::default() };
    let spec = PodSpec { node_name: Some(node.into()), containers: vec![container], ..PodSpec::default() };
    let status = PodStatus {
        phase: Some("Running".into()),
        pod_ip: Some(address.into()),
        pod_ips: Some(vec![PodIP { ip: address.into() }]),
        ..PodStatus::default()
    };
    Pod { metadata: metadata(name, Some("default"), wish), spec: Some(spec), status: Some(status) }
}

fn apply(objects: &Objects, pod: &Pod) {
    objects.apply(pod).unwrap();
    objects.apply_status(pod).unwrap();
}

async fn until(told: &mut watch::Receiver<Option<HookedPods>>, expected: &[&str]) {
    let expected: BTreeSet<IpAddr> = expected.iter().map(|address| address.parse().unwrap()).collect();
    let addresses = |pods: &HookedPods| pods.values().map(|pod| pod.addr4.ip()).collect::<BTreeSet<_>>();
    let right = told.wait_for(|pods| pods.as_ref().map(addresses) == Some(expected.clone()));
    let timely = tokio::time::timeout(PATIENCE, right).await.map(drop);
    assert!(timely.is_ok(), "never came to be: {expected:?}; now {:?}", *told.borrow());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pods_of_the_node_come_and_go_and_annotations_keep_them_out() {
    if !ApiServer::require("watching the pods of a node") {
        return;
    }
    let mut api = ApiServer::start(None).unwrap();
    let objects = api.objects().unwrap();
    let kubeconfig = Some(api.kubeconfig(User::Admin, &api.url()).unwrap());
    let client = connect(&ClientOptions { kubeconfig, ..ClientOptions::default() }).await.unwrap();
    apply(&objects, &pod("here", "node1", "10.0.0.1", None));
    apply(&objects, &pod("there", "node2", "10.0.0.2", None));
    let (sink, mut told) = watch::channel(None);
    let following = tokio::spawn(async move { follow(client, "node1", &WatchOptions::default(), sink).await });
    until(&mut told, &["10.0.0.1"]).await;

    apply(&objects, &pod("later", "node1", "10.0.0.3", None));
    until(&mut told, &["10.0.0.1", "10.0.0.3"]).await;
    apply(&objects, &pod("later", "node1", "10.0.0.3", Some("off")));
    until(&mut told, &["10.0.0.1"]).await;
    apply(&objects, &pod("later", "node1", "10.0.0.3", Some("on")));
    until(&mut told, &["10.0.0.1", "10.0.0.3"]).await;
    let namespace = |wish| Namespace { metadata: metadata("default", None, wish), ..Namespace::default() };
    objects.apply(&namespace(Some("off"))).unwrap();
    until(&mut told, &["10.0.0.3"]).await;
    objects.apply(&namespace(None)).unwrap();
    until(&mut told, &["10.0.0.1", "10.0.0.3"]).await;

    // An outage takes nothing away, and what happens after it is heard of.
    api.stop().unwrap();
    assert_eq!(told.borrow().as_ref().map(HookedPods::len), Some(2));
    api.start_again().unwrap();
    let objects = api.objects().unwrap();
    let mut ended = pod("here", "node1", "10.0.0.1", None);
    ended.status.as_mut().unwrap().phase = Some("Succeeded".into());
    objects.apply_status(&ended).unwrap();
    until(&mut told, &["10.0.0.3"]).await;
    drop(told);
    tokio::time::timeout(PATIENCE, following).await.unwrap().unwrap();
}
