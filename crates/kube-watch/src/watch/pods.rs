//! The pods of one node, and what the annotations of namespaces ask for: whose sockets are translated. A watch beside the
//! others: nothing waits for it, and packets are translated whatever becomes of it.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;

use futures::{Stream, StreamExt, TryStreamExt, future};
use k8s_openapi::api::core::v1 as k8s;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use tokio::sync::watch;
use weir_core::model::ObjectName;
use weir_core::pod_sockets::{ANNOTATION, HookedPods, Pod, UnknownWish, Wish, hooked};

use super::report::describe;
use super::{WATCH_SECONDS, WatchOptions, back_off};
use crate::convert;

/// Follows the pods of `node` until `sink` is closed, and tells it which of them are hooked whenever that changes; nothing
/// before pods and namespaces were listed. It never gives up on the server. What is wrong is told in the log, once.
///
/// It takes the rights to list and watch pods and namespaces.
pub async fn follow(client: Client, node: &str, options: &WatchOptions, sink: watch::Sender<Option<HookedPods>>) {
    let config = watcher::Config {
        page_size: Some(options.page_size),
        timeout: Some(WATCH_SECONDS),
        ..watcher::Config::default()
    };
    let of_node = config.clone().fields(&format!("spec.nodeName={node}"));
    let mut pod_events = pin!(paced(watcher(Api::<k8s::Pod>::all(client.clone()), of_node)));
    let mut namespace_events = pin!(paced(watcher(Api::<PartialObjectMeta<k8s::Namespace>>::all(client), config)));
    let (mut pods, mut namespaces) = (Known::new("pods"), Known::new("namespaces"));
    loop {
        tokio::select! {
            Some(event) = pod_events.next() => pods.take(event, pod),
            Some(event) = namespace_events.next() => {
                namespaces.take(event, |object| { let (wish, wrong) = wish(object.meta()); (Some(wish), wrong) });
            }
            () = sink.closed() => return,
        }
        if !(pods.listed && namespaces.listed) {
            continue;
        }
        let wishes = namespaces.objects.iter().map(|(name, wish)| (Arc::clone(&name.name), *wish)).collect();
        let now = Some(hooked(pods.objects.values(), &wishes));
        sink.send_if_modified(|told| {
            let news = *told != now;
            *told = now;
            news
        });
    }
}

/// With pauses after failures. The start of a list is no success: see the other watches.
fn paced<K: Send + 'static>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>>,
) -> impl Stream<Item = watcher::Result<watcher::Event<K>>> {
    events.try_filter(|event| future::ready(!matches!(event, watcher::Event::Init))).backoff(back_off())
}

/// What the API has told of one kind.
struct Known<V> {
    kind: &'static str,
    /// Whether it was told completely once.
    listed: bool,
    objects: BTreeMap<ObjectName, V>,
    /// A list of which not all pages have come yet.
    list: BTreeMap<ObjectName, V>,
    /// The failure that was logged last, until something is told again.
    failure: Option<String>,
}

impl<V: PartialEq> Known<V> {
    const fn new(kind: &'static str) -> Self {
        Self { kind, listed: false, objects: BTreeMap::new(), list: BTreeMap::new(), failure: None }
    }

    /// Takes an event. `compact` says what is kept of an object, if anything, and what is wrong with its annotation.
    fn take<K: Resource>(
        &mut self,
        event: watcher::Result<watcher::Event<K>>,
        compact: impl Fn(&K) -> (Option<V>, Option<UnknownWish>),
    ) {
        match event {
            Ok(event) => {
                self.failure = None;
                self.apply(event, compact);
            }
            Err(error) => {
                // Half a list is no list.
                self.list.clear();
                let failure = describe(self.kind, &error).filter(|failure| self.failure.as_ref() != Some(failure));
                if let Some(failure) = failure {
                    tracing::warn!(%failure, "which pods connect through socket hooks stays as it is");
                    self.failure = Some(failure);
                }
            }
        }
    }

    fn apply<K: Resource>(
        &mut self,
        event: watcher::Event<K>,
        compact: impl Fn(&K) -> (Option<V>, Option<UnknownWish>),
    ) {
        match event {
            watcher::Event::Init => {}
            watcher::Event::InitApply(object) => {
                let (name, kept) = self.look_at(&object, compact);
                self.list.extend(kept.map(|kept| (name, kept)));
            }
            watcher::Event::InitDone => {
                self.objects = std::mem::take(&mut self.list);
                self.listed = true;
            }
            watcher::Event::Apply(object) => match self.look_at(&object, compact) {
                (name, Some(kept)) => drop(self.objects.insert(name, kept)),
                (name, None) => drop(self.objects.remove(&name)),
            },
            watcher::Event::Delete(object) => drop(self.objects.remove(&convert::object_name(object.meta()))),
        }
    }

    fn look_at<K: Resource>(
        &self,
        object: &K,
        compact: impl Fn(&K) -> (Option<V>, Option<UnknownWish>),
    ) -> (ObjectName, Option<V>) {
        let name = convert::object_name(object.meta());
        let (kept, wrong) = compact(object);
        // The API sends every object again and again.
        if let Some(wrong) = wrong.filter(|_| self.objects.get(&name) != kept.as_ref()) {
            tracing::warn!(kind = self.kind, object = %name, %wrong, "annotation {ANNOTATION} counts as \"off\"");
        }
        (name, kept)
    }
}

/// What the annotation asks for. Of one that cannot be read it is known that somebody wants it otherwise.
fn wish(metadata: &ObjectMeta) -> (Option<Wish>, Option<UnknownWish>) {
    match metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION)).map(|text| text.parse()) {
        None => (None, None),
        Some(Ok(wish)) => (Some(wish), None),
        Some(Err(wrong)) => (Some(Wish::Off), Some(wrong)),
    }
}

/// The part of a Pod that matters here; nothing of one whose uid names no cgroup.
fn pod(object: &k8s::Pod) -> (Option<Pod>, Option<UnknownWish>) {
    let (wish, wrong) = wish(&object.metadata);
    let Some(uid) = object.metadata.uid.as_deref().and_then(|uid| uid.parse().ok()) else { return (None, None) };
    let status = object.status.as_ref();
    let addresses = status.and_then(|status| status.pod_ips.as_ref()).into_iter().flatten();
    let pod = Pod {
        uid,
        namespace: object.metadata.namespace.as_deref().unwrap_or_default().into(),
        addresses: addresses.filter_map(|address| address.ip.parse().ok()).collect(),
        host_network: object.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true)),
        ended: status
            .and_then(|status| status.phase.as_deref())
            .is_some_and(|phase| ["Succeeded", "Failed"].contains(&phase)),
        wish,
    };
    (Some(pod), wrong)
}
