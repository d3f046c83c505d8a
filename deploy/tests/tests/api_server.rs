//! The chart and the manifests on a real API server.

#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use weir_deploy_tests::chart::{Helm, NAMESPACE, RELEASE};
use weir_deploy_tests::programs::{HELM, KUBECTL, require, root};
use weir_deploy_tests::server::Server;
use weir_testbed::ApiServer;

const IN_PLACE: &str = "apiServer: {host: api.example.net}";

/// Kinds of the Prometheus operator, as loose as they can be.
const MONITORING_KINDS: &str = r#"
{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: servicemonitors.monitoring.coreos.com},
 spec: {group: monitoring.coreos.com, scope: Namespaced,
  names: {kind: ServiceMonitor, plural: servicemonitors, singular: servicemonitor},
  versions: [{name: v1, served: true, storage: true,
   schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}
"#;

fn can_run(what: &str) -> bool {
    require(what, &[HELM, KUBECTL]) && ApiServer::require(what)
}

/// The mesh's key, in base64 as the API has it.
fn key(server: &Server) -> String {
    server.kubectl(&["-n", NAMESPACE, "get", "secret", "weir-mesh", "-o", "jsonpath={.data.key}"]).unwrap()
}

#[test]
fn the_api_server_takes_every_object_and_knows_every_field() {
    if !can_run("manifests on the API server") {
        return;
    }
    let server = Server::start().unwrap();
    let helm = Helm::of_cluster(server.kubeconfig()).unwrap();
    let everything = "datapath: {podSockets: true}\nmetricsServer: {enabled: true}\nmountFilesystems: true\n\
                      config: {defaults: {target: 0.8}}\nextraArgs: [--no-tcx]";
    for values in [IN_PLACE.to_owned(), "serviceProxyName: weir".to_owned(), format!("{IN_PLACE}\n{everything}")] {
        let said = server.apply(&helm.render(&values).unwrap()).unwrap();
        assert!(said.contains("daemonset.apps/weir"), "{said}");
    }
    server.apply(&helm.render_tests(IN_PLACE).unwrap()).unwrap();
    for overlay in ["kubeadm", "k3s", "beside-kube-proxy"] {
        let directory = root().join("deploy/kustomize/overlays").join(overlay).display().to_string();
        let words = ["apply", "--validate=strict", "--server-side", "--force-conflicts", "-k", &directory];
        let said = server.kubectl(&words).unwrap();
        assert!(said.contains("daemonset.apps/weir"), "{overlay}: {said}");
    }
    let single = std::fs::read_to_string(root().join("deploy/weir.yaml")).unwrap();
    server.apply(&single).unwrap();
}

#[test]
fn the_meshs_key_is_drawn_once_and_outlives_upgrades_and_the_release() {
    if !can_run("the mesh's key") {
        return;
    }
    let server = Server::start().unwrap();
    let helm = Helm::of_cluster(server.kubeconfig()).unwrap();
    let told = helm.upgrade(IN_PLACE).unwrap();
    assert!(told.contains("rollout status daemonset/weir"), "{told}");
    let drawn = key(&server);
    assert_eq!(drawn.len(), 60, "32 random bytes in base64, twice");

    helm.upgrade(&format!("{IN_PLACE}\nspread: random")).unwrap();
    assert_eq!(key(&server), drawn, "an upgrade keeps it");
    let args = "jsonpath={.spec.template.spec.containers[0].args}";
    let options = server.kubectl(&["-n", NAMESPACE, "get", "daemonset", "weir", "-o", args]).unwrap();
    assert!(options.contains("--spread=random"), "{options}");

    let error = helm.upgrade(&format!("{IN_PLACE}\nspread: all")).unwrap_err().to_string();
    assert!(error.contains("/spread"), "{error}");
    let options_now = server.kubectl(&["-n", NAMESPACE, "get", "daemonset", "weir", "-o", args]).unwrap();
    assert_eq!(options_now, options, "wrong values change nothing");

    helm.uninstall().unwrap();
    assert_eq!(key(&server), drawn, "it outlives the release: nodes whose agents are older still use it");
    let gone = server.kubectl(&["-n", NAMESPACE, "get", "daemonset", RELEASE]).unwrap_err().to_string();
    assert!(gone.contains("not found"), "{gone}");
    helm.upgrade(IN_PLACE).unwrap();
    assert_eq!(key(&server), drawn, "the next release finds it again");
}

#[test]
fn a_key_that_is_being_replaced_stays_as_somebody_wrote_it() {
    if !can_run("two keys") {
        return;
    }
    let server = Server::start().unwrap();
    let helm = Helm::of_cluster(server.kubeconfig()).unwrap();
    helm.upgrade(IN_PLACE).unwrap();
    let patch = r#"{"stringData": {"key": "0123456789abcdef0123456789abcdef\nfedcba9876543210fedcba9876543210\n"}}"#;
    server.kubectl(&["-n", NAMESPACE, "patch", "secret", "weir-mesh", "--type=merge", "-p", patch]).unwrap();
    let written = key(&server);
    helm.upgrade(&format!("{IN_PLACE}\nlog: {{level: debug}}")).unwrap();
    assert_eq!(key(&server), written);
}

#[test]
fn a_release_with_objects_for_the_prometheus_operator_is_installed_where_its_kinds_are() {
    if !can_run("monitoring") {
        return;
    }
    let server = Server::start().unwrap();
    let helm = Helm::of_cluster(server.kubeconfig()).unwrap();
    let values = format!("{IN_PLACE}\nmonitoring: {{serviceMonitor: {{enabled: true}}}}");
    let error = helm.upgrade(&values).unwrap_err().to_string();
    assert!(error.contains("ServiceMonitor"), "{error}");
    server.apply(MONITORING_KINDS).unwrap();
    server.kubectl(&["wait", "--for=condition=Established", "--all", "crd", "--timeout=30s"]).unwrap();
    helm.upgrade(&values).unwrap();
}
