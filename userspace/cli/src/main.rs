//! `weir`, also called as `kubectl weir`: arguments in, rows out. What is shown is read from the pinned maps.

mod agent;
mod args;
mod cleanup;
mod decode;
mod drops;
mod endpoints;
mod exit;
mod explain;
mod flows;
mod index;
mod links;
mod maps;
mod output;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod sample;
mod services;
mod share;
mod status;
mod time;
mod watch;
mod weights;

use std::convert::Infallible;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches};
use serde::Serialize;
use weir_datapath::{PinDir, View};

use args::{Cli, Command, FlowsArgs, MapCommand, Watch, WeightsArgs};
use exit::Answer;
use output::Output;

fn main() -> ExitCode {
    let program = std::env::args_os().next();
    let name = args::invoked_as(program.as_deref());
    let matches = Cli::command().bin_name(name).get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    match run(&cli, name) {
        Ok(answer) => answer.code(),
        Err(error) => match exit::code_of(&error) {
            None => ExitCode::SUCCESS,
            Some(code) => {
                eprintln!("{name}: {error:#}");
                ExitCode::from(code)
            }
        },
    }
}

fn run(cli: &Cli, name: &str) -> Result<Answer> {
    let output = Output::new(&cli.global);
    let pins = PinDir::new(&cli.global.pin_dir);
    let open = || View::open(pins.clone());
    match &cli.command {
        Command::Status(args) => status::run(&open()?, args, &output),
        Command::Services(args) => services::run(&open()?, args, &output),
        Command::Endpoints(args) => endpoints::run(&open()?, args, &output),
        Command::Flows(args @ FlowsArgs { watch: Watch { watch: false, .. }, .. }) => {
            flows::run(&open()?, args, &output)
        }
        // Opened anew each time: an agent that starts with other sizes replaces the maps.
        Command::Flows(args) => {
            forever(watch::repeat(args.watch, output, |output| flows::frame(&open()?, args, output))?)
        }
        Command::Drops(args) => {
            let mut drops = drops::Drops::default();
            if args.watch.watch {
                return forever(watch::repeat(args.watch, output, |output| drops.frame(&open()?, args, output))?);
            }
            let text = drops.frame(&open()?, args, &output)?;
            if text.is_empty() && output.is_table() {
                eprintln!("no packet was {}", if args.all { "seen" } else { "dropped or refused" });
            }
            output.print(&text)?;
            Ok(Answer::Yes)
        }
        Command::Weights(args @ WeightsArgs { watch: Watch { watch: false, .. }, .. }) => weights::run(args, &output),
        Command::Weights(args) => forever(watch::repeat(args.watch, output, |output| weights::frame(args, output))?),
        Command::Explain(args) => explain::run(args, &output),
        Command::Map(MapCommand::List) => maps::list(&open()?, &output),
        Command::Map(MapCommand::Dump { name, raw }) => maps::dump(&open()?, name, *raw, &output),
        Command::Cleanup(args) => cleanup::run(&pins, args, &output),
        Command::Completion { shell } => completion(*shell, name, &output),
        Command::Version => version(&output),
    }
}

const fn forever(never: Infallible) -> Result<Answer> {
    match never {}
}

fn completion(shell: clap_complete::Shell, name: &str, output: &Output) -> Result<Answer> {
    let mut script = Vec::new();
    // What the shell completes is the name of the file.
    clap_complete::generate(shell, &mut Cli::command(), name.replace(' ', "-"), &mut script);
    output.print(&String::from_utf8_lossy(&script))?;
    Ok(Answer::Yes)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    version: &'static str,
    abi_version: u32,
}

fn version(output: &Output) -> Result<Answer> {
    let version = Version { version: env!("CARGO_PKG_VERSION"), abi_version: weir_abi::ABI_VERSION };
    let text = if output.is_document() {
        output.document("Version", &version)?
    } else {
        format!("weir {}, maps of ABI version {}\n", version.version, version.abi_version)
    };
    output.print(&text)?;
    Ok(Answer::Yes)
}
