//! Asking a program on a node for its health.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use weir_testbed::Netns;

/// Patience with one answer: while an agent loads its programs it does not answer at all.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);

/// The status line of what a program on the loopback of `netns` answers to a GET of `path`.
///
/// # Errors
/// When nobody answers.
pub(crate) fn status_line(netns: &Netns, port: u16, path: &str) -> std::io::Result<String> {
    Ok(answer(netns, port, path)?.lines().next().unwrap_or_default().to_owned())
}

/// What it answers, without the headers.
///
/// # Errors
/// When nobody answers.
pub(crate) fn body(netns: &Netns, port: u16, path: &str) -> std::io::Result<String> {
    Ok(answer(netns, port, path)?.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

fn answer(netns: &Netns, port: u16, path: &str) -> std::io::Result<String> {
    netns.enter(|| {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    })
}
