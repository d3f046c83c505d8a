//! The watches against an API that answers as told, with a clock that tests move: failures, retries, half lists.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::channel::mpsc::{UnboundedSender, unbounded};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use weir_core::cluster::Event;
use weir_core::model::{ObjectName, Proxy};
use weir_kube_watch::events::Events;
use weir_kube_watch::status::{Status, StatusWriter};
use weir_kube_watch::watch::{WatchOptions, run};

/// An API of Services and of ServiceCIDRs that never change; the other kinds are empty and quiet.
#[derive(Clone, Default)]
struct Api(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    /// Answers to the next lists of Services; then the last one again and again.
    lists: VecDeque<(u16, Value)>,
    /// Answers to the next watches of Services; then a quiet stream.
    watches: VecDeque<(u16, Value)>,
    /// Path and query of each request about Services, with its time.
    asked: Vec<(Instant, String)>,
    /// Answers to the next requests about ServiceCIDRs; then empty lists and quiet streams.
    service_cidrs: VecDeque<(u16, Value)>,
    /// When each request about ServiceCIDRs came.
    asked_service_cidrs: Vec<Instant>,
    /// Streams that are open.
    streams: Vec<UnboundedSender<Result<Frame<Bytes>, Infallible>>>,
}

type Answer = Response<StreamBody<futures::channel::mpsc::UnboundedReceiver<Result<Frame<Bytes>, Infallible>>>>;

impl Api {
    fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let answer = api.answer(&request.uri().to_string());
            async move { Ok::<_, Infallible>(answer) }
        });
        Client::new(service, "default")
    }

    fn answer(&self, uri: &str) -> Answer {
        let mut script = self.0.lock().unwrap();
        let services = uri.contains("/services");
        if services {
            script.asked.push((Instant::now(), uri.to_owned()));
        }
        let watch = uri.contains("watch=true");
        let mut told = None;
        if uri.contains("/servicecidrs") {
            script.asked_service_cidrs.push(Instant::now());
            told = script.service_cidrs.pop_front();
        }
        let (code, body) = match (services, watch) {
            _ if told.is_some() => told.unwrap(),
            (true, true) => script.watches.pop_front().unwrap_or((200, Value::Null)),
            (true, false) if script.lists.len() > 1 => script.lists.pop_front().unwrap(),
            (true, false) => script.lists.front().cloned().unwrap_or((200, list(&[], None))),
            (false, true) => (200, Value::Null),
            (false, false) => (200, list(&[], None)),
        };
        let (sender, receiver) = unbounded();
        if !body.is_null() {
            sender.unbounded_send(Ok(Frame::data(Bytes::from(format!("{body}\n"))))).unwrap();
        }
        if watch && code == 200 {
            // A stream that stays open, as a watch does.
            if services {
                script.streams.push(sender);
            } else {
                std::mem::forget(sender);
            }
        }
        Response::builder().status(code).body(StreamBody::new(receiver)).unwrap()
    }

    fn will_list(&self, code: u16, body: Value) -> &Self {
        self.0.lock().unwrap().lists.push_back((code, body));
        self
    }

    fn will_watch(&self, code: u16, body: Value) -> &Self {
        self.0.lock().unwrap().watches.push_back((code, body));
        self
    }

    fn will_say_of_service_cidrs(&self, code: u16, body: Value) -> &Self {
        self.0.lock().unwrap().service_cidrs.push_back((code, body));
        self
    }

    fn asked(&self) -> Vec<(Instant, String)> {
        self.0.lock().unwrap().asked.clone()
    }

    /// Sends an event on the newest stream.
    fn send(&self, kind: &str, object: &Value) {
        let event = json!({"type": kind, "object": object});
        let data = Frame::data(Bytes::from(format!("{event}\n")));
        self.0.lock().unwrap().streams.last().unwrap().unbounded_send(Ok(data)).unwrap();
    }

    /// Ends the newest stream, as a server that goes away does.
    fn hang_up(&self) {
        self.0.lock().unwrap().streams.pop().unwrap();
    }

    fn start(&self) -> Watching {
        self.start_with(WatchOptions::default())
    }

    fn start_with(&self, options: WatchOptions) -> Watching {
        let (sink, events) = mpsc::channel(64);
        let (writer, status) = StatusWriter::new();
        tokio::spawn(run(self.client(), options, sink, writer, Events::disabled()));
        Watching { events, status }
    }
}

struct Watching {
    events: mpsc::Receiver<Event>,
    status: watch::Receiver<Status>,
}

impl Watching {
    /// The next event about Services.
    async fn next(&mut self) -> Event {
        loop {
            let event = self.events.recv().await.unwrap();
            if matches!(event, Event::Service(_) | Event::ServiceGone(_) | Event::Services(_)) {
                return event;
            }
        }
    }

    /// The next event about ServiceCIDRs.
    async fn next_service_cidrs(&mut self) -> Event {
        loop {
            let event = self.events.recv().await.unwrap();
            if matches!(event, Event::ServiceCidr(_) | Event::ServiceCidrGone(_) | Event::ServiceCidrs(_)) {
                return event;
            }
        }
    }

    async fn status(&mut self, wanted: impl FnMut(&Status) -> bool) -> Status {
        self.status.wait_for(wanted).await.unwrap().clone()
    }
}

fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "shop", "name": name, "resourceVersion": "7"},
        "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.10", "ports": [{"port": 80}]},
    })
}

fn list(items: &[Value], more: Option<&str>) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "5", "continue": more}, "items": items})
}

fn failure(code: u16, message: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "message": message})
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

fn service_cidr(name: &str, cidrs: &[&str]) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": "7"}, "spec": {"cidrs": cidrs}})
}

/// The networks of a list of ServiceCIDRs.
fn networks(event: &Event) -> Vec<String> {
    match event {
        Event::ServiceCidrs(cidrs) => cidrs.iter().flat_map(|cidr| &cidr.networks).map(ToString::to_string).collect(),
        other => panic!("not a list of ServiceCIDRs: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn service_cidrs_are_listed_as_the_others_and_a_wrong_one_does_not_harm_the_rest() {
    let api = Api::default();
    let cidrs = [service_cidr("kubernetes", &["10.96.0.0/16", "fd00:96::/112"]), service_cidr("odd", &["10.97/16"])];
    api.will_say_of_service_cidrs(200, list(&cidrs, None));
    let mut watching = api.start();
    assert_eq!(networks(&watching.next_service_cidrs().await), ["10.96.0.0/16", "fd00:96::/112"]);
    let status = watching.status(|status| status.service_cidrs.synced).await;
    assert!(status.service_cidrs.connected);
}

#[tokio::test(start_paused = true)]
async fn a_server_without_service_cidrs_or_one_that_forbids_them_has_none_and_is_asked_seldom() {
    for code in [404, 403] {
        let api = Api::default();
        for _ in 0..3 {
            api.will_say_of_service_cidrs(code, failure(code, "no"));
        }
        api.will_say_of_service_cidrs(200, list(&[service_cidr("kubernetes", &["10.96.0.0/16"])], None));
        let mut watching = api.start();
        assert_eq!(networks(&watching.next_service_cidrs().await), [""; 0], "{code}");
        let status = watching.status(|status| status.synced() && status.service_cidrs.error.is_some()).await;
        assert_eq!((status.connected(), status.problem()), (true, None), "{code}: nothing waits for them");
        while networks(&watching.next_service_cidrs().await).is_empty() {}
        let asked = api.0.lock().unwrap().asked_service_cidrs.clone();
        let pauses: Vec<_> = asked[..4].windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.iter().all(|pause| (300..=601).contains(&pause.as_secs())), "{code}: {pauses:?}");
        let status = watching.status(|status| status.service_cidrs.connected).await;
        assert_eq!(status.service_cidrs.error, None, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn service_cidrs_that_are_forbidden_later_are_none_and_are_listed_again_when_they_are_shown() {
    let api = Api::default();
    let cidrs = list(&[service_cidr("kubernetes", &["10.96.0.0/16"])], None);
    api.will_say_of_service_cidrs(200, cidrs.clone()).will_say_of_service_cidrs(403, failure(403, "no"));
    api.will_say_of_service_cidrs(200, cidrs);
    let mut watching = api.start();
    for expected in [&["10.96.0.0/16"][..], &[], &["10.96.0.0/16"]] {
        assert_eq!(networks(&watching.next_service_cidrs().await), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_at_service_cidrs_leaves_what_is_known_of_them_and_is_asked_soon() {
    let api = Api::default();
    let cidrs = list(&[service_cidr("kubernetes", &["10.96.0.0/16"])], None);
    api.will_say_of_service_cidrs(500, failure(500, "no")).will_say_of_service_cidrs(200, cidrs);
    let mut watching = api.start();
    assert_eq!(networks(&watching.next_service_cidrs().await), ["10.96.0.0/16"]);
    let asked = api.0.lock().unwrap().asked_service_cidrs.clone();
    assert!(asked[1] - asked[0] < Duration::from_secs(2), "{asked:?}");
}

#[tokio::test]
async fn a_server_that_is_down_is_unreachable_with_the_cause() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
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
