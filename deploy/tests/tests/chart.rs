//! The chart: what it makes of values, and which it refuses.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use weir_core::policies;
use weir_core::settings::Key;
use weir_core::table_sizes::TableSizes;
use weir_deploy_tests::chart::{Helm, directory};
use weir_deploy_tests::generated::assert_current;
use weir_deploy_tests::manifest::{names, objects, only};
use weir_deploy_tests::programs::{HELM, ours, require, run};
use weir_deploy_tests::values;

/// As on most clusters.
const IN_PLACE: &str = "apiServer: {host: api.example.net}";
/// Where kube-proxy stays.
const BESIDE: &str = "serviceProxyName: weir";
/// Every value another than its default.
const EVERYTHING: &str = r#"
image: {repository: registry.example.net/weir, digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", architecture: arm64, pullPolicy: Always}
imagePullSecrets: [{name: registry}]
apiServer: {kubeconfig: {configMap: kube-proxy}}
mesh: {port: 4099, existingSecret: our-key}
spread: random
config:
  defaults: {target: 0.75, max-rtt: 20ms}
  namespaces: {shop: {policy: least-conn, max-spill: 0.5, relies-on: database, request-class: H--}}
services:
  nodePortAddresses: [primary, localhost, 192.0.2.0/24, "2001:db8::/64"]
  masquerade: external
  externalIPs: false
  echoReplies: true
datapath:
  xdp: false
  interfaces: [eth0, "bond*"]
  ignoredInterfaces: [docker0]
  podSockets: true
  hostBypass: true
  maxFlows: 1048576
mountFilesystems: true
health: {host: "2001:db8::1", port: 8080}
metrics: {host: 192.0.2.1, port: 9090, services: 50}
page: {enabled: false}
log: {level: "info,weir_mesh=debug", format: json}
metricsServer: {enabled: true}
monitoring:
  serviceMonitor: {enabled: true, interval: 30s, labels: {release: prometheus}}
  rules: {enabled: true, labels: {release: prometheus}, manual: "https://git.example.net/weir/docs/"}
  dashboard: {enabled: true}
resources: {requests: {cpu: 1, memory: 2Gi}, limits: {cpu: 1, memory: 2Gi}}
maxUnavailable: 10%
minReadySeconds: 0
priorityClassName: our-class
nodeSelector: {edge: "true"}
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: weir, operator: NotIn, values: ["off"]}]}]}}}
tolerations: [{key: edge, operator: Exists, effect: NoSchedule}]
seLinux: {}
podLabels: {team: net}
podAnnotations: {example.net/scrape: "no"}
extraArgs: [--node-cgroup=/edge, --udp-idle=60]
extraEnv: [{name: RUST_BACKTRACE, value: "1"}]
extraVolumes: [{name: extra, emptyDir: {}}]
extraVolumeMounts: [{name: extra, mountPath: /extra}]
nameOverride: balancer
fullnameOverride: edge-balancer
"#;

/// Helm, or a word on why there is none.
fn helm(what: &str) -> Option<Helm> {
    require(what, &[HELM]).then(|| Helm::find().unwrap())
}

/// The DaemonSet's pods.
fn pods(manifest: &str) -> Value {
    only(&objects(manifest).unwrap(), "DaemonSet").unwrap()["spec"]["template"].clone()
}

/// A manifest without the alerts and the dashboard, which are files of the chart as they stand.
fn without_files(manifest: &str) -> String {
    let is_file = |object: &&str| ["/prometheusrule.yaml", "/dashboard.yaml"].iter().any(|name| object.contains(name));
    manifest.split("---\n").filter(|object| !is_file(object)).collect::<Vec<_>>().join("---\n")
}

#[test]
fn the_chart_makes_these_objects_of_these_values() {
    let Some(helm) = helm("the chart's objects") else { return };
    let mut settings = insta::Settings::clone_current();
    // Drawn anew each time.
    settings.add_filter(r"(?m)^  key: [A-Za-z0-9+/]{59}=$", "  key: (random)");
    settings.set_omit_expression(true);
    settings.bind(|| {
        for (name, values) in
            [("in_place_of_kube_proxy", IN_PLACE), ("beside_kube_proxy", BESIDE), ("everything", EVERYTHING)]
        {
            insta::assert_snapshot!(name, without_files(&helm.render(values).unwrap()));
        }
        insta::assert_snapshot!("helm_test", helm.render_tests(IN_PLACE).unwrap());
        insta::assert_snapshot!("notes", helm.notes(IN_PLACE).unwrap());
        insta::assert_snapshot!(
            "notes_beside_kube_proxy",
            helm.notes(&format!("{BESIDE}\nmesh: {{enabled: false}}")).unwrap()
        );
    });
}

#[test]
fn lint_has_nothing_to_say() {
    let Some(helm) = helm("helm lint") else { return };
    for values in [IN_PLACE, BESIDE, EVERYTHING] {
        let said = helm.lint(values).unwrap();
        assert!(said.contains("0 chart(s) failed") && !said.contains("[WARNING]"), "{said}");
    }
}

#[test]
fn a_wrong_value_is_refused_by_its_name_before_anything_is_installed() {
    let Some(helm) = helm("wrong values") else { return };
    for (wrong, said) in [
        // Typos, at the top and below.
        ("imgae: {tag: v1}", &["imgae"] as &[&str]),
        ("apiServer: {hots: 192.0.2.1}", &["/apiServer", "hots"]),
        ("config: {defaults: {tagret: 0.8}}", &["/config/defaults", "tagret"]),
        // Types.
        ("apiServer: {host: 192.0.2.1, port: \"6443\"}", &["/apiServer/port", "integer"]),
        ("mesh: {enabled: maybe}", &["/mesh/enabled", "boolean"]),
        ("extraArgs: --no-xdp", &["/extraArgs", "array"]),
        // Ranges.
        ("apiServer: {host: 192.0.2.1, port: 65536}", &["/apiServer/port", "65,535"]),
        ("mesh: {port: 0}", &["/mesh/port", "minimum"]),
        ("config: {defaults: {target: 80}}", &["/config/defaults/target", "maximum"]),
        ("maxUnavailable: 0", &["/maxUnavailable"]),
        ("updateStrategy: Recreate", &["/updateStrategy", "OnDelete"]),
        ("datapath: {maxFlows: 15}", &["/datapath/maxFlows"]),
        // Words.
        ("spread: local", &["/spread", "local-first"]),
        ("config: {namespaces: {shop: {policy: waterfal}}}", &["/config/namespaces/shop/policy", "waterfill"]),
        ("services: {nodePortAddresses: [everywhere]}", &["/services/nodePortAddresses/0"]),
        ("image: {digest: \"sha256:abc\"}", &["/image/digest"]),
        ("monitoring: {rules: {manual: docs}}", &["/monitoring/rules/manual"]),
        ("log: {level: \"info # and more\"}", &["/log/level"]),
        ("serviceProxyName: not a label", &["/serviceProxyName"]),
        ("apiServer: {host: \"https://192.0.2.1:6443\"}", &["/apiServer/host"]),
        // Right ones that do not go together.
        ("{}", &["apiServer.host is missing", "kubectl cluster-info", "kube-proxy"]),
        ("apiServer: {host: 192.0.2.1, viaService: true}", &["apiServer.host and apiServer.viaService"]),
        ("{apiServer: {host: a}, services: {externalMode: dsr}, mesh: {enabled: false}}", &["mesh.enabled=true"]),
        ("{apiServer: {host: a}, services: {externalMode: dsr, masquerade: all}}", &["services.masquerade"]),
        ("{serviceProxyName: weir, services: {externalMode: dsr}}", &["serviceProxyName"]),
        (
            "{apiServer: {host: a}, metrics: {host: 127.0.0.1}, monitoring: {serviceMonitor: {enabled: true}}}",
            &["metrics.host"],
        ),
    ] {
        let error = helm.render(wrong).map_err(|error| error.to_string()).expect_err(wrong);
        for part in said {
            assert!(error.contains(part), "{wrong}: {part:?} is not in\n{error}");
        }
    }
}

#[test]
fn the_kubeconfig_of_kube_proxy_is_in_its_own_namespace_alone() {
    let Some(helm) = helm("the kubeconfig of kube-proxy") else { return };
    let install = |namespace: &str, name: &str| {
        let name = format!("apiServer.kubeconfig.configMap={name}");
        helm.installed_by(&["weir", "deploy/helm/weir", "--namespace", namespace, "--set", &name])
    };
    install("kube-system", "kube-proxy").unwrap();
    install("edge", "our-own").unwrap();
    let error = install("edge", "kube-proxy").unwrap_err().to_string();
    assert!(error.contains("pods in edge would wait"), "{error}");
}

#[test]
fn agents_go_to_nodes_of_the_images_architecture_unless_the_labels_say_otherwise() {
    let Some(helm) = helm("architectures") else { return };
    for (values, selected) in [
        ("", json!({"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"})),
        ("image: {architecture: \"\"}", json!({"kubernetes.io/os": "linux"})),
        (
            "nodeSelector: {kubernetes.io/arch: arm64, edge: \"true\"}",
            json!({"kubernetes.io/os": "linux", "kubernetes.io/arch": "arm64", "edge": "true"}),
        ),
    ] {
        let values = format!("{IN_PLACE}\n{values}");
        assert_eq!(pods(&helm.render(&values).unwrap())["spec"]["nodeSelector"], selected, "{values}");
        let test = helm.render_tests(&values).unwrap();
        assert_eq!(only(&objects(&test).unwrap(), "Pod").unwrap()["spec"]["nodeSelector"], selected, "{values}");
    }
}

#[test]
fn the_schema_knows_the_keys_of_the_values_and_no_others() {
    let text = fs::read_to_string(directory().join("values.yaml")).unwrap();
    let schema: Value =
        serde_json::from_str(&fs::read_to_string(directory().join("values.schema.json")).unwrap()).unwrap();
    let documented = values::documented(&text).unwrap();
    let children = |path: &[String]| {
        let of = documented.iter().filter(|one| one.path.len() == path.len() + 1 && one.path.starts_with(path));
        let mut names: Vec<_> = of.filter_map(|one| one.path.last().cloned()).collect();
        names.sort();
        names
    };
    let mut sections: Vec<Vec<String>> =
        documented.iter().filter(|one| one.default.is_none()).map(|one| one.path.clone()).collect();
    sections.push(Vec::new());
    for section in sections {
        let place = section.iter().fold(&schema, |place, key| &place["properties"][key]);
        assert_eq!(place["additionalProperties"], false, "typos in {} pass", section.join("."));
        let mut known: Vec<_> = place["properties"].as_object().unwrap().keys().cloned().collect();
        // Helm's own.
        known.retain(|key| !(section.is_empty() && key == "global"));
        known.sort();
        assert_eq!(known, children(&section), "{}", section.join("."));
    }
}

#[test]
fn the_schema_knows_the_settings_of_the_configuration_file() {
    let text = fs::read_to_string(directory().join("values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&text).unwrap();
    let settings = &schema["definitions"]["settings"]["properties"];
    let mut known: Vec<_> = settings.as_object().unwrap().keys().cloned().collect();
    known.sort();
    let mut all = Key::ALL.map(|key| key.name().to_owned()).to_vec();
    all.sort();
    assert_eq!(known, all);
    assert_eq!(settings["policy"]["enum"], json!(policies::Kind::ALL.map(policies::Kind::name)));
}

#[test]
fn every_value_is_described_and_the_readme_says_so() {
    let text = fs::read_to_string(directory().join("values.yaml")).unwrap();
    assert_eq!(values::undocumented(&text).unwrap(), [""; 0]);
    let readme = include_str!("chart_readme.in").replace("@VALUES@", &values::table(&text).unwrap());
    assert_current("deploy/helm/weir/README.md", &readme);
}

#[test]
fn the_agent_takes_every_option_and_setting_that_the_chart_gives_it() {
    let Some(helm) = helm("the agent's options") else { return };
    let agent = ours("weir-agent", "weir-agent").unwrap();
    for values in [IN_PLACE, BESIDE, EVERYTHING] {
        let manifest = helm.render(values).unwrap();
        let container = &pods(&manifest)["spec"]["containers"][0];
        let options = container["args"].as_array().unwrap().iter().map(|option| option.as_str().unwrap());
        // Options are read in their order, and only who has read them all gives help.
        run(Command::new(&agent).args(options).arg("--help")).unwrap();
    }
    let all = objects(&helm.render(EVERYTHING).unwrap()).unwrap();
    let config = all.iter().find_map(|object| object["data"]["config.yaml"].as_str()).unwrap();
    let settings = weir_kube_watch::settings_file::parse(config).unwrap();
    assert_eq!(settings.namespaces.len(), 1);
}

#[test]
fn agents_have_the_rights_that_they_need_on_the_node_and_no_more() {
    let Some(helm) = helm("the agents' rights on the node") else { return };
    for values in [IN_PLACE, BESIDE, EVERYTHING] {
        let pods = pods(&helm.render(values).unwrap());
        let spec = &pods["spec"];
        let agent = &spec["containers"][0]["securityContext"];
        assert_eq!(agent["capabilities"], json!({"drop": ["ALL"], "add": ["BPF", "NET_ADMIN", "PERFMON"]}));
        assert_eq!(agent["allowPrivilegeEscalation"], false);
        assert_eq!(agent["readOnlyRootFilesystem"], true);
        assert_eq!(agent["privileged"], Value::Null);
        assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        assert_eq!((&spec["hostPID"], &spec["hostIPC"]), (&Value::Null, &Value::Null));
        let privileged = spec["initContainers"].as_array().map_or(0, Vec::len);
        assert_eq!(privileged, usize::from(values == EVERYTHING), "only who mounts is privileged");
    }
}

#[test]
fn agents_are_the_last_to_be_evicted_and_probed_at_loopback() {
    let Some(helm) = helm("the agents' class") else { return };
    for values in [IN_PLACE, EVERYTHING] {
        let spec = pods(&helm.render(values).unwrap())["spec"].clone();
        for list in ["containers", "initContainers"] {
            for container in spec[list].as_array().into_iter().flatten() {
                let resources = &container["resources"];
                assert_eq!(resources["limits"], resources["requests"], "QoS class Guaranteed");
                assert!(!resources["limits"]["cpu"].is_null() && !resources["limits"]["memory"].is_null());
            }
        }
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            assert_eq!(spec["containers"][0][probe]["httpGet"]["host"], "127.0.0.1", "{probe}");
        }
        let health = spec["containers"][0]["args"].as_array().unwrap().iter().find_map(|option| {
            let addresses = option.as_str()?.strip_prefix("--health-address=")?;
            Some(addresses.split(',').any(|one| one.starts_with("127.0.0.1:") || one.starts_with("0.0.0.0:")))
        });
        assert_eq!(health, Some(true), "the agent answers where probes ask");
    }
    let default = pods(&helm.render(IN_PLACE).unwrap());
    assert_eq!(default["spec"]["priorityClassName"], "system-node-critical");
    assert_eq!(default["spec"]["tolerations"], json!([{"operator": "Exists"}]));
}

#[test]
fn who_chooses_the_order_of_an_upgrade_and_leaves_the_tables_size_to_the_node_can() {
    let Some(helm) = helm("updates by hand") else { return };
    let manifest = helm.render(&format!("{IN_PLACE}\nupdateStrategy: OnDelete\ndatapath: {{maxFlows: 0}}\n")).unwrap();
    let all = objects(&manifest).unwrap();
    let agents = only(&all, "DaemonSet").unwrap();
    assert_eq!(agents["spec"]["updateStrategy"], json!({"type": "OnDelete"}));
    let args = agents["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    assert!(!args.contains("--max-flows"), "{args}");
}

#[test]
fn health_and_metrics_are_told_in_both_families_where_that_is_asked_for() {
    let Some(helm) = helm("addresses of both families") else { return };
    let values = format!("{IN_PLACE}\nhealth: {{host: \"*\"}}\nmetrics: {{host: \"*\"}}\n");
    let args = pods(&helm.render(&values).unwrap())["spec"]["containers"][0]["args"].to_string();
    assert!(args.contains("--health-address=0.0.0.0:10256,[::]:10256"), "{args}");
    assert!(args.contains("--metrics-address=0.0.0.0:10249,[::]:10249"), "{args}");
}

#[test]
fn the_tables_of_the_default_size_take_less_than_half_of_the_memory_that_an_agent_may_use() {
    let text = fs::read_to_string(directory().join("values.yaml")).unwrap();
    let values: Value = serde_saphyr::from_str(&text).unwrap();
    let flows = u32::try_from(values["datapath"]["maxFlows"].as_u64().unwrap()).unwrap();
    let limit = values["resources"]["limits"]["memory"].as_str().unwrap().strip_suffix("Mi").unwrap();
    let limit = limit.parse::<u64>().unwrap() << 20;
    // The rest is for the other tables, 40 MiB, and for the agent itself, 74 MiB with ten thousand Services.
    assert!(TableSizes::beside(flows, u32::MAX).bytes() < limit / 2);
}

#[test]
fn metrics_stay_on_the_node_unless_prometheus_is_to_read_them() {
    let Some(helm) = helm("the address of metrics") else { return };
    for (values, address) in
        [("", "127.0.0.1:10249"), ("monitoring: {serviceMonitor: {enabled: true}}", "0.0.0.0:10249,[::]:10249")]
    {
        let pods = pods(&helm.render(&format!("{IN_PLACE}\n{values}")).unwrap());
        let options = &pods["spec"]["containers"][0]["args"];
        assert!(options.as_array().unwrap().contains(&format!("--metrics-address={address}").into()), "{options}");
    }
}

#[test]
fn alerts_and_dashboard_are_the_charts_files_word_for_word() {
    let Some(helm) = helm("alerts and dashboard") else { return };
    let values = format!("{IN_PLACE}\nmonitoring: {{rules: {{enabled: true}}, dashboard: {{enabled: true}}}}");
    let all = objects(&helm.render(&values).unwrap()).unwrap();
    let file = |name: &str| fs::read_to_string(directory().join("files").join(name)).unwrap();
    let rules: Value = serde_saphyr::from_str(&file("rules.yaml")).unwrap();
    assert_eq!(only(&all, "PrometheusRule").unwrap()["spec"], rules);
    let dashboard = all.iter().find_map(|object| object["data"]["weir.json"].as_str()).unwrap();
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(parse(dashboard), parse(&file("dashboard.json")));
}

#[test]
fn runbooks_are_links_once_the_chart_knows_where_the_manual_is() {
    let Some(helm) = helm("links to runbooks") else { return };
    let all = objects(&helm.render(EVERYTHING).unwrap()).unwrap();
    let rules = only(&all, "PrometheusRule").unwrap()["spec"]["groups"][0]["rules"].as_array().unwrap();
    let manual = "https://git.example.net/weir/docs/troubleshoot.md#";
    for rule in rules {
        let runbook = rule["annotations"]["runbook_url"].as_str().unwrap();
        assert!(runbook.starts_with(manual) && runbook.len() > manual.len(), "{}: {runbook}", rule["alert"]);
    }
}

#[test]
fn a_changed_configuration_rolls_the_agents_and_only_that_does() {
    let Some(helm) = helm("the checksum of the configuration") else { return };
    let of = |values: &str| pods(&helm.render(&format!("{IN_PLACE}\n{values}")).unwrap());
    let before = of("config: {defaults: {target: 0.7}}");
    assert_eq!(before, of("config: {defaults: {target: 0.7}}\nmonitoring: {dashboard: {labels: {a: b}}}"));
    assert_ne!(before["metadata"], of("config: {defaults: {target: 0.8}}")["metadata"]);
}

#[test]
fn a_release_of_another_name_or_namespace_has_roles_of_its_own() {
    let Some(helm) = helm("names of roles") else { return };
    let all = names(&objects(&helm.render(IN_PLACE).unwrap()).unwrap());
    assert!(all.contains(&"ClusterRole/weir".to_owned()), "{all:?}");
    let all = names(&objects(&helm.render(&format!("{IN_PLACE}\nfullnameOverride: edge")).unwrap()).unwrap());
    assert!(all.contains(&"ClusterRole/edge".to_owned()), "{all:?}");
}
