//! Kubernetes events against an API that answers as told, with a clock that tests move.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::Instant;
use weir_core::model::ObjectName;
use weir_kube_watch::events::{Events, Regarding};

/// An API that knows the uid of everything.
#[derive(Clone)]
struct Api(Arc<Mutex<Script>>);

struct Script {
    /// What the next lookups of a uid are answered with; then all are good.
    lookups: Vec<u16>,
    /// What the next events are answered with; then all are taken.
    posts: Vec<u16>,
    asked: Vec<Asked>,
    /// Whether requests are answered at all.
    hangs: bool,
}

#[derive(Clone, Debug)]
struct Asked {
    at: Instant,
    method: Method,
    path: String,
    accept: String,
    body: Value,
}

impl Api {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Script { lookups: vec![], posts: vec![], asked: vec![], hangs: false })))
    }

    fn with(self, change: impl FnOnce(&mut Script)) -> Self {
        change(&mut self.0.lock().unwrap());
        self
    }

    fn events(&self) -> Events {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.answer(request).await) }
        });
        Events::start(Client::new(service, "default"), "edge-1")
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let accept = head.headers.get("accept").map_or("", |value| value.to_str().unwrap()).to_owned();
        let asked = Asked {
            at: Instant::now(),
            method: head.method,
            path: head.uri.path().to_owned(),
            accept,
            body: serde_json::from_slice(&body).unwrap_or_default(),
        };
        let (code, hangs) = {
            let mut script = self.0.lock().unwrap();
            script.asked.push(asked.clone());
            let answers = if asked.method == Method::GET { &mut script.lookups } else { &mut script.posts };
            let code = if answers.is_empty() { 200 } else { answers.remove(0) };
            (code, script.hangs)
        };
        if hangs {
            std::future::pending::<()>().await;
        }
        let answer = match (code, asked.method == Method::GET) {
            (200, true) => json!({"metadata": {"name": "web", "uid": "4711"}}),
            (200, false) => asked.body,
            _ => json!({"kind": "Status", "status": "Failure", "code": code, "message": "no", "reason": "Because"}),
        };
        Response::builder().status(code).body(Body::from(answer.to_string().into_bytes())).unwrap()
    }

    /// Waits until this many events were sent, good or bad, and returns them.
    async fn sent(&self, count: usize) -> Vec<Asked> {
        loop {
            let all = self.0.lock().unwrap().asked.clone();
            let sent: Vec<_> = all.into_iter().filter(|asked| asked.method != Method::GET).collect();
            if sent.len() >= count {
                return sent;
            }
            // The clock of these tests moves only when nothing else can.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn lookups(&self) -> Vec<Asked> {
        self.0.lock().unwrap().asked.iter().filter(|asked| asked.method == Method::GET).cloned().collect()
    }
}

fn web() -> Regarding {
    Regarding::service(ObjectName::new("shop", "web"))
}

#[tokio::test(start_paused = true)]
async fn an_event_names_its_object_its_reporter_and_what_is_wrong() {
    let api = Api::new();
    let events = api.events();
    events.warn(web(), "AddressTaken", "10.96.0.10 port 80 is used by shop/api already");
    let sent = api.sent(1).await.remove(0);
    assert_eq!((sent.method, sent.path.as_str()), (Method::POST, "/apis/events.k8s.io/v1/namespaces/shop/events"));
    let body = sent.body;
    assert_eq!(
        body["regarding"],
        json!({"apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web", "uid": "4711"})
    );
    assert_eq!(
        (&body["type"], &body["reason"], &body["action"]),
        (&json!("Warning"), &json!("AddressTaken"), &json!("Serve"))
    );
    assert_eq!(body["note"], "10.96.0.10 port 80 is used by shop/api already");
    assert_eq!((&body["reportingController"], &body["reportingInstance"]), (&json!("weir"), &json!("edge-1")));
    let lookup = api.lookups().remove(0);
    assert_eq!(lookup.path, "/api/v1/namespaces/shop/services/web");
    assert!(lookup.accept.contains("as=PartialObjectMetadata"), "only the metadata is asked for: {}", lookup.accept);
}

#[tokio::test(start_paused = true)]
async fn an_event_about_a_node_is_in_the_default_namespace() {
    let api = Api::new();
    let events = api.events();
    events.warn(Regarding::node("edge-1"), "InvalidNode", "status.addresses");
    assert_eq!(api.sent(1).await[0].path, "/apis/events.k8s.io/v1/namespaces/default/events");
    assert_eq!(api.lookups()[0].path, "/api/v1/nodes/edge-1");
}

#[tokio::test(start_paused = true)]
async fn two_notes_with_one_reason_are_two_events() {
    let api = Api::new();
    let events = api.events();
    for note in ["port 80", "port 81", "port 80"] {
        events.warn(web(), "AddressTaken", note);
    }
    events.warn(web(), "Last", "");
    let sent = api.sent(3).await;
    let notes: Vec<_> = sent.iter().map(|asked| (asked.method.clone(), asked.body["note"].clone())).collect();
    assert_eq!(notes, [(Method::POST, json!("port 80")), (Method::POST, json!("port 81")), (Method::POST, json!(""))]);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_gone_or_may_not_be_looked_at_has_an_event_without_uid() {
    for code in [404, 403] {
        let api = Api::new().with(|script| script.lookups = vec![code]);
        api.events().warn(web(), "AddressTaken", "port 80");
        let sent = api.sent(1).await;
        assert_eq!(sent[0].body["regarding"].get("uid"), None, "{code}");
        assert_eq!((api.lookups().len(), sent.len()), (1, 1), "{code} is no answer that changes");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_in_trouble_is_asked_again_after_a_pause() {
    let api = Api::new().with(|script| script.posts = vec![500, 429]);
    api.events().warn(web(), "AddressTaken", "port 80");
    let sent = api.sent(3).await;
    assert!(sent.windows(2).all(|pair| pair[1].at - pair[0].at >= Duration::from_secs(1)), "{sent:?}");
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_refused_is_given_up_and_the_next_one_sent() {
    let api = Api::new().with(|script| script.posts = vec![403]);
    let events = api.events();
    events.warn(web(), "AddressTaken", "port 80");
    events.warn(web(), "AddressTaken", "port 81");
    let sent = api.sent(2).await;
    assert_eq!((&sent[0].body["note"], &sent[1].body["note"]), (&json!("port 80"), &json!("port 81")));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_holds_up_nobody_and_what_does_not_fit_is_counted() {
    let api = Api::new().with(|script| script.hangs = true);
    let events = api.events();
    let start = Instant::now();
    for number in 0..1000 {
        events.warn(Regarding::service(ObjectName::new("shop", format!("web-{number}"))), "AddressTaken", "port 80");
    }
    assert_eq!(Instant::now(), start, "nobody waited");
    assert_eq!(events.dropped(), 1000 - 256);
    api.sent(1).await;
    assert!(
        start.elapsed() >= Duration::from_secs(40),
        "four lookups, of 10 s each, came before it: {:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_nothing_to_mend_is_an_event_of_the_normal_kind() {
    let api = Api::new();
    let events = api.events();
    events.inform(web(), "SpillEnded", "all new flows stay");
    events.warn(web(), "SpillEnded", "all new flows stay");
    let kinds: Vec<_> = api.sent(2).await.iter().map(|asked| asked.body["type"].clone()).collect();
    assert_eq!(kinds, [json!("Normal"), json!("Warning")]);
}
