//! A long-lived TCP connection that keeps exchanging, to see what breaks it.

use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::Socket;

use crate::ask::{self, Answer};
use crate::netns::Netns;
use crate::{Result, wait};

/// What a long connection has seen.
#[derive(Clone, Debug)]
pub struct History {
    /// The server that it reached, and the client address that the server saw.
    pub answer: Answer,
    /// Lines sent and answered.
    pub exchanges: u64,
    /// The longest time that one exchange took.
    pub slowest: Duration,
    /// Why the connection ended, if it did: an error, or an answer that does not belong here.
    pub error: Option<String>,
    /// When the exchange began that ended it, and when it was known.
    pub ended: Option<[Instant; 2]>,
}

/// A connection to a TCP echo server of [`crate::serve`]; it exchanges a line in every interval until it is stopped.
#[derive(Debug)]
pub struct LongConnection {
    history: Arc<Mutex<History>>,
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl LongConnection {
    /// Connects from a namespace and exchanges the first line. `limit` is the patience with each exchange.
    ///
    /// # Errors
    /// When the first exchange fails.
    pub fn open(netns: &Netns, server: SocketAddr, interval: Duration, limit: Duration) -> Result<Self> {
        let mut line = netns.enter(|| Line::connect(server, limit)).map_err(ask::asking(server))?;
        let (answer, slowest) = line.exchange().map_err(ask::asking(server))?;
        let history = Arc::new(Mutex::new(History { answer, exchanges: 1, slowest, error: None, ended: None }));
        let shared = Arc::clone(&history);
        let (stop, stopped) = channel();
        let thread = netns.spawn("long connection", move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let from = Instant::now();
                let result = line.exchange();
                if !lock(&shared).note(from, result) {
                    return;
                }
            }
        })?;
        Ok(Self { history, stop, thread })
    }

    /// What it has seen so far.
    #[must_use]
    pub fn history(&self) -> History {
        lock(&self.history).clone()
    }

    /// Waits for `count` more exchanges from now on.
    ///
    /// # Errors
    /// [`crate::Error::Timeout`] when they do not happen within `limit`, with what broke the connection if something did.
    pub fn await_exchanges(&self, count: u64, limit: Duration) -> Result<()> {
        let goal = self.history().exchanges + count;
        let what = format!("{count} exchanges over a long connection");
        wait::until_some(&what, limit, || {
            let History { exchanges, error, .. } = self.history();
            if exchanges >= goal { Ok(()) } else { Err(error.unwrap_or_else(|| format!("{exchanges} of {goal}"))) }
        })
    }

    /// Closes the connection and tells what it has seen.
    ///
    /// # Panics
    /// When its thread has panicked.
    #[must_use]
    pub fn close(self) -> History {
        let Self { history, stop, thread } = self;
        // The thread has ended by itself if the connection broke.
        drop(stop);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        lock(&history).clone()
    }
}

impl History {
    /// Adds an exchange. False when the connection is over.
    fn note(&mut self, from: Instant, result: io::Result<(Answer, Duration)>) -> bool {
        match result {
            Ok((answer, took)) if answer == self.answer => {
                self.exchanges += 1;
                self.slowest = self.slowest.max(took);
            }
            Ok((other, _)) => self.error = Some(format!("{} answered instead of {}", other.name, self.answer.name)),
            Err(error) => self.error = Some(error.to_string()),
        }
        self.ended = self.error.is_some().then(|| [from, Instant::now()]);
        self.error.is_none()
    }
}

fn lock(history: &Mutex<History>) -> MutexGuard<'_, History> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The client's side of the line protocol.
struct Line {
    stream: BufReader<Socket>,
    number: u64,
}

impl Line {
    fn connect(server: SocketAddr, limit: Duration) -> io::Result<Self> {
        Ok(Self { stream: BufReader::new(ask::connect(server, limit)?), number: 0 })
    }

    /// Sends the next number and expects it back.
    fn exchange(&mut self) -> io::Result<(Answer, Duration)> {
        self.number += 1;
        let start = Instant::now();
        let number = format!("{}\n", self.number);
        self.stream.get_mut().write_all(number.as_bytes()).map_err(ask::timely)?;
        let mut line = String::new();
        if self.stream.read_line(&mut line).map_err(ask::timely)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
        }
        let unexpected =
            || io::Error::new(io::ErrorKind::InvalidData, format!("{line:?} does not answer {}", self.number));
        let answer = line.parse().map_err(|()| unexpected())?;
        let echoed = line.split_whitespace().next_back() == Some(number.trim());
        if echoed { Ok((answer, start.elapsed())) } else { Err(unexpected()) }
    }
}
