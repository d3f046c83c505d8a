//! An API server that answers as told.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

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
use weir_kube_watch::events::Events;
use weir_kube_watch::status::{Status, StatusWriter};
use weir_kube_watch::watch::{WatchOptions, run};

/// An API of Services and of ServiceCIDRs that never change; the other kinds are empty and quiet.
#[derive(Clone, Default)]
pub(crate) struct Api(Arc<Mutex<Script>>);

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
    pub(crate) fn client(&self) -> Client {
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

    pub(crate) fn will_list(&self, code: u16, body: Value) -> &Self {
        self.0.lock().unwrap().lists.push_back((code, body));
        self
    }

    pub(crate) fn will_watch(&self, code: u16, body: Value) -> &Self {
        self.0.lock().unwrap().watches.push_back((code, body));
        self
    }

    pub(crate) fn will_say_of_service_cidrs(&self, code: u16, body: Value) -> &Self {
        self.0.lock().unwrap().service_cidrs.push_back((code, body));
        self
    }

    /// Path and query of each request about Services, with its time.
    pub(crate) fn asked(&self) -> Vec<(Instant, String)> {
        self.0.lock().unwrap().asked.clone()
    }

    /// When each request about ServiceCIDRs came.
    pub(crate) fn asked_service_cidrs(&self) -> Vec<Instant> {
        self.0.lock().unwrap().asked_service_cidrs.clone()
    }

    /// Sends an event on the newest stream.
    pub(crate) fn send(&self, kind: &str, object: &Value) {
        let event = json!({"type": kind, "object": object});
        let data = Frame::data(Bytes::from(format!("{event}\n")));
        self.0.lock().unwrap().streams.last().unwrap().unbounded_send(Ok(data)).unwrap();
    }

    /// Ends the newest stream, as a server that goes away does.
    pub(crate) fn hang_up(&self) {
        self.0.lock().unwrap().streams.pop().unwrap();
    }

    pub(crate) fn start(&self) -> Watching {
        self.start_with(WatchOptions::default())
    }

    pub(crate) fn start_with(&self, options: WatchOptions) -> Watching {
        let (sink, events) = mpsc::channel(64);
        let (writer, status) = StatusWriter::new();
        tokio::spawn(run(self.client(), options, sink, writer, Events::disabled()));
        Watching { events, status }
    }
}

pub(crate) struct Watching {
    pub(crate) events: mpsc::Receiver<Event>,
    status: watch::Receiver<Status>,
}

impl Watching {
    /// The next event about Services.
    pub(crate) async fn next(&mut self) -> Event {
        loop {
            let event = self.events.recv().await.unwrap();
            if matches!(event, Event::Service(_) | Event::ServiceGone(_) | Event::Services(_)) {
                return event;
            }
        }
    }

    /// The next event about ServiceCIDRs.
    pub(crate) async fn next_service_cidrs(&mut self) -> Event {
        loop {
            let event = self.events.recv().await.unwrap();
            if matches!(event, Event::ServiceCidr(_) | Event::ServiceCidrGone(_) | Event::ServiceCidrs(_)) {
                return event;
            }
        }
    }

    pub(crate) async fn status(&mut self, wanted: impl FnMut(&Status) -> bool) -> Status {
        self.status.wait_for(wanted).await.unwrap().clone()
    }
}

pub(crate) fn list(items: &[Value], more: Option<&str>) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "5", "continue": more}, "items": items})
}

pub(crate) fn failure(code: u16, message: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "message": message})
}
