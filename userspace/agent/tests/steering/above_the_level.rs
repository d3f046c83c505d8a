//! Load above the level goes to the nearest node and comes home again; nobody who is connected notices.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Stdio};
use weir_testbed::Netns;
use weir_testbed::load::{Load, Report, RunningLoad};

use crate::bed::{Bed, SETTLED, Web};
use crate::harness::SOON;

/// Connections that stay open.
const OPEN: usize = 10_000;
/// New connections per second meanwhile.
const RATE: u32 = 80;

#[test]
fn load_above_the_level_goes_to_the_nearest_node_and_home_again_and_breaks_no_connection() {
    let local = Web { more: "internalTrafficPolicy: Local", ..Web::new("local", 2) };
    let Some(mut bed) = Bed::start("spilling", &[Web::new("web", 1), local.clone()], &[]) else { return };
    let web = Web::new("web", 1);
    let pod = bed.world.node(1).pod(1);
    let load = Load::http(web.http()).concurrency(16).rate(RATE);
    let mut asked = load.start(pod.netns()).unwrap();
    let kept = load_of(&bed, &local);
    raise_file_limit();
    let mut open = Holder::start(pod.netns(), web.echo());

    // Below the level all stays.
    bed.await_that("a decision", SOON, || {
        bed.service(1, "web").filter(|s| !s["sets"][0].is_null()).ok_or_else(String::new)
    });
    assert_eq!(next_second(&bed, &mut asked).share("node1-pod1"), 1.0);

    bed.machines[0].work();
    bed.await_that("the overflow on the nearest node", SETTLED, || {
        let shares = bed.shares(1, "web");
        let good = shares["node1"] < 0.7 && shares["node2"] > 0.15 && shares["node2"] >= shares["node3"];
        if good { Ok(()) } else { Err(format!("{shares:?}")) }
    });
    let told = bed.await_that("node 2 to know what comes past its own datapath", SETTLED, || {
        let service = bed.service(2, "web").filter(|service| service["offered"] == 0.0);
        let inbound = service.and_then(|service| service["inbound"].as_f64()).unwrap_or_default();
        if inbound > 5.0 { Ok(inbound) } else { Err(format!("{inbound}")) }
    });
    assert!(told < f64::from(2 * RATE), "{told}");
    let report = next_second(&bed, &mut asked);
    assert!(report.share("node2-pod1") > 0.1, "{:?}", report.answers);
    assert_eq!(report.failed(), 0, "{:?}", report.errors);
    assert!(bed.agents[0].metric(&bed.world, "weir_spill_ratio") > 0.1);
    let (_, metrics) = bed.agents[0].get(&bed.world, 10249, "/metrics").unwrap();
    for series in [
        "weir_selections_total{tier=\"other\"}",
        "weir_weight{peer=\"node2\"}",
        "weir_probe_rtt_seconds{peer=\"node3\"}",
        "weir_signal_age_seconds{signal=\"cpu\"}",
        "weir_ejections_total",
    ] {
        assert!(metrics.contains(series), "no {series} in\n{metrics}");
    }
    let metric = |name: &str| bed.agents[0].metric(&bed.world, name);
    bed.await_that("the spill to be told of", SETTLED, || {
        let told = metric("weir_spilling_services");
        if told == 1.0 { Ok(()) } else { Err(told.to_string()) }
    });
    assert_eq!(metric("weir_spills_total"), 1.0);
    assert!(bed.agents[0].log().contains("new flows leave this node"), "{}", bed.agents[0].log());
    for series in ["weir_level_ratio{peer=\"node1\"}", "weir_weight_inputs{peer=\"node1\",signal=\"cpu\"}"] {
        assert!(metric(series) > 0.5, "{series} is {}", metric(series));
    }
    assert!(metric("weir_weight_staleness_seconds") < 5.0);
    let updates = bed.agents[0].metric(&bed.world, "weir_weight_updates_total");
    assert!(updates >= 5.0, "only {updates} changes of weights");
    assert_eq!(open.broken(), 0, "of {OPEN} connections after {updates} changes of weights");

    bed.machines[0].rest();
    bed.await_that("everything to be home", SETTLED, || {
        let shares = bed.shares(1, "web");
        if shares["node1"] == 1.0 { Ok(()) } else { Err(format!("{shares:?}")) }
    });
    assert_eq!(open.broken(), 0, "of {OPEN} connections after the way home");
    bed.await_that("node 2 to get nothing any more", SETTLED, || {
        let service = bed.service(2, "web").unwrap();
        if service["inbound"] == 0.0 { Ok(()) } else { Err(service["inbound"].to_string()) }
    });
    let (_, counted) = bed.slot(1, "local");
    assert_eq!(counted.remote, 0, "a Local policy was widened");
    assert!(counted.local > 100, "{counted:?}");
    kept.stop().unwrap();
}

/// What becomes of the next flows, as many as there are in a second.
fn next_second(bed: &Bed, asked: &mut RunningLoad) -> Report {
    let flows = || {
        let (_, counted) = bed.slot(1, "web");
        counted.local + counted.remote
    };
    drop(asked.take().unwrap());
    let enough = flows() + u64::from(RATE);
    bed.await_that("flows", SETTLED, || if flows() >= enough { Ok(()) } else { Err(format!("{}", flows())) });
    asked.take().unwrap()
}

fn raise_file_limit() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
}

fn load_of(bed: &Bed, service: &Web) -> RunningLoad {
    Load::http(service.http()).concurrency(2).rate(RATE / 4).start(bed.world.node(1).pod(1).netns()).unwrap()
}

/// A process with connections that stay open: their servers' ends are in this one, and no process may have all files.
struct Holder {
    child: Child,
    answers: BufReader<ChildStdout>,
}

/// Where the holder connects to.
const SERVER: &str = "WEIR_TEST_SERVER";

impl Holder {
    fn start(netns: &Netns, server: SocketAddr) -> Self {
        let mut command = netns.command(std::env::current_exe().unwrap());
        command.args(["--exact", "above_the_level::holds_connections", "--ignored", "--nocapture"]);
        command.env(SERVER, server.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut holder = Self { child, answers };
        assert_eq!(holder.answer(), 0, "connections that could not be made");
        holder
    }

    /// How many of its connections do not answer any more.
    fn broken(&mut self) -> usize {
        self.child.stdin.as_mut().unwrap().write_all(b"?\n").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> usize {
        let mut lines = (&mut self.answers).lines().map(Result::unwrap);
        lines.find_map(|line| line.strip_prefix("broken: ").map(str::to_owned)).unwrap().parse().unwrap()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "a process of another test"]
fn holds_connections() {
    let Ok(server) = std::env::var(SERVER) else { return };
    let server: SocketAddr = server.parse().unwrap();
    raise_file_limit();
    let open = |_| {
        let stream = TcpStream::connect_timeout(&server, SOON).ok()?;
        stream.set_read_timeout(Some(SOON)).ok()?;
        Some(stream)
    };
    let mut streams: Vec<TcpStream> = (0..OPEN).filter_map(open).collect();
    println!("broken: {}", OPEN - streams.len());
    for _ in std::io::stdin().lines().map_while(Result::ok) {
        println!("broken: {}", OPEN - answering(&mut streams));
    }
}

/// How many still answer.
fn answering(streams: &mut [TcpStream]) -> usize {
    let asked: Vec<bool> = streams.iter_mut().map(|stream| stream.write_all(b"who\n").is_ok()).collect();
    let answers = |stream: &mut TcpStream| {
        let mut byte = [0];
        loop {
            match stream.read(&mut byte) {
                Ok(1) if byte[0] == b'\n' => return true,
                Ok(1) => {}
                Ok(_) | Err(_) => return false,
            }
        }
    };
    streams.iter_mut().zip(asked).filter_map(|(stream, asked)| (asked && answers(stream)).then_some(())).count()
}
