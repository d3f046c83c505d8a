//! One question to one endpoint.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use weir_core::endpoint_checks::{Check, Get, Question};

/// Bytes of an answer's head; nothing of its body is wanted. hyper takes no less than 8 KiB.
const LARGEST_HEAD: usize = 16 << 10;
/// By which servers know a check in their logs.
const AGENT: &str = concat!("weir-health-check/", env!("CARGO_PKG_VERSION"));

/// Why an endpoint did not pass.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// It takes no connection.
    #[error("cannot connect: {0}")]
    Unreachable(io::Error),
    /// Nothing came in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// It answers with a code that does not pass.
    #[error("it answers with status {0}")]
    Status(u16),
    /// It does not answer as HTTP wants it.
    #[error("no HTTP answer: {0}")]
    Broken(#[from] hyper::Error),
    /// The request cannot be written.
    #[error("the request cannot be made: {0}")]
    Request(#[from] hyper::http::Error),
}

impl Failure {
    /// As metrics call it.
    pub(super) const fn label(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::Timeout(_) => "timeout",
            Self::Status(_) => "status",
            Self::Broken(_) | Self::Request(_) => "broken",
        }
    }
}

/// Asks, and returns within the check's timeout.
pub(super) async fn ask(endpoint: SocketAddr, check: &Check) -> Result<(), Failure> {
    let question = async {
        let stream = TcpStream::connect(endpoint).await.map_err(Failure::Unreachable)?;
        match &check.question {
            Question::Connect => Ok(()),
            Question::Get(get) => request(stream, endpoint, get).await,
        }
    };
    tokio::time::timeout(check.timeout, question).await.unwrap_or(Err(Failure::Timeout(check.timeout)))
}

async fn request(stream: TcpStream, endpoint: SocketAddr, get: &Get) -> Result<(), Failure> {
    let Get { path, host, statuses } = get;
    let request = Request::get(path)
        .header(HOST, host.clone().unwrap_or_else(|| endpoint.to_string()))
        .header(USER_AGENT, AGENT)
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())?;
    let (mut sender, connection) =
        http1::Builder::new().max_buf_size(LARGEST_HEAD).handshake(TokioIo::new(stream)).await?;
    let answer = sender.send_request(request);
    tokio::pin!(answer);
    let answer = tokio::select! {
        answer = &mut answer => answer,
        // The connection may end together with its answer, or without one: then this one says so.
        _ = connection => answer.await,
    };
    let status = answer?.status().as_u16();
    if statuses.contains(&status) { Ok(()) } else { Err(Failure::Status(status)) }
}
