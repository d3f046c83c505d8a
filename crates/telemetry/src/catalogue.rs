//! Every metric that an agent tells, in one list: name, kind, labels, how many series at most, and what it means.
//!
//! Who counts something registers it by its [`Definition`], so the text of `/metrics`, `docs/metrics.md`, and what the
//! dashboard, the alerts and the adapter ask for rest upon the same words. Tests compare all of them.

mod list;

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::registry;

pub use list::*;

use crate::metrics::Metrics;

/// Most series of an agent without those by Service: what one node may cost who stores them. A scrape of so many is about
/// 150 KiB.
pub const BUDGET: u32 = 1500;

/// Of what kind a metric is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Only grows, until the agent starts anew.
    Counter,
    /// Any value.
    Gauge,
    /// Series with the suffixes `_bucket`, `_sum` and `_count`.
    Histogram,
    /// Always 1: the labels say it.
    Info,
}

impl Kind {
    /// As the exposition format calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }
}

/// How many series an agent has of a metric at most.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Series {
    /// So many, whatever the cluster's size.
    Most(u32),
    /// None unless `--metrics-services` asks for them; then as many Services as it says, and one for all others.
    PerService,
}

/// A metric.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Definition {
    /// As queries have it, with the suffix of its kind; of a histogram without.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Keys of its labels.
    pub labels: &'static [&'static str],
    /// Most series.
    pub series: Series,
    /// What it means: a sentence without its full stop, which the exposition adds.
    pub help: &'static str,
}

impl Definition {
    /// One series.
    const fn new(kind: Kind, name: &'static str, help: &'static str) -> Self {
        Self { name, kind, labels: &[], series: Series::Most(1), help }
    }

    /// The same with labels, or of another number of series.
    const fn with(self, labels: &'static [&'static str], series: Series) -> Self {
        Self { labels, series, ..self }
    }

    /// The name without the suffix that the exposition adds by itself.
    #[must_use]
    pub fn family(&self) -> &'static str {
        let suffix = match self.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram => "",
        };
        self.name.strip_suffix(suffix).unwrap_or(self.name)
    }

    /// Names that a query may ask for.
    #[must_use]
    pub fn queried(&self) -> Vec<String> {
        match self.kind {
            Kind::Counter | Kind::Gauge | Kind::Info => vec![self.name.to_owned()],
            Kind::Histogram => ["_bucket", "_sum", "_count"].map(|suffix| format!("{}{suffix}", self.name)).into(),
        }
    }

    /// Adds what is counted under this name.
    pub fn register(&self, metrics: &mut Metrics, metric: impl registry::Metric) {
        metrics.root().register(self.family(), self.help, metric);
    }

    /// Writes it from a collector that is registered at the root.
    ///
    /// # Errors
    /// Those of the encoder.
    pub fn encode(&self, encoder: &mut DescriptorEncoder<'_>, metric: &impl EncodeMetric) -> fmt::Result {
        // As the registry does to the help of what it holds itself.
        let help = format!("{}.", self.help);
        metric.encode(encoder.encode_descriptor(self.family(), &help, None, metric.metric_type())?)
    }
}

/// A label.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Label {
    /// Its key.
    pub key: &'static str,
    /// What it tells, with the values that it may have.
    pub meaning: &'static str,
}

/// The definition of what a query asks for, with or without a histogram's suffix.
#[must_use]
pub fn find(queried: &str) -> Option<&'static Definition> {
    let mut metrics = SECTIONS.iter().flat_map(|(_, metrics)| *metrics);
    metrics.find(|metric| metric.queried().iter().any(|name| name == queried))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prometheus_client::metrics::counter::Counter;

    use super::*;

    fn all() -> impl Iterator<Item = &'static Definition> {
        SECTIONS.iter().flat_map(|(_, metrics)| *metrics)
    }

    #[test]
    fn names_are_unique_and_have_the_suffix_of_their_kind() {
        let mut seen = BTreeSet::new();
        for metric in all() {
            let Definition { name, kind, help, .. } = metric;
            assert!(seen.insert(*name), "{name} is defined twice");
            assert!(name.starts_with("weir_") || name.starts_with("kubeproxy_"), "{name}");
            assert_eq!(metric.family() != *name, matches!(kind, Kind::Counter | Kind::Info), "{name} is a {kind:?}");
            assert!(!help.ends_with('.') && !help.is_empty(), "{name}: {help}");
        }
    }

    #[test]
    fn every_label_is_explained_and_every_explanation_is_of_a_label() {
        let used: BTreeSet<&str> = all().flat_map(|metric| metric.labels).copied().collect();
        let explained: BTreeSet<&str> = LABELS.iter().map(|label| label.key).collect();
        assert_eq!(used, explained);
    }

    #[test]
    fn an_agent_has_no_more_series_than_its_budget_and_none_by_service_unasked() {
        let fixed = all().filter_map(|metric| match metric.series {
            Series::Most(most) => Some(most),
            Series::PerService => None,
        });
        let sum: u32 = fixed.sum();
        assert!(sum <= BUDGET, "{sum} series, {BUDGET} are allowed");
        for metric in all() {
            let by_service = metric.labels.iter().any(|label| label.starts_with("service_"));
            assert_eq!(metric.series == Series::PerService, by_service, "{}", metric.name);
            let forbidden = |label: &&&str| ["client", "pod", "uid", "address", "port"].contains(label);
            assert_eq!(metric.labels.iter().find(forbidden), None, "{}", metric.name);
        }
    }

    #[test]
    fn a_metric_is_registered_under_its_name_and_found_by_what_queries_ask_for() {
        let (mut metrics, counter) = (Metrics::new(), Counter::<u64>::default());
        counter.inc_by(3);
        EJECTIONS.register(&mut metrics, counter);
        let text = metrics.encode().unwrap();
        assert!(text.contains("\n# TYPE weir_ejections counter\nweir_ejections_total 3\n"), "{text}");
        assert_eq!(find("weir_ejections_total"), Some(&EJECTIONS));
        assert_eq!(find("weir_programming_duration_seconds_bucket"), Some(&PROGRAMMING_DURATION));
        assert_eq!([find("weir_ejections"), find("weir_programming_duration_seconds")], [None, None]);
    }
}
