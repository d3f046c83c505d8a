//! Asking a program on a node for its health, and waiting until an agent is ready.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use weir_datapath::PinDir;
use weir_telemetry::admin::default_path;
use weir_telemetry::weights::PATH;
use weir_testbed::process::Process;
use weir_testbed::{Netns, Node, wait};

/// Where an agent answers health checks, and tells metrics.
const HEALTH: u16 = 10256;
const METRICS: u16 = 10249;

/// Patience with one answer: while an agent loads its programs it does not answer at all.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);

/// Waits until the agent on a node has written everything that it was told.
///
/// # Errors
/// When it ends or is not ready within `limit`; the error quotes its log.
pub(crate) fn await_ready(node: &Node, process: &mut Process, limit: Duration) -> Result<()> {
    let what = format!("the readiness of weir-agent on {}", node.name());
    let mut ended = None;
    let ready = wait::until_some(&what, limit, || {
        ended = process.exit_status().map_err(|error| error.to_string())?;
        match status_line(node.netns(), HEALTH, "/readyz") {
            _ if ended.is_some() => Ok(()),
            Ok(line) if line.contains(" 200 ") => Ok(()),
            Ok(line) => Err(line),
            Err(error) => Err(error.to_string()),
        }
    });
    if let Some(status) = ended {
        bail!("weir-agent on {} has ended ({status}), its log says:\n{}", node.name(), process.log_tail());
    }
    ready.with_context(|| format!("its log says:\n{}", process.log_tail()))
}

/// The status line of what a program on the loopback of `netns` answers to a GET of `path`.
///
/// # Errors
/// When nobody answers.
pub(crate) fn status_line(netns: &Netns, port: u16, path: &str) -> std::io::Result<String> {
    Ok(answer(netns, port, path)?.lines().next().unwrap_or_default().to_owned())
}

/// What the agent of a pin directory says of its weights, at its admin socket.
///
/// # Errors
/// When it does not answer.
pub(crate) fn weights(pins: &PinDir) -> std::io::Result<String> {
    let stream = UnixStream::connect(default_path(pins.root()))?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    exchange(stream, PATH).map(|answer| body(&answer))
}

/// The metrics of the agent on a node.
///
/// # Errors
/// When it does not answer.
pub(crate) fn metrics(netns: &Netns) -> std::io::Result<String> {
    answer(netns, METRICS, "/metrics").map(|answer| body(&answer))
}

fn body(answer: &str) -> String {
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
}

fn answer(netns: &Netns, port: u16, path: &str) -> std::io::Result<String> {
    netns.enter(|| {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        exchange(stream, path)
    })
}

fn exchange(mut stream: impl Read + Write, path: &str) -> std::io::Result<String> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
