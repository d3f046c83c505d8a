//! The agent's admin socket, asked over HTTP. The agent may be dead: that is an answer too.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use thiserror::Error;
use tokio::net::UnixStream;
use weir_telemetry::effective::{self, Configuration};
use weir_telemetry::weights::{PATH, Weights};

/// For one question, the connection included.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of an answer that are read: the weights of thousands of services are megabytes.
const LIMIT: usize = 64 << 20;

/// The agent does not answer, for a reason that has an exit code of its own.
#[derive(Debug, Error)]
pub(crate) enum NoAnswer {
    /// Nobody listens.
    #[error("no weir-agent listens at {socket}: {cause}; is it running on this node? see --socket")]
    Absent {
        /// The socket.
        socket: PathBuf,
        /// What the kernel says.
        cause: io::Error,
    },
    /// The kernel, or the agent, lets us not ask.
    #[error("may not ask weir-agent at {socket}: {why} (run as root, or use `kubectl weir` from outside the node)")]
    Refused {
        /// The socket.
        socket: PathBuf,
        /// What they say.
        why: String,
    },
}

/// What the agent says of itself.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Agent {
    /// No answer, and why.
    Silent(String),
    /// It runs.
    Running {
        /// Whether `/healthz` is content.
        healthy: bool,
        /// Parts that `/readyz` tells of, in its order.
        components: Vec<Component>,
    },
}

/// A part of the agent.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq)]
pub(crate) struct Component {
    /// Its name.
    pub(crate) name: String,
    /// Whether it does its work.
    pub(crate) ready: bool,
    /// Why not, or a detail.
    pub(crate) reason: Option<String>,
}

#[derive(Deserialize)]
struct Readiness {
    components: Vec<Component>,
}

/// Asks the agent how it fares.
pub(crate) fn ask(socket: &Path) -> Result<Agent> {
    let answers = async { Ok::<_, anyhow::Error>((get(socket, "/healthz").await?, get(socket, "/readyz").await?)) };
    Ok(match wait_for(answers)? {
        Ok(((health, _), (_, readiness))) => match serde_json::from_slice::<Readiness>(&readiness) {
            Ok(Readiness { components }) => Agent::Running { healthy: health == 200, components },
            Err(_) => Agent::Silent(format!("{}: what answers there is not weir-agent", socket.display())),
        },
        Err(error) => Agent::Silent(format!("{error:#}")),
    })
}

/// What it says of its weights; of all services or of one, as NAMESPACE/NAME.
pub(crate) fn weights(socket: &Path, service: Option<&str>) -> Result<Weights> {
    let path = service.map_or_else(|| PATH.to_owned(), |service| format!("{PATH}?service={service}"));
    let (status, body) = wait_for(get(socket, &path))?.context("only weir-agent knows why shares are what they are")?;
    let socket = socket.display();
    anyhow::ensure!(
        status == 200,
        "{socket}: {PATH} answers {status}: what runs there is no weir-agent of this version"
    );
    serde_json::from_slice(&body)
        .with_context(|| format!("{socket}: {PATH} is not what weir-agent of this version says"))
}

/// What it runs with.
pub(crate) fn configuration(socket: &Path) -> Result<Configuration> {
    let (status, body) = wait_for(get(socket, effective::PATH))?.context("only weir-agent knows what it runs with")?;
    let (socket, path) = (socket.display(), effective::PATH);
    anyhow::ensure!(
        status == 200,
        "{socket}: {path} answers {status}: what runs there is no weir-agent of this version"
    );
    serde_json::from_slice(&body)
        .with_context(|| format!("{socket}: {path} is not what weir-agent of this version says"))
}

fn wait_for<T>(answer: impl Future<Output = T>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot ask the agent")?;
    Ok(runtime.block_on(answer))
}

async fn get(socket: &Path, path: &str) -> Result<(u16, Bytes)> {
    let answer = async {
        let stream = UnixStream::connect(socket).await.map_err(|cause| not_connected(socket, cause))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let request = Request::get(path).header(HOST, "weir-agent").body(Empty::<Bytes>::new())?;
        let exchange = async {
            let (parts, body) = sender.send_request(request).await?.into_parts();
            let body = Limited::new(body, LIMIT).collect().await.map_err(anyhow::Error::from_boxed)?;
            Ok::<_, anyhow::Error>((parts.status.as_u16(), body.to_bytes()))
        };
        tokio::pin!(exchange);
        tokio::select! {
            answer = &mut exchange => answer,
            closed = connection => match closed {
                Ok(()) => exchange.await,
                Err(error) => Err(error.into()),
            }
        }
    };
    let (status, body) = match tokio::time::timeout(PATIENCE, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) if error.is::<NoAnswer>() => return Err(error),
        // As text: a pipe that breaks here is not the one to our reader.
        Ok(Err(error)) => bail!("{}: {error:#}", socket.display()),
        Err(_) => bail!("{}: no answer within a second", socket.display()),
    };
    if status == 403 {
        let why = String::from_utf8_lossy(&body).trim_end().to_owned();
        return Err(NoAnswer::Refused { socket: socket.to_owned(), why }.into());
    }
    Ok((status, body))
}

fn not_connected(socket: &Path, cause: io::Error) -> anyhow::Error {
    let socket = socket.to_owned();
    match cause.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => NoAnswer::Absent { socket, cause }.into(),
        ErrorKind::PermissionDenied => NoAnswer::Refused { socket, why: cause.to_string() }.into(),
        _ => anyhow::Error::new(cause).context("cannot connect"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;
    use std::thread::JoinHandle;

    use tokio_util::sync::CancellationToken;
    use weir_telemetry::admin::AdminSocket;
    use weir_telemetry::server::{Component as Told, ProbeCounters, Probes, ProxyHealth, health_router};

    use super::*;
    use crate::exit::code_of;

    struct Waiting;

    impl Probes for Waiting {
        fn components(&self) -> Vec<Told> {
            let reason = Some("connection refused".to_owned());
            vec![Told { name: "api-server", ready: false, reason }, Told { name: "maps", ready: true, reason: None }]
        }

        fn proxy_health(&self) -> ProxyHealth {
            ProxyHealth { healthy: true, node_eligible: true, last_updated: None }
        }
    }

    /// An agent that says only how it fares, in a directory of its own.
    struct Served {
        dir: tempfile::TempDir,
        stop: CancellationToken,
        server: Option<JoinHandle<()>>,
    }

    impl Served {
        fn start() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let socket = {
                let _inside = runtime.enter();
                AdminSocket::bind(&dir.path().join("agent.sock")).unwrap()
            };
            let stop = CancellationToken::new();
            let stopped = stop.clone();
            let router = health_router(Arc::new(Waiting), &ProbeCounters::default());
            let server = std::thread::spawn(move || runtime.block_on(socket.serve(router, stopped)));
            Self { dir, stop, server: Some(server) }
        }

        fn socket(&self) -> PathBuf {
            self.dir.path().join("agent.sock")
        }
    }

    impl Drop for Served {
        fn drop(&mut self) {
            self.stop.cancel();
            let ended = self.server.take().map(JoinHandle::join);
            assert!(matches!(ended, Some(Ok(()))) || std::thread::panicking());
        }
    }

    #[test]
    fn the_agents_own_words_are_understood() {
        let served = Served::start();
        let api_server =
            Component { name: "api-server".to_owned(), ready: false, reason: Some("connection refused".to_owned()) };
        let maps = Component { name: "maps".to_owned(), ready: true, reason: None };
        let running = Agent::Running { healthy: true, components: vec![api_server, maps] };
        assert_eq!(ask(&served.socket()).unwrap(), running);
        let error = format!("{:#}", weights(&served.socket(), None).unwrap_err());
        assert!(error.contains("/weights answers 404"), "{error}");
    }

    #[test]
    fn an_agent_that_is_not_there_is_an_answer_and_exit_code_4_where_one_is_needed() {
        let dir = tempfile::tempdir().unwrap();
        let stale = dir.path().join("stale.sock");
        drop(UnixListener::bind(&stale).unwrap());
        for (socket, why) in [(stale, "refused"), (dir.path().join("none.sock"), "No such file")] {
            let Agent::Silent(said) = ask(&socket).unwrap() else { panic!("something answers at {socket:?}") };
            assert!(said.contains(why) && said.contains("--socket"), "{said}");
            assert_eq!(code_of(&weights(&socket, None).unwrap_err()), Some(4));
        }
    }

    #[test]
    fn an_agent_that_hangs_is_given_up_after_a_second() {
        // The backlog accepts; nobody ever answers.
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("agent.sock");
        let _listener = UnixListener::bind(&socket).unwrap();
        let Agent::Silent(why) = ask(&socket).unwrap() else { panic!("it answers") };
        assert!(why.contains("within a second"), "{why}");
        assert_eq!(code_of(&weights(&socket, None).unwrap_err()), Some(2));
    }

    #[test]
    fn who_may_not_ask_gets_exit_code_3() {
        let refused = not_connected(Path::new("/x"), io::Error::from(ErrorKind::PermissionDenied));
        assert_eq!(code_of(&refused.context("more")), Some(3));
    }
}
