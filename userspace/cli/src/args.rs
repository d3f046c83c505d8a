//! The command line's definition: help, completion and `docs/cli.md` come from here.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use weir_datapath::DEFAULT_PIN_DIR;
use weir_telemetry::admin::default_path;

use crate::doctor::DoctorArgs;
use crate::top::TopArgs;
use crate::trace::TraceArgs;

use crate::config::ConfigCommand;

pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0  the command did what it was asked
  1  the answer is no: degraded, or no such object
  2  wrong usage, or an error while it ran
  3  not allowed: run it as root on the node
  4  nothing is pinned on this node, or no weir-agent answers where only it knows";

/// Shows and cleans up what Weir does on this node.
///
/// It reads the maps that are pinned in the kernel, so it works while weir-agent is dead, starting or of no use.
#[derive(Debug, Parser)]
#[command(name = "weir", version, after_help = EXIT_CODES, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// What all commands share.
    #[command(flatten)]
    pub(crate) global: Global,
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Args, Debug)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Directory of the pins, on a BPF file system
    #[arg(long, global = true, env = "WEIR_PIN_DIR", default_value = DEFAULT_PIN_DIR, value_name = "DIR")]
    pub(crate) pin_dir: PathBuf,
    /// Unix socket of weir-agent [default: that of the pin directory, /run/weir/agent.sock]
    #[arg(long, global = true, env = "WEIR_ADMIN_SOCKET", value_name = "FILE")]
    pub(crate) socket: Option<PathBuf>,
    /// Form of the answer; tables are for people and may change, json and yaml are for scripts
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table, value_name = "FORM")]
    pub(crate) output: Format,
    /// Leave the column names out
    #[arg(long, global = true)]
    pub(crate) no_headers: bool,
    /// Colour the answer; NO_COLOR is honoured
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub(crate) color: Color,
}

impl Global {
    /// Where the agent answers.
    pub(crate) fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| default_path(&self.pin_dir))
    }
}

/// Form of an answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Format {
    /// Columns
    Table,
    /// More columns
    Wide,
    /// One JSON document
    Json,
    /// One YAML document
    Yaml,
    /// Names alone
    Name,
}

/// When to colour.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say how Weir fares on this node, one line for each part of it
    #[command(
        after_help = "Examples:\n  weir status\n  weir status --wait 60\n  weir status --brief || systemctl status weir-agent"
    )]
    Status(StatusArgs),
    /// List service ports: addresses, endpoints, where new flows went
    #[command(visible_alias = "svc", after_help = "Examples:\n  weir services -A\n  weir services web -n shop -o wide")]
    Services(ServicesArgs),
    /// List endpoints, and the share of new flows that each one gets from this node
    #[command(
        visible_alias = "ep",
        after_help = "Examples:\n  weir endpoints web -n shop\n  weir endpoints shop/web -o json"
    )]
    Endpoints(EndpointsArgs),
    /// List flows: who talks to which endpoint through which address
    #[command(after_help = "Examples:\n  weir flows --service shop/web\n  weir flows -w")]
    Flows(FlowsArgs),
    /// Count packets that were dropped or refused, by hook and reason
    #[command(after_help = "Examples:\n  weir drops -w\n  weir drops -a -o json")]
    Drops(DropsArgs),
    /// Show how new flows are divided among nodes by their load, as the agent last decided
    #[command(after_help = "Examples:\n  weir weights -A -w\n  weir weights shop/web -o json")]
    Weights(WeightsArgs),
    /// Watch nodes, services and refused packets live, on the whole terminal; `?` explains the keys
    #[command(after_help = "Examples:\n  weir top\n  weir top --interval 5")]
    Top(TopArgs),
    /// Say in words and numbers why a service's new flows go where they go
    #[command(
        after_help = "Of one client, with its session affinity, source ranges and traffic policy: weir trace.\n\nExamples:\n  weir explain shop/web\n  weir explain web -n shop -o json"
    )]
    Explain(ExplainArgs),
    /// Check what Weir needs of this node, and what may be in its way: each line says how to mend it
    #[command(after_help = "Exit code 1: something fails.\n\nExamples:\n  weir doctor\n  weir doctor --quiet -o json")]
    Doctor(DoctorArgs),
    /// Try what the programs in the kernel do with a client's packet, and say why; nothing is sent, and nothing of it stays
    #[command(
        after_help = "Exit code 1: the packet is not translated.\n\nExamples:\n  weir trace 10.244.1.7 10.96.0.20:80/tcp\n  weir trace 192.0.2.7 203.0.113.7:53/udp --hook nic_in -o json"
    )]
    Trace(TraceArgs),
    /// Look into the kernel's maps
    #[command(subcommand)]
    Map(MapCommand),
    /// Check the agent's files before an agent reads them
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Mount the file systems that Weir needs, where the node lacks them
    #[command(after_help = "Example:\n  weir mount")]
    Mount(crate::mount::MountArgs),
    /// Move this node from kube-proxy to Weir, or back, while connections go on: docs/migration.md
    #[command(after_help = "Examples:\n  weir migrate --dry-run\n  weir migrate --wait 300\n  weir migrate --rollback")]
    Migrate(crate::migrate::MigrateArgs),
    /// Detach every program and remove every pin; services are no longer served on this node
    #[command(after_help = "Examples:\n  weir cleanup --dry-run\n  weir cleanup --yes")]
    Cleanup(CleanupArgs),
    /// Write a completion script for a shell
    #[command(after_help = "Example:\n  weir completion bash > /etc/bash_completion.d/weir")]
    Completion {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write manual pages; packages have them
    #[command(hide = true)]
    Man {
        /// A directory
        directory: PathBuf,
    },
    /// Print the version of this program and of the maps that it reads
    Version,
}

/// Options of `status`.
#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    /// One line: ok, or what is degraded
    #[arg(long)]
    pub(crate) brief: bool,
    /// Patience with what is degraded or not there yet: the answer comes as soon as all is well, or after so long
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub(crate) wait: u32,
    /// Where the stage of a migration is kept.
    #[command(flatten)]
    pub(crate) state: crate::migrate::StateDir,
}

/// Options of `services`.
#[derive(Args, Debug)]
pub(crate) struct ServicesArgs {
    /// Only this service: NAME or NAMESPACE/NAME
    pub(crate) name: Option<String>,
    /// Where to look.
    #[command(flatten)]
    pub(crate) scope: Scope,
}

/// Options of `endpoints`.
#[derive(Args, Debug)]
pub(crate) struct EndpointsArgs {
    /// Only of this service: NAME or NAMESPACE/NAME
    pub(crate) service: Option<String>,
    /// Where to look.
    #[command(flatten)]
    pub(crate) scope: Scope,
}

/// Namespaces to look at.
#[derive(Args, Clone, Debug)]
pub(crate) struct Scope {
    /// The namespace
    #[arg(short, long, default_value = "default")]
    pub(crate) namespace: String,
    /// All namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
}

/// Options of `flows`.
#[derive(Args, Debug)]
pub(crate) struct FlowsArgs {
    /// Only of this service: NAME or NAMESPACE/NAME
    #[arg(long)]
    pub(crate) service: Option<String>,
    /// Namespace of the service
    #[arg(short, long, default_value = "default")]
    pub(crate) namespace: String,
    /// How often.
    #[command(flatten)]
    pub(crate) watch: Watch,
}

/// Options of `weights`.
#[derive(Args, Debug)]
pub(crate) struct WeightsArgs {
    /// Only of this service: NAME or NAMESPACE/NAME
    pub(crate) service: Option<String>,
    /// Where to look.
    #[command(flatten)]
    pub(crate) scope: Scope,
    /// How often.
    #[command(flatten)]
    pub(crate) watch: Watch,
}

/// Options of `explain`.
#[derive(Args, Debug)]
pub(crate) struct ExplainArgs {
    /// The service: NAME or NAMESPACE/NAME
    pub(crate) service: String,
    /// Its namespace
    #[arg(short, long, default_value = "default")]
    pub(crate) namespace: String,
}

/// Options of `drops`.
#[derive(Args, Debug)]
pub(crate) struct DropsArgs {
    /// All reasons, those of packets that passed or were translated too
    #[arg(short, long)]
    pub(crate) all: bool,
    /// How often.
    #[command(flatten)]
    pub(crate) watch: Watch,
}

/// Repetition.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Watch {
    /// Repeat until interrupted
    #[arg(short, long)]
    pub(crate) watch: bool,
    /// Seconds between two answers of --watch
    #[arg(long, default_value_t = 1, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) interval: u32,
}

/// Commands of `map`.
#[derive(Debug, Subcommand)]
pub(crate) enum MapCommand {
    /// List the maps, how full they are and what their entries take
    #[command(visible_alias = "ls")]
    List,
    /// Print the entries of a map: addresses as text, ports in host order
    #[command(after_help = "Examples:\n  weir map dump backends\n  weir map dump flows4 --raw")]
    Dump {
        /// Name of the map
        name: String,
        /// As bytes; empty entries of arrays are left out
        #[arg(long)]
        raw: bool,
    },
}

/// Options of `cleanup`.
#[derive(Args, Debug)]
pub(crate) struct CleanupArgs {
    /// Only say what would be removed
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Even while an agent runs; stop it first unless it hangs
    #[arg(long)]
    pub(crate) force: bool,
    /// Whose stage is forgotten: an agent that is installed once more begins anew
    #[command(flatten)]
    pub(crate) state: crate::migrate::StateDir,
}

/// What users of the plug-in write.
pub(crate) const PLUG_IN: &str = "kubectl weir";

/// What the program is called by: users of the kubectl plug-in see `kubectl weir`.
pub(crate) fn invoked_as(program: Option<&OsStr>) -> &'static str {
    let file = program.and_then(|program| Path::new(program).file_stem());
    if file.is_some_and(|file| file == "kubectl-weir") { PLUG_IN } else { "weir" }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_kubectl_plug_in_is_called_kubectl_weir() {
        assert_eq!(invoked_as(Some(OsStr::new("/usr/local/bin/kubectl-weir"))), "kubectl weir");
        assert_eq!(invoked_as(Some(OsStr::new("target/debug/weir"))), "weir");
        assert_eq!(invoked_as(None), "weir");
    }
}
