//! Nodes of which the mesh knows nothing, as without a key of all: metrics-server is asked about them.

use std::time::Duration;

use serde_json::Value;
use weir_testbed::wait;

use crate::CLUSTER;
use crate::harness::echo::{echo, ready};
use crate::harness::http::ask_agent;

/// The first question comes after a turn of the agent's own, up to 15 s.
const ASKED: Duration = Duration::from_secs(40);

#[test]
fn a_cluster_without_metrics_server_is_no_trouble_and_the_agent_says_what_it_lacks() {
    let Some(cluster) = CLUSTER.join("no metrics-server") else { return };
    let mut service = echo("no-metrics-server", "ClusterIP");
    service.metadata.annotations = Some([("weir.dev/policy".to_owned(), "waterfill".to_owned())].into());
    // Returns when it is served.
    cluster.serve_echo(&service, &ready(&[cluster.world.node(1).pod(1), cluster.world.node(2).pod(1)]));
    let look = || {
        let text = cluster.agents[0].told("/weights");
        let answer: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
        let mut sources = answer["sources"].as_array().into_iter().flatten();
        let source = sources.find(|source| source["signal"] == "metrics-api").ok_or("no such source")?;
        let lacks = source["problem"].as_str().is_some_and(|problem| problem.contains("no metrics-server"));
        if lacks && source["reads"].as_u64() > Some(0) { Ok(()) } else { Err(format!("{source}")) }
    };
    wait::until_some("metrics-server to be asked", ASKED, look)
        .unwrap_or_else(|e| panic!("{e}\n{}", cluster.agents[0].log()));
    let failed = r#"weir_signal_failures_total{signal="metrics-api",kind="missing"}"#;
    assert!(ask_agent(cluster.world.node(1), 10249, "/metrics").body.contains(failed));
}
