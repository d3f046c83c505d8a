//! Kubernetes objects of a test: makers of typical ones, and a client that can be used with and without an async runtime.

use std::fmt::Debug;
use std::future::Future;
use std::net::IpAddr;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeSpec, NodeStatus, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint as SliceEndpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::netns::Entry;
use crate::{Error, Result};

/// The zone label of nodes.
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// The label that ties an EndpointSlice to its Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// Who owns the fields that this client sets.
const FIELD_MANAGER: &str = "weir-testbed";

/// Patience with one request.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// A client with a runtime of its own. Its methods block the calling thread, on a runtime's thread too.
pub struct Objects {
    /// Taken on drop only.
    runtime: Option<Runtime>,
    client: Client,
}

impl Objects {
    /// A client as a kubeconfig file says, that talks from inside a namespace if there is one.
    pub(crate) fn connect(kubeconfig: &Path, entry: Option<Entry>) -> Result<Self> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all();
        if let Some(entry) = entry {
            builder.on_thread_start(move || entry.set_current());
        }
        let runtime = builder.build().map_err(Error::io("start the API client's runtime"))?;
        let path = kubeconfig.to_owned();
        let client = run_on(&runtime, async move {
            let kubeconfig = Kubeconfig::read_from(&path)?;
            let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
            config.read_timeout = Some(REQUEST_LIMIT);
            Ok(Client::try_from(config))
        });
        let unusable = |error: kube::config::KubeconfigError| Error::Invalid(format!("kubeconfig: {error}"));
        match client.map_err(unusable).and_then(|client| client.map_err(api_error("make an API client"))) {
            Ok(client) => Ok(Self { runtime: Some(runtime), client }),
            Err(error) => {
                // As in drop: the caller may be asynchronous.
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// The underlying client. Its requests must run inside [`Objects::run`].
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Runs a future on the client's runtime and waits for it.
    ///
    /// # Panics
    /// When the future panics.
    pub fn run<F>(&self, future: F) -> F::Output
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        run_on(self.runtime.as_ref().expect("the runtime is there until drop"), future)
    }

    /// Whether `/readyz` says ok.
    ///
    /// # Errors
    /// When it does not, with what it says.
    pub fn check_ready(&self) -> Result<()> {
        let request = http::Request::get("/readyz").body(Vec::new());
        let request = request.map_err(|error| Error::Invalid(format!("GET /readyz: {error}")))?;
        let client = self.client();
        self.run(async move { client.request_text(request).await }).map(drop).map_err(api_error("GET /readyz"))
    }

    /// Makes the object, or changes it to what is given, and returns it as the server has it. Its `metadata.namespace`
    /// says whether it is one of a namespace. A status is not set: see [`Objects::apply_status`].
    ///
    /// # Errors
    /// When the server refuses.
    pub fn apply<K: Object>(&self, object: &K) -> Result<K> {
        let (api, name) = self.api_of(object);
        let mut patch = json_of(object)?;
        // The server checks even what it ignores, and refuses two addresses of one type in a node's applied status.
        patch.as_object_mut().and_then(|fields| fields.remove("status"));
        let action = format!("apply {}", describe(object));
        let parameters = PatchParams::apply(FIELD_MANAGER).force();
        let applied = self.run(async move { api.patch(&name, &parameters, &Patch::Apply(&patch)).await });
        typed(&applied.map_err(api_error(&action))?)
    }

    /// Sets the status of an object that exists.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn apply_status<K: Object>(&self, object: &K) -> Result<K> {
        let (api, name) = self.api_of(object);
        let patch = json!({"status": json_of(object)?.get("status")});
        let action = format!("set the status of {}", describe(object));
        let patched =
            self.run(async move { api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch)).await });
        typed(&patched.map_err(api_error(&action))?)
    }

    /// Deletes an object, found by its kind, namespace and name.
    ///
    /// # Errors
    /// When there is no such object or the server refuses.
    pub fn delete<K: Object>(&self, object: &K) -> Result<()> {
        let (api, name) = self.api_of(object);
        let action = format!("delete {}", describe(object));
        let deleted = self.run(async move { api.delete(&name, &DeleteParams::default()).await });
        deleted.map(drop).map_err(api_error(&action))
    }

    /// The object as the server has it, found by its kind, namespace and name; `None` when there is none.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn get<K: Object>(&self, object: &K) -> Result<Option<K>> {
        let (api, name) = self.api_of(object);
        let action = format!("get {}", describe(object));
        let found = self.run(async move { api.get_opt(&name).await }).map_err(api_error(&action))?;
        found.as_ref().map(typed).transpose()
    }

    /// Tells a Service of type LoadBalancer its addresses, as a load balancer's controller does.
    ///
    /// # Errors
    /// When there is no such Service or the server refuses.
    pub fn set_load_balancer(&self, service: &Service, addresses: &[IpAddr]) -> Result<Service> {
        let ingress: Vec<_> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
        let (api, name) = self.api_of(service);
        let patch = json!({"status": {"loadBalancer": {"ingress": ingress}}});
        let action = format!("set the addresses of {}", describe(service));
        let patched =
            self.run(async move { api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch)).await });
        typed(&patched.map_err(api_error(&action))?)
    }

    fn api_of<K: Object>(&self, object: &K) -> (Api<DynamicObject>, String) {
        let kind = ApiResource::erase::<K>(&());
        let client = self.client();
        let api = match &object.meta().namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &kind),
            None => Api::all_with(client, &kind),
        };
        (api, object.meta().name.clone().unwrap_or_default())
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        // An ordinary drop waits for the threads, which an async runtime's thread must not do.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A typed Kubernetes object.
pub trait Object: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Debug {}

impl<K: Resource<DynamicType = ()> + Serialize + DeserializeOwned + Debug> Object for K {}

/// An endpoint for [`endpoint_slice`].
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// The pod's address.
    pub ip: IpAddr,
    /// The pod's node.
    pub node: String,
    /// Whether it may get new connections.
    pub ready: bool,
}

/// A Service in the namespace `default` with one port, named after its protocol (`TCP` or `UDP`), in both families.
#[must_use]
pub fn service(name: &str, port: u16, protocol: &str) -> Service {
    let port = ServicePort {
        name: Some(protocol.to_lowercase()),
        port: port.into(),
        protocol: Some(protocol.into()),
        ..ServicePort::default()
    };
    let spec = ServiceSpec {
        ports: Some(vec![port]),
        ip_family_policy: Some("PreferDualStack".into()),
        ..ServiceSpec::default()
    };
    Service { metadata: metadata(name), spec: Some(spec), status: None }
}

/// The EndpointSlice `SERVICE-SUFFIX` with one port that matches [`service`]. All endpoints are of one family.
#[must_use]
pub fn endpoint_slice(service: &str, suffix: &str, port: u16, protocol: &str, endpoints: &[Endpoint]) -> EndpointSlice {
    let family = if endpoints.first().is_some_and(|endpoint| endpoint.ip.is_ipv6()) { "IPv6" } else { "IPv4" };
    let mut metadata = metadata(&format!("{service}-{suffix}"));
    metadata.labels = Some([(SERVICE_NAME_LABEL.to_owned(), service.to_owned())].into());
    let port = EndpointPort {
        name: Some(protocol.to_lowercase()),
        port: Some(port.into()),
        protocol: Some(protocol.into()),
        ..EndpointPort::default()
    };
    let endpoints = endpoints.iter().map(slice_endpoint).collect();
    EndpointSlice { address_type: family.into(), endpoints, metadata, ports: Some(vec![port]) }
}

/// A Node with its internal addresses and its zone. Its status is set when it is made by [`Objects::apply_status`].
#[must_use]
pub fn node(name: &str, addresses: &[IpAddr], zone: Option<&str>) -> Node {
    let mut metadata = metadata(name);
    metadata.namespace = None;
    metadata.labels = zone.map(|zone| [(ZONE_LABEL.to_owned(), zone.to_owned())].into());
    let addresses = addresses.iter().map(|ip| NodeAddress { address: ip.to_string(), type_: "InternalIP".into() });
    let status = NodeStatus { addresses: Some(addresses.collect()), ..NodeStatus::default() };
    Node { metadata, spec: Some(NodeSpec::default()), status: Some(status) }
}

fn slice_endpoint(endpoint: &Endpoint) -> SliceEndpoint {
    let Endpoint { ip, node, ready } = endpoint;
    SliceEndpoint {
        addresses: vec![ip.to_string()],
        conditions: Some(EndpointConditions { ready: Some(*ready), ..EndpointConditions::default() }),
        node_name: Some(node.clone()),
        ..SliceEndpoint::default()
    }
}

fn metadata(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.into()), namespace: Some("default".into()), ..ObjectMeta::default() }
}

pub(crate) fn api_error(action: &str) -> impl FnOnce(kube::Error) -> Error + use<> {
    let action = format!("cannot {action}");
    move |source| Error::Api { action, source: Box::new(source) }
}

fn json_of<K: Object>(object: &K) -> Result<serde_json::Value> {
    serde_json::to_value(object).map_err(|error| Error::Invalid(format!("{}: {error}", describe(object))))
}

fn typed<K: Object>(object: &DynamicObject) -> Result<K> {
    object.clone().try_parse().map_err(|error| Error::Invalid(format!("the server's {}: {error}", K::kind(&()))))
}

fn describe<K: Object>(object: &K) -> String {
    let ObjectMeta { namespace, name, .. } = object.meta();
    let (namespace, name) = (namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or("without a name"));
    format!("{} {namespace}/{name}", K::kind(&()))
}

/// Waits for a future on a runtime from any thread, even one that belongs to another runtime.
fn run_on<F>(runtime: &Runtime, future: F) -> F::Output
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let (reply, answer) = mpsc::channel();
    runtime.spawn(async move {
        // The receiver waits below.
        drop(reply.send(future.await));
    });
    answer.recv().expect("the future panicked: its message is above")
}
