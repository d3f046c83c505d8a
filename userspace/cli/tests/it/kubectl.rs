//! `kubectl weir`, with a kubectl that writes down what it is asked, and with the real one before a real API server.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::{Value, json};
use tempfile::TempDir;
use weir_testbed::apiserver::{ApiServer, User};
use weir_testbed::{process, role, wait};

use crate::node::text;

/// A kubectl that notes its words and answers from files. It is never written by this process: what another test's thread
/// forks in that moment would hold it open, and nobody can execute a file that is open for writing (`ETXTBSY`).
const KUBECTL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/fixtures/kubectl.sh");

/// A directory with the plug-in and its kubectl.
struct Plugin {
    dir: TempDir,
}

impl Plugin {
    fn new() -> Self {
        let plugin = Self { dir: tempfile::tempdir().unwrap() };
        symlink(env!("CARGO_BIN_EXE_weir"), plugin.path("kubectl-weir")).unwrap();
        symlink(KUBECTL, plugin.path("kubectl")).unwrap();
        plugin
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Pods by name and node, and what the program in each answers and ends with.
    fn with_pods(self, pods: &[(&str, &str, &str, u8)]) -> Self {
        let pod = |(name, node, ..): &(&str, &str, &str, u8)| {
            json!({
                "metadata": {"name": name, "namespace": "kube-system", "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"nodeName": node, "containers": [{"name": "agent"}]},
            })
        };
        let list = json!({"items": pods.iter().map(pod).collect::<Vec<_>>()});
        fs::write(self.path("pods.json"), list.to_string()).unwrap();
        for (name, _, answer, code) in pods {
            fs::write(self.path(&format!("{name}.answer")), answer).unwrap();
            fs::write(self.path(&format!("{name}.code")), code.to_string()).unwrap();
        }
        self
    }

    fn run(&self, args: &[&str]) -> Output {
        self.run_with(args, &format!("{}:/usr/bin:/bin", self.dir.path().display()))
    }

    fn run_with(&self, args: &[&str], path: &str) -> Output {
        Command::new(self.path("kubectl-weir")).args(args).env("PATH", path).output().unwrap()
    }

    /// What kubectl was asked, a line for each call.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("calls")).unwrap_or_default();
        text.lines().map(|line| line.trim_end_matches('|').replace('|', " ")).collect()
    }
}

/// Far more than anything here takes.
const SOON: Duration = Duration::from_secs(20);

const SELECTOR: &str = "--selector app.kubernetes.io/name=weir,app.kubernetes.io/component=agent";

#[test]
fn the_command_runs_in_the_pod_of_the_node_and_its_answer_and_exit_code_are_the_pods() {
    let plugin = Plugin::new().with_pods(&[("weir-x", "edge-1", "ok\n", 3)]);
    let output = plugin.run(&["services", "web", "-n", "shop", "--node", "edge-1", "-o", "wide", "--context", "lab"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), "ok\n".to_owned()), "{output:?}");
    assert_eq!(
        plugin.calls(),
        [
            format!(
                "--context lab get pods {SELECTOR} --output json --all-namespaces --field-selector \
                 status.phase=Running,spec.nodeName=edge-1"
            ),
            "--context lab exec --namespace kube-system weir-x --container agent -- weir services web -n shop -o wide"
                .to_owned(),
        ]
    );
}

#[test]
fn kubeconfig_namespace_and_labels_lead_the_way() {
    let plugin = Plugin::new().with_pods(&[("weir-x", "edge-1", "", 0)]);
    let way = ["--kubeconfig=/k", "--agent-namespace", "edge", "--agent-selector", "app=other", "--node=edge-1"];
    assert_eq!(plugin.run(&[&way[..], &["status", "--brief"]].concat()).status.code(), Some(0));
    assert_eq!(
        plugin.calls(),
        [
            "--kubeconfig /k get pods --selector app=other --output json --namespace edge --field-selector \
             status.phase=Running,spec.nodeName=edge-1",
            "--kubeconfig /k exec --namespace kube-system weir-x --container agent -- weir status --brief",
        ]
    );
}

#[test]
fn all_nodes_answer_one_after_the_other_and_the_worst_exit_code_counts() {
    let plugin = Plugin::new().with_pods(&[("b", "edge-2", "degraded: links\n", 1), ("a", "edge-1", "ok\n", 0)]);
    let output = plugin.run(&["status", "--brief", "--all-nodes"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "# edge-1\nok\n# edge-2\ndegraded: links\n");
    assert_eq!(text(&output.stderr), "", "the exit code says what kubectl's last line would");
}

#[test]
fn all_nodes_in_json_are_one_document() {
    let plugin = Plugin::new().with_pods(&[("a", "edge-1", r#"{"kind": "Status"}"#, 0), ("b", "edge-2", "", 4)]);
    let output = plugin.run(&["status", "-o", "json", "--all-nodes"]);
    assert_eq!(output.status.code(), Some(4));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&document["apiVersion"], &document["kind"]), (&json!("weir.dev/v1alpha1"), &json!("NodeAnswerList")));
    let items = json!([
        {"node": "edge-1", "exitCode": 0, "answer": {"kind": "Status"}},
        {"node": "edge-2", "exitCode": 4, "answer": null},
    ]);
    assert_eq!(document["items"], items);
}

#[test]
fn a_node_without_an_agent_is_exit_code_4_and_says_how_to_look() {
    let output = Plugin::new().with_pods(&[]).run(&["status", "--node", "edge-9"]);
    assert_eq!(output.status.code(), Some(4));
    let error = text(&output.stderr);
    assert!(error.starts_with("kubectl weir: no pod with the labels") && error.contains("on node edge-9"), "{error}");
    assert!(error.contains("kubectl get pods -A -l"), "{error}");
}

#[test]
fn who_may_not_list_pods_is_told_by_kubectl_and_by_us() {
    let output = Plugin::new().run(&["status", "--all-nodes"]);
    assert_eq!(output.status.code(), Some(3));
    let error = text(&output.stderr);
    assert!(error.contains("Forbidden") && error.contains("it takes `list` on `pods` in all namespaces"), "{error}");
}

#[test]
fn who_may_not_exec_is_told_and_that_is_no_answer_of_a_node() {
    let plugin = Plugin::new().with_pods(&[("a", "edge-1", "ok\n", 0), ("b", "edge-2", "degraded: links\n", 1)]);
    fs::remove_file(plugin.path("a.answer")).unwrap();
    let one = plugin.run(&["status", "--brief", "--node", "edge-1"]);
    assert_eq!((one.status.code(), one.stdout.len()), (Some(3), 0), "{one:?}");
    let all = plugin.run(&["status", "--brief", "--all-nodes"]);
    assert_eq!((all.status.code(), text(&all.stdout)), (Some(3), "# edge-1\n# edge-2\ndegraded: links\n".to_owned()));
    let named = text(&all.stderr);
    assert!(named.contains("kubectl weir: edge-1: kubectl may not"), "{named}");
    for output in [one, all] {
        let error = text(&output.stderr);
        assert!(error.contains("Forbidden") && error.contains("`create` on `pods/exec` in kube-system"), "{error}");
        assert!(!error.contains("kube-system/b"), "{error}");
    }
}

#[test]
fn without_kubectl_it_says_what_to_install() {
    let plugin = Plugin::new();
    let output = plugin.run_with(&["status", "--node", "edge-1"], "/nonexistent");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("no kubectl in the path"), "{output:?}");
}

#[test]
fn a_node_must_be_named_unless_the_command_is_about_none() {
    let plugin = Plugin::new();
    let nowhere = plugin.run(&["services"]);
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(text(&nowhere.stderr).contains("say which node: --node NAME, or --all-nodes"), "{nowhere:?}");
    assert_eq!(plugin.run(&["version"]).status.code(), Some(0));
    assert!(text(&plugin.run(&["completion", "bash"]).stdout).contains("kubectl-weir"));
    for endless in [&["top"][..], &["flows", "-w"], &["weights", "--watch"]] {
        let refused = plugin.run(&[endless, &["--all-nodes"]].concat());
        assert_eq!(refused.status.code(), Some(2), "{endless:?}");
        assert!(text(&refused.stderr).contains("looks at one node"), "{refused:?}");
    }
    assert_eq!(plugin.run(&["services", "--node", "a", "--all-nodes"]).status.code(), Some(2));
    assert_eq!(plugin.calls(), Vec::<String>::new());
}

#[test]
fn a_wrong_option_is_refused_here_and_the_plug_ins_are_unknown_to_weir_itself() {
    let plugin = Plugin::new();
    let wrong = plugin.run(&["services", "--nod", "edge-1"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("kubectl weir services"), "{wrong:?}");
    assert_eq!(plugin.calls(), Vec::<String>::new());
    let weir = Path::new(env!("CARGO_BIN_EXE_weir"));
    let unknown = Command::new(weir).args(["services", "--node", "edge-1"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    let help = text(&plugin.run(&["--help"]).stdout);
    assert!(help.contains("Usage: kubectl weir") && help.contains("--all-nodes"), "{help}");
}

/// An API server with the pods of two nodes' agents, one of which runs, and with another pod. None, loudly, without the
/// programs.
fn cluster(what: &str) -> Option<ApiServer> {
    if !ApiServer::require(what) {
        return None;
    }
    if let Err(error) = process::built("kubectl") {
        eprintln!("SKIPPED: {what}: {error}");
        return None;
    }
    let api = ApiServer::start(None).unwrap();
    let objects = api.objects().unwrap();
    for (name, node, component, phase) in [
        ("weir-1", "edge-1", "agent", "Running"),
        ("weir-2", "edge-2", "agent", "Pending"),
        ("weir-test", "edge-3", "test", "Running"),
    ] {
        let labels = json!({"app.kubernetes.io/name": "weir", "app.kubernetes.io/component": component});
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": labels},
            "spec": {"nodeName": node, "containers": [{"name": "agent", "image": "weir"}]},
            "status": {"phase": phase},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        objects.apply(&pod).unwrap();
        objects.apply_status(&pod).unwrap();
    }
    Some(api)
}

/// Asks for the status of a node, by the real kubectl.
fn status(api: &ApiServer, user: User, node: &str) -> Output {
    let kubeconfig = api.kubeconfig(user, &api.url()).unwrap();
    let plugin = tempfile::tempdir().unwrap();
    let program = plugin.path().join("kubectl-weir");
    symlink(env!("CARGO_BIN_EXE_weir"), &program).unwrap();
    symlink(process::built("kubectl").unwrap(), plugin.path().join("kubectl")).unwrap();
    let mut status = Command::new(&program);
    status.env("PATH", plugin.path());
    status.args(["status", "--node", node, "--kubeconfig"]).arg(&kubeconfig).output().unwrap()
}

#[test]
fn the_real_kubectl_finds_the_agent_of_a_node_and_no_other_pod() {
    let Some(api) = cluster("real kubectl and API server") else { return };
    // There is no kubelet to run it: the pod was found, and somebody asked for.
    let found = status(&api, User::Admin, "edge-1");
    let error = text(&found.stderr);
    assert_eq!((found.status.code(), found.stdout.len()), (Some(2), 0), "{found:?}");
    assert!(error.contains("kubectl cannot run weir in pod default/weir-1") && error.contains("edge-1"), "{error}");
    for node in ["edge-2", "edge-3", "edge-4"] {
        let none = status(&api, User::Admin, node);
        assert_eq!(none.status.code(), Some(4), "{none:?}");
        assert!(text(&none.stderr).contains(&format!("on node {node}")), "{none:?}");
    }
}

#[test]
fn the_real_kubectl_says_which_verb_on_which_resource_is_missing() {
    let Some(api) = cluster("rights of kubectl weir") else { return };
    let objects = api.objects().unwrap();
    let steps: [(&[&str], &str); 3] = [
        (&[], "cannot list resource \"pods\""),
        (&["list"], "cannot get resource \"pods\""),
        (&["list", "get"], "resource \"pods/exec\""),
    ];
    for (verbs, missing) in steps {
        let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let pods = PolicyRule {
            api_groups: Some(owned(&[""])),
            resources: Some(owned(&["pods"])),
            verbs: owned(verbs),
            ..PolicyRule::default()
        };
        let rules = if verbs.is_empty() { Vec::new() } else { vec![pods] };
        role::allow_agent(&objects, rules).unwrap();
        // The server learns of new rights as everybody else does: by a watch.
        let refused = || {
            let refused = status(&api, User::Agent, "edge-1");
            if text(&refused.stderr).contains(missing) { Ok(refused) } else { Err(text(&refused.stderr)) }
        };
        let refused = wait::until_some(missing, SOON, refused).unwrap();
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(3), 0), "{refused:?}");
        let error = text(&refused.stderr);
        assert!(error.contains(User::Agent.name()) && error.contains("kubectl weir: kubectl may not"), "{error}");
    }
}
