//! The load: real generators, `ab` and `hey`, each a process in its namespace, and what they say.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use weir_testbed::process::{Process, installed};
use weir_testbed::{Netns, wait};

use super::measured::{self, Measured};
use crate::cpu;
use crate::guard::Stop;

/// Patience with one request, for both: a failure after it.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// More requests than `ab` can make in a slice: it shall end by time.
const ENDLESS: &str = "1000000";
/// How long a generator may take beyond its time.
const OVERTIME: Duration = Duration::from_secs(60);
/// Time between two looks at one.
const GLANCE: Duration = Duration::from_millis(10);

/// Fails where one of them is not installed.
pub(super) fn require() -> Result<()> {
    for program in ["ab", "hey"] {
        installed(program).context("the load comes from real generators")?;
    }
    Ok(())
}

/// Which one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// `ab` for a time.
    Ab { concurrency: u32, time: Duration },
    /// `hey` for a number of requests.
    Hey { requests: u32, concurrency: u32 },
    /// `hey` for a time.
    HeyFor { time: Duration, concurrency: u32 },
}

/// `ab` ends without a result when a request has had no answer for [`REQUEST_LIMIT`].
#[derive(Debug, thiserror::Error)]
#[error("ab has given up: nobody answered a request for {REQUEST_LIMIT:?}:\n{0}")]
pub(super) struct GaveUp(String);

/// Whether that is what `ab` says.
fn gave_up(output: &str) -> bool {
    output.contains("apr_pollset_poll: The timeout specified has expired")
}

/// A running generator.
pub(super) struct Generator {
    process: Process,
    order: Order,
    /// Where `ab` writes how many of its requests took how long.
    percentiles: PathBuf,
    started: Instant,
}

/// What became of it.
pub(super) struct Report {
    pub(super) measured: Measured,
    /// The part of one core that the generator itself used: near 1 it was the bottleneck.
    pub(super) cpu: f64,
}

impl Generator {
    /// Starts one in a namespace; its files begin with `files`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start(order: Order, netns: &Netns, target: SocketAddr, cost: Duration, files: &Path) -> Result<Self> {
        let url = format!("http://{target}/burn/{}", cost.as_micros());
        let (percentiles, log) = (files.with_extension("csv"), files.with_extension("log"));
        for old in [&percentiles, &log] {
            if old.exists() {
                fs::remove_file(old).with_context(|| format!("cannot remove {}", old.display()))?;
            }
        }
        let limit = REQUEST_LIMIT.as_secs().to_string();
        let (name, arguments): (_, Vec<String>) = match order {
            Order::Ab { concurrency, time } => {
                let time = format!("{}", time.as_secs().max(1));
                // -n comes after -t, which else means 50000 requests. -l: answers name the client, whose port has
                // four digits or five.
                let fixed = ["-q", "-l", "-r", "-s", &limit, "-t", &time, "-n", ENDLESS].map(str::to_owned);
                let varied = ["-c".into(), concurrency.to_string(), "-e".into(), percentiles.display().to_string()];
                ("ab", fixed.into_iter().chain(varied).collect())
            }
            Order::Hey { requests, concurrency } => {
                ("hey", vec!["-n".into(), requests.to_string(), "-c".into(), concurrency.to_string()])
            }
            Order::HeyFor { time, concurrency } => {
                ("hey", vec!["-z".into(), format!("{}s", time.as_secs().max(1)), "-c".into(), concurrency.to_string()])
            }
        };
        let mut command = netns.command(installed(name)?);
        command.args(arguments);
        if name == "hey" {
            command.args(["-t", &limit, "-disable-keepalive", "-o", "csv"]);
        }
        command.arg(url);
        let started = Instant::now();
        Ok(Self { process: Process::start(command, name, &log)?, order, percentiles, started })
    }

    /// Waits for its end and reads what it says.
    ///
    /// # Errors
    /// When it fails or takes far too long, and at the stop sign.
    pub(super) fn finish(mut self, stop: &Stop) -> Result<Report> {
        let elapsed = self.await_end(stop)?;
        // A process that ended keeps its times until it is waited for.
        let used = cpu_time(self.process.id())?;
        let status = wait::until_some("the exit status of a generator", OVERTIME, || {
            self.process.exit_status().map_err(|error| error.to_string())?.ok_or_else(String::new)
        })?;
        let output = fs::read_to_string(self.process.log()).context("cannot read what a generator says")?;
        let tail = || self.process.log_tail();
        ensure!(!gave_up(&output), GaveUp(tail()));
        ensure!(status.success(), "a generator has failed ({status}):\n{}", tail());
        let measured = match self.order {
            Order::Ab { .. } => {
                // It writes none if no request was answered.
                let table = fs::read_to_string(&self.percentiles).unwrap_or_default();
                parse_ab(&output, &table)
            }
            Order::Hey { requests, .. } => parse_hey(&output, Some(u64::from(requests))),
            Order::HeyFor { .. } => parse_hey(&output, None),
        };
        let measured = measured.with_context(|| format!("cannot understand {}", self.process.log().display()))?;
        Ok(Report { measured, cpu: used.as_secs_f64() / elapsed.as_secs_f64().max(f64::MIN_POSITIVE) })
    }

    /// Waits until it has ended, without taking its times away.
    fn await_end(&self, stop: &Stop) -> Result<Duration> {
        let id = Pid::from_raw(self.process.id().cast_signed());
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
        let limit = OVERTIME + self.order.time();
        loop {
            match waitid(Id::Pid(id), flags).context("cannot wait for a generator")? {
                WaitStatus::StillAlive => stop.sleep(GLANCE)?,
                _ended => return Ok(self.started.elapsed()),
            }
            if self.started.elapsed() > limit {
                bail!("a generator still runs after {limit:?}, log:\n{}", self.process.log_tail());
            }
        }
    }
}

impl Order {
    fn time(self) -> Duration {
        match self {
            Self::Ab { time, .. } | Self::HeyFor { time, .. } => time,
            Self::Hey { .. } => Duration::ZERO,
        }
    }
}

/// User and system time of a process: proc_pid_stat(5), fields 14 and 15.
fn cpu_time(id: u32) -> Result<Duration> {
    let path = format!("/proc/{id}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    // The name in parentheses may hold anything.
    let fields = text.rsplit_once(')').map(|(_, rest)| rest.split_whitespace()).into_iter().flatten();
    Ok(cpu::ticks(fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()))
}

/// Reads the report of `ab` and its table of percentiles.
fn parse_ab(report: &str, percentiles: &str) -> Result<Measured> {
    let fields: BTreeMap<&str, &str> = report.lines().filter_map(|line| line.split_once(':')).collect();
    let value = |name: &str| {
        let text = fields.get(name).with_context(|| format!("{name:?} is missing"))?;
        text.split_whitespace().next().with_context(|| format!("{name:?} has no value"))
    };
    let number = |name: &str| value(name)?.parse::<u64>().with_context(|| format!("{name:?} is no number"));
    let complete = number("Complete requests")?;
    let failed = number("Failed requests")? + number("Non-2xx responses").unwrap_or(0);
    let seconds = value("Time taken for tests")?.parse().context("the time taken is no number")?;
    // The first of two lines of this name, the one per request, is followed by one across all.
    let mean = report.lines().find(|line| line.starts_with("Time per request:") && line.ends_with("(mean)"));
    let mean = mean.and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
    let quantiles: Vec<f64> =
        percentiles.lines().skip(1).filter_map(|line| line.split_once(',')?.1.trim().parse().ok()).collect();
    ensure!(complete == 0 || !quantiles.is_empty(), "there is no table of percentiles");
    let answered = complete.saturating_sub(failed);
    let (rps, mean_ms) = (measured::rate(answered, seconds), mean.unwrap_or(0.0));
    Ok(Measured { answered, failed, rps, seconds, mean_ms, quantiles_ms: quantiles })
}

/// Reads the list of answered requests that `hey -o csv` prints, of which `asked` were to be made.
fn parse_hey(list: &str, asked: Option<u64>) -> Result<Measured> {
    let mut lines = list.lines();
    let header = lines.by_ref().find(|line| line.starts_with("response-time"));
    header.with_context(|| format!("there is no list: {list:?}"))?;
    let (mut times, mut seconds, mut wrong) = (Vec::new(), 0.0_f64, 0);
    for line in lines.filter(|line| !line.trim().is_empty()) {
        let fields: Vec<f64> = line.split(',').map(str::parse).collect::<Result<_, _>>().context(line.to_owned())?;
        let [took, .., status, offset] = fields[..] else { bail!("{line:?} is no request") };
        seconds = seconds.max(offset + took);
        if (200.0..300.0).contains(&status) {
            times.push(took * 1000.0);
        } else {
            wrong += 1;
        }
    }
    let answered = times.len() as u64;
    let silent = asked.map_or(0, |asked| asked.saturating_sub(answered + wrong));
    times.sort_by(f64::total_cmp);
    Ok(Measured {
        answered,
        failed: wrong + silent,
        rps: measured::rate(answered, seconds),
        seconds,
        mean_ms: times.iter().sum::<f64>() / times.len().max(1) as f64,
        quantiles_ms: Measured::quantiles_of(&times),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const AB: &str = "This is ApacheBench, Version 2.3 <$Revision: 1923142 $>

Server Software:        
Server Hostname:        172.30.0.11
Document Length:        Variable

Concurrency Level:      2
Time taken for tests:   2.000 seconds
Complete requests:      1321
Failed requests:        21
   (Connect: 0, Receive: 21, Length: 0, Exceptions: 0)
Requests per second:    660.50 [#/sec] (mean)
Time per request:       1.523 [ms] (mean)
Time per request:       0.761 [ms] (mean, across all concurrent requests)
";

    #[test]
    fn a_request_that_nobody_answers_is_told_from_other_failures_whatever_is_said_around_it() {
        let last =
            "Benchmarking 172.30.0.11 (be patient)...apr_pollset_poll: The timeout specified has expired (70007)\n";
        assert!(gave_up(last) && !gave_up("apr_socket_recv: Connection refused (111)\n"));
        let error = Err::<(), _>(GaveUp(last.into())).context("a slice").context("figure 7").unwrap_err();
        assert!(error.is::<GaveUp>(), "{error:#}");
    }

    #[test]
    fn what_ab_reports_is_understood() {
        let table = "Percentage served,Time in ms\n0,0.346\n50,1.5\n99,9.615\n100,70.100\n";
        let measured = parse_ab(AB, table).unwrap();
        assert_eq!((measured.answered, measured.failed), (1300, 21));
        assert_eq!((measured.seconds, measured.mean_ms), (2.0, 1.523));
        assert_eq!(measured.quantiles_ms, [0.346, 1.5, 9.615, 70.1]);
    }

    #[test]
    fn a_report_without_a_number_that_matters_says_which() {
        let error = parse_ab(&AB.replace("Complete", "Some"), "").unwrap_err();
        assert!(error.to_string().contains("Complete requests"), "{error}");
    }

    #[test]
    fn what_hey_lists_is_understood_and_what_it_leaves_out_has_failed() {
        let list = "response-time,DNS+dialup,DNS,Request-write,Response-delay,Response-read,status-code,offset
0.0100,0.0002,0.0000,0.0001,0.0068,0.0004,200,0.0004
0.0300,0.0001,0.0000,0.0000,0.0006,0.0002,200,0.9700
0.0012,0.0001,0.0000,0.0000,0.0010,0.0000,503,0.0089
";
        let measured = parse_hey(list, Some(5)).unwrap();
        assert_eq!((measured.answered, measured.failed), (2, 3));
        assert!((measured.seconds - 1.0).abs() < 1e-9 && (measured.mean_ms - 20.0).abs() < 1e-9, "{measured:?}");
    }
}
