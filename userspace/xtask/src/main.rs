//! Development tasks, for `make`: the demo, the benchmarks and the conformance tests.

mod bench_packet;
mod bench_sync;
mod benchmark;
mod claim;
mod conformance;
mod cpu;
mod demo;
mod flood;
mod guard;
mod health;
mod killed_pod;
mod mesh_key;
mod origin;
mod papers;
mod progress;
mod requirements;
mod section;
mod serve_http;
mod service_file;
mod sim;
mod soak;
mod spread;
mod steering;
mod ticks;
mod world;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Development tasks of Weir; `make help` lists the verbs that start them.
#[derive(Debug, Parser)]
#[command(name = "xtask", version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

/// The tasks.
#[derive(Debug, Subcommand)]
enum Task {
    /// Three edge nodes in network namespaces, real requests, and where they go
    Demo(demo::Options),
    /// Nanoseconds per packet, by BPF_PROG_RUN
    BenchPacket(bench_packet::Options),
    /// From the API server to the maps, with thousands of services
    BenchSync(bench_sync::Options),
    /// The papers' figures, beside real kube-proxy
    BenchPapers(papers::Options),
    /// Connections from end to end, beside real kube-proxy and no service at all
    BenchWorld(world::Options),
    /// How fast shares follow the load, what it costs, and that no connection breaks
    BenchSteering(steering::Options),
    /// Open and new connections beside a flood of SYNs
    BenchFlood(flood::Options),
    /// New connections while a pod is gone without a word
    BenchKilledPod(killed_pod::Options),
    /// A cluster in use while everything in it changes
    Soak(soak::Options),
    /// Every policy in every scenario of the simulator, in virtual time
    Sim(sim::Options),
    /// Kubernetes' own tests of services, on a cluster in network namespaces
    Conformance(conformance::Options),
    /// An upgrade of the chart on such a cluster, under load
    Rollout(conformance::rollout::RolloutOptions),
    /// Write docs/conformance.md from the results of the last runs
    ConformanceReport(conformance::report::Options),
    /// The server of a pod; other tasks start it
    #[command(hide = true)]
    ServeHttp(serve_http::Options),
    /// Connections that stay open; other tasks start it
    #[command(hide = true)]
    HoldConnections(steering::Held),
}

fn main() -> ExitCode {
    let result = match Cli::parse().task {
        Task::Demo(options) => demo::run(options),
        Task::BenchPacket(options) => bench_packet::run(&options),
        Task::BenchSync(options) => bench_sync::run(options),
        Task::BenchPapers(options) => papers::run(&options),
        Task::BenchWorld(options) => world::run(&options),
        Task::BenchSteering(options) => steering::run(&options),
        Task::BenchFlood(options) => flood::run(&options),
        Task::BenchKilledPod(options) => killed_pod::run(&options),
        Task::Soak(options) => soak::run(&options),
        Task::Sim(options) => sim::run_all(&options),
        Task::Conformance(options) => conformance::run(&options),
        Task::Rollout(options) => conformance::rollout::run(&options),
        Task::ConformanceReport(options) => conformance::report::run(&options),
        Task::ServeHttp(options) => serve_http::run(&options),
        Task::HoldConnections(options) => steering::hold(&options),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
