//! The manifests for those without Helm: current, and the same as the chart.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::path::Path;

use serde_json::Value;
use weir_deploy_tests::chart::Helm;
use weir_deploy_tests::generated::assert_current;
use weir_deploy_tests::manifest::{objects, without_helm};
use weir_deploy_tests::programs::{HELM, KUBECTL, require, root, run};
use weir_deploy_tests::server::kubectl;

/// The key is everybody's own to draw, in all of them.
const KEY: &str = "mesh: {existingSecret: weir-mesh}";
/// What the base is made of. Overlays lead past the API server's Service.
const BASE: &str = "apiServer: {viaService: true}";
/// What each overlay stands for.
const OVERLAYS: [(&str, &str); 3] = [
    ("kubeadm", "apiServer: {kubeconfig: {configMap: kube-proxy}}"),
    ("k3s", "apiServer: {host: 127.0.0.1, port: 6444}"),
    ("beside-kube-proxy", "serviceProxyName: weir"),
];

fn rendered(helm: &Helm, values: &str) -> String {
    without_helm(&helm.render(&format!("{KEY}\n{values}")).unwrap())
}

/// By kind and name, since Kustomize has an order of its own.
fn sorted(manifest: &str) -> Vec<Value> {
    let mut all = objects(manifest).unwrap();
    all.sort_by_key(|object| (object["kind"].to_string(), object["metadata"]["name"].to_string()));
    all
}

#[test]
fn the_base_and_the_single_manifest_are_what_the_chart_makes() {
    if !require("the manifests", &[HELM]) {
        return;
    }
    let helm = Helm::find().unwrap();
    let base = format!("# Written from the chart: `make manifests`.\n{}", rendered(&helm, BASE));
    assert_current("deploy/kustomize/base/weir.yaml", &base);
    let [(_, kubeadm), ..] = OVERLAYS;
    assert_current("deploy/weir.yaml", &format!("{HEADER}{}", rendered(&helm, kubeadm)));
}

#[test]
fn each_overlay_is_what_the_chart_makes_of_the_same_values() {
    if !require("the overlays", &[HELM, KUBECTL]) {
        return;
    }
    let helm = Helm::find().unwrap();
    for (overlay, values) in OVERLAYS {
        let directory = root().join("deploy/kustomize/overlays").join(overlay);
        // It asks no cluster.
        let built = run(kubectl(Path::new("/nonexistent")).unwrap().arg("kustomize").arg(&directory)).unwrap();
        assert_eq!(sorted(&built), sorted(&rendered(&helm, values)), "{overlay}");
    }
}

const HEADER: &str = "\
# Weir in place of kube-proxy, on clusters of kubeadm: agents read the API server's address from the ConfigMap that kubeadm
# made for kube-proxy. Elsewhere set WEIR_API_SERVERS in its place, as deploy/kustomize/overlays/k3s does.
#
# Agents share a key, by which they know each other. It is yours to draw, once; pods wait for it:
#   kubectl -n kube-system create secret generic weir-mesh --from-literal=key=\"$(openssl rand -base64 32)\"
#
# Written from the chart: `make manifests`.
";
