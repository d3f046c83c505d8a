//! Where the cluster's objects come from: an API server or a file.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use futures::FutureExt;
use futures::future::{self, BoxFuture, OptionFuture};
use tokio::sync::{Notify, mpsc, watch};
use weir_core::cluster::Event;
use weir_core::pod_sockets::HookedPods;
use weir_kube_watch::client::{self, ClientOptions};
use weir_kube_watch::events::Events;
use weir_kube_watch::status::StatusWriter;
use weir_kube_watch::watch as kube;
use weir_kube_watch::watch::{WatchOptions, pods};
use weir_signals::metrics_api::MetricsApi;

use crate::args::{Options, PodSocketsArg, SourceOptions};
use crate::endpoint_checks::{self, CheckMetrics};

/// Where the watch of pods tells which are hooked.
type PodWatch = watch::Sender<Option<HookedPods>>;

/// Both ends of the news of pods, if somebody wants them.
pub(super) fn pod_sockets(options: &Options) -> Result<Option<(PodWatch, watch::Receiver<Option<HookedPods>>)>> {
    match (options.datapath.pod_sockets, &options.source.static_file) {
        (PodSocketsArg::Off, _) => Ok(None),
        (PodSocketsArg::On, None) => Ok(Some(watch::channel(None))),
        (PodSocketsArg::On, Some(_)) => {
            bail!("--pod-sockets on: a static file names no pods; leave one of the two out")
        }
    }
}

/// Where Services come from, and who is told what is wrong with them.
pub(super) struct Source {
    /// Feeds the writer until it is gone.
    pub(super) feed: BoxFuture<'static, Result<()>>,
    pub(super) events: Events,
    /// Only of an API server.
    pub(super) metrics_api: Option<MetricsApi>,
}

/// The file or the API server.
pub(super) async fn open(
    options: SourceOptions,
    node: &str,
    (changes, status, reload): (mpsc::Sender<Event>, StatusWriter, Arc<Notify>),
    checks: CheckMetrics,
    pod_watch: Option<PodWatch>,
) -> Result<Source> {
    if let Some(path) = options.static_file {
        let feed = endpoint_checks::follow(path, changes, status, reload, checks).boxed();
        return Ok(Source { feed, events: Events::disabled(), metrics_api: None });
    }
    let client = ClientOptions {
        kubeconfig: options.kubeconfig.or_else(default_kubeconfig),
        context: options.context,
        api_servers: options.api_server,
    };
    let client = client::connect(&client).await?;
    let events = Events::start(client.clone(), node);
    let metrics_api = Some(MetricsApi::new(client.clone()));
    let watch = WatchOptions { service_proxy_name: options.service_proxy_name, ..WatchOptions::default() };
    let warnings = events.clone();
    let node = node.to_owned();
    let follow = async move {
        let pods = OptionFuture::from(pod_watch.map(|sink| pods::follow(client.clone(), &node, &watch, sink)));
        future::join(kube::run(client.clone(), watch.clone(), changes, status, warnings), pods).await;
        Ok(())
    };
    Ok(Source { feed: follow.boxed(), events, metrics_api })
}

/// As kubectl does, for an agent that is run by hand.
fn default_kubeconfig() -> Option<PathBuf> {
    std::env::var_os("KUBECONFIG").filter(|path| !path.is_empty()).map(PathBuf::from)
}
