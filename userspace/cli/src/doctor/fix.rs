//! What mends a finding. The same mistake is mended in another place where the agent is a unit of the node than where it is a
//! pod, whose image holds nothing but Weir.

use std::env;
use std::fs;

use crate::kubectl::AGENTS;

/// The kubelet gives it to every container.
const IN_A_POD: &str = "KUBERNETES_SERVICE_HOST";
/// Names of the pod's node and namespace: the chart sets one, the kubelet writes the other.
const NODE: &str = "NODE_NAME";
const NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// Where the chart belongs, unless the pod says otherwise.
const USUAL_NAMESPACE: &str = "kube-system";
/// The label of all that the chart makes.
const NAME: &str = "app.kubernetes.io/name=weir";
/// The chart in the tree, and the value for an option that it sets anyway: twice would be refused.
const CHART: &str = "deploy/helm/weir";
const VALUES: [(&str, &str); 1] = [("--max-flows", "datapath.maxFlows")];

/// Where the command runs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) enum Site {
    /// On the node itself.
    #[default]
    Node,
    /// In a container of the agent's pod.
    Pod {
        /// The pod's namespace.
        namespace: String,
        /// The node that it runs on.
        node: String,
    },
}

impl Site {
    /// Where this process runs.
    pub(crate) fn here() -> Self {
        if env::var_os(IN_A_POD).is_none() {
            return Self::Node;
        }
        let namespace = fs::read_to_string(NAMESPACE).unwrap_or_else(|_| USUAL_NAMESPACE.to_owned());
        Self::Pod { namespace, node: env::var(NODE).unwrap_or_else(|_| "NODE".to_owned()) }
    }

    /// Whether it is a container, which sees of the node what its capabilities and its image let it.
    pub(crate) const fn is_pod(&self) -> bool {
        matches!(self, Self::Pod { .. })
    }
}

/// What mends a finding.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Fix {
    /// A command for a shell of root on the node.
    OnNode(String),
    /// A command for where kubectl and Helm are used.
    OfCluster(String),
    /// The agent's restart, and its start where it does not run.
    Restart {
        /// Whether it runs.
        running: bool,
    },
    /// A look at what the agent has said last.
    ReadLog,
    /// The agent with this option.
    Option {
        /// Its name, with dashes.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// The chart with this value, as `KEY=VALUE`.
    Value(&'static str),
    /// The file systems that Weir needs.
    Mount,
    /// The same mesh key everywhere; here it is in this file.
    SameKey(String),
}

impl From<&str> for Fix {
    fn from(command: &str) -> Self {
        Self::OnNode(command.to_owned())
    }
}

impl From<String> for Fix {
    fn from(command: String) -> Self {
        Self::OnNode(command)
    }
}

impl Fix {
    /// As somebody at this place can do it.
    pub(crate) fn command(&self, site: &Site) -> String {
        match site {
            Site::Node => self.on_node(),
            Site::Pod { namespace, node } => self.in_pod(namespace, node),
        }
    }

    fn on_node(&self) -> String {
        match self {
            Self::OnNode(command) | Self::OfCluster(command) => command.clone(),
            Self::Restart { running: true } => "systemctl restart weir-agent".to_owned(),
            Self::Restart { running: false } => "systemctl start weir-agent".to_owned(),
            Self::ReadLog => "journalctl -u weir-agent -n 50".to_owned(),
            Self::Option { name, value } => format!("weir-agent {name} {value}"),
            Self::Value(value) => upgrade(USUAL_NAMESPACE, value),
            Self::Mount => "weir mount".to_owned(),
            Self::SameKey(file) => format!("sha256sum {file}"),
        }
    }

    fn in_pod(&self, namespace: &str, node: &str) -> String {
        let pods = format!("-l {AGENTS} --field-selector spec.nodeName={node}");
        let upgrade = |value: &str| upgrade(namespace, value);
        match self {
            Self::OnNode(command) => format!("on the node: {command}"),
            Self::OfCluster(command) => command.clone(),
            Self::Restart { .. } => format!("kubectl -n {namespace} delete pod {pods}"),
            Self::ReadLog => {
                format!("kubectl -n {namespace} logs --tail 50 $(kubectl -n {namespace} get pod {pods} -o name)")
            }
            Self::Option { name, value } => match VALUES.iter().find(|(option, _)| option == name) {
                Some((_, key)) => upgrade(&format!("{key}={value}")),
                None => upgrade(&format!("'extraArgs={{{name}={value}}}'")),
            },
            Self::Value(value) => upgrade(value),
            Self::Mount => upgrade("mountFilesystems=true"),
            // Those that started before their Secret changed have the old one.
            Self::SameKey(_) => format!("kubectl -n {namespace} rollout restart daemonset -l {NAME}"),
        }
    }
}

/// The command that sets a value of the chart.
fn upgrade(namespace: &str, value: &str) -> String {
    format!("helm upgrade weir {CHART} --namespace {namespace} --reuse-values --set {value}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_chart_lies_where_it_is_said_to_and_has_the_values() {
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(CHART);
        let values = fs::read_to_string(chart.join("values.yaml")).unwrap();
        let keys = VALUES.iter().map(|(_, value)| value.rsplit('.').next().unwrap());
        for key in keys.chain(["extraArgs", "mountFilesystems", "host"]) {
            assert!(values.lines().any(|line| line.trim_start().starts_with(&format!("{key}:"))), "{key}");
        }
        let template = fs::read_to_string(chart.join("templates/daemonset.yaml")).unwrap();
        assert!(template.contains(&format!("- name: {NODE}\n")), "{NODE}");
    }

    #[test]
    fn a_pod_is_mended_from_outside_and_its_node_on_the_node() {
        let pod = Site::Pod { namespace: "edge".to_owned(), node: "edge-1".to_owned() };
        let pods =
            "-l app.kubernetes.io/name=weir,app.kubernetes.io/component=agent --field-selector spec.nodeName=edge-1";
        let option = |name| Fix::Option { name, value: "200".to_owned() };
        for (fix, on_node, in_pod) in [
            ("sysctl -w a=1".into(), "sysctl -w a=1", "on the node: sysctl -w a=1".to_owned()),
            (Fix::OfCluster("kubectl get x".to_owned()), "kubectl get x", "kubectl get x".to_owned()),
            (
                Fix::Restart { running: true },
                "systemctl restart weir-agent",
                format!("kubectl -n edge delete pod {pods}"),
            ),
            (
                Fix::Restart { running: false },
                "systemctl start weir-agent",
                format!("kubectl -n edge delete pod {pods}"),
            ),
            (
                Fix::ReadLog,
                "journalctl -u weir-agent -n 50",
                format!("kubectl -n edge logs --tail 50 $(kubectl -n edge get pod {pods} -o name)"),
            ),
            (
                option("--max-services"),
                "weir-agent --max-services 200",
                upgrade("edge", "'extraArgs={--max-services=200}'"),
            ),
            (option("--max-flows"), "weir-agent --max-flows 200", upgrade("edge", "datapath.maxFlows=200")),
            (
                Fix::Value("apiServer.host=A"),
                "helm upgrade weir deploy/helm/weir --namespace kube-system --reuse-values --set apiServer.host=A",
                upgrade("edge", "apiServer.host=A"),
            ),
            (Fix::Mount, "weir mount", upgrade("edge", "mountFilesystems=true")),
            (
                Fix::SameKey("/etc/weir/key".to_owned()),
                "sha256sum /etc/weir/key",
                "kubectl -n edge rollout restart daemonset -l app.kubernetes.io/name=weir".to_owned(),
            ),
        ] {
            assert_eq!(fix.command(&Site::Node), on_node);
            assert_eq!(fix.command(&pod), in_pod);
        }
    }
}
