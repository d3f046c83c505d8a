//! Short connections at a fixed rate, by one thread: connect, one HTTP request, the answer, and the server closes first.
//! Tells how long connecting took; [`crate::load`] has a thread for each connection, whose wake-ups cost more than that.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use socket2::{Domain, Socket, Type};

use crate::netns::Netns;
use crate::{Error, Result};

/// Patience with a connection from its start to its end: longer than the first repetition of a lost SYN takes.
const PATIENCE: Duration = Duration::from_secs(3);

/// Time between two looks for connections that have lasted too long, and at the stop sign.
const GLANCE: u16 = 100;

/// Events taken from the kernel at once.
const EVENTS: usize = 256;

/// Times that are told apart, in nanoseconds, and their significant digits.
const TIMES_NS: (u64, u64) = (1000, 60_000_000_000);
const DIGITS: u8 = 3;

/// Failures that are told one by one.
const FAILURES: usize = 10_000;

/// How an answer begins.
const GOOD: &[u8] = b"HTTP/1.1 200 ";

/// What connections to make.
#[derive(Clone, Copy, Debug)]
pub struct Paced {
    /// A server of [`crate::serve::http`].
    pub target: SocketAddr,
    /// Connections started in each second, at least one.
    pub per_second: u32,
    /// How long.
    pub time: Duration,
}

/// What became of them.
#[derive(Clone, Debug)]
pub struct Report {
    /// Connections that were started.
    pub opened: u64,
    /// Those with an answer and a proper end.
    pub answered: u64,
    /// From `connect` to the moment at which this program knew that it was done, in nanoseconds.
    pub connect: Histogram<u64>,
    /// The first of those that failed.
    pub failures: Vec<Failure>,
}

/// A connection that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// When it was started.
    pub opened: Instant,
    /// Its own port; 0 if it never had one.
    pub port: u16,
    /// When this program knew that it was connected; `None` if it never was.
    pub connected: Option<Instant>,
    /// What the kernel said, or what was wrong.
    pub reason: String,
}

impl Report {
    /// Connections that failed.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.opened - self.answered
    }

    /// The longest time to connect; zero if nobody has connected.
    #[must_use]
    pub fn slowest(&self) -> Duration {
        Duration::from_nanos(self.connect.max())
    }

    fn note(&mut self, connection: &Connection, reason: String) {
        let Connection { socket, since, connected, answer: _ } = connection;
        if self.failures.len() < FAILURES {
            let own = socket.local_addr().ok().and_then(|address| address.as_socket());
            let port = own.map_or(0, |address| address.port());
            self.failures.push(Failure { opened: *since, port, connected: *connected, reason });
        }
    }

    /// The time to connect that this part of the connections (0 to 1) stayed within.
    #[must_use]
    pub fn connect_quantile(&self, part: f64) -> Duration {
        Duration::from_nanos(self.connect.value_at_quantile(part))
    }
}

/// Connections that are being made. On drop it ends soon.
#[derive(Debug)]
pub struct RunningPaced {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<Report>>>,
}

impl Paced {
    /// Starts in a namespace.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(self, netns: &Netns) -> Result<RunningPaced> {
        let stopped = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&stopped);
        let thread = netns.spawn("paced", move || Client::new(self)?.run(&flag))?;
        Ok(RunningPaced { stopped, thread: Some(thread) })
    }
}

impl RunningPaced {
    /// True until its time is over and its last connection has ended.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When the kernel refuses what it needs; connections that fail are no error.
    ///
    /// # Panics
    /// When its thread has panicked.
    pub fn finish(mut self) -> Result<Report> {
        let thread = self.thread.take().expect("nobody has waited for it before");
        let report = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        report.map_err(Error::io("make connections at a fixed rate"))
    }
}

impl Drop for RunningPaced {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

/// A connection under way.
struct Connection {
    socket: Socket,
    since: Instant,
    connected: Option<Instant>,
    /// What has come of the answer, as far as it matters.
    answer: Vec<u8>,
}

/// The client's thread.
struct Client {
    load: Paced,
    begin: Instant,
    epoll: Epoll,
    timer: TimerFd,
    connections: HashMap<RawFd, Connection>,
    report: Report,
}

impl Client {
    fn new(load: Paced) -> io::Result<Self> {
        let load = Paced { per_second: load.per_second.max(1), ..load };
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        let gap = TimeSpec::from_duration(Duration::from_secs(1) / load.per_second);
        timer.set(Expiration::Interval(gap), TimerSetTimeFlags::empty())?;
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN, token(&timer)))?;
        let (least, most) = TIMES_NS;
        let connect = Histogram::new_with_bounds(least, most, DIGITS).map_err(io::Error::other)?;
        let report = Report { opened: 0, answered: 0, connect, failures: Vec::new() };
        Ok(Self { load, begin: Instant::now(), epoll, timer, connections: HashMap::new(), report })
    }

    fn run(mut self, stopped: &AtomicBool) -> io::Result<Report> {
        let timer = token(&self.timer);
        let all = self.due(self.load.time);
        let mut events = [EpollEvent::empty(); EVENTS];
        let mut looked = Instant::now();
        while (self.report.opened < all || !self.connections.is_empty()) && !stopped.load(Ordering::Relaxed) {
            let count = match self.epoll.wait(&mut events, EpollTimeout::from(GLANCE)) {
                Err(nix::Error::EINTR) => continue,
                other => other?,
            };
            for event in &events[..count] {
                match event.data() {
                    token if token == timer => self.open_due(all)?,
                    token => self.serve(token, event.events()),
                }
            }
            if looked.elapsed() > Duration::from_millis(GLANCE.into()) {
                looked = Instant::now();
                let late = |connection: &Connection| connection.since.elapsed() >= PATIENCE;
                for (_, connection) in self.connections.extract_if(|_, connection| late(connection)) {
                    self.report.note(&connection, format!("nothing for {PATIENCE:?}"));
                }
            }
        }
        Ok(self.report)
    }

    /// Connections that are to be started within a time.
    fn due(&self, time: Duration) -> u64 {
        let second = Duration::from_secs(1).as_nanos();
        u64::try_from(time.as_nanos() * u128::from(self.load.per_second) / second).unwrap_or(u64::MAX)
    }

    fn open_due(&mut self, all: u64) -> io::Result<()> {
        // It would be readable for ever; how often it has expired does not matter.
        let _ = self.timer.wait();
        let due = self.due(self.begin.elapsed()).min(all);
        while self.report.opened < due {
            self.report.opened += 1;
            self.open()?;
        }
        if due == all {
            self.timer.unset()?;
        }
        Ok(())
    }

    /// Starts a connection. One that cannot be started has failed: without ports, that is the result.
    fn open(&mut self) -> io::Result<()> {
        let target = self.load.target;
        let socket = Socket::new(Domain::for_address(target), Type::STREAM.nonblocking(), None)?;
        let since = Instant::now();
        match socket.connect(&target.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => {
                let connection = Connection { socket, since, connected: None, answer: Vec::new() };
                self.report.note(&connection, error.to_string());
                return Ok(());
            }
            Ok(()) | Err(_) => {}
        }
        let wanted = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLET;
        self.epoll.add(&socket, EpollEvent::new(wanted, token(&socket)))?;
        let connection = Connection { socket, since, connected: None, answer: Vec::new() };
        self.connections.insert(connection.socket.as_raw_fd(), connection);
        Ok(())
    }

    fn serve(&mut self, token: u64, events: EpollFlags) {
        let Ok(descriptor) = RawFd::try_from(token) else { return };
        let Some(connection) = self.connections.get_mut(&descriptor) else { return };
        match connection.step(self.load.target, events, &mut self.report.connect) {
            Ok(Step::UnderWay) => return,
            Ok(Step::Answered) => self.report.answered += 1,
            Ok(Step::Failed) => {
                self.report.note(connection, "closed without an answer".into());
            }
            Err(error) => self.report.note(connection, error.to_string()),
        }
        self.connections.remove(&descriptor);
    }
}

/// Where a connection is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    UnderWay,
    Answered,
    Failed,
}

impl Connection {
    fn step(&mut self, target: SocketAddr, events: EpollFlags, times: &mut Histogram<u64>) -> io::Result<Step> {
        if self.connected.is_none() {
            if let Some(error) = self.socket.take_error()? {
                return Err(error);
            }
            if !events.contains(EpollFlags::EPOLLOUT) {
                return Ok(Step::UnderWay);
            }
            let now = Instant::now();
            times.saturating_record(u64::try_from((now - self.since).as_nanos()).unwrap_or(u64::MAX));
            self.connected = Some(now);
            self.socket.write_all(&request(target))?;
        }
        let mut buffer = [0; 1024];
        loop {
            match self.socket.read(&mut buffer) {
                Ok(0) => return Ok(if self.answer.starts_with(GOOD) { Step::Answered } else { Step::Failed }),
                Ok(length) => self.answer.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Step::UnderWay),
                Err(error) => return Err(error),
            }
        }
    }
}

fn request(target: SocketAddr) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n").into_bytes()
}

fn token(descriptor: &impl AsFd) -> u64 {
    u64::from(descriptor.as_fd().as_raw_fd().unsigned_abs())
}
