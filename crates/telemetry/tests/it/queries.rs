//! What the dashboard, the alerts and the adapter ask for exists: every metric, and every label of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use weir_telemetry::catalogue;

use crate::promql::Expression;

/// Labels that Prometheus adds when it scrapes, as the chart has it.
const TARGET: [&str; 3] = ["job", "node", "instance"];
/// What Prometheus itself tells of whom it scrapes.
const UP: &str = "up";

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn yaml(name: &str) -> Value {
    serde_saphyr::from_str(&read(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no {key} in {value}"))
}

/// Labels that a metric may be asked by; None if there is no such metric.
fn labels(metric: &str) -> Option<BTreeSet<&'static str>> {
    let own = match catalogue::find(metric) {
        Some(found) => found.labels,
        None if metric == UP => &[],
        None => return None,
    };
    let le = metric.ends_with("_bucket").then_some("le");
    Some(own.iter().copied().chain(TARGET).chain(le).collect())
}

/// What is wrong with an expression.
fn mistakes(expression: &str) -> Vec<String> {
    let Expression { selectors, grouped, sums: _ } = Expression::of(expression);
    let mut mistakes = Vec::new();
    if selectors.is_empty() {
        mistakes.push("asks for nothing".to_owned());
    }
    let mut known = BTreeSet::new();
    for selector in selectors {
        let Some(labels) = labels(&selector.metric) else {
            mistakes.push(format!("there is no metric {}", selector.metric));
            continue;
        };
        let unknown = selector.labels.iter().filter(|label| !labels.contains(label.as_str()));
        mistakes.extend(unknown.map(|label| format!("{} has no label {label}", selector.metric)));
        known.extend(labels);
    }
    let unknown = grouped.iter().filter(|label| !known.contains(label.as_str()));
    mistakes.extend(unknown.map(|label| format!("none of its metrics has the label {label}")));
    mistakes
}

fn assert_right<'a>(place: &str, expressions: impl IntoIterator<Item = &'a str>) {
    let wrong: Vec<_> = expressions
        .into_iter()
        .map(|expression| (expression, mistakes(expression)))
        .filter(|(_, mistakes)| !mistakes.is_empty())
        .collect();
    assert!(wrong.is_empty(), "{place}: {wrong:#?}");
}

/// All strings below a key, wherever it is.
fn all<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match member {
                    Value::String(text) if name == key => found.push(text),
                    _ => all(member, key, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| all(item, key, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn mistakes_are_found() {
    let found = mistakes(r#"sum by (colour) (rate(weir_drops_total{why="x"}[5m])) + weir_nothing"#);
    let expected = [
        "weir_drops_total has no label why",
        "there is no metric weir_nothing",
        "none of its metrics has the label colour",
    ];
    assert_eq!(found, expected);
    assert_eq!(mistakes("vector(1)"), ["asks for nothing"]);
    assert_eq!(
        mistakes("rate(weir_programming_duration_seconds[5m])").len(),
        1,
        "a histogram has no series of its name"
    );
}

#[test]
fn every_panel_of_the_dashboard_asks_for_what_agents_tell() {
    const ROWS: [&str; 4] = ["Health", "Traffic and drops", "Decision quality", "Control latency"];
    let dashboard: Value = serde_json::from_str(&read("deploy/helm/weir/files/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let (rows, panels): (Vec<_>, Vec<_>) = panels.iter().partition(|panel| panel["type"] == "row");
    let titles: Vec<_> = rows.iter().map(|row| text(row, "title")).collect();
    assert_eq!(titles, ROWS);
    let mut expressions = Vec::new();
    for panel in panels {
        let before = expressions.len();
        all(panel, "expr", &mut expressions);
        assert!(expressions.len() > before, "{} has no query", panel["title"]);
        let sources: Vec<_> =
            panel["targets"].as_array().unwrap().iter().map(|target| &target["datasource"]["uid"]).collect();
        assert!(sources.iter().all(|uid| **uid == "${datasource}"), "{}: {sources:?}", panel["title"]);
    }
    assert!(expressions.iter().all(|expression| expression.contains("$node")), "the variable chooses nodes everywhere");
    assert_right("dashboard", expressions);
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let names: Vec<_> = variables.iter().map(|variable| text(variable, "name")).collect();
    assert_eq!(names, ["datasource", "node"]);
    assert_eq!(text(&variables[1], "definition"), "label_values(weir_build_info, node)");
}

#[test]
fn every_panel_has_a_place_of_its_own() {
    let dashboard: Value = serde_json::from_str(&read("deploy/helm/weir/files/dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len());
    let mut taken = BTreeSet::new();
    for panel in panels {
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        assert!(x + w <= 24, "{} is too wide", panel["title"]);
        for (column, line) in (x..x + w).flat_map(|column| (y..y + h).map(move |line| (column, line))) {
            assert!(taken.insert((column, line)), "{} is over another panel", panel["title"]);
        }
    }
}

#[test]
fn every_alert_asks_for_what_agents_tell_and_says_what_to_do() {
    let rules = yaml("deploy/helm/weir/files/rules.yaml");
    let rules: Vec<_> =
        rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
    assert_right("rules", rules.iter().map(|rule| text(rule, "expr")));
    let anchors = anchors(&read("docs/troubleshoot.md"));
    let mut names = BTreeSet::new();
    for rule in rules {
        let name = text(rule, "alert");
        assert!(names.insert(name), "{name} is there twice");
        let annotations = &rule["annotations"];
        let (url, anchor) = text(annotations, "runbook_url").split_once('#').unwrap();
        assert!(url == "docs/troubleshoot.md" && anchors.contains(anchor), "{name}: {url} has no #{anchor}");
        assert!(["warning", "critical"].contains(&text(&rule["labels"], "severity")), "{name}");
        let told = [text(annotations, "summary"), text(annotations, "description")].concat();
        for label in told.split("$labels.").skip(1) {
            let label = label.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap();
            assert!(results(text(rule, "expr")).contains(label), "{name}: its series have no label {label}");
        }
    }
}

/// Labels that the result of an expression may have.
fn results(expression: &str) -> BTreeSet<String> {
    let Expression { selectors, grouped, sums } = Expression::of(expression);
    if sums {
        return grouped;
    }
    selectors.iter().filter_map(|selector| labels(&selector.metric)).flatten().map(str::to_owned).collect()
}

/// What links may lead to, as GitHub and mdBook make it of headings.
fn anchors(document: &str) -> BTreeSet<String> {
    let headings = document.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        title
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn each_alert_has_a_case_for_promtool() {
    let (rules, cases) = (yaml("deploy/helm/weir/files/rules.yaml"), read("deploy/prometheus/rules_test.yaml"));
    let mut names = Vec::new();
    all(&rules, "alert", &mut names);
    assert!(names.len() >= 9, "{names:?}");
    let missing: Vec<_> = names.iter().filter(|name| !cases.contains(**name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_adapter_tells_what_agents_tell_of_services_and_the_example_asks_for_that() {
    let adapter = yaml("deploy/prometheus/adapter.yaml");
    let mut told = Vec::new();
    for kind in ["custom", "external"] {
        for rule in adapter["rules"][kind].as_array().unwrap() {
            let series = text(rule, "seriesQuery");
            let metric = Expression::of(series).selectors.remove(0).metric;
            let query = text(rule, "metricsQuery").replace("<<.Series>>", &metric);
            let query =
                query.replace("<<.LabelMatchers>>", "").replace("<<.GroupBy>>", "service_namespace,service_name");
            assert_right(kind, [series, &query]);
            assert_eq!(text(&rule["name"], "matches"), format!("^{metric}$"));
            let overrides = rule["resources"]["overrides"].as_object().unwrap();
            assert!(overrides.keys().all(|label| labels(&metric).unwrap().contains(label.as_str())), "{overrides:?}");
            told.push((kind, text(&rule["name"], "as").to_owned()));
        }
    }
    let hpa = yaml("deploy/prometheus/hpa.yaml");
    for metric in hpa["spec"]["metrics"].as_array().unwrap() {
        let (kind, source) = match text(metric, "type") {
            "Object" => ("custom", &metric["object"]),
            "External" => ("external", &metric["external"]),
            other => panic!("{other} metrics are not the adapter's"),
        };
        let wanted = (kind, text(&source["metric"], "name").to_owned());
        assert!(told.contains(&wanted), "{wanted:?}, told are {told:?}");
        for label in
            source["metric"]["selector"]["matchLabels"].as_object().into_iter().flat_map(|labels| labels.keys())
        {
            assert!(labels("weir_service_open_flows").unwrap().contains(label.as_str()), "{label}");
        }
    }
}
