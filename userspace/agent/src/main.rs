//! `weir-agent`: wiring only. What it decides is in `weir-core`, what it does in the crates below it.

mod admin;
mod args;
mod channel;
mod configuration;
mod effective;
mod endpoint_checks;
mod health_checks;
mod host;
mod man;
mod metrics;
mod netlink;
mod node_ports;
mod page;
mod pod_sockets;
mod pressure;
mod probes;
mod run;
mod service_manager;
mod sockets;
mod source_ports;
mod stage;
mod steering;
mod writer;

use std::process::ExitCode;

fn main() -> ExitCode {
    host::share_one_heap();
    let (options, values) = effective::parse();
    if options.man.wanted {
        return match man::print() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("weir-agent: {error:#}");
                ExitCode::from(2)
            }
        };
    }
    if let Err(error) = weir_telemetry::logging::init(&options.process.log, options.process.log_format) {
        eprintln!("weir-agent: {error}");
        return ExitCode::from(2);
    }
    match run::run(options, values) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::from(2)
        }
    }
}
