//! The commands of the pages that tell how to build and install: what they name is there, Helm and Kustomize take them.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::Path;

use weir_deploy_tests::chart::{Helm, directory};
use weir_deploy_tests::manifest::{objects, only};
use weir_deploy_tests::page::Line;
use weir_deploy_tests::programs::{HELM, KUBECTL, require, root, run};
use weir_deploy_tests::server::kubectl;
use weir_deploy_tests::values;

const PAGES: [&str; 8] = [
    "CONTRIBUTING.md",
    "README.md",
    "deploy/helm/weir/README.md",
    "deploy/kustomize/README.md",
    "docs/migration.md",
    "docs/operate.md",
    "docs/start.md",
    "docs/upgrade.md",
];

/// What stands for the reader's own in commands.
const PLACEHOLDERS: [(&str, &str); 2] = [("ADDRESS", "192.0.2.1"), ("YOUR_REGISTRY", "registry.example.net")];

/// Commands of all pages that begin with these words, in blocks and in lines, without what is a comment to the shell.
fn commands(begin: &str) -> Vec<String> {
    let mut found = Vec::new();
    for page in PAGES {
        let text = fs::read_to_string(root().join(page)).unwrap();
        for line in text.lines() {
            let block = line.strip_prefix("    ").into_iter();
            let spans = line.split('`').skip(1).step_by(2);
            let commands = block.chain(spans).map(|code| Line::parse(code).command);
            found.extend(commands.filter(|command| command.starts_with(begin)));
        }
    }
    for (placeholder, value) in PLACEHOLDERS {
        found.iter_mut().for_each(|command| *command = command.replace(placeholder, value));
    }
    assert!(!found.is_empty(), "no page has a command `{begin}`");
    found
}

#[test]
fn every_verb_of_make_is_one() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let verbs: Vec<&str> = makefile.lines().filter_map(|line| Some(line.split_once(':')?.0)).collect();
    for command in commands("make ") {
        // A variable may stand before the verb.
        let verb = command.split(' ').skip(1).find(|word| !word.contains('='));
        assert!(verb.is_none_or(|verb| verbs.contains(&verb)), "{command}");
    }
}

#[test]
fn helm_takes_every_installation() {
    if !require("installations by helm", &[HELM]) {
        return;
    }
    let helm = Helm::find().unwrap();
    let installations = commands("helm install ");
    assert!(installations.len() > 4, "{installations:?}");
    for command in installations {
        let words: Vec<&str> = command.split(' ').skip(2).collect();
        let all = objects(&helm.installed_by(&words).unwrap_or_else(|error| panic!("{command}: {error}"))).unwrap();
        only(&all, "DaemonSet").unwrap();
    }
}

#[test]
fn every_value_that_is_set_is_one_of_the_charts() {
    let text = fs::read_to_string(directory().join("values.yaml")).unwrap();
    let known: Vec<String> = values::documented(&text).unwrap().iter().map(values::Documented::key).collect();
    for command in commands("--set ") {
        let (key, _) = command.trim_start_matches("--set ").split_once('=').unwrap();
        assert!(known.iter().any(|one| one == key), "{command}");
    }
}

#[test]
fn what_cleans_a_node_is_what_the_chart_says_after_an_installation() {
    if !require("the chart's notes", &[HELM]) {
        return;
    }
    // `xtask rollout` runs those of the README.
    let notes = Helm::find().unwrap().notes("apiServer: {host: 192.0.2.1}").unwrap();
    let told: Vec<&str> = notes.lines().map(str::trim).collect();
    let cleans = |command: &String| command.contains("weir cleanup");
    let debug = commands("kubectl debug node/").into_iter().filter(cleans).collect::<Vec<_>>();
    assert!(debug.len() > 1, "{debug:?}");
    let more = ["kubectl wait pods ", "kubectl logs ", "kubectl delete pods "].map(commands).concat();
    for command in [debug, more].concat() {
        assert!(told.contains(&command.as_str()), "{command}\nis not in\n{notes}");
    }
}

#[test]
fn every_manifest_that_is_applied_is_there() {
    if !require("manifests that pages name", &[KUBECTL]) {
        return;
    }
    for command in commands("kubectl apply -k ") {
        let overlay = root().join(command.trim_start_matches("kubectl apply -k "));
        let built = run(kubectl(Path::new("/nonexistent")).unwrap().arg("kustomize").arg(&overlay)).unwrap();
        only(&objects(&built).unwrap(), "DaemonSet").unwrap();
    }
    for command in commands("kubectl apply -f ") {
        let manifest = fs::read_to_string(root().join(command.trim_start_matches("kubectl apply -f "))).unwrap();
        only(&objects(&manifest).unwrap(), "DaemonSet").unwrap();
    }
}
