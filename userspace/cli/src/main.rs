//! `weir`, also called as `kubectl weir`: arguments in, rows out. What is shown is read from the pinned maps.

mod agent;
mod args;
mod cleanup;
mod config;
mod config_view;
mod decode;
mod doctor;
mod drops;
mod endpoints;
mod exit;
mod explain;
mod flows;
mod index;
mod interfaces;
mod kubectl;
mod leftovers;
mod links;
mod man;
mod maps;
mod migrate;
mod mount;
mod output;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod sample;
mod services;
mod share;
mod status;
mod time;
mod top;
mod trace;
mod watch;
mod weights;

use std::convert::Infallible;
use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use serde::Serialize;
use weir_datapath::{PinDir, View};

use args::{Cli, Command, FlowsArgs, MapCommand, Watch, WeightsArgs};
use exit::Answer;
use output::{Kind, Output};

fn main() -> ExitCode {
    let program = std::env::args_os().next();
    let name = args::invoked_as(program.as_deref());
    let matches = definition(name).get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    match run(&cli, &matches, name) {
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

/// The command line of the program by this name.
fn definition(name: &'static str) -> clap::Command {
    let definition = Cli::command().bin_name(name);
    if name == args::PLUG_IN { kubectl::with_options(definition) } else { definition }
}

fn run(cli: &Cli, matches: &ArgMatches, name: &'static str) -> Result<Answer> {
    let output = Output::new(&cli.global);
    if name == args::PLUG_IN {
        let given: Vec<OsString> = std::env::args_os().skip(1).collect();
        if let Some(answer) = kubectl::run(matches, &cli.command, &given, &output)? {
            return Ok(answer);
        }
    }
    let pins = PinDir::new(&cli.global.pin_dir);
    let socket = cli.global.socket();
    let open = || View::open(pins.clone());
    match &cli.command {
        Command::Status(args) => status::run(open, args, &socket, &output),
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
        Command::Weights(args @ WeightsArgs { watch: Watch { watch: false, .. }, .. }) => {
            weights::run(args, &socket, &output)
        }
        Command::Weights(args) => {
            forever(watch::repeat(args.watch, output, |output| weights::frame(args, &socket, output))?)
        }
        Command::Top(args) => top::run(*args, &pins, &socket, &output),
        Command::Explain(args) => explain::run(args, &socket, &output),
        Command::Doctor(args) => doctor::run(&pins, args, &socket, &output),
        Command::Trace(args) => trace::run(&pins, args, &socket, &output),
        Command::Map(MapCommand::List) => maps::list(&open()?, &output),
        Command::Map(MapCommand::Dump { name, raw }) => maps::dump(&open()?, name, *raw, &output),
        Command::Config(command) => config::run(command, &socket, &output),
        Command::Mount(args) => mount::run(args, &output),
        Command::Migrate(args) => migrate::run(&pins, args, &output),
        Command::Cleanup(args) => cleanup::run(&pins, args, &output),
        Command::Completion { shell } => completion(*shell, name, &output),
        Command::Man { directory } => man::write(&Cli::command(), directory).map(|()| Answer::Yes),
        Command::Version => version(&output),
    }
}

const fn forever(never: Infallible) -> Result<Answer> {
    match never {}
}

fn completion(shell: clap_complete::Shell, name: &'static str, output: &Output) -> Result<Answer> {
    let mut script = Vec::new();
    // What the shell completes is the name of the file.
    clap_complete::generate(shell, &mut definition(name), name.replace(' ', "-"), &mut script);
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
        output.document(Kind::Version, &version)?
    } else {
        format!("weir {}, maps of ABI version {}\n", version.version, version.abi_version)
    };
    output.print(&text)?;
    Ok(Answer::Yes)
}
