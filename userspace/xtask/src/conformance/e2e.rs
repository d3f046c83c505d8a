//! Running the tests: ginkgo shares them out among several processes of the unchanged e2e.test.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use regex::Regex;
use weir_testbed::{Cgroup, Process};

use super::Options;
use super::cluster::{Cluster, NODES};
use super::exclusions::Exclusions;
use super::programs::Programs;
use crate::guard::Stop;

/// All that concern what a proxy does.
pub(super) const FOCUS: &str = concat!(
    r"\[sig-network\] (Services|Networking Granular Checks: Services|Conntrack|Traffic Distribution|",
    "EndpointSlice|DNS|HostPort)"
);

/// Longest run; all tests take under an hour on two cores.
const LIMIT: &str = "4h";

/// Time between two looks at what ginkgo has written.
const GLANCE: Duration = Duration::from_millis(200);

/// Runs the tests, prints a line for each, and returns the path of ginkgo's report.
///
/// # Errors
/// When the tests cannot be run, a proxy ends, or at the stop sign. A test that fails is no error.
pub(super) fn run(options: &Options, programs: &Programs, cluster: &mut Cluster, stop: &Stop) -> Result<PathBuf> {
    let results = options.results()?;
    let report = results.join(format!("report-{}.json", options.proxy.name()));
    let log = results.join(format!("e2e-{}.log", options.proxy.name()));
    for old in [&report, &log] {
        if old.exists() {
            fs::remove_file(old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
    }
    // Its processes have children of their own, kubectl for one: the cgroup's end ends all.
    let cgroup = Cgroup::create("conformance-e2e")?;
    let mut command = cluster.world().router().command(programs.built("ginkgo"));
    command.arg(format!("--procs={}", options.procs)).args(["--no-color", "-v", "--timeout", LIMIT]);
    command.arg(format!("--focus={}", options.focus.as_deref().unwrap_or(FOCUS)));
    command.args(Exclusions::of_this_machine()?.patterns().map(|pattern| format!("--skip={pattern}")));
    command.arg(format!("--output-dir={}", results.display()));
    command.arg("--json-report").arg(report.file_name().unwrap_or_default());
    command.arg(programs.built("e2e.test")).arg("--");
    command.arg(format!("-kubeconfig={}", cluster.kubeconfig().display()));
    command.arg(format!("-kubectl-path={}", programs.built("kubectl").display()));
    command.arg(format!("-num-nodes={NODES}"));
    command.args(["-provider=skeleton", "-dump-logs-on-failure=false", "-disable-log-dump"]);
    command.current_dir(cluster.directory());
    cgroup.attach(&mut command)?;
    let mut ginkgo = Process::start(command, "ginkgo", &log)?;
    let watched = watch(&mut ginkgo, cluster, &log, stop);
    drop(cgroup);
    for (node, from) in cluster.proxy_logs() {
        let to = results.join(format!("{}-{node}.log", options.proxy.name()));
        fs::copy(&from, &to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    }
    watched?;
    if !report.exists() {
        bail!("ginkgo wrote no report; {} ends with:\n{}", log.display(), ginkgo.log_tail());
    }
    Ok(report)
}

/// Prints a line for each test until ginkgo ends.
fn watch(ginkgo: &mut Process, cluster: &mut Cluster, log: &Path, stop: &Stop) -> Result<()> {
    let mut output = File::open(log).with_context(|| format!("cannot open {}", log.display()))?;
    let mut lines = Lines::default();
    let mut live = Live::new()?;
    loop {
        let ended = ginkgo.exit_status()?.is_some();
        let mut bytes = Vec::new();
        output.read_to_end(&mut bytes).with_context(|| format!("cannot read {}", log.display()))?;
        for line in lines.take(&bytes) {
            if let Some(outcome) = live.read(&line) {
                println!("{outcome}");
            }
        }
        if ended {
            return Ok(());
        }
        cluster.check_proxies()?;
        stop.sleep(GLANCE)?;
    }
}

/// Cuts a stream of bytes into lines.
#[derive(Debug, Default)]
struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(bytes);
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect()
    }
}

/// Finds the ends of tests in ginkgo's output: a line with outcome and time, then one with the name.
#[derive(Debug)]
struct Live {
    heading: Regex,
    /// What is not part of the name: labels at its end, and the place of a failure or skip.
    asides: Regex,
    seen: Option<(&'static str, String)>,
}

impl Live {
    fn new() -> Result<Self> {
        let heading = Regex::new(r"^\S (?:\[([A-Z]+)\] )?\[([0-9.]+) seconds\]$")?;
        let asides = Regex::new(r" \[sig-network[^\]]*\]$| \[(?:It|(?:Before|After|JustBefore|JustAfter)Each)\]")?;
        Ok(Self { heading, asides, seen: None })
    }

    /// The line to print when this line of the output is the second of an end.
    fn read(&mut self, line: &str) -> Option<String> {
        if let Some(found) = self.heading.captures(line) {
            let word = match found.get(1).map(|word| word.as_str()) {
                None => "pass",
                Some("SKIPPED") => "skip",
                Some(_) => "FAIL",
            };
            self.seen = Some((word, found[2].to_owned()));
            return None;
        }
        let (word, seconds) = self.seen.take()?;
        // Nodes that are no tests: preparations of the whole suite.
        if !line.starts_with("[sig-") {
            return None;
        }
        let name = self.asides.replace_all(line, "");
        Some(format!("  {word} {seconds:>8} s  {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Lines, Live};

    #[test]
    fn each_test_gives_one_line() {
        let output = "• [5.012 seconds]\n[SynchronizedBeforeSuite] \nk8s.io/e2e.go:69\n\
            • [7.1 seconds]\n[sig-network] Services should serve [Conformance] [sig-network, Conformance]\nx.go:1\n\
            S [SKIPPED] [0.2 seconds]\n[sig-network] DNS should skip [sig-network]\n\
            • [FAILED] [12.001 seconds]\n[sig-network] DNS [It] should fail [sig-network]\n";
        let mut live = Live::new().unwrap();
        let lines: Vec<_> = output.lines().filter_map(|line| live.read(line)).collect();
        assert_eq!(
            lines,
            [
                "  pass      7.1 s  [sig-network] Services should serve [Conformance]",
                "  skip      0.2 s  [sig-network] DNS should skip",
                "  FAIL   12.001 s  [sig-network] DNS should fail",
            ]
        );
    }

    #[test]
    fn a_line_comes_when_it_is_whole() {
        let mut lines = Lines::default();
        assert_eq!(lines.take(b"one\ntw"), ["one"]);
        assert!(lines.take(b"o").is_empty());
        assert_eq!(lines.take(b"\n"), ["two"]);
    }
}
