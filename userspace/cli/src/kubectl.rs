//! `kubectl weir`: the same command, run in the agent's pod of a node. kubectl itself finds the pods and reaches them, with the
//! user's own configuration and rights, whatever way of logging in those name.

mod pods;
mod said;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, ErrorKind, IsTerminal};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::{ArgMatches, Args, Command as Definition, FromArgMatches};
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use self::pods::{Place, places};
pub(crate) use self::said::NotReached;
use self::said::Said;
use crate::args;
use crate::config::ConfigCommand;
use crate::exit::Answer;
use crate::output::{Kind, Output};

/// The program in the agent's container.
const PROGRAM: &str = "weir";
/// Labels of the agents' pods, as the chart gives them.
pub(crate) const AGENTS: &str = "app.kubernetes.io/name=weir,app.kubernetes.io/component=agent";

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
}
