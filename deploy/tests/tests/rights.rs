//! What the agent may do with the API: what the chart's role says is what it uses, no more and no less.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use weir_deploy_tests::chart::Helm;
use weir_deploy_tests::manifest::{objects, only};
use weir_deploy_tests::node::Cluster;
use weir_deploy_tests::programs::{HELM, KUBECTL, require};
use weir_testbed::audit::Right;
use weir_testbed::{ApiServer, address, require_root, wait};

/// Every right that a release can have. The fewer flows, the smaller the tables.
const VALUES: &str = "\
apiServer: {kubeconfig: {configMap: kube-proxy}}
mesh: {existingSecret: weir-mesh}
datapath: {podSockets: true, maxFlows: 16384}
metricsServer: {enabled: true}
";

/// The agent's account, as the server has it.
const ACCOUNT: &str = "system:serviceaccount:kube-system:weir";

/// The first question to metrics-server comes after a turn of the agent's own, up to 15 s.
const ASKED: Duration = Duration::from_secs(40);

fn can_run(what: &str) -> bool {
    require_root(what) && require(what, &[HELM, KUBECTL]) && ApiServer::require(what)
}

/// The rights of a role, one by one.
fn granted(role: &Value) -> BTreeSet<Right> {
    let words = |value: &Value| {
        value.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut rights = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        for group in words(&rule["apiGroups"]) {
            for resource in words(&rule["resources"]) {
                for verb in words(&rule["verbs"]) {
                    rights.insert(Right { verb, group: group.clone(), resource: resource.clone() });
                }
            }
        }
    }
    rights
}

/// Something of each kind that the agent has to tell an event about, and endpoints on a node without an agent.
fn what_is_complained_of() -> String {
    let node = address::node(1).v4;
    format!(
        r#"
{{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: default, annotations: {{weir.dev/tagret: "0.8"}}}},
 spec: {{ports: [{{port: 80}}]}}}}
---
{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
 metadata: {{name: web-1, namespace: default, labels: {{kubernetes.io/service-name: web}}}},
 ports: [{{name: "", port: 80, protocol: TCP}}], endpoints: [{{addresses: [10.244.2.1], nodeName: node2}}]}}
---
{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: FQDN,
 metadata: {{name: web-2, namespace: default, labels: {{kubernetes.io/service-name: web}}}},
 ports: [{{name: "", port: 80, protocol: TCP}}], endpoints: [{{addresses: [web.example.net]}}]}}
---
{{apiVersion: networking.k8s.io/v1, kind: ServiceCIDR, metadata: {{name: nodes}}, spec: {{cidrs: [{node}/32]}}}}
---
{{apiVersion: v1, kind: Node, metadata: {{name: node1}}}}
---
{{apiVersion: v1, kind: Node, metadata: {{name: node2}}}}
"#
    )
}

#[test]
fn the_role_holds_the_rights_that_the_agent_uses_and_no_others() {
    if !can_run("the agent's rights") {
        return;
    }
    let manifest = Helm::find().unwrap().render(VALUES).unwrap();
    let mut cluster = Cluster::start().unwrap();
    cluster.apply(&manifest).unwrap();
    cluster.apply(&what_is_complained_of()).unwrap();
    for (node, addresses) in [
        ("node1", format!(r#"[{{"type": "InternalIP", "address": "{}"}}]"#, address::node(1).v4)),
        ("node2", r#"[{"type": "InternalIP", "address": "nowhere"}]"#.to_owned()),
    ] {
        let patch = format!(r#"{{"status": {{"addresses": {addresses}}}}}"#);
        cluster.kubectl(&["patch", "node", node, "--subresource=status", "--type=merge", "-p", &patch]).unwrap();
    }
    cluster.start_agent(&manifest).unwrap();
    cluster.await_readiness(200).unwrap();

    let role = objects(&manifest).unwrap();
    let expected = granted(only(&role, "ClusterRole").unwrap());
    let audit = cluster.api.audit().unwrap();
    let look = || {
        let asked = audit.asked_by(ACCOUNT).map_err(|error| error.to_string())?;
        assert_eq!(asked.refused, BTreeSet::new(), "the role lacks what the agent asks for");
        assert!(asked.allowed.is_subset(&expected), "{:?} comes from elsewhere", &asked.allowed - &expected);
        let unused = &expected - &asked.allowed;
        if unused.is_empty() { Ok(()) } else { Err(format!("never asked for: {unused:?}")) }
    };
    wait::until_some("the use of every right", ASKED, look).unwrap_or_else(|e| panic!("{e}\n{}", cluster.log()));

    let kubeconfig = cluster.kubeconfig_of("kube-system", "weir").unwrap();
    for other in [
        ["get", "secrets"],
        ["create", "pods"],
        ["patch", "nodes"],
        ["update", "services"],
        ["delete", "endpointslices.discovery.k8s.io"],
        ["create", "serviceaccounts/token"],
        ["list", "leases.coordination.k8s.io"],
    ] {
        let asked = [&["auth", "can-i"][..], &other, &["--all-namespaces"]].concat();
        let answer = cluster.kubectl_with(&kubeconfig, &asked);
        assert!(answer.is_err(), "{other:?} is allowed: {answer:?}");
    }
}

#[test]
fn an_agent_without_rights_names_the_verb_and_the_resource_and_goes_on_once_it_has_them() {
    if !can_run("an agent without rights") {
        return;
    }
    let manifest = Helm::find().unwrap().render(VALUES).unwrap();
    let mut cluster = Cluster::start().unwrap();
    cluster.apply(&manifest).unwrap();
    cluster.kubectl(&["delete", "clusterrolebinding", "weir"]).unwrap();
    cluster.start_agent(&manifest).unwrap();
    for (resource, group) in [("services", ""), ("endpointslices", "discovery.k8s.io"), ("nodes", "")] {
        let what = format!(
            "API server does not let us list and watch {resource}: {}: User \\\"{ACCOUNT}\\\" cannot list resource \
             \\\"{resource}\\\" in API group \\\"{group}\\\" at the cluster scope (check the ClusterRole)",
            if group.is_empty() {
                format!("{resource} is forbidden")
            } else {
                format!("{resource}.{group} is forbidden")
            }
        );
        cluster.await_log(&what.replace("\\\"", "\"")).unwrap();
    }
    let told = cluster.await_readiness(503).unwrap();
    assert!(told.contains("cannot list resource"), "{told}");

    cluster.apply(&manifest).unwrap();
    cluster.apply("{apiVersion: v1, kind: Node, metadata: {name: node1}}").unwrap();
    cluster.await_readiness(200).unwrap();
}
