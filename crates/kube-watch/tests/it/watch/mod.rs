//! The watches against an API that answers as told, with a clock that tests move: failures, retries, half lists.

mod api;
mod service_cidrs;

use std::time::Duration;

use api::{Api, failure, list};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use weir_core::cluster::Event;
use weir_core::model::{ObjectName, Proxy};
use weir_kube_watch::events::Events;
use weir_kube_watch::status::{Change, Status, StatusWriter};
use weir_kube_watch::watch::{WatchOptions, run};
use weir_testbed::loopback;

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "shop", "name": name, "resourceVersion": "7"},
        "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.10", "ports": [{"port": 80}]},
    })
}

fn names(event: &Event) -> Vec<String> {
    match event {
        Event::Services(services) => services.iter().map(|service| service.name.name.to_string()).collect(),
        other => panic!("not a list of Services: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_keeps_failing_is_retried_ever_more_slowly_and_forever() {
    let api = Api::default();
    api.will_list(500, failure(500, "etcdserver: request timed out"));
    let mut watching = api.start();
    let status = watching.status(|status| status.services.error.is_some()).await;
    assert_eq!(status.services.error.unwrap(), "API server answers 500: etcdserver: request timed out");
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let asked = api.asked();
    let pauses: Vec<_> = asked.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert!(pauses[0] >= Duration::from_millis(800), "{pauses:?}");
    assert!(pauses[7..].iter().all(|pause| *pause >= Duration::from_secs(15)), "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= Duration::from_secs(31)), "{pauses:?}");
    assert!(pauses.len() > 50, "never gives up: {}", pauses.len());
}

#[tokio::test(start_paused = true)]
async fn a_list_that_breaks_off_after_its_first_page_is_not_shown() {
    let api = Api::default();
    api.will_list(200, list(&[service("a")], Some("page-2")))
        .will_list(500, failure(500, "gone away"))
        .will_list(200, list(&[service("b")], Some("page-2")))
        .will_list(200, list(&[service("c")], None));
    let mut watching = api.start();
    assert_eq!(names(&watching.next().await), ["b", "c"], "one list, whole, without what the broken one had");
    let status = watching.status(Status::synced).await;
    assert!(status.connected());
    assert_eq!(status.problem(), None);
}

#[tokio::test(start_paused = true)]
async fn changes_arrive_one_by_one_and_what_stops_qualifying_is_gone() {
    let api = Api::default();
    api.will_list(200, list(&[service("a")], None));
    let mut watching = api.start();
    assert_eq!(names(&watching.next().await), ["a"]);
    watching.status(Status::synced).await;
    while api.asked().len() < 2 {
        tokio::task::yield_now().await;
    }
    let gone = |name: &str| Event::ServiceGone(ObjectName::new("shop", name));
    api.send("ADDED", &service("b"));
    assert!(matches!(watching.next().await, Event::Service(service) if &*service.name.name == "b"));
    let mut external = service("a");
    external["spec"] = json!({"type": "ExternalName", "externalName": "example.net"});
    api.send("MODIFIED", &external);
    assert_eq!(watching.next().await, gone("a"));
    let mut labelled = service("b");
    labelled["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "other"});
    api.send("MODIFIED", &labelled);
    let proxy = |event| match event {
        Event::Service(service) if &*service.name.name == "b" => service.proxy,
        other => panic!("not the Service: {other:?}"),
    };
    assert_eq!(proxy(watching.next().await), Proxy::Other);
    api.send("MODIFIED", &service("b"));
    assert_eq!(proxy(watching.next().await), Proxy::Ours, "and back again");
    api.send("DELETED", &service("b"));
    assert_eq!(watching.next().await, gone("b"));
    let events = watching.status(Status::synced).await.services.events;
    let counted = Change::ALL.map(|change| (change.name(), events.of(change)));
    assert_eq!(counted, [("applied", 3), ("deleted", 2), ("relisted", 1)]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_comes_back_is_connected_even_if_nothing_has_changed_meanwhile() {
    let api = Api::default();
    api.will_list(200, list(&[service("a")], None)).will_watch(200, Value::Null);
    api.will_watch(500, failure(500, "shutting down")).will_watch(500, failure(500, "shutting down"));
    let mut watching = api.start();
    watching.next().await;
    watching.status(Status::synced).await;
    while api.asked().len() < 2 {
        tokio::task::yield_now().await;
    }
    api.hang_up();
    let status = watching.status(|status| !status.services.connected).await;
    assert_eq!(status.problem().unwrap(), "API server answers 500: shutting down");
    assert!(status.synced(), "what was read before stays in force");
    let status = watching.status(Status::connected).await;
    assert_eq!(status.problem(), None);
    assert!(watching.events.try_recv().is_ok_and(|event| !matches!(event, Event::Services(_))), "no second list");
}

#[tokio::test(start_paused = true)]
async fn a_history_that_expired_is_listed_again_without_a_pause_unless_it_happens_again_and_again() {
    let api = Api::default();
    api.will_list(200, list(&[service("a")], None));
    let expired = json!({"type": "ERROR", "object": failure(410, "too old resource version")});
    for _ in 0..3 {
        api.will_watch(200, expired.clone());
    }
    let mut watching = api.start();
    for _ in 0..4 {
        assert_eq!(names(&watching.next().await), ["a"]);
    }
    let asked = api.asked();
    let lists: Vec<_> = asked.iter().filter(|(_, uri)| !uri.contains("watch=true")).map(|(time, _)| *time).collect();
    let pauses: Vec<_> = lists.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses[0] < Duration::from_millis(100), "{pauses:?}");
    assert!(pauses[1..].iter().all(|pause| *pause >= Duration::from_millis(800)), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_fell_behind_lists_again_and_is_no_failure() {
    let api = Api::default();
    api.will_list(200, list(&[service("a"), service("b")], None));
    api.will_list(200, list(&[service("b")], None));
    let expired = json!({"type": "ERROR", "object": failure(410, "too old resource version")});
    api.will_watch(200, expired);
    let mut watching = api.start();
    assert_eq!(names(&watching.next().await), ["a", "b"]);
    assert_eq!(names(&watching.next().await), ["b"], "what was deleted meanwhile is missing from the new list");
    assert_eq!(watching.status(|_| true).await.services.error, None);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_names_the_kind_and_what_to_check() {
    let api = Api::default();
    api.will_list(403, failure(403, "services is forbidden"));
    let error = api.start().status(|status| status.services.error.is_some()).await.services.error.unwrap();
    assert_eq!(
        error,
        "API server does not let us list and watch services: services is forbidden (check the ClusterRole)"
    );
}

#[tokio::test]
async fn a_server_that_is_down_is_unreachable_with_the_cause() {
    let [port] = loopback::ports().unwrap();
    let url = format!("http://{}:{port}", loopback::address());
    let client = Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
    let (sink, _events) = mpsc::channel(1);
    let (writer, mut status) = StatusWriter::new();
    tokio::spawn(run(client, WatchOptions::default(), sink, writer, Events::disabled()));
    let every =
        |status: &Status| [&status.services, &status.slices, &status.nodes].iter().all(|kind| kind.error.is_some());
    let status = status.wait_for(every).await.unwrap().clone();
    assert_eq!(status.problem().unwrap(), "API server unreachable: Connection refused (os error 111)");
}

#[tokio::test(start_paused = true)]
async fn the_server_leaves_out_headless_services_but_not_those_of_other_proxies() {
    for name in ["", "weir"] {
        let api = Api::default();
        let mut watching = api.start_with(WatchOptions { service_proxy_name: name.to_owned(), page_size: 100 });
        watching.next().await;
        let uri = api.asked()[0].1.clone();
        assert!(uri.contains("limit=100"), "{uri}");
        assert!(uri.contains("labelSelector=%21service.kubernetes.io%2Fheadless&"), "{uri}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_watch_ends_with_its_reader() {
    let api = Api::default();
    let (sink, events) = mpsc::channel(64);
    let (writer, _status) = StatusWriter::new();
    let task = tokio::spawn(run(api.client(), WatchOptions::default(), sink, writer, Events::disabled()));
    drop(events);
    task.await.unwrap();
}
