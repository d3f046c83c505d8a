//! `kubectl weir`: the same command, run in the agent's pod of a node. kubectl itself finds the pods and reaches them, with the
//! user's own configuration and rights, whatever way of logging in those name.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, ErrorKind, IsTerminal, Read, Write};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use clap::{ArgMatches, Args, Command as Definition, FromArgMatches};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::args;
use crate::config::ConfigCommand;
use crate::exit::Answer;
use crate::output::{Kind, Output};

/// The program in the agent's container.
const PROGRAM: &str = "weir";
/// Labels of the agents' pods, as the chart gives them.
pub(crate) const AGENTS: &str = "app.kubernetes.io/name=weir,app.kubernetes.io/component=agent";
/// The agent's container, where a pod has several.
const CONTAINER: &str = "agent";
/// What kubectl says, before the number, where it got to the program in the pod and that ended with another code than 0. When
/// kubectl itself fails it ends with 1, which from the pod would be an answer.
const ENDED: &str = "command terminated with exit code ";

/// Which node, and how to get there.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options of the kubectl plug-in")]
pub(crate) struct Remote {
    /// Run in the agent's pod of this node
    #[arg(long, global = true, value_name = "NAME", conflicts_with = "all_nodes")]
    node: Option<String>,
    /// Run in the agents' pods of all nodes, one after the other
    #[arg(long, global = true)]
    all_nodes: bool,
    /// Namespace of the agents [default: all are searched]
    #[arg(long, global = true, value_name = "NAMESPACE")]
    agent_namespace: Option<String>,
    /// Labels of the agents' pods
    #[arg(
        long,
        global = true,
        value_name = "LABELS",
        default_value = AGENTS
    )]
    agent_selector: String,
    /// Context within the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// Kubeconfig file
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<OsString>,
}

/// Options that are for the way and not for the command at its end, with whether they have a value.
const OF_THE_WAY: [(&str, bool); 6] = [
    ("--node", true),
    ("--all-nodes", false),
    ("--agent-namespace", true),
    ("--agent-selector", true),
    ("--context", true),
    ("--kubeconfig", true),
];

/// There is no agent where one was looked for.
#[derive(Debug, Error)]
#[error(
    "no pod with the labels {labels} runs {where_}; `kubectl get pods -A -l {labels} -o wide` shows those that there are"
)]
pub(crate) struct NoPod {
    labels: String,
    where_: String,
}

/// kubectl did not get to the program in the pod. What it says of that stands above.
#[derive(Debug, Error)]
pub(crate) enum NotReached {
    /// The account may not find the pods.
    #[error(
        "kubectl may not list the agents' pods, see above: it takes `list` on `pods` in {0}; see --agent-namespace"
    )]
    List(String),
    /// The account may not run programs in pods.
    #[error(
        "kubectl may not run weir in pod {namespace}/{pod}, see above: it takes `get` on `pods` and `create` on `pods/exec` in \
         {namespace}"
    )]
    Exec {
        /// The pod's namespace.
        namespace: String,
        /// Its name.
        pod: String,
    },
    /// Something else: a node that is away, no way to the API server.
    #[error(
        "kubectl cannot run weir in pod {namespace}/{pod}, see above; `kubectl -n {namespace} get pod {pod} -o wide` shows \
         where that is"
    )]
    Failed {
        /// The pod's namespace.
        namespace: String,
        /// Its name.
        pod: String,
    },
}

impl NotReached {
    /// The exit code.
    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::List(_) | Self::Exec { .. } => 3,
            Self::Failed { .. } => 2,
        }
    }
}

/// Adds the plug-in's options to the command line.
pub(crate) fn with_options(definition: Definition) -> Definition {
    Remote::augment_args(definition)
}

/// Runs the command where it belongs; `None` if that is here.
pub(crate) fn run(
    matches: &ArgMatches,
    command: &args::Command,
    given: &[OsString],
    output: &Output,
) -> Result<Option<Answer>> {
    let remote = Remote::from_arg_matches(matches)?;
    if remote.node.is_none() && !remote.all_nodes {
        if is_about_no_node(command) {
            return Ok(None);
        }
        bail!("say which node: --node NAME, or --all-nodes");
    }
    if remote.all_nodes && is_endless(command) {
        bail!("this goes on until interrupted, and looks at one node: use --node");
    }
    let words = for_the_pod(given);
    let pods = remote.pods()?;
    if remote.all_nodes {
        remote.on_all(&pods, &words, output).map(Some)
    } else {
        remote.on_one(&pods, &words).map(Some)
    }
}

/// Those that look at nothing but what they are given.
const fn is_about_no_node(command: &args::Command) -> bool {
    use args::Command;
    match command {
        Command::Completion { .. }
        | Command::Man { .. }
        | Command::Version
        | Command::Config(ConfigCommand::Check(_)) => true,
        Command::Status(_)
        | Command::Services(_)
        | Command::Endpoints(_)
        | Command::Flows(_)
        | Command::Drops(_)
        | Command::Weights(_)
        | Command::Top(_)
        | Command::Explain(_)
        | Command::Doctor(_)
        | Command::Trace(_)
        | Command::Map(_)
        | Command::Config(ConfigCommand::View(_))
        | Command::Mount(_)
        | Command::Migrate(_)
        | Command::Cleanup(_) => false,
    }
}

fn is_endless(command: &args::Command) -> bool {
    use args::Command;
    match command {
        Command::Top(_) => true,
        Command::Flows(args) => args.watch.watch,
        Command::Drops(args) => args.watch.watch,
        Command::Weights(args) => args.watch.watch,
        _ => false,
    }
}

/// The arguments without those that are for the way. What follows `--` is for the command.
fn for_the_pod(given: &[OsString]) -> Vec<OsString> {
    let mut words = Vec::new();
    let mut given = given.iter();
    while let Some(word) = given.next() {
        let text = word.to_string_lossy();
        let (name, value) = text.split_once('=').map_or((&*text, None), |(name, value)| (name, Some(value)));
        if name == "--" {
            words.push(word.clone());
            words.extend(given.cloned());
            break;
        }
        match OF_THE_WAY.iter().find(|(known, _)| *known == name) {
            None => words.push(word.clone()),
            Some((_, true)) if value.is_none() => drop(given.next()),
            Some(_) => {}
        }
    }
    words
}

/// What kubectl says of pods, as far as it matters.
#[derive(Debug, Deserialize)]
struct PodList {
    items: Vec<Pod>,
}

#[derive(Debug, Deserialize)]
struct Pod {
    metadata: Metadata,
    spec: PodSpec,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    #[serde(default)]
    creation_timestamp: Option<String>,
    #[serde(default)]
    deletion_timestamp: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    #[serde(default)]
    node_name: String,
    containers: Vec<Container>,
}

#[derive(Debug, Deserialize)]
struct Container {
    name: String,
}

/// Where a node's agent is.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Place {
    namespace: String,
    pod: String,
    container: String,
}

/// One pod for each node: while one is replaced that is the newer one, and one that is to stay.
fn places(list: PodList) -> BTreeMap<String, Place> {
    let mut pods = list.items;
    pods.sort_by_key(|pod| (pod.metadata.deletion_timestamp.is_none(), pod.metadata.creation_timestamp.clone()));
    let place = |pod: Pod| {
        let Pod { metadata, spec } = pod;
        let agent = spec.containers.iter().position(|container| container.name == CONTAINER).unwrap_or(0);
        let container = spec.containers.into_iter().nth(agent)?.name;
        Some((spec.node_name, Place { namespace: metadata.namespace, pod: metadata.name, container }))
    };
    // The last one of a node stays.
    pods.into_iter().filter_map(place).collect()
}

/// What one node answered, in JSON of all nodes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeAnswer {
    node: String,
    exit_code: u8,
    /// Null if it answered nothing.
    answer: Option<Value>,
}

#[derive(Debug, Serialize)]
struct NodeAnswers {
    items: Vec<NodeAnswer>,
}

impl Remote {
    /// kubectl with the user's way to the cluster.
    fn kubectl(&self) -> Command {
        let mut kubectl = Command::new("kubectl");
        if let Some(context) = &self.context {
            kubectl.arg("--context").arg(context);
        }
        if let Some(file) = &self.kubeconfig {
            kubectl.arg("--kubeconfig").arg(file);
        }
        kubectl
    }

    /// Where the agents are, by node.
    fn pods(&self) -> Result<BTreeMap<String, Place>> {
        let mut kubectl = self.kubectl();
        kubectl.args(["get", "pods", "--selector", &self.agent_selector, "--output", "json"]);
        match &self.agent_namespace {
            Some(namespace) => kubectl.args(["--namespace", namespace]),
            None => kubectl.arg("--all-namespaces"),
        };
        let on_node = self.node.iter().map(|node| format!(",spec.nodeName={node}")).collect::<String>();
        kubectl.args(["--field-selector", &format!("status.phase=Running{on_node}")]);
        let found = kubectl.stdin(Stdio::null()).output().map_err(not_started)?;
        let said = Said::pass_on(&*found.stderr)?;
        if !found.status.success() {
            if said.refused {
                let all = "all namespaces".to_owned();
                return Err(NotReached::List(self.agent_namespace.clone().unwrap_or(all)).into());
            }
            bail!("kubectl cannot list the agents' pods, see above");
        }
        let list = serde_json::from_slice(&found.stdout).context("kubectl lists pods in a form of its own")?;
        let places = places(list);
        if places.is_empty() {
            let where_ = self.node.as_ref().map_or_else(|| "anywhere".to_owned(), |node| format!("on node {node}"));
            return Err(NoPod { labels: self.agent_selector.clone(), where_ }.into());
        }
        Ok(places)
    }

    fn exec(&self, place: &Place, terminal: bool, words: &[OsString]) -> Command {
        let Place { namespace, pod, container } = place;
        let mut kubectl = self.kubectl();
        kubectl.args(["exec", "--namespace", namespace, pod, "--container", container]);
        if terminal {
            kubectl.args(["--stdin", "--tty"]);
        }
        kubectl.args(["--", PROGRAM]).args(words);
        kubectl
    }

    fn on_one(&self, pods: &BTreeMap<String, Place>, words: &[OsString]) -> Result<Answer> {
        let place = pods.values().next().context("no pod")?;
        // `top` and questions need a terminal; a pipe must get the answer as it is.
        let terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
        let mut child = self.exec(place, terminal, words).stderr(Stdio::piped()).spawn().map_err(not_started)?;
        let said = child.stderr.take().map(Said::pass_on).transpose()?.unwrap_or_default();
        let status = child.wait().context("cannot wait for kubectl")?;
        Ok(Answer::Of(said.exit_code(status, place)?))
    }

    fn on_all(&self, pods: &BTreeMap<String, Place>, words: &[OsString], output: &Output) -> Result<Answer> {
        let (mut worst, mut answers) = (0, Vec::new());
        for (node, place) in pods {
            let mut kubectl = self.exec(place, false, words);
            let asked = kubectl.stdin(Stdio::null()).output().map_err(not_started)?;
            let code = Said::pass_on(&*asked.stderr)?.exit_code(asked.status, place).unwrap_or_else(|why| {
                eprintln!("{}: {node}: {why}", args::PLUG_IN);
                why.code()
            });
            worst = worst.max(code);
            if output.is_json() {
                let answer = serde_json::from_slice(&asked.stdout).ok();
                answers.push(NodeAnswer { node: node.clone(), exit_code: code, answer });
                continue;
            }
            // A comment in YAML, too.
            let separator = if output.is_document() { "---\n" } else { "" };
            output.print(&format!("{separator}# {node}\n{}", String::from_utf8_lossy(&asked.stdout)))?;
        }
        if output.is_json() {
            output.print(&output.document(Kind::NodeAnswerList, &NodeAnswers { items: answers })?)?;
        }
        Ok(Answer::Of(worst))
    }
}

/// What kubectl said, as far as it tells its own failures from those of the program in the pod.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Said {
    /// How the program in the pod ended, if it did.
    ended: Option<u8>,
    /// Whether the API server has refused something.
    refused: bool,
}

impl Said {
    /// Takes a line in. False if it is for nobody but us: the exit code says the same.
    fn hear(&mut self, line: &str) -> bool {
        if let Some(code) = line.strip_prefix(ENDED).and_then(|code| code.trim().parse().ok()) {
            self.ended = Some(code);
            return false;
        }
        self.refused |= line.contains("(Forbidden)") || line.contains(" is forbidden: ");
        true
    }

    /// Hears to the end, and passes on what is for people as it comes.
    fn pass_on(from: impl Read) -> Result<Self> {
        let (mut said, mut from, mut line) = (Self::default(), BufReader::new(from), Vec::new());
        while from.read_until(b'\n', &mut line).context("cannot read what kubectl says")? > 0 {
            if said.hear(&String::from_utf8_lossy(&line)) {
                // Nobody may listen; the answer counts.
                let _ = io::stderr().write_all(&line);
            }
            line.clear();
        }
        Ok(said)
    }

    /// The exit code of the program in the pod.
    fn exit_code(self, kubectl: ExitStatus, place: &Place) -> Result<u8, NotReached> {
        let Place { namespace, pod, .. } = place.clone();
        match self {
            _ if kubectl.success() => Ok(0),
            Self { ended: Some(code), .. } => Ok(code),
            Self { ended: None, refused: true } => Err(NotReached::Exec { namespace, pod }),
            Self { ended: None, refused: false } => Err(NotReached::Failed { namespace, pod }),
        }
    }
}

fn not_started(cause: io::Error) -> anyhow::Error {
    if cause.kind() == ErrorKind::NotFound {
        return anyhow::anyhow!("there is no kubectl in the path: install it, or run `weir` on the node");
    }
    anyhow::Error::new(cause).context("cannot start kubectl")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn options_of_the_way_stay_here_and_all_others_go_to_the_pod() {
        let passed = |text: &str| {
            let passed = for_the_pod(&words(text));
            passed.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(passed("services -A --node edge-1 -o wide"), "services -A -o wide");
        assert_eq!(passed("--node=edge-1 services web -n shop"), "services web -n shop");
        assert_eq!(passed("--context a --kubeconfig=/b status --brief --all-nodes"), "status --brief");
        assert_eq!(
            passed("--agent-namespace ns flows --agent-selector a=b --service shop/web"),
            "flows --service shop/web"
        );
        assert_eq!(passed("services -- --node"), "services -- --node");
    }

    #[test]
    fn what_the_program_in_the_pod_ends_with_is_told_from_what_kubectl_fails_at() {
        let hear = |lines: &[&str]| {
            let mut said = Said::default();
            let passed: Vec<_> = lines.iter().filter(|line| said.hear(line)).copied().collect();
            (said, passed.len())
        };
        assert_eq!(
            hear(&["no pinned maps\n", "command terminated with exit code 4\n"]),
            (Said { ended: Some(4), refused: false }, 1)
        );
        let forbidden =
            "Error from server (Forbidden): pods \"weir-x\" is forbidden: User \"joe\" cannot create resource";
        assert_eq!(hear(&[forbidden]), (Said { ended: None, refused: true }, 1));
        assert_eq!(hear(&["error: unable to upgrade connection\n"]), (Said::default(), 1));
    }

    #[test]
    fn each_node_has_one_agent_the_newest_that_is_to_stay() {
        let pod = |name: &str, node: &str, created: &str, deleted: Option<&str>, containers: &[&str]| {
            let containers: Vec<Value> = containers.iter().map(|name| serde_json::json!({"name": name})).collect();
            serde_json::json!({
                "metadata": {"name": name, "namespace": "kube-system", "creationTimestamp": created, "deletionTimestamp": deleted},
                "spec": {"nodeName": node, "containers": containers},
            })
        };
        let list = serde_json::json!({"items": [
            pod("new", "edge-1", "2026-01-02T00:00:00Z", None, &["log", "agent"]),
            pod("old", "edge-1", "2026-01-01T00:00:00Z", None, &["agent"]),
            pod("going", "edge-2", "2026-01-03T00:00:00Z", Some("2026-01-04T00:00:00Z"), &["agent"]),
            pod("staying", "edge-2", "2026-01-01T00:00:00Z", None, &["weir"]),
        ]});
        let places = places(serde_json::from_value(list).unwrap());
        let seen: Vec<_> =
            places.iter().map(|(node, place)| (node.as_str(), place.pod.as_str(), place.container.as_str())).collect();
        assert_eq!(seen, [("edge-1", "new", "agent"), ("edge-2", "staying", "weir")]);
    }
}
