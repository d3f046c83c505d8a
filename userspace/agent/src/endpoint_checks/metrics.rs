//! What health checks count. No series by endpoint or service: the log says which one turned.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use weir_core::endpoint_checks::Counts;
use weir_telemetry::catalogue;
use weir_telemetry::metrics::Metrics;

use super::ask::Failure;

/// What an answer that passes is called.
const PASSED: &str = "passed";
/// All that may become of a question.
const RESULTS: [&str; 5] = [PASSED, "unreachable", "timeout", "status", "broken"];

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PerResult {
    result: &'static str,
}

/// See the module's description. Clones count together.
#[derive(Clone, Debug)]
pub(crate) struct CheckMetrics {
    results: Family<PerResult, Counter>,
    duration: Histogram,
    checked: Gauge,
    failing: Gauge,
    all_failing: Gauge,
}

impl CheckMetrics {
    /// Metrics at zero.
    pub(crate) fn new() -> Self {
        let results = Family::<PerResult, Counter>::default();
        // A family without members is not told at all.
        RESULTS.into_iter().for_each(|result| drop(results.get_or_create(&PerResult { result })));
        Self {
            results,
            // From a millisecond to 8 seconds.
            duration: Histogram::new(exponential_buckets(0.001, 2.0, 14)),
            checked: Gauge::default(),
            failing: Gauge::default(),
            all_failing: Gauge::default(),
        }
    }

    /// Adds them to those of the agent.
    pub(crate) fn register(&self, metrics: &mut Metrics) {
        catalogue::ENDPOINT_CHECKS.register(metrics, self.results.clone());
        catalogue::ENDPOINT_CHECK_DURATION.register(metrics, self.duration.clone());
        catalogue::CHECKED_ENDPOINTS.register(metrics, self.checked.clone());
        catalogue::FAILING_ENDPOINTS.register(metrics, self.failing.clone());
        catalogue::ALL_FAILING_SERVICES.register(metrics, self.all_failing.clone());
    }

    /// An endpoint was asked.
    pub(super) fn asked(&self, took: Duration, failure: Option<&Failure>) {
        let result = failure.map_or(PASSED, Failure::label);
        self.results.get_or_create(&PerResult { result }).inc();
        self.duration.observe(took.as_secs_f64());
    }

    /// That many endpoints and services stand like this.
    pub(super) fn count(&self, counts: Counts) {
        let Counts { checked, failing, all_failing } = counts;
        let set = |gauge: &Gauge, count| gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        set(&self.checked, checked);
        set(&self.failing, failing);
        set(&self.all_failing, all_failing);
    }
}
