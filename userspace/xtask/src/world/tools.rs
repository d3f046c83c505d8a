//! The load: `wrk` and `iperf3`, each run once in the client's namespace, and what they say.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use weir_testbed::Netns;
use weir_testbed::process::{Process, installed};

use crate::guard::Stop;

/// Connections of `wrk`.
const CONCURRENCY: u32 = 32;
/// Its patience with an answer.
const PATIENCE: &str = "2s";
/// How long a tool may take beyond its time.
const OVERTIME: Duration = Duration::from_secs(30);
/// Time between two looks at one.
const GLANCE: Duration = Duration::from_millis(50);

/// Fails where one of them is not installed.
pub(super) fn require() -> Result<()> {
    ["wrk", "iperf3"].into_iter().try_for_each(|program| {
        installed(program).map(drop).context("the load comes from real tools: run `make bootstrap-bench`")
    })
}

/// A rate, and what failed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate {
    pub(super) value: f64,
    pub(super) failed: u64,
}

/// Whether `wrk` keeps its connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Connections {
    Kept,
    /// A new one for each request.
    Short,
}

/// Where a tool runs, and for how long.
#[derive(Clone, Copy)]
pub(super) struct Client<'a> {
    pub(super) netns: &'a Netns,
    /// Where it writes.
    pub(super) log: &'a Path,
    /// In whole seconds.
    pub(super) time: Duration,
    pub(super) stop: &'a Stop,
}

impl Client<'_> {
    /// Requests per second of a server, as fast as they go.
    ///
    /// # Errors
    /// When `wrk` fails or says something else, and at the stop sign.
    pub(super) fn wrk(&self, connections: Connections, target: SocketAddr) -> Result<Rate> {
        let time = format!("-d{}s", self.time.as_secs());
        let concurrency = format!("-c{CONCURRENCY}");
        let url = format!("http://{target}/");
        let mut arguments = vec!["-t1", &concurrency, &time, "--timeout", PATIENCE];
        match connections {
            Connections::Kept => {}
            Connections::Short => arguments.extend(["-H", "Connection: close"]),
        }
        arguments.push(&url);
        parse_wrk(&self.output_of("wrk", &arguments)?)
    }

    /// Gbit/s that arrive at an `iperf3` server.
    ///
    /// # Errors
    /// When `iperf3` fails or says something else, and at the stop sign.
    pub(super) fn iperf3(&self, target: SocketAddr) -> Result<Rate> {
        let (ip, port) = (target.ip().to_string(), target.port().to_string());
        let time = self.time.as_secs().to_string();
        let output = self.output_of("iperf3", &["--json", "-c", &ip, "-p", &port, "-t", &time])?;
        parse_iperf3(&output)
    }

    /// Runs a program to its end.
    fn output_of(&self, name: &str, arguments: &[&str]) -> Result<String> {
        if self.log.exists() {
            fs::remove_file(self.log).with_context(|| format!("cannot remove {}", self.log.display()))?;
        }
        let mut command = self.netns.command(installed(name)?);
        command.args(arguments);
        let (mut process, begin) = (Process::start(command, name, self.log)?, Instant::now());
        let status = loop {
            if let Some(status) = process.exit_status()? {
                break status;
            }
            if begin.elapsed() > self.time + OVERTIME {
                bail!("{name} still runs after {:?}, log:\n{}", begin.elapsed(), process.log_tail());
            }
            self.stop.sleep(GLANCE)?;
        };
        ensure!(status.success(), "{name} has failed ({status}):\n{}", process.log_tail());
        fs::read_to_string(self.log).with_context(|| format!("cannot read what {name} says"))
    }
}

/// Reads the report of `wrk`: the rate of answers with a good status.
fn parse_wrk(report: &str) -> Result<Rate> {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let rate = report.lines().find_map(|line| number(line.strip_prefix("Requests/sec:")?));
    let rate = rate.with_context(|| format!("wrk tells no rate:\n{report}"))?;
    let all = report.lines().find_map(|line| number(line.split_once(" requests in ")?.0));
    let all = all.with_context(|| format!("wrk tells no number of requests:\n{report}"))?;
    let count = |text: &str| text.trim().parse::<u64>().ok();
    let wrong = report.lines().find_map(|line| count(line.trim().strip_prefix("Non-2xx or 3xx responses:")?));
    let wrong = wrong.unwrap_or(0);
    // "Socket errors: connect 0, read 3, write 0, timeout 12"
    let errors = report.lines().find_map(|line| line.trim().strip_prefix("Socket errors:"));
    let errors = errors.into_iter().flat_map(|errors| errors.split(','));
    let broken: u64 = errors.filter_map(|error| count(error.split_whitespace().nth(1)?)).sum();
    let good = if all > 0.0 { 1.0 - wrong as f64 / all } else { 0.0 };
    Ok(Rate { value: rate * good, failed: wrong + broken })
}

/// Reads the report of `iperf3 --json`.
fn parse_iperf3(report: &str) -> Result<Rate> {
    let json: Value = serde_json::from_str(report).with_context(|| format!("iperf3 says no JSON:\n{report}"))?;
    if let Some(error) = json["error"].as_str() {
        bail!("iperf3 says: {error}");
    }
    let bits = json["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3 tells no rate")?;
    Ok(Rate { value: bits / 1e9, failed: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRK: &str = "Running 1m test @ http://[fd00:96::10]:80/
  1 threads and 32 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     2.03ms    1.01ms  60.12ms   95.31%
    Req/Sec    12.03k     0.89k   13.10k    80.00%
  720000 requests in 1.00m, 98.10MB read
Requests/sec:  12000.50
Transfer/sec:      1.63MB
";

    #[test]
    fn what_wrk_reports_is_understood() {
        assert_eq!(parse_wrk(WRK).unwrap(), Rate { value: 12_000.5, failed: 0 });
    }

    #[test]
    fn wrong_answers_are_no_rate_and_failures_are_counted() {
        let failures = "  Socket errors: connect 1, read 3, write 0, timeout 12\n  Non-2xx or 3xx responses: 180000\n";
        let report = WRK.replace("Requests/sec", &format!("{failures}Requests/sec"));
        let Rate { value, failed } = parse_wrk(&report).unwrap();
        assert!((value - 9000.375).abs() < 1e-6, "{value}");
        assert_eq!(failed, 180_016);
    }

    #[test]
    fn a_report_without_a_rate_is_quoted() {
        let error = parse_wrk("unable to connect to 10.0.0.1:80 Connection refused\n").unwrap_err();
        assert!(error.to_string().contains("Connection refused"), "{error}");
    }

    #[test]
    fn what_arrives_is_what_iperf3_has_sent_through() {
        let report = r#"{"end": {"sum_sent": {"bits_per_second": 3e10}, "sum_received": {"bits_per_second": 2.5e10}}}"#;
        assert_eq!(parse_iperf3(report).unwrap(), Rate { value: 25.0, failed: 0 });
        let error = parse_iperf3(r#"{"end": {}, "error": "the server is busy"}"#).unwrap_err();
        assert!(error.to_string().contains("the server is busy"), "{error}");
    }
}
