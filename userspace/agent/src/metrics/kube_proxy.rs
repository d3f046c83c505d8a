//! What kube-proxy's dashboards ask for, under kube-proxy's names.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use weir_core::model::Family as IpFamily;
use weir_telemetry::catalogue;
use weir_telemetry::metrics::Metrics;

use crate::writer::{NoLocal, Waiting};

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PerFamily {
    ip_family: &'static str,
}

impl PerFamily {
    const ALL: [Self; 2] = [Self::of(IpFamily::V4), Self::of(IpFamily::V6)];

    /// As Kubernetes names it.
    const fn of(family: IpFamily) -> Self {
        Self { ip_family: family_name(family) }
    }
}

const fn family_name(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "IPv4",
        IpFamily::V6 => "IPv6",
    }
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct PerPolicy {
    traffic_policy: &'static str,
    ip_family: &'static str,
}

/// What kube-proxy counts, under its names (pkg/proxy/metrics/metrics.go). It has a proxy for each family, and each of
/// them takes in every change; ours writes both at once, which counts for both.
#[derive(Clone, Debug)]
pub(crate) struct KubeProxyMetrics {
    network_programming: Family<PerFamily, Histogram, fn() -> Histogram>,
    sync: Family<PerFamily, Histogram, fn() -> Histogram>,
    last_sync: Family<PerFamily, Gauge<f64, AtomicU64>>,
    last_queued: Family<PerFamily, Gauge<f64, AtomicU64>>,
    endpoint_changes: Counter,
    endpoint_changes_pending: Gauge,
    service_changes: Counter,
    service_changes_pending: Gauge,
    no_local_endpoints: Family<PerPolicy, Gauge>,
}

impl KubeProxyMetrics {
    /// Metrics at zero, registered.
    pub(crate) fn register(metrics: &mut Metrics) -> Self {
        let new = Self {
            network_programming: Family::new_with_constructor(|| Histogram::new(network_programming_buckets())),
            sync: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 15))),
            last_sync: Family::default(),
            last_queued: Family::default(),
            endpoint_changes: Counter::default(),
            endpoint_changes_pending: Gauge::default(),
            service_changes: Counter::default(),
            service_changes_pending: Gauge::default(),
            no_local_endpoints: Family::default(),
        };
        catalogue::NETWORK_PROGRAMMING_DURATION.register(metrics, new.network_programming.clone());
        catalogue::SYNC_DURATION.register(metrics, new.sync.clone());
        catalogue::LAST_SYNC.register(metrics, new.last_sync.clone());
        catalogue::LAST_QUEUED.register(metrics, new.last_queued.clone());
        catalogue::ENDPOINT_CHANGES.register(metrics, new.endpoint_changes.clone());
        catalogue::ENDPOINT_CHANGES_PENDING.register(metrics, new.endpoint_changes_pending.clone());
        catalogue::SERVICE_CHANGES.register(metrics, new.service_changes.clone());
        catalogue::SERVICE_CHANGES_PENDING.register(metrics, new.service_changes_pending.clone());
        catalogue::NO_LOCAL_ENDPOINTS.register(metrics, new.no_local_endpoints.clone());
        new.no_local(NoLocal::default());
        // A family without members is not told at all.
        for family in &PerFamily::ALL {
            drop(new.network_programming.get_or_create(family));
            drop(new.sync.get_or_create(family));
            drop(new.last_sync.get_or_create(family));
            drop(new.last_queued.get_or_create(family));
        }
        new
    }

    /// Changes came that are to be written.
    pub(crate) fn queued(&self, changes: Waiting) {
        let Waiting { services, endpoints } = changes;
        self.service_changes.inc_by(services);
        self.endpoint_changes.inc_by(endpoints);
        let gauge = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.service_changes_pending.inc_by(gauge(services));
        self.endpoint_changes_pending.inc_by(gauge(endpoints));
        PerFamily::ALL.iter().for_each(|family| set_now(&self.last_queued.get_or_create(family)));
    }

    /// All of them are written.
    pub(crate) fn synced(&self, took: Duration) {
        self.service_changes_pending.set(0);
        self.endpoint_changes_pending.set(0);
        for family in &PerFamily::ALL {
            self.sync.get_or_create(family).observe(took.as_secs_f64());
            set_now(&self.last_sync.get_or_create(family));
        }
    }

    /// The network follows what triggered a change of endpoints, in milliseconds since the epoch. Clocks of two machines
    /// are compared: what seems to lie in the future took no time.
    pub(crate) fn programmed(&self, family: IpFamily, triggered: i64) {
        let seconds = (now() - seconds(triggered)).max(0.0);
        self.network_programming.get_or_create(&PerFamily::of(family)).observe(seconds);
    }

    /// Service ports that cannot be reached from here for want of endpoints on this node.
    pub(crate) fn no_local(&self, counts: NoLocal) {
        let NoLocal { internal, external } = counts;
        for (traffic_policy, by_family) in [("internal", internal), ("external", external)] {
            for (family, count) in [IpFamily::V4, IpFamily::V6].into_iter().zip(by_family) {
                let labels = PerPolicy { traffic_policy, ip_family: family_name(family) };
                self.no_local_endpoints.get_or_create(&labels).set(i64::from(count));
            }
        }
    }
}

/// kube-proxy's: finest where the service level objective of SIG Scalability looks.
fn network_programming_buckets() -> impl Iterator<Item = f64> {
    let linear = |first: f64, width: f64, count: u32| (0..count).map(move |i| first + width * f64::from(i));
    linear(0.25, 0.25, 2).chain(linear(1.0, 1.0, 59)).chain(linear(60.0, 5.0, 12)).chain(linear(120.0, 30.0, 7))
}

fn set_now(gauge: &Gauge<f64, AtomicU64>) {
    gauge.set(now());
}

/// Seconds since the epoch.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds of this millennium fit into a double")]
fn seconds(milliseconds: i64) -> f64 {
    milliseconds as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::value;

    #[test]
    fn changes_are_pending_until_they_are_synced_under_the_names_of_kube_proxy() {
        let mut metrics = Metrics::new();
        let kube_proxy = KubeProxyMetrics::register(&mut metrics);
        kube_proxy.queued(Waiting { services: 1, endpoints: 2 });
        kube_proxy.queued(Waiting { services: 0, endpoints: 3 });
        let text = metrics.encode().unwrap();
        assert_eq!(value(&text, "kubeproxy_sync_proxy_rules_service_changes_total"), "1");
        assert_eq!(value(&text, "kubeproxy_sync_proxy_rules_endpoint_changes_total"), "5");
        assert_eq!(value(&text, "kubeproxy_sync_proxy_rules_endpoint_changes_pending"), "5");
        assert!(text.contains("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv6\"} "));
        kube_proxy.synced(Duration::from_millis(3));
        let text = metrics.encode().unwrap();
        assert_eq!(value(&text, "kubeproxy_sync_proxy_rules_endpoint_changes_pending"), "0");
        assert_eq!(value(&text, "kubeproxy_sync_proxy_rules_endpoint_changes_total"), "5");
        assert_eq!(value(&text, "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}"), "1");
        assert!(text.contains("kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"} "));
    }

    #[test]
    fn service_ports_without_local_endpoints_are_a_gauge_by_policy_and_family() {
        let mut metrics = Metrics::new();
        let kube_proxy = KubeProxyMetrics::register(&mut metrics);
        kube_proxy.no_local(NoLocal { internal: [1, 0], external: [0, 7] });
        let text = metrics.encode().unwrap();
        let name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
        assert!(text.contains(&format!("# TYPE {name} gauge\n")), "{text}");
        assert_eq!(value(&text, &format!("{name}{{traffic_policy=\"internal\",ip_family=\"IPv4\"}}")), "1");
        assert_eq!(value(&text, &format!("{name}{{traffic_policy=\"external\",ip_family=\"IPv6\"}}")), "7");
        assert_eq!(value(&text, &format!("{name}{{traffic_policy=\"external\",ip_family=\"IPv4\"}}")), "0");
    }

    #[test]
    fn network_programming_has_the_buckets_of_kube_proxy() {
        let buckets: Vec<f64> = network_programming_buckets().collect();
        assert_eq!(buckets.len(), 80);
        assert_eq!(buckets[..4], [0.25, 0.5, 1.0, 2.0]);
        assert_eq!(buckets[60..63], [59.0, 60.0, 65.0]);
        assert_eq!(buckets[72..], [115.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0]);
    }

    #[test]
    fn network_programming_takes_its_time_from_the_trigger_and_never_less_than_none() {
        let mut metrics = Metrics::new();
        let kube_proxy = KubeProxyMetrics::register(&mut metrics);
        let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();
        kube_proxy.programmed(IpFamily::V6, now - 90_000);
        kube_proxy.programmed(IpFamily::V6, now + 90_000);
        let text = metrics.encode().unwrap();
        let bucket = |le: &str| {
            let name = "kubeproxy_network_programming_duration_seconds_bucket";
            value(&text, &format!("{name}{{le=\"{le}\",ip_family=\"IPv6\"}}")).to_owned()
        };
        assert_eq!([bucket("0.25"), bucket("85.0"), bucket("95.0"), bucket("+Inf")], ["1", "1", "2", "2"]);
    }
}
