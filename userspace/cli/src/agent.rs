//! The agent's health port, asked over HTTP. The agent may be dead: that is an answer too.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::HOST;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;
use weir_telemetry::weights::{PATH, Weights};

/// For one question, the connection included.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of an answer that are read: the weights of thousands of services are megabytes.
const LIMIT: usize = 64 << 20;

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

/// Asks the agent.
pub(crate) fn ask(address: SocketAddr) -> Result<Agent> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot ask the agent")?;
    let answers = async { Ok::<_, anyhow::Error>((get(address, "/healthz").await?, get(address, "/readyz").await?)) };
    Ok(match runtime.block_on(answers) {
        Ok(((health, _), (_, readiness))) => match serde_json::from_slice::<Readiness>(&readiness) {
            Ok(Readiness { components }) => Agent::Running { healthy: health == 200, components },
            Err(_) => Agent::Silent(format!("{address}: what answers there is not weir-agent")),
        },
        Err(error) => Agent::Silent(format!("{address}: {error:#}")),
    })
}

/// What it says of its weights; of all services or of one, as NAMESPACE/NAME.
pub(crate) fn weights(address: SocketAddr, service: Option<&str>) -> Result<Weights> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot ask the agent")?;
    let path = service.map_or_else(|| PATH.to_owned(), |service| format!("{PATH}?service={service}"));
    let silent =
        || format!("weir-agent does not answer at {address}: only it knows why shares are what they are; see --agent");
    let (status, body) = runtime.block_on(get(address, &path)).with_context(silent)?;
    anyhow::ensure!(status != 403, "{address}{PATH}: {}", String::from_utf8_lossy(&body).trim_end());
    anyhow::ensure!(
        status == 200,
        "{address}{PATH} answers {status}: what runs there is no weir-agent of this version"
    );
    serde_json::from_slice(&body)
        .with_context(|| format!("{address}{PATH} is not what weir-agent of this version says"))
}

async fn get(address: SocketAddr, path: &str) -> Result<(u16, Bytes)> {
    let answer = async {
        let stream = TcpStream::connect(address).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let request = Request::get(path).header(HOST, address.to_string()).body(Empty::<Bytes>::new())?;
        let exchange = async {
            let (parts, body) = sender.send_request(request).await?.into_parts();
            let body = Limited::new(body, LIMIT).collect().await.map_err(anyhow::Error::from_boxed)?;
            Ok((parts.status.as_u16(), body.to_bytes()))
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
    tokio::time::timeout(PATIENCE, answer).await.context("no answer within a second")?
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;

    use tokio_util::sync::CancellationToken;
    use weir_telemetry::listeners::Listeners;
    use weir_telemetry::server::{Component as Told, ProbeCounters, Probes, ProxyHealth, health_router};

    use super::*;

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

    #[test]
    fn the_agents_own_health_port_is_understood() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listeners = {
            let _inside = runtime.enter();
            Listeners::bind("tests", &["127.0.0.1:0".parse().unwrap()]).unwrap()
        };
        let address = listeners.addresses()[0];
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let router = health_router(Arc::new(Waiting), &ProbeCounters::default());
        let server = std::thread::spawn(move || runtime.block_on(listeners.serve(router, stopped)));
        let agent = ask(address).unwrap();
        stop.cancel();
        server.join().unwrap();
        let api_server =
            Component { name: "api-server".to_owned(), ready: false, reason: Some("connection refused".to_owned()) };
        let maps = Component { name: "maps".to_owned(), ready: true, reason: None };
        assert_eq!(agent, Agent::Running { healthy: true, components: vec![api_server, maps] });
    }

    #[test]
    fn an_agent_that_is_not_there_is_an_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let Agent::Silent(why) = ask(address).unwrap() else { panic!("something answers at {address}") };
        assert!(why.contains("refused"), "{why}");
    }

    #[test]
    fn an_agent_that_hangs_is_given_up_after_a_second() {
        // The backlog accepts; nobody ever answers.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let Agent::Silent(why) = ask(listener.local_addr().unwrap()).unwrap() else { panic!("it answers") };
        assert!(why.contains("within a second"), "{why}");
    }
}
