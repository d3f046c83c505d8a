//! The metrics of the process and their text.

use std::fmt;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

/// Media type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Owns the registry. It is filled at the start, then shared; collectors read what changes at each scrape.
#[derive(Debug, Default)]
pub struct Metrics {
    registry: Registry,
}

impl Metrics {
    /// No metrics yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The registry, for collectors. Metrics are registered by their [`Definition`](crate::catalogue::Definition).
    pub const fn root(&mut self) -> &mut Registry {
        &mut self.registry
    }

    /// All metrics as OpenMetrics text.
    ///
    /// # Errors
    /// If a collector fails.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;
    use crate::catalogue;

    #[test]
    fn metrics_are_encoded_as_openmetrics() {
        let mut metrics = Metrics::new();
        let events = Counter::<u64>::default();
        catalogue::WATCH_EVENTS.register(&mut metrics, events.clone());
        catalogue::SERVICE_CHANGES_PENDING.register(&mut metrics, Gauge::<i64>::default());
        events.inc_by(3);
        assert_eq!(
            metrics.encode().unwrap(),
            "# HELP weir_watch_events Events of a kind, by what they did.\n\
             # TYPE weir_watch_events counter\n\
             weir_watch_events_total 3\n\
             # HELP kubeproxy_sync_proxy_rules_service_changes_pending Pending proxy rules Service changes.\n\
             # TYPE kubeproxy_sync_proxy_rules_service_changes_pending gauge\n\
             kubeproxy_sync_proxy_rules_service_changes_pending 0\n\
             # EOF\n"
        );
    }
}
