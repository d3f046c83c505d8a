//! Talks with a service that go on all the time: requests on one TCP connection, or datagrams from one port.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use weir_testbed::World;

/// Time between two requests.
const PACE: Duration = Duration::from_millis(100);

/// Longest silence: far longer than any answer takes, shorter than TCP gives up.
const SILENCE: Duration = Duration::from_secs(5);

/// Longest name of a pod.
const NAME_BYTES: usize = 253;

/// What carries requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Over {
    Tcp,
    Udp,
}

impl Over {
    pub(super) const ALL: [Self; 2] = [Self::Tcp, Self::Udp];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        }
    }
}

/// A talk with agnhost's `netexec`, HTTP/1.1 over TCP, its own words over UDP.
pub(super) enum Talk {
    Tcp(BufReader<TcpStream>),
    Udp(UdpSocket),
}

impl Talk {
    /// Begins one.
    ///
    /// # Errors
    /// When nobody takes the connection.
    pub(super) fn open(target: SocketAddr, over: Over) -> Result<Self> {
        let cannot = || format!("cannot connect to {target}");
        match over {
            Over::Tcp => {
                let stream = TcpStream::connect_timeout(&target, SILENCE).with_context(cannot)?;
                stream.set_read_timeout(Some(SILENCE)).context("cannot limit the silence")?;
                Ok(Self::Tcp(BufReader::new(stream)))
            }
            Over::Udp => {
                let any = match target {
                    SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                    SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
                };
                let socket = UdpSocket::bind(SocketAddr::new(any, 0)).context("no port for datagrams")?;
                socket.connect(target).with_context(cannot)?;
                socket.set_read_timeout(Some(SILENCE)).context("cannot limit the silence")?;
                Ok(Self::Udp(socket))
            }
        }
    }

    /// Asks which pod answers.
    ///
    /// # Errors
    /// When none does in time, or with something else.
    pub(super) fn ask(&mut self) -> Result<String> {
        let name = match self {
            Self::Tcp(stream) => ask_http(stream)?,
            Self::Udp(socket) => {
                socket.send(b"hostname").context("cannot ask")?;
                let mut answer = [0; NAME_BYTES];
                let length = socket.recv(&mut answer).context("no answer")?;
                answer[..length].to_vec()
            }
        };
        String::from_utf8(name).context("the pod's name is no text")
    }
}

fn ask_http(stream: &mut BufReader<TcpStream>) -> Result<Vec<u8>> {
    stream.get_mut().write_all(b"GET /hostname HTTP/1.1\r\nHost: web\r\n\r\n").context("cannot ask")?;
    let mut length = 0;
    let mut line = String::new();
    stream.read_line(&mut line).context("no answer")?;
    ensure!(line.starts_with("HTTP/1.1 200 "), "it answers {line:?}");
    while line.trim_end() != "" {
        line.clear();
        stream.read_line(&mut line).context("half an answer")?;
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().context("no length")?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).context("half an answer")?;
    Ok(body)
}

/// A thread that asks in one talk until it is told to stop. Each answer must come, and from the same pod.
pub(super) struct Held {
    name: String,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64>>,
}

impl Held {
    /// Starts it at the client.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub(super) fn start(world: &World, target: SocketAddr, over: Over) -> Result<Self> {
        let name = format!("{target} over {}", over.name());
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = world.client().spawn("held", move || {
            let mut talk = Talk::open(target, over)?;
            let first = talk.ask()?;
            let mut asked = 1;
            while !told.load(Ordering::Relaxed) {
                std::thread::sleep(PACE);
                let pod = talk.ask().with_context(|| format!("request {}", asked + 1))?;
                ensure!(pod == first, "request {} is answered by {pod}, those before by {first}", asked + 1);
                asked += 1;
            }
            Ok(asked)
        })?;
        Ok(Self { name, stop, thread })
    }

    /// Stops it; how many requests were answered.
    ///
    /// # Errors
    /// When one was not.
    pub(super) fn finish(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let asked = self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        asked.with_context(|| format!("the talk with {} that stays open", self.name))
    }
}
