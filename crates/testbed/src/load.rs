//! A load generator: a new connection (or socket) for each request, and a count of who answered.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use hdrhistogram::Histogram;

use crate::ask::{self, Answer};
use crate::netns::Netns;
use crate::{Error, Result};

/// The longest latency that is told apart, in microseconds.
const LATENCY_MAX_US: u64 = 60_000_000;

/// Significant decimal digits of a latency.
const LATENCY_DIGITS: u8 = 3;

/// How requests are made.
#[derive(Clone, Copy, Debug)]
enum Transport {
    Http,
    Udp,
}

/// When requests are made.
#[derive(Clone, Copy, Debug)]
enum Pace {
    /// Each worker asks again as soon as it has its answer.
    Closed,
    /// Requests start at fixed times; the value is the time between two.
    Fixed(Duration),
}

impl Pace {
    /// Requests that are due within a time, the first one at its begin; none of them is due by itself in a closed loop.
    fn due(self, time: Duration) -> u64 {
        match self {
            Self::Closed => 0,
            Self::Fixed(gap) => {
                u64::try_from(time.as_nanos() / gap.as_nanos().max(1)).map_or(u64::MAX, |gaps| gaps + 1)
            }
        }
    }
}

/// What load to make.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    target: SocketAddr,
    transport: Transport,
    pace: Pace,
    concurrency: usize,
    limit: Duration,
    /// CPU time that each HTTP request costs its server.
    cost: Duration,
}

impl Load {
    /// HTTP requests to a server of [`crate::serve::http`]: 8 workers in a closed loop.
    #[must_use]
    pub fn http(target: SocketAddr) -> Self {
        let (transport, limit, cost) = (Transport::Http, ask::PATIENCE, Duration::ZERO);
        Self { target, transport, pace: Pace::Closed, concurrency: 8, limit, cost }
    }

    /// Datagrams to a server of [`crate::serve::udp_echo`]: 8 workers in a closed loop.
    #[must_use]
    pub fn udp(target: SocketAddr) -> Self {
        Self { transport: Transport::Udp, ..Self::http(target) }
    }

    /// Number of workers, at least 1: how many requests can be under way at once.
    #[must_use]
    pub fn concurrency(mut self, workers: usize) -> Self {
        self.concurrency = workers.max(1);
        self
    }

    /// Starts `per_second` requests in each second instead of a closed loop. A latency counts from the time at which its
    /// request was due, so waiting for a free worker is part of it. Zero keeps the closed loop.
    #[must_use]
    pub fn rate(mut self, per_second: u32) -> Self {
        self.pace = Duration::from_secs(1).checked_div(per_second).map_or(Pace::Closed, Pace::Fixed);
        self
    }

    /// Patience with each request, 2 seconds unless set.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// CPU time that each HTTP request costs its server, none unless set.
    #[must_use]
    pub fn cost(mut self, cost: Duration) -> Self {
        self.cost = cost;
        self
    }

    /// Starts the load in a namespace.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(self, netns: &Netns) -> Result<RunningLoad> {
        let shared = Arc::new(Shared {
            load: self,
            start: Instant::now(),
            next: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        });
        let mut workers = Vec::with_capacity(self.concurrency);
        for number in 0..self.concurrency {
            let report = Arc::new(Mutex::new(Report::new()?));
            let (shared, own) = (Arc::clone(&shared), Arc::clone(&report));
            let thread = netns.spawn(&format!("load {number}"), move || shared.work(&own))?;
            workers.push(Worker { report, thread });
        }
        let since = shared.start;
        Ok(RunningLoad { shared, workers, since, due: 0 })
    }

    /// Makes the load for a time and reports.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn run(self, netns: &Netns, time: Duration) -> Result<Report> {
        let running = self.start(netns)?;
        thread::sleep(time);
        running.stop()
    }
}

#[derive(Debug)]
struct Worker {
    report: Arc<Mutex<Report>>,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    load: Load,
    start: Instant,
    /// Number of the next request, for a fixed pace.
    next: AtomicU64,
    stopped: AtomicBool,
}

impl Shared {
    fn work(&self, report: &Mutex<Report>) {
        while !self.stopped.load(Ordering::Relaxed) {
            let due = match self.load.pace {
                Pace::Closed => Instant::now(),
                Pace::Fixed(gap) => match self.await_turn(gap) {
                    Some(due) => due,
                    None => return,
                },
            };
            let Load { target, limit, cost, .. } = self.load;
            let result = match self.load.transport {
                Transport::Http => ask::http_ask_for_work(target, cost, limit),
                Transport::Udp => ask::udp_ask_within(target, limit),
            };
            lock(report).note(result, due.elapsed());
        }
    }

    /// Sleeps until the next request is due; `None` when the load was stopped meanwhile.
    fn await_turn(&self, gap: Duration) -> Option<Instant> {
        /// Longest sleep without a look at the stop sign.
        const NAP: Duration = Duration::from_millis(50);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let due = self.start + gap.saturating_mul(u32::try_from(number).unwrap_or(u32::MAX));
        loop {
            if self.stopped.load(Ordering::Relaxed) {
                return None;
            }
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(due);
            }
            thread::sleep(left.min(NAP));
        }
    }
}

/// Load under way. Stops on drop.
#[derive(Debug)]
pub struct RunningLoad {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    /// The last report, and the requests that were due before it.
    since: Instant,
    due: u64,
}

impl RunningLoad {
    /// Answers since the start or the last [`RunningLoad::take`].
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.workers.iter().map(|worker| lock(&worker.report).answered()).sum()
    }

    /// What has happened since the start or the last call; counting begins anew.
    ///
    /// # Errors
    /// When histograms cannot be made.
    pub fn take(&mut self) -> Result<Report> {
        let mut total = Report::new()?;
        for worker in &self.workers {
            let part = std::mem::replace(&mut *lock(&worker.report), Report::new()?);
            total.add(&part)?;
        }
        self.close(&mut total);
        Ok(total)
    }

    /// Stops and reports what has happened since the start or the last [`RunningLoad::take`].
    ///
    /// # Errors
    /// When histograms cannot be added.
    ///
    /// # Panics
    /// When a worker has panicked.
    pub fn stop(mut self) -> Result<Report> {
        self.shared.stopped.store(true, Ordering::Relaxed);
        let mut total = Report::new()?;
        self.close(&mut total);
        for Worker { report, thread } in std::mem::take(&mut self.workers) {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            total.add(&lock(&report))?;
        }
        Ok(total)
    }

    /// A report ends now, and the next one begins.
    fn close(&mut self, report: &mut Report) {
        let (now, Shared { load, start, .. }) = (Instant::now(), &*self.shared);
        let due = load.pace.due(now - *start);
        (report.elapsed, report.due) = (now - self.since, due - self.due);
        (self.since, self.due) = (now, due);
    }
}

impl Drop for RunningLoad {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
    }
}

fn lock(report: &Mutex<Report>) -> MutexGuard<'_, Report> {
    report.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What load has met.
#[derive(Clone, Debug)]
pub struct Report {
    /// Answers by server name.
    pub answers: BTreeMap<String, u64>,
    /// Requests without a proper answer, by reason.
    pub errors: BTreeMap<String, u64>,
    /// When the first one of these was due: by the clock, as in logs.
    pub first_failed: Option<SystemTime>,
    /// Latency of answers in microseconds.
    pub latency: Histogram<u64>,
    /// The time that this report covers.
    pub elapsed: Duration,
    /// Requests that were due in that time, at a fixed rate; those that found no free worker are in no other number. 0 in a
    /// closed loop.
    pub due: u64,
}

impl Report {
    fn new() -> Result<Self> {
        let latency = Histogram::new_with_bounds(1, LATENCY_MAX_US, LATENCY_DIGITS)
            .map_err(|error| Error::Invalid(format!("cannot make a latency histogram: {error}")))?;
        let (answers, errors) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { answers, errors, first_failed: None, latency, elapsed: Duration::ZERO, due: 0 })
    }

    fn note(&mut self, result: Result<Answer>, latency: Duration) {
        match result {
            Ok(answer) => {
                *self.answers.entry(answer.name).or_default() += 1;
                self.latency.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(LATENCY_MAX_US));
            }
            Err(error) => {
                let reason = error.io_kind().map_or_else(|| error.to_string(), |kind| kind.to_string());
                *self.errors.entry(reason).or_default() += 1;
                self.first_failed.get_or_insert_with(|| SystemTime::now() - latency);
            }
        }
    }

    fn add(&mut self, other: &Self) -> Result<()> {
        for (name, count) in &other.answers {
            *self.answers.entry(name.clone()).or_default() += count;
        }
        for (reason, count) in &other.errors {
            *self.errors.entry(reason.clone()).or_default() += count;
        }
        self.first_failed = [self.first_failed, other.first_failed].into_iter().flatten().min();
        self.latency.add(&other.latency).map_err(|error| Error::Invalid(format!("cannot add up latencies: {error}")))
    }

    /// Number of answers.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answers.values().sum()
    }

    /// Number of requests without a proper answer.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// The part of all answers that came from one server, 0 to 1; 0 when there was no answer at all.
    #[must_use]
    pub fn share(&self, server: &str) -> f64 {
        let own = self.answers.get(server).copied().unwrap_or(0);
        own as f64 / self.answered().max(1) as f64
    }

    /// Answers per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.answered() as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// The median latency.
    #[must_use]
    pub fn p50(&self) -> Duration {
        self.quantile(0.5)
    }

    /// The latency that 99 of 100 answers stay within.
    #[must_use]
    pub fn p99(&self) -> Duration {
        self.quantile(0.99)
    }

    /// The latency that this part of the answers (0 to 1) stays within.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Duration {
        Duration::from_micros(self.latency.value_at_quantile(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_a_fixed_rate_a_request_is_due_at_once_and_the_others_one_by_one() {
        let pace = |rate: u32| Load::http(SocketAddr::from(([127, 0, 0, 1], 80))).rate(rate).pace;
        let due = |millis: u64| pace(100).due(Duration::from_millis(millis));
        assert_eq!([0, 9, 10, 25, 1000].map(due), [1, 1, 2, 3, 101]);
        assert_eq!(pace(0).due(Duration::from_secs(1)), 0);
    }

    #[test]
    fn a_report_says_when_the_first_request_was_due_that_failed() {
        let refused = |report: &mut Report, latency| report.note(Err(Error::Invalid("refused".to_owned())), latency);
        let (mut late, mut early) = (Report::new().unwrap(), Report::new().unwrap());
        let begin = SystemTime::now();
        refused(&mut late, Duration::from_secs(5));
        refused(&mut late, Duration::from_secs(1));
        refused(&mut early, Duration::from_secs(9));
        let due = |report: &Report, ago| {
            let second = Duration::from_secs(1);
            let elapsed = report.first_failed.unwrap().duration_since(begin - ago).unwrap();
            assert!(elapsed < second, "{elapsed:?}");
        };
        due(&late, Duration::from_secs(5));
        late.add(&early).unwrap();
        due(&late, Duration::from_secs(9));
    }
}
