//! Annotations of Services and the configuration file.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use weir_testbed::wait;

use crate::CLUSTER;
use crate::harness::SOON;
use crate::harness::echo::{Member, echo};
use crate::harness::standalone::{self, Standalone, Web, yaml};

const IN_FORCE: &str = "the settings of the configuration file are in force";

#[test]
fn a_wrong_annotation_is_told_and_the_service_is_served() {
    let Some(cluster) = CLUSTER.join("wrong annotations") else { return };
    let mut service = echo("wrong-annotations", "ClusterIP");
    let annotations = [("weir.dev/target", "80"), ("weir.dev/max-split", "0.5"), ("weir.dev/policy", "random")];
    service.metadata.annotations = Some(annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    // Returns when it is served.
    let served = cluster.serve_echo(&service, &[Member::ready(&cluster.world.node(1).pod(1))]);
    let event = cluster.await_event(&served.service, "WrongAnnotation");
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(
        event.note.as_deref(),
        Some(
            "annotation weir.dev/max-split: there is no setting of this name; did you mean max-spill?; it does \
             nothing; annotation weir.dev/target: \"80\" is not a number above 0 and up to 1: write 0.8 for 80 %; the \
             namespace's setting or the default stays in force"
        )
    );
    let about = |line: &&str| line.contains("default/wrong-annotations") && line.contains("weir.dev/");
    for agent in &cluster.agents {
        assert_eq!(agent.log().lines().filter(about).count(), 2, "one line for each annotation");
    }
}

/// A node with a Service and a configuration file, the agent not started yet.
struct Configured {
    node: Standalone,
    config: PathBuf,
    web: Web,
}

impl Configured {
    fn prepared(config: &str) -> Self {
        let web = Web::new("web", 1, &[1]);
        let mut node = Standalone::prepared(1, &yaml(std::slice::from_ref(&web)), &[]);
        let path = std::env::temp_dir().join(format!("{}config.yaml", node.world.prefix()));
        node.agent.set_option(&format!("--config={}", path.display()));
        let configured = Self { node, config: path, web };
        configured.write(config);
        configured
    }

    fn write(&self, text: &str) {
        write(&self.config, text);
    }

    /// Waits until the metrics say that the file is good, or not.
    fn await_good(&self, good: bool) {
        let wanted = || self.node.agent.metric(&self.node.world, "weir_config_good") == f64::from(u8::from(good));
        wait::until(&format!("a configuration that is good: {good}"), SOON, wanted)
            .unwrap_or_else(|e| panic!("{e}\n{}", self.node.agent.log()));
    }

    /// Value and source of an option or setting, as the agent tells them.
    fn effective(&self, scope: &str, name: &str) -> (String, serde_json::Value) {
        let document: serde_json::Value = serde_json::from_str(&self.node.agent.told("/configuration")).unwrap();
        let all = document["values"].as_array().unwrap();
        let found = all.iter().find(|value| value["scope"] == scope && value["name"] == name);
        let found = found.unwrap_or_else(|| panic!("no {name} of {scope} in {document}"));
        (found["value"].as_str().unwrap().to_owned(), found["source"].clone())
    }

    /// Waits until the Service has this policy and target in each of its families.
    fn await_in_force(&self, policy: &str, target: Option<f64>) {
        let look = || {
            let text = self.node.agent.told("/weights?service=default/web");
            let answer: serde_json::Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
            let seen = answer["services"].as_array().into_iter().flatten();
            let seen: Vec<_> = seen.map(|state| (state["policy"].as_str(), state["target"].as_f64())).collect();
            if seen == [(Some(policy), target); 2] { Ok(()) } else { Err(format!("{seen:?}")) }
        };
        wait::until_some(&format!("{policy} up to {target:?}"), SOON, look)
            .unwrap_or_else(|e| panic!("{e}\n{}", self.node.agent.log()));
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.config);
    }
}

/// Puts a new file in the old one's place.
fn write(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

#[test]
fn a_configuration_that_is_broken_while_running_keeps_the_last_good_one() {
    if !standalone::can_run("the configuration file") {
        return;
    }
    let mut configured = Configured::prepared("defaults: {policy: rap}\n");
    configured.node.agent.start_again(&configured.node.world);
    configured.node.agent.await_ready(&configured.node.world);
    configured.await_good(true);
    let lines = |text: &str, configured: &Configured| configured.node.agent.log().matches(text).count();
    assert_eq!(lines(IN_FORCE, &configured), 1);

    let file = configured.config.display().to_string();
    let source = |kind: &str| serde_json::json!({ "kind": kind });
    assert_eq!(configured.effective("agent", "--config"), (file.clone(), source("flag")));
    assert_eq!(configured.effective("agent", "--udp-idle"), ("120".to_owned(), source("default")));
    assert_eq!(configured.effective("agent", "--max-openings"), ("8192".to_owned(), source("node")));
    let from_file = serde_json::json!({ "kind": "file", "path": file });
    assert_eq!(configured.effective("all services", "policy"), ("rap".to_owned(), from_file));

    const MISTAKE: &str = "defaults.polcy: there is no setting of this name; did you mean policy?";
    configured.write("defaults: {polcy: rap}\n");
    configured.await_good(false);
    configured.node.assert_served(&configured.web);
    assert_eq!([IN_FORCE, MISTAKE].map(|text| lines(text, &configured)), [1, 1], "nothing else came into force");
    configured.node.agent.process().signal(Signal::SIGHUP).unwrap();
    wait::until("the mistake told again to who asks for it", SOON, || lines(MISTAKE, &configured) == 2).unwrap();

    configured.write("defaults: {policy: random}\nnamespaces: {shop: {target: 0.5}}\n");
    configured.await_good(true);
    assert_eq!(lines(IN_FORCE, &configured), 2);
}

#[test]
fn the_annotation_the_namespace_and_the_default_are_in_force_in_this_order_while_running() {
    if !standalone::can_run("settings in force") {
        return;
    }
    let mut configured = Configured::prepared("defaults: {policy: rap, target: 0.9}\n");
    configured.node.agent.start_again(&configured.node.world);
    configured.node.agent.await_ready(&configured.node.world);
    configured.await_in_force("rap", Some(0.9));

    configured.write("defaults: {policy: rap, target: 0.9}\nnamespaces: {default: {target: 0.5}}\n");
    configured.await_in_force("rap", Some(0.5));

    let annotated = |annotation: &str| {
        let text = yaml(&[configured.web.clone()]);
        text.replace("    clusterIPs", &format!("    annotations: {{{annotation}}}\n    clusterIPs"))
    };
    configured.node.write(&annotated("weir.dev/policy: random"));
    configured.await_in_force("random", Some(0.5));
    configured.node.write(&annotated(""));
    configured.await_in_force("rap", Some(0.5));

    configured.write("defaults: {policy: ripe, target: 0.9}\n");
    configured.await_good(false);
    configured.await_in_force("rap", Some(0.5));
    configured.write("defaults: {}\n");
    configured.await_in_force("waterfill", None);
}

#[test]
fn at_a_start_a_broken_configuration_is_an_error_that_names_the_mistake() {
    if !standalone::can_run("a broken configuration file") {
        return;
    }
    let mut configured = Configured::prepared("defaults: {target: 80}\n");
    configured.node.agent.find_nothing();
    configured.node.agent.start_again(&configured.node.world);
    let status = configured.node.agent.await_end();
    assert_eq!(status.code(), Some(2));
    configured.node.agent.await_log("--config: ");
    configured.node.agent.await_log("config.yaml: line 1, column 20: defaults.target: \"80\" is not a number above 0");
    assert!(!configured.node.agent.pins.exists(), "the node was not touched");
}
