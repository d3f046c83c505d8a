//! `weir-agent`: wiring only. What it decides is in `weir-core`, what it does in the crates below it.

mod args;
mod configuration;
mod health_checks;
mod host;
mod metrics;
mod netlink;
mod node_ports;
mod pod_sockets;
mod pressure;
mod probes;
mod run;
mod sockets;
mod source_ports;
mod steering;
mod writer;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let options = args::Options::parse();
    if let Err(error) = weir_telemetry::logging::init(&options.process.log, options.process.log_format) {
        eprintln!("weir-agent: {error}");
        return ExitCode::from(2);
    }
    match run::run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::from(2)
        }
    }
}
