//! What came out: read from ginkgo's report, written as JSON, printed as a total.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use regex::Regex;
use serde::{Deserialize, Serialize};

use super::Options;
use super::e2e::FOCUS;
use super::exclusions::{self, Exclusions};
use super::programs::Programs;

/// How a test ended.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// A test that was run or skipped.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Test {
    pub(super) name: String,
    pub(super) result: Outcome,
    pub(super) seconds: f64,
    /// Why it was skipped or failed, in the words of the test.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
}

/// The results of a run.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Summary {
    pub(super) proxy: String,
    /// Version of Kubernetes, tests and images included.
    pub(super) kubernetes: String,
    pub(super) kernel: String,
    /// Day of the run, as year-month-day.
    pub(super) date: String,
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) skipped: usize,
    pub(super) tests: Vec<Test>,
}

/// Skips that say something about this machine and not about the proxy, by what the test says.
const ALLOWED_SKIPS: [&str; 4] = [
    // A load balancer or a name server of a cloud, ssh to restart a daemon.
    "Only supported for providers ",
    "No SSH Key for provider ",
    // Restarts of kube-proxy or the API server, where they are pods.
    r"component:\S+ is not running as pod",
    // More than three nodes.
    "need at least 3 zones, with at least 2 schedulable nodes each",
];

/// A report of a suite, as far as it matters here: `types.Report` of ginkgo.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Report {
    #[serde(default)]
    special_suite_failure_reasons: Option<Vec<String>>,
    spec_reports: Option<Vec<Spec>>,
}

/// The report of one test, `types.SpecReport` of ginkgo.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Spec {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_type: String,
    leaf_node_text: String,
    state: String,
    /// Nanoseconds.
    run_time: u64,
    failure: Option<Failure>,
}

/// Why a test failed or was skipped.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    #[serde(default)]
    message: String,
}

impl Spec {
    fn name(&self) -> String {
        let mut words: Vec<&str> = self.container_hierarchy_texts.iter().flatten().map(String::as_str).collect();
        words.push(&self.leaf_node_text);
        words.join(" ")
    }

    /// The result; `None` of a test that nobody asked for, and of a preparation that went well.
    fn into_test(self, focus: &Regex, exclusions: &Exclusions) -> Option<Test> {
        let message = self.failure.as_ref().map(|failure| failure.message.clone()).filter(|text| !text.is_empty());
        let is_test = self.leaf_node_type == "It";
        let name = if is_test { self.name() } else { self.leaf_node_type.clone() };
        let (result, reason) = match self.state.as_str() {
            "passed" if is_test => (Outcome::Passed, None),
            "skipped" if is_test && message.is_some() => (Outcome::Skipped, message),
            "skipped" if is_test && focus.is_match(&name) => {
                (Outcome::Skipped, Some(exclusions.reason(&name)?.to_owned()))
            }
            "passed" | "skipped" | "pending" => return None,
            // failed, panicked, timedout, interrupted, aborted
            other => (Outcome::Failed, Some(message.unwrap_or_else(|| other.to_owned()))),
        };
        #[expect(clippy::cast_precision_loss, reason = "a test takes far less than 2^52 ns")]
        let seconds = (self.run_time / 1_000_000) as f64 / 1000.0;
        Some(Test { name, result, seconds, reason })
    }
}

impl Summary {
    /// Reads ginkgo's report.
    ///
    /// # Errors
    /// When it cannot be read, is none, or holds no test.
    pub(super) fn read(report: &Path, options: &Options, programs: &Programs) -> Result<Self> {
        let text = fs::read_to_string(report).with_context(|| format!("cannot read {}", report.display()))?;
        let reports: Vec<Report> =
            serde_json::from_str(&text).with_context(|| format!("{} is no report of ginkgo", report.display()))?;
        let focus = options.focus.as_deref().unwrap_or(FOCUS);
        let focus = Regex::new(focus).with_context(|| format!("{focus:?} is no regular expression"))?;
        let exclusions = Exclusions::of_this_machine()?;
        let mut tests = Vec::new();
        for Report { special_suite_failure_reasons, spec_reports } in reports {
            tests.extend(spec_reports.into_iter().flatten().filter_map(|spec| spec.into_test(&focus, &exclusions)));
            let suite = special_suite_failure_reasons.into_iter().flatten();
            tests.extend(suite.map(|reason| Test {
                name: "the suite".into(),
                result: Outcome::Failed,
                seconds: 0.0,
                reason: Some(reason),
            }));
        }
        if tests.is_empty() {
            bail!("no test has a name that {focus:?} finds");
        }
        tests.sort_by(|a, b| a.name.cmp(&b.name));
        let count = |result| tests.iter().filter(|test| test.result == result).count();
        Ok(Self {
            proxy: options.proxy.name().to_owned(),
            kubernetes: programs.kubernetes()?,
            kernel: kernel()?,
            date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
            passed: count(Outcome::Passed),
            failed: count(Outcome::Failed),
            skipped: count(Outcome::Skipped),
            tests,
        })
    }

    /// Reads what [`Summary::write`] has written.
    ///
    /// # Errors
    /// When the file cannot be read or is none.
    pub(super) fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no summary", path.display()))
    }

    /// Writes it as JSON.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// True when no test failed and each skip is one that this machine accounts for.
    pub(super) fn is_good(&self) -> bool {
        self.failed == 0 && self.unexplained().next().is_none()
    }

    /// Tests that were skipped for a reason that needs a look.
    fn unexplained(&self) -> impl Iterator<Item = &Test> {
        let skipped = self.tests.iter().filter(|test| test.result == Outcome::Skipped);
        skipped.filter(|test| !is_allowed(test.reason.as_deref().unwrap_or_default()))
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { proxy, kubernetes, passed, failed, skipped, tests, kernel: _, date: _ } = self;
        for test in tests.iter().filter(|test| test.result == Outcome::Failed) {
            let reason = test.reason.as_deref().unwrap_or_default().lines().next().unwrap_or_default();
            writeln!(f, "  FAILED   {}\n           {reason}", test.name)?;
        }
        for test in self.unexplained() {
            writeln!(f, "  SKIPPED  {}\n           {}", test.name, test.reason.as_deref().unwrap_or_default())?;
        }
        write!(f, "{proxy}, Kubernetes {kubernetes}: {passed} passed, {failed} failed, {skipped} skipped")
    }
}

fn is_allowed(reason: &str) -> bool {
    exclusions::is_reason(reason)
        || ALLOWED_SKIPS.iter().any(|pattern| Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(reason)))
}

fn kernel() -> Result<String> {
    let path = "/proc/sys/kernel/osrelease";
    Ok(fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What ginkgo reports of a test.
    fn spec(state: &str, message: &str, text: &str) -> Spec {
        let spec = json!({
            "ContainerHierarchyTexts": ["[sig-network] Services"],
            "LeafNodeType": "It",
            "LeafNodeText": text,
            "State": state,
            "RunTime": 1_234_567_890_u64,
            "Failure": {"Message": message},
        });
        serde_json::from_value(spec).unwrap()
    }

    fn test_of(spec: Spec) -> Option<Test> {
        spec.into_test(&Regex::new(FOCUS).unwrap(), &Exclusions::of_this_machine().unwrap())
    }

    fn result(spec: Spec) -> Option<(Outcome, Option<String>)> {
        test_of(spec).map(|test| (test.result, test.reason))
    }

    #[test]
    fn a_test_has_its_whole_name_and_its_time() {
        let test = test_of(spec("passed", "", "should serve")).unwrap();
        assert_eq!((test.name.as_str(), test.seconds), ("[sig-network] Services should serve", 1.234));
    }

    #[test]
    fn only_tests_that_somebody_asked_for_count() {
        assert_eq!(result(spec("passed", "", "should serve")), Some((Outcome::Passed, None)));
        assert_eq!(
            result(spec("skipped", "no cloud", "should serve")),
            Some((Outcome::Skipped, Some("no cloud".into())))
        );
        assert_eq!(result(spec("skipped", "", "should serve")), None, "left out by its name");
        assert_eq!(result(spec("timedout", "", "should serve")), Some((Outcome::Failed, Some("timedout".into()))));
    }

    #[test]
    fn a_test_that_is_not_run_on_this_machine_counts_as_skipped() {
        let excluded = result(spec("skipped", "", "should forward PTR records lookup to upstream nameserver [Slow]"));
        assert_eq!(excluded, Some((Outcome::Skipped, Some("the cluster has no way to the internet".into()))));
    }

    #[test]
    fn a_preparation_counts_when_it_fails() {
        let preparation = |state: &str| {
            let mut spec = spec(state, "no node is ready", "");
            spec.leaf_node_type = "SynchronizedBeforeSuite".into();
            spec
        };
        assert_eq!(result(preparation("failed")), Some((Outcome::Failed, Some("no node is ready".into()))));
        assert_eq!(result(preparation("passed")), None);
    }

    #[test]
    fn a_skip_is_good_only_for_a_reason_on_the_list() {
        for allowed in [
            "Only supported for providers [gce] (not skeleton)",
            "Skipped because component:kube-proxy is not running as pod.",
            "need at least 3 zones, with at least 2 schedulable nodes each",
            "this kernel has no SCTP sockets",
        ] {
            assert!(is_allowed(allowed), "{allowed}");
        }
        assert!(!is_allowed("Requires >= 3 zones"));
    }
}
