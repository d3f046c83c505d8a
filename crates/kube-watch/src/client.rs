//! The way to the API server.
//!
//! It must not lead through the Service that Weir itself implements: a node with no working Services could never get
//! them working. So the servers can be given as a list of direct URLs, which are tried in order.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response, Uri};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

/// A server that does not take the connection in this time is down.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest silence within an answer. Longer than a watch lasts, so that it never cuts a quiet one.
const READ_TIMEOUT: Duration = Duration::from_secs(295);

/// Where the API server is and who we are.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ClientOptions {
    /// A kubeconfig file. Without one, the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; its current one if none is given.
    pub context: Option<String>,
    /// URLs of API servers, tried in order, in place of the one that the kubeconfig or the pod's environment names.
    pub api_servers: Vec<String>,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The file cannot be read.
    #[error("cannot read kubeconfig {}: {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// The file has no such context.
    #[error("kubeconfig {} has no context \"{context}\" (it has: {known})", path.display())]
    NoContext {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        context: String,
        /// What there is.
        known: String,
    },
    /// The file is not usable for another reason.
    #[error("kubeconfig {} cannot be used: {cause}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: KubeconfigError,
    },
    /// No file was given and this is no pod.
    #[error("no kubeconfig was given and this is no pod with a service account: {cause} (give --kubeconfig)")]
    NotInCluster {
        /// What is missing.
        cause: kube::config::InClusterError,
    },
    /// Not a URL of a server.
    #[error("API server \"{url}\" is not a URL such as https://192.0.2.1:6443{}", cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default())]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it, beyond a missing scheme or host.
        cause: Option<http::uri::InvalidUri>,
    },
    /// Certificates or credentials are not usable.
    #[error("cannot set up the connection to API server {url}: {cause}")]
    Setup {
        /// The server.
        url: Uri,
        /// Why.
        cause: Box<kube::Error>,
    },
}

/// Makes a client. It does not connect yet.
///
/// # Errors
/// If the kubeconfig, the service account or a URL cannot be used. That a server is down is no error: watches retry.
pub async fn connect(options: &ClientOptions) -> Result<Client, ClientError> {
    let mut config = match &options.kubeconfig {
        Some(path) => from_kubeconfig(path, options.context.as_deref()).await?,
        // The environment need not name a server that is named otherwise.
        None if !options.api_servers.is_empty() => {
            Config::incluster_dns().map_err(|cause| ClientError::NotInCluster { cause })?
        }
        None => Config::incluster().map_err(|cause| ClientError::NotInCluster { cause })?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // Else the idle time of a pooled connection counts against the next answer.
    config.reset_reader_on_write = true;
    // Watches retry by themselves; both together take a minute to notice that a server is back.
    config.default_retry = false;
    let mut servers = Vec::new();
    if options.api_servers.is_empty() {
        servers.push(Server::new(config.clone())?);
    }
    for url in &options.api_servers {
        let mut config = config.clone();
        config.cluster_url = server_url(url)?;
        servers.push(Server::new(config)?);
    }
    Ok(match servers.as_slice() {
        [only] => only.client.clone(),
        _ => first_that_answers(servers, config.default_namespace),
    })
}

async fn from_kubeconfig(path: &Path, context: Option<&str>) -> Result<Config, ClientError> {
    let path_buf = || path.to_owned();
    let kubeconfig = match Kubeconfig::read_from(path) {
        Ok(kubeconfig) => kubeconfig,
        Err(KubeconfigError::ReadConfig(cause, _)) => return Err(ClientError::Read { path: path_buf(), cause }),
        Err(cause) => return Err(ClientError::Kubeconfig { path: path_buf(), cause }),
    };
    let known = kubeconfig.contexts.iter().map(|context| context.name.as_str()).collect::<Vec<_>>().join(", ");
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|cause| match cause {
        KubeconfigError::LoadContext(context) => {
            let known = if known.is_empty() { "none".to_owned() } else { known };
            ClientError::NoContext { path: path_buf(), context, known }
        }
        cause => ClientError::Kubeconfig { path: path_buf(), cause },
    })
}

fn server_url(url: &str) -> Result<Uri, ClientError> {
    let error = |cause| ClientError::Url { url: url.to_owned(), cause };
    let uri = url.parse::<Uri>().map_err(|cause| error(Some(cause)))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(_)) => Ok(uri),
        _ => Err(error(None)),
    }
}

/// One API server.
#[derive(Clone)]
struct Server {
    url: Uri,
    client: Client,
}

impl Server {
    fn new(config: Config) -> Result<Self, ClientError> {
        let url = config.cluster_url.clone();
        let client = Client::try_from(config)
            .map_err(|cause| ClientError::Setup { url: url.clone(), cause: Box::new(cause) })?;
        Ok(Self { url, client })
    }
}

/// A client that stays with one server while it answers and turns to the next when it does not. The request that failed
/// fails: who sent it retries anyway, and then meets the next server.
fn first_that_answers(servers: Vec<Server>, default_namespace: String) -> Client {
    let servers: Arc<[Server]> = servers.into();
    let current = Arc::new(AtomicUsize::new(0));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (servers, current) = (Arc::clone(&servers), Arc::clone(&current));
        async move {
            let index = current.load(Ordering::Relaxed);
            let result: Result<Response<Body>, kube::Error> = servers[index].client.send(request).await;
            let down = match &result {
                Ok(response) => response.status().is_server_error(),
                Err(_) => true,
            };
            let next = (index + 1) % servers.len();
            // Of several requests that failed at once, one turns the page.
            if down && current.compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                tracing::debug!(failed = %servers[index].url, next = %servers[next].url, "turning to another API server");
            }
            result
        }
    });
    Client::new(service, default_namespace)
}
