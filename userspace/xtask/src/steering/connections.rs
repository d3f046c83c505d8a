//! Connections that stay open, each at the endpoint that it began at, while shares change all the time.
//!
//! They are held by a process of its own: no process may have that many files and those of everything else, too.

use std::io::{self, BufRead, BufReader, ErrorKind, Lines, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::Serialize;
use weir_testbed::Netns;
use weir_testbed::ask::Answer;

use super::step;
use crate::demo::stage::{ADDRESSES, Stage};
use crate::guard::Stop;
use crate::health;
use crate::progress::Step;

/// Connections.
const OPEN: usize = 10_000;
/// How long shares change.
const TIME: Duration = Duration::from_secs(40);
/// How long the load is high, and then low.
const HALF: Duration = Duration::from_secs(4);
/// Patience with one answer: the server's machine is busy.
const PATIENCE: Duration = Duration::from_secs(20);
/// A request that leaves the connection open.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n";

/// What was measured.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    pub(super) open: usize,
    /// Times that shares were written meanwhile.
    pub(super) updates: u64,
    pub(super) seconds: f64,
    pub(super) broken: usize,
}

/// Options of the process that holds them.
#[derive(Args, Clone, Debug)]
pub(crate) struct Held {
    /// Where to connect to
    #[arg(long)]
    server: SocketAddr,
    /// How many
    #[arg(long)]
    count: usize,
}

/// Opens connections, changes the load, and counts those that are not answered by the same endpoint any more.
///
/// # Errors
/// When a part of the world fails.
pub(super) fn measure(stage: &Stage, stop: &Stop) -> Result<Figures> {
    let step = Step::begin("opening connections");
    let mut holder = Holder::start(stage.client().netns(), ADDRESSES[0], OPEN)?;
    step.done();
    let step = Step::begin("shares change");
    let _base = step::paced(stage.client().netns(), step::BEFORE)?;
    let (begin, before) = (Instant::now(), updates(stage)?);
    while begin.elapsed() < TIME {
        let more = step::paced(stage.client().netns(), step::MORE)?;
        stop.sleep(HALF)?;
        drop(more);
        stop.sleep(HALF)?;
    }
    let (seconds, updates) = (begin.elapsed().as_secs_f64(), updates(stage)? - before);
    step.done();
    ensure!(updates > 0, "shares never changed; see `weir explain`");
    Ok(Figures { open: OPEN, updates, seconds, broken: holder.broken()? })
}

/// Changes of shares so far.
fn updates(stage: &Stage) -> Result<u64> {
    const NAME: &str = "weir_weight_updates_total ";
    let text = health::metrics(stage.world().node(1).netns()).context("weir-agent on node 1 tells no metrics")?;
    let value = text.lines().find_map(|line| line.strip_prefix(NAME)).and_then(|value| value.trim().parse().ok());
    value.with_context(|| format!("the agent's metrics lack {NAME}"))
}

/// The process. Ended on drop.
pub(crate) struct Holder {
    child: Child,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Holder {
    /// Opens so many connections from a namespace.
    ///
    /// # Errors
    /// When one of them cannot be made, or is not answered.
    pub(crate) fn start(netns: &Netns, server: SocketAddr, count: usize) -> Result<Self> {
        let own = std::env::current_exe().context("cannot tell where this program lies")?;
        let mut command = netns.command(own);
        command.args(["hold-connections", "--server", &server.to_string(), "--count", &count.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start the process that holds connections")?;
        let answers = BufReader::new(child.stdout.take().context("it has no output")?).lines();
        let mut holder = Self { child, answers };
        let missing = holder.answer()?;
        ensure!(missing == 0, "{missing} of {count} connections to {server} could not be made, or were not answered");
        Ok(holder)
    }

    /// How many are not answered any more by the endpoint that has answered first.
    ///
    /// # Errors
    /// When the process has ended.
    pub(crate) fn broken(&mut self) -> Result<usize> {
        let input = self.child.stdin.as_mut().context("it has no input")?;
        input.write_all(b"?\n").context("the process that holds connections is gone")?;
        self.answer()
    }

    fn answer(&mut self) -> Result<usize> {
        let line = self.answers.next().context("the process that holds connections has ended")??;
        line.parse().with_context(|| format!("it says {line:?}"))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Holds connections; says how many could not be made, and at each line of input how many have broken.
pub(crate) fn hold(options: &Held) -> Result<ExitCode> {
    let Held { server, count } = options;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let open = |_| Connection::open(*server).ok();
    let mut connections: Vec<Connection> = (0..*count).filter_map(open).collect();
    println!("{}", count - connections.len());
    for line in io::stdin().lines() {
        line?;
        connections.retain_mut(Connection::goes_on);
        println!("{}", count - connections.len());
    }
    Ok(ExitCode::SUCCESS)
}

/// A connection, and who has answered first, with the client that it has seen: nobody else may answer later.
struct Connection {
    stream: TcpStream,
    first: Answer,
}

impl Connection {
    /// Opens one. A client takes it for open before its endpoint knows that it is: only an answer says so.
    fn open(server: SocketAddr) -> io::Result<Self> {
        let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let first = ask(&mut stream)?;
        Ok(Self { stream, first })
    }

    /// Whether it is still answered by the same.
    fn goes_on(&mut self) -> bool {
        ask(&mut self.stream).is_ok_and(|answer| answer == self.first)
    }
}

/// Who answers a request.
fn ask(stream: &mut (impl Read + Write)) -> io::Result<Answer> {
    stream.write_all(REQUEST)?;
    let (mut text, mut buffer) = (Vec::new(), [0; 1024]);
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        text.extend_from_slice(&buffer[..length]);
        if let Some(answer) = answer_in(&String::from_utf8_lossy(&text)) {
            return Ok(answer);
        }
    }
}

/// What an answer says, in the line that is its body; None as long as that is not there.
fn answer_in(text: &str) -> Option<Answer> {
    let (_, body) = text.split_once("\r\n\r\n")?;
    body.strip_suffix('\n')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// A server that answers the requests of a connection in these names, one after the other, and closes it.
    fn server(names: &'static [&'static str]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, client) = listener.accept().unwrap();
            for name in names {
                stream.read_exact(&mut [0; REQUEST.len()]).unwrap();
                write!(stream, "HTTP/1.1 200 OK\r\nServer-Name: {name}\r\n\r\n{name} {client}\n").unwrap();
            }
        });
        address
    }

    #[test]
    fn a_connection_goes_on_as_long_as_the_same_endpoint_answers() {
        let mut same = Connection::open(server(&["pod1", "pod1"])).unwrap();
        assert_eq!([same.goes_on(), same.goes_on()], [true, false], "it is closed then");
        let mut moved = Connection::open(server(&["pod1", "pod2"])).unwrap();
        assert!(!moved.goes_on());
        assert!(Connection::open(server(&[])).is_err());
    }

    #[test]
    fn an_answer_is_read_to_its_end() {
        let whole = "HTTP/1.1 200 OK\r\nServer-Name: pod1\r\n\r\npod1 10.0.0.1:4711\n";
        assert_eq!(answer_in(whole).map(|answer| answer.name).as_deref(), Some("pod1"));
        for end in 0..whole.len() {
            assert_eq!(answer_in(&whole[..end]), None, "{end}");
        }
    }
}
