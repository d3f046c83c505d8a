//! Alerts, dashboard and autoscaler, as those see them that read them: promtool and the API server.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use weir_deploy_tests::programs::{KUBECTL, require, root, run};
use weir_deploy_tests::server::Server;
use weir_testbed::{ApiServer, process};

const PROMTOOL: &str = "promtool";

fn promtool(words: &[&str], file: &PathBuf) -> String {
    run(Command::new(process::built(PROMTOOL).unwrap()).args(words).arg(file)).unwrap_or_else(|e| panic!("{e}"))
}

fn yaml(name: &str) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(root().join(name)).unwrap()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// All strings below a key, wherever it is.
fn all(value: &Value, key: &str) -> Vec<String> {
    let below = |(name, member): (Option<&String>, &Value)| match member {
        Value::String(text) if name.is_some_and(|name| name == key) => vec![text.clone()],
        _ => all(member, key),
    };
    match value {
        Value::Object(members) => members.iter().map(|(name, member)| (Some(name), member)).flat_map(below).collect(),
        Value::Array(items) => items.iter().map(|item| (None, item)).flat_map(below).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

#[test]
#[ignore = "promtool: make test-deploy"]
fn the_alerts_fire_when_they_should_and_not_else() {
    assert!(require("alerts", &[PROMTOOL]));
    let said = promtool(&["check", "rules"], &root().join("deploy/helm/weir/files/rules.yaml"));
    assert!(said.contains("SUCCESS"), "{said}");
    let said = promtool(&["test", "rules"], &root().join("deploy/prometheus/rules_test.yaml"));
    assert!(said.contains("SUCCESS"), "{said}");
}

#[test]
#[ignore = "promtool: make test-deploy"]
fn every_query_of_the_dashboard_and_the_adapter_is_promql() {
    assert!(require("queries", &[PROMTOOL]));
    let dashboard = yaml("deploy/helm/weir/files/dashboard.json");
    let queries =
        all(&dashboard, "expr").into_iter().map(|query| query.replace("$__rate_interval", "5m").replace("$node", ".*"));
    let adapter = yaml("deploy/prometheus/adapter.yaml");
    let of_adapter = all(&adapter, "metricsQuery").into_iter().map(|query| {
        query.replace("<<.Series>>", "series").replace("<<.LabelMatchers>>", r#"a="b""#).replace("<<.GroupBy>>", "a")
    });
    let queries: Vec<_> = queries.chain(of_adapter).chain(all(&adapter, "seriesQuery")).collect();
    assert!(queries.len() > 20, "{queries:?}");
    let rules: Vec<_> = queries
        .iter()
        .enumerate()
        .map(|(number, query)| json!({"record": format!("query:{number}"), "expr": query}))
        .collect();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("queries.yaml");
    fs::write(&file, json!({"groups": [{"name": "queries", "rules": rules}]}).to_string()).unwrap();
    let said = promtool(&["check", "rules"], &file);
    assert!(said.contains(&format!("{} rules found", queries.len())), "{said}");
}

#[test]
#[ignore = "promtool: make test-deploy"]
fn the_adapter_adds_up_all_nodes_where_agents_are_scraped_once_a_minute() {
    assert!(require("the adapter's queries", &[PROMTOOL]));
    let adapter = yaml("deploy/prometheus/adapter.yaml");
    let series = |name: &str, node: &str, values: &str| {
        let labels = format!("node=\"{node}\",service_namespace=\"shop\",service_name=\"web\"");
        json!({"series": format!("{name}{{{labels}}}"), "values": values})
    };
    let input: Vec<_> = ["a", "b"]
        .iter()
        .flat_map(|node| {
            let flows = series("weir_service_flows_total", node, "0+60x20");
            [flows, series("weir_service_open_flows", node, "3x20")]
        })
        .collect();
    let expected = |kind: &str, rule: &Value| {
        let (metric, _) = rule["seriesQuery"].as_str().unwrap().split_once('{').unwrap();
        let query = rule["metricsQuery"].as_str().unwrap().replace("<<.Series>>", metric);
        let query = query.replace("<<.LabelMatchers>>", r#"service_namespace="shop",service_name="web""#);
        let labels = if kind == "custom" { r#"{service_namespace="shop", service_name="web"}"# } else { "{}" };
        let value = if rule["name"]["as"] == "weir_flows_per_second" { 2 } else { 6 };
        json!({
            "expr": query.replace("<<.GroupBy>>", "service_namespace, service_name"),
            // Between two scrapes.
            "eval_time": "10m30s",
            "exp_samples": [{"labels": labels, "value": value}],
        })
    };
    let queries: Vec<_> = ["custom", "external"]
        .iter()
        .flat_map(|kind| adapter["rules"][kind].as_array().unwrap().iter().map(move |rule| expected(kind, rule)))
        .collect();
    assert_eq!(queries.len(), 4);
    let tests = json!([{"interval": "1m", "input_series": input, "promql_expr_test": queries}]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("adapter.yaml");
    fs::write(&file, json!({"evaluation_interval": "1m", "tests": tests}).to_string()).unwrap();
    let said = promtool(&["test", "rules"], &file);
    assert!(said.contains("SUCCESS"), "{said}");
}

#[test]
fn the_api_server_takes_the_example_of_an_autoscaler() {
    if !(require("the autoscaler", &[KUBECTL]) && ApiServer::require("the autoscaler")) {
        return;
    }
    let server = Server::start().unwrap();
    let said = server.apply(&fs::read_to_string(root().join("deploy/prometheus/hpa.yaml")).unwrap()).unwrap();
    assert!(said.contains("horizontalpodautoscaler.autoscaling/web created"), "{said}");
}
