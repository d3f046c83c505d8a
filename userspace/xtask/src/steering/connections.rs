//! Connections that stay open while shares change all the time.
//!
//! They are held by a process of its own: no process may have that many files and those of everything else, too.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::Serialize;
use weir_testbed::Netns;

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

/// Opens connections, changes the load, and counts those that do not answer any more.
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
    /// When one of them cannot be made.
    pub(crate) fn start(netns: &Netns, server: SocketAddr, count: usize) -> Result<Self> {
        let own = std::env::current_exe().context("cannot tell where this program lies")?;
        let mut command = netns.command(own);
        command.args(["hold-connections", "--server", &server.to_string(), "--count", &count.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start the process that holds connections")?;
        let answers = BufReader::new(child.stdout.take().context("it has no output")?).lines();
        let mut holder = Self { child, answers };
        let missing = holder.answer()?;
        ensure!(missing == 0, "{missing} of {count} connections could not be made");
        Ok(holder)
    }

    /// How many do not answer any more.
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

/// Holds connections; says how many could not be made, and at each line of input how many do not answer.
pub(crate) fn hold(options: &Held) -> Result<ExitCode> {
    let Held { server, count } = options;
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    let open = |_| {
        let stream = TcpStream::connect_timeout(server, PATIENCE).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        Some(stream)
    };
    let mut streams: Vec<TcpStream> = (0..*count).filter_map(open).collect();
    println!("{}", count - streams.len());
    for line in std::io::stdin().lines() {
        line?;
        let answering = streams.iter_mut().filter_map(|stream| ask(stream).ok()).count();
        println!("{}", count - answering);
    }
    Ok(ExitCode::SUCCESS)
}

fn ask(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(REQUEST)?;
    let mut buffer = [0; 1024];
    // One small answer is one segment.
    match stream.read(&mut buffer)? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}
