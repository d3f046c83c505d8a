//! kube-proxy's URLs, and metrics under its names.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weir_testbed::{Node, address, wait};

use crate::CLUSTER;
use crate::harness::SOON;
use crate::harness::echo::{Member, echo, slice};
use crate::harness::http::{self, ask_agent};
use crate::harness::standalone::{self, Standalone, Web, yaml};

#[test]
fn the_urls_that_kube_proxys_users_ask_answer() {
    let Some(cluster) = CLUSTER.join("kube-proxy's URLs") else { return };
    let mode = ask_agent(cluster.world.node(1), 10249, "/proxyMode");
    assert_eq!(mode.status, 200, "{mode:?}");
    assert!(!mode.body.trim().is_empty(), "{mode:?}");
    assert_eq!(ask_agent(cluster.world.node(1), 10256, "/healthz").status, 200);
    assert_eq!(ask_agent(cluster.world.node(1), 10256, "/livez").status, 200);
    let text = ask_agent(cluster.world.node(1), 10249, "/metrics").body;
    let types: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("# TYPE kubeproxy_")).collect();
    for (name, kind) in [
        ("kubeproxy_network_programming_duration_seconds", "histogram"),
        ("kubeproxy_sync_proxy_rules_duration_seconds", "histogram"),
        ("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "gauge"),
        ("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "gauge"),
        ("kubeproxy_sync_proxy_rules_endpoint_changes_total", "counter"),
        ("kubeproxy_sync_proxy_rules_endpoint_changes_pending", "gauge"),
        ("kubeproxy_sync_proxy_rules_service_changes_total", "counter"),
        ("kubeproxy_sync_proxy_rules_service_changes_pending", "gauge"),
        ("kubeproxy_sync_proxy_rules_no_local_endpoints_total", "gauge"),
        ("kubeproxy_proxy_healthz_total", "counter"),
        ("kubeproxy_proxy_livez_total", "counter"),
    ] {
        // OpenMetrics leaves the suffix of counters out of the family's name.
        let family = if kind == "counter" { name.trim_end_matches("_total") } else { name };
        let known = |family: &str| text.lines().any(|line| line == format!("# TYPE {family} {kind}"));
        assert!(known(family) || known(name), "no {kind} {name} among {types:?}");
    }
}

#[test]
fn metrics_may_be_scraped_from_elsewhere_and_weights_are_told_at_the_admin_socket_alone() {
    if !standalone::can_run("who may ask for weights") {
        return;
    }
    let node = Standalone::start(0, &yaml(&[]), &["--metrics-address=0.0.0.0:10249"]);
    let address = SocketAddr::new(IpAddr::V4(address::node(1).v4), 10249);
    let ask = |path: &str| node.world.client().enter(|| http::get(address, path)).unwrap();
    assert_eq!(ask("/metrics").status, 200);
    assert_eq!(ask("/weights").status, 404);
    assert_eq!(ask_agent(node.world.node(1), 10249, "/weights").status, 404);
    assert!(node.agent.told("/weights").contains(r#""node":{"name":"node1""#));
}

/// The sum of a metric's samples with this name whose labels contain `labels`.
pub(crate) fn sample(node: &Node, name: &str, labels: &str) -> f64 {
    let text = ask_agent(node, 10249, "/metrics").body;
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let (found, value) = rest.rsplit_once(' ')?;
        let whole = found.is_empty() || found.starts_with('{');
        (whole && found.contains(labels)).then(|| value.parse::<f64>().ok()).flatten()
    };
    text.lines().filter_map(value).sum()
}

#[test]
fn entries_of_the_flow_tables_are_counted_beside_their_room() {
    if !standalone::can_run("entries of flow tables") {
        return;
    }
    let web = Web::new("web", 41, &[1]);
    let mut node = Standalone::start(1, &yaml(std::slice::from_ref(&web)), &["--max-flows=1024"]);
    node.assert_served(&web);
    // It counts at its start.
    node.agent.kill();
    node.agent.start_again(&node.world);
    node.agent.await_ready(&node.world);
    let this = node.world.node(1);
    for family in [4, 6] {
        // Those of connections that have ended: they are over.
        let labels = format!("map=\"openings{family}\"");
        let counted = || sample(this, "weir_flow_entries", &labels) >= 1.0;
        wait::until("flows that are counted", SOON, counted).unwrap_or_else(|e| panic!("{e}\n{}", node.agent.log()));
        for (map, room) in [("flows", 1024.0), ("openings", 512.0)] {
            let room_of = sample(this, "weir_map_max_entries", &format!("map=\"{map}{family}\""));
            assert!((room_of - room).abs() < 0.5, "{map}{family}: {room_of}");
        }
    }
    assert!(sample(this, "weir_flow_evictions_seen_total", "").abs() < 0.5, "nothing was evicted");
}

#[test]
fn a_slice_with_a_trigger_time_is_counted_in_the_network_programming_duration() {
    const NAME: &str = "kubeproxy_network_programming_duration_seconds";
    /// How old the change is when it is learnt of, give or take the second that its time is rounded by.
    const AGE: Duration = Duration::from_secs(2);
    let Some(cluster) = CLUSTER.join("the network programming duration") else { return };
    let joined = Instant::now();
    let pod = cluster.world.node(1).pod(1);
    let served = cluster.serve_echo(&echo("triggered", "ClusterIP"), &[]);
    let count = || sample(cluster.world.node(1), &format!("{NAME}_count"), "");
    let before = count();
    let mut slice = slice("triggered", "v4", false, &[Member::ready(&pod)]);
    // What changed before the agents' start does not count, and they may have started just now.
    std::thread::sleep((AGE + Duration::from_secs(1)).saturating_sub(joined.elapsed()));
    let changed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() - AGE;
    let annotation = ("endpoints.kubernetes.io/last-change-trigger-time".to_owned(), rfc3339(changed));
    slice.metadata.annotations = Some([annotation].into());
    cluster.objects.apply(&slice).unwrap();
    let counted = || if count() > before { Ok(()) } else { Err(format!("{before} before, {} now", count())) };
    wait::until_some("a slice to be counted", SOON, counted).unwrap();
    // Nobody else writes that annotation here. It was two seconds old, give or take what was cut off.
    let of_slice = count() - before;
    assert_eq!(of_slice, 1.0, "one slice, one change");
    let [short, long] = ["1", "60"].map(|bound| {
        let bounds = [format!("le=\"{bound}\""), format!("le=\"{bound}.0\"")];
        bounds.iter().map(|le| sample(cluster.world.node(1), &format!("{NAME}_bucket"), le)).sum::<f64>()
    });
    assert!(long - short >= 1.0, "{long} within 60 s, {short} within 1 s");
    drop(served);
}

/// Seconds since the epoch as the annotation has them.
fn rfc3339(time: Duration) -> String {
    jiff::Timestamp::from_second(time.as_secs().try_into().unwrap()).unwrap().to_string()
}

/// Services of node 1 with policies, each with an endpoint on one of the nodes.
fn file(services: &[(&str, &str, u8)]) -> String {
    let nodes = [1, 2].map(|node| {
        let [v4, v6] = address::node(node).both();
        format!("{{name: node{node}, addresses: [{v4}, \"{v6}\"]}}")
    });
    let services = services.iter().enumerate().map(|(index, (name, policy, node))| {
        let (number, [v4, v6]) = (index + 1, address::pod(*node, 1).both());
        format!(
            "- name: {name}\n  clusterIPs: [10.96.0.{number}, \"fd00:96::{number}\"]\n  {policy}: Local\n  \
             ports: [{{port: 80, targetPort: 8080, nodePort: {}}}]\n  \
             endpoints: [{{address: {v4}, node: node{node}}}, {{address: \"{v6}\", node: node{node}}}]\n",
            30_000 + number
        )
    });
    format!("nodes: [{}]\nservices:\n{}", nodes.join(", "), services.collect::<String>())
}

#[test]
fn services_without_local_endpoints_are_counted_by_policy_and_family() {
    const NAME: &str = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
    if !standalone::can_run("the count of services without local endpoints") {
        return;
    }
    let [internal, external] = ["internalTrafficPolicy", "externalTrafficPolicy"];
    let near = [("a", internal, 1), ("b", external, 1)];
    let far = [("a", internal, 2), ("b", external, 1), ("c", external, 2), ("d", external, 2)];
    let node = Standalone::start(1, &file(&near), &[]);
    for (services, expected) in [(file(&near), [0.0, 0.0]), (file(&far), [1.0, 2.0]), (file(&near), [0.0, 0.0])] {
        node.write(&services);
        let counted = || {
            let of = |policy| {
                ["IPv4", "IPv6"].map(|family| {
                    let labels = [format!("ip_family=\"{family}\""), format!("traffic_policy=\"{policy}\"")];
                    let text = ask_agent(node.world.node(1), 10249, "/metrics").body;
                    let mut lines = text.lines().filter(|line| line.starts_with(&format!("{NAME}{{")));
                    let line = lines.find(|line| labels.iter().all(|label| line.contains(label)));
                    line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                })
            };
            let seen = [of("internal"), of("external")];
            if seen == expected.map(|count| [Some(count); 2]) { Ok(()) } else { Err(format!("{seen:?}")) }
        };
        let what = format!("{expected:?} Services without local endpoints, by internal and external policy");
        wait::until_some(&what, SOON, counted).unwrap_or_else(|e| panic!("{e}\n{}", node.agent.log()));
    }
}

#[test]
fn changes_and_answers_are_counted() {
    let Some(cluster) = CLUSTER.join("counters of changes") else { return };
    let names = ["service", "endpoint"].map(|what| format!("kubeproxy_sync_proxy_rules_{what}_changes_total"));
    let seen = || {
        let healthz = sample(cluster.world.node(1), "kubeproxy_proxy_healthz_total", "code=\"200\"");
        [sample(cluster.world.node(1), &names[0], ""), sample(cluster.world.node(1), &names[1], ""), healthz]
    };
    let before = seen();
    cluster.serve_echo(&echo("changes-counted", "ClusterIP"), &[Member::ready(&cluster.world.node(1).pod(1))]);
    ask_agent(cluster.world.node(1), 10256, "/healthz");
    let after = seen();
    assert!(after.iter().zip(before).all(|(after, before)| *after > before), "{before:?} before, {after:?} after");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let last = sample(cluster.world.node(1), "kubeproxy_sync_proxy_rules_last_timestamp_seconds", "ip_family=\"IPv4\"");
    let last = if last == 0.0 {
        sample(cluster.world.node(1), "kubeproxy_sync_proxy_rules_last_timestamp_seconds", "")
    } else {
        last
    };
    assert!((now - last).abs() < 60.0, "last sync at {last}, now {now}");
}
