//! docs/bare-metal.md as it stands: its files and commands, on two machines that are namespaces with mounts and a name
//! of their own, for clients of both families.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod bed;
mod edge;
#[path = "../harness/machine.rs"]
#[allow(dead_code, reason = "pods are no part of the page")]
mod machine;

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use weir_kube_watch::static_file;
use weir_testbed::serve::Server;
use weir_testbed::{require_root, wait};

use bed::{Bed, Clients, assert_all_of};
use edge::Edge;

const PAGE: &str = include_str!("../../../../docs/bare-metal.md");
const EXAMPLE: &str = include_str!("../../../../deploy/static/weir.yaml");

/// Patience with anything that should happen at once.
const SOON: Duration = Duration::from_secs(15);

/// The text between the fences that follow a block's name.
fn block(name: &str) -> &'static str {
    let mark = format!("<!-- block: {name} -->\n```");
    let begin = PAGE.find(&mark).unwrap_or_else(|| panic!("no block {name}")) + mark.len();
    let (_, rest) = PAGE[begin..].split_once('\n').unwrap();
    &rest[..rest.find("```").unwrap()]
}

/// Within how many seconds a dead endpoint is out, by the page.
fn stated() -> Duration {
    let (_, rest) = PAGE.split_once("**within ").unwrap();
    Duration::from_secs(rest.split_once(" seconds**").unwrap().0.parse().unwrap())
}

#[test]
fn the_page_shows_the_file_that_is_delivered_and_promises_no_more_than_its_check_does() {
    assert_eq!(block("file"), EXAMPLE);
    let (_, check) = &static_file::parse(EXAMPLE).unwrap().checks[0];
    assert!(check.longest_until_out() < stated(), "{check:?}");
}

/// The command line, where it is built, and for the same maps.
fn has_weir(what: &str) -> bool {
    let weir = Path::new(env!("CARGO_BIN_EXE_weir-agent")).with_file_name("weir");
    let version = Command::new(weir).arg("version").output().map(|output| String::from_utf8(output.stdout).unwrap());
    let found = version.is_ok_and(|text| text.trim_end().ends_with(&format!("ABI version {}", weir_abi::ABI_VERSION)));
    if !found {
        println!("SKIPPED: {what}: `weir` is not built, or is an older one; run `cargo build -p weir-cli`");
    }
    found
}

#[test]
fn the_page_works_as_it_is_written() {
    if !require_root("the page about bare metal") {
        return;
    }
    let mut bed = Bed::start();
    let [first, _second] = [(0, "edge-1"), (1, "edge-2")].map(|(edge, name)| bed.serve(edge, name, 8080));
    let _third = bed.serve(1, "edge-2-b", 8081);
    // From the beginning: how busy a machine is counts as a mean over seconds.
    if let Some(machine) = &mut bed.edges[0].machine {
        machine.work();
    }
    bed.set_up();
    if has_weir("the page's commands") {
        bed.edges.iter().for_each(|edge| drop(edge.run(block("check"))));
        bed.edges[0].run(block("look"));
    }
    for (edge, peer) in [(0, "edge-2"), (1, "edge-1")] {
        bed.edges[edge].await_metric(&format!("weir_probe_rtt_seconds{{peer=\"{peer}\"}}"), |seconds| seconds > 0.0);
    }

    let mut clients = bed.clients();
    has_too_much_to_do(&mut bed.edges[0], &mut clients);
    web_server_dies(&bed.edges[0], first, &mut clients);
    let _first = file_changes(&bed, &mut clients);
    file_is_broken(&bed.edges[0], &mut clients);
    is_idle_again(&bed.edges[0], &mut clients);
}

/// New connections go to the peer, and nobody notices.
fn has_too_much_to_do(edge: &mut Edge, clients: &mut Clients) {
    if edge.machine.is_none() {
        return;
    }
    clients.await_answers_of("edge-2");
    edge.await_metric("weir_spill_ratio", |part| part > 0.0);
    if has_weir("why connections go to the peer") {
        let shown = edge.run(block("explain"));
        for endpoint in ["192.0.2.12:8080", "[2001:db8:1::12]:8080"] {
            let line = shown.lines().find(|line| line.contains(endpoint));
            assert!(line.is_some_and(|line| !line.ends_with("gets 0 %")), "{shown}");
        }
    }
    if let Some(machine) = &mut edge.machine {
        machine.rest();
    }
}

/// New connections stay on the machine where they come in.
fn is_idle_again(edge: &Edge, clients: &mut Clients) {
    if edge.machine.is_some() {
        edge.await_metric("weir_spill_ratio", |part| part == 0.0);
        assert_all_of(&clients.watch(), "edge-1");
    }
}

/// Its endpoint, which has an address of each family, is out within the time that is stated.
fn web_server_dies(edge: &Edge, server: Server, clients: &mut Clients) {
    drop(server);
    let died = Instant::now();
    thread::sleep(stated().saturating_sub(died.elapsed()));
    assert_all_of(&clients.watch(), "edge-2");
    assert_eq!(edge.metric("weir_failing_endpoints"), Some(2.0));
    if has_weir("the state of a dead endpoint") {
        let shown = edge.run("weir endpoints web");
        for endpoint in ["192.0.2.11:8080", "[2001:db8:1::11]:8080"] {
            let dead = shown.lines().find(|line| line.contains(endpoint));
            assert!(dead.is_some_and(|line| line.contains("draining")), "{shown}");
        }
    }
}

/// A second process is used, and the one that was dead again.
fn file_changes(bed: &Bed, clients: &mut Clients) -> Server {
    bed.edges.iter().for_each(|edge| drop(edge.run(block("add"))));
    clients.await_answers_of("edge-2-b");
    let server = bed.serve(0, "edge-1", 8080);
    clients.await_answers_of("edge-1");
    server
}

/// Nothing changes but what the agent says.
fn file_is_broken(edge: &Edge, clients: &mut Clients) {
    let good = edge.read();
    edge.write(&good.replace("[198.51.100.1,", "[198.51.100,"));
    let (mistake, series) = ("line 17, column 23: loadBalancerIPs", "weir_watch_connected{kind=\"services\"}");
    edge.await_readiness(503, mistake);
    edge.await_metric(series, |connected| connected == 0.0);
    if has_weir("the page's mistake") {
        let output = edge.try_run(block("check"));
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(String::from_utf8(output.stderr).unwrap(), block("mistake"));
    }
    let told = edge.log().matches(mistake).count();
    edge.hang_up();
    wait::until("the mistake to be told again", SOON, || edge.log().matches(mistake).count() > told).unwrap();
    clients.watch();
    edge.write(&good);
    edge.await_readiness(200, "");
    edge.await_metric(series, |connected| connected == 1.0);
}
