//! What a world promises to the tests that live in it.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use weir_testbed::ask::{http_ask, tcp_ask, tcp_ask_within, udp_ask};
use weir_testbed::connection::LongConnection;
use weir_testbed::load::Load;
use weir_testbed::{Cgroup, Netns, Result, World, address, bpffs, netns, require_root, serve, wait};

const PORT: u16 = 8080;
const LIMIT: Duration = Duration::from_secs(10);

/// The median of 21 datagrams there and back; every neighbour on the way is known by then.
fn median_round_trip(from: &Netns, server: SocketAddr) -> Result<Duration> {
    let ask = || {
        let start = Instant::now();
        udp_ask(server).map(|_| start.elapsed())
    };
    let mut times = from.enter(|| (0..21).map(|_| ask()).collect::<Result<Vec<_>>>())?;
    times.sort();
    Ok(times[times.len() / 2])
}

#[test]
fn pods_reach_pods_on_other_nodes_in_both_families_and_are_seen_with_their_own_address() {
    if !require_root("pods reach pods") {
        return;
    }
    let world = World::builder().nodes(3).pods_per_node(2).build().unwrap();
    let (server, client) = (world.node(3).pod(2), world.node(1).pod(1));
    let _tcp = serve::tcp_echo(server.netns(), "c", PORT).unwrap();
    let _udp = serve::udp_echo(server.netns(), "c", PORT).unwrap();
    for (target, source) in server.sockets(PORT).into_iter().zip(client.address().both()) {
        let answers = client.netns().enter(|| [tcp_ask(target), udp_ask(target)]);
        for answer in answers {
            let answer = answer.unwrap();
            assert_eq!((answer.name.as_str(), answer.client.ip()), ("c", source), "asked {target}");
        }
    }
}

#[test]
fn the_outside_client_reaches_nodes_and_pods_through_the_router() {
    if !require_root("the outside client") {
        return;
    }
    let world = World::builder().build().unwrap();
    let _node = serve::http(world.node(2).netns(), "node", PORT).unwrap();
    let _pod = serve::http(world.node(2).pod(1).netns(), "pod", PORT).unwrap();
    let node = world.node(2).address().both().map(|ip| (ip, "node"));
    let pod = world.node(2).pod(1).address().both().map(|ip| (ip, "pod"));
    for (ip, name) in node.into_iter().chain(pod) {
        let answer = world.client().enter(|| http_ask(SocketAddr::new(ip, PORT))).unwrap();
        assert_eq!((answer.name.as_str(), answer.client.ip()), (name, address::CLIENT.like(ip)), "asked {ip}");
    }
}

#[test]
fn service_addresses_go_to_node_1_until_they_are_routed_elsewhere() {
    if !require_root("service routes") {
        return;
    }
    let world = World::builder().build().unwrap();
    let services: [IpAddr; 2] = ["203.0.113.7".parse().unwrap(), "2001:db8:203::7".parse().unwrap()];
    let servers: Vec<_> = world
        .nodes()
        .iter()
        .map(|node| {
            let addresses = services.map(|ip| format!("addr add {ip} dev lo")).join("\n");
            node.netns().ip(&addresses).unwrap();
            [
                serve::tcp_echo(node.netns(), &node.name(), PORT).unwrap(),
                serve::udp_echo(node.netns(), &node.name(), PORT).unwrap(),
            ]
        })
        .collect();
    let ask = |ip| {
        let target = SocketAddr::new(ip, PORT);
        world.client().enter(|| [tcp_ask(target), udp_ask(target)].map(|answer| answer.unwrap().name))
    };
    for ip in services {
        assert_eq!(ask(ip), ["node1", "node1"], "{ip} by default");
        world.route_via(IpNet::from(ip), 2).unwrap();
        assert_eq!(ask(ip), ["node2", "node2"], "{ip} routed to node 2");
    }
    drop(servers);
}

#[test]
fn a_pod_comes_and_goes_at_run_time() {
    if !require_root("pods at run time") {
        return;
    }
    let world = World::builder().build().unwrap();
    let pod = world.add_pod(2).unwrap();
    assert_eq!((pod.host_interface().as_str(), pod.name().as_str()), ("veth2b", "node2-pod2"));
    let _server = serve::tcp_echo(pod.netns(), "late", PORT).unwrap();
    let target = pod.sockets(PORT)[0];
    let client = world.node(1).pod(1);
    assert_eq!(client.netns().enter(|| tcp_ask(target)).unwrap().name, "late");
    pod.delete().unwrap();
    // Its server still runs, and yet nobody reaches it.
    client.netns().enter(|| tcp_ask_within(target, Duration::from_millis(300))).unwrap_err();
    assert_eq!(world.node(2).pods().len(), 1);
    assert_eq!(world.add_pod(2).unwrap().name(), "node2-pod3");
}

#[test]
fn a_cut_uplink_lets_nothing_pass_until_it_is_restored() {
    if !require_root("cutting an uplink") {
        return;
    }
    for round_trip in [Duration::ZERO, Duration::from_millis(4)] {
        let world = World::builder().delay(round_trip).build().unwrap();
        let server = world.node(2).pod(1);
        let _server = serve::tcp_echo(server.netns(), "far", PORT).unwrap();
        let target = server.sockets(PORT)[1];
        let client = world.node(1).pod(1);
        let line = LongConnection::open(client.netns(), target, Duration::from_millis(5), LIMIT).unwrap();
        world.cut_uplink(2).unwrap();
        client.netns().enter(|| tcp_ask_within(target, Duration::from_millis(300))).unwrap_err();
        world.restore_uplink(2).unwrap();
        wait::until("an answer after the cut", LIMIT, || client.netns().enter(|| tcp_ask(target)).is_ok()).unwrap();
        line.await_exchanges(3, LIMIT).unwrap();
        assert_eq!(line.close().error, None, "TCP outlives a short cut");
    }
}

#[test]
fn a_delay_link_gives_the_round_trip_that_was_asked_for_and_changes_it_at_run_time() {
    if !require_root("delay links") {
        return;
    }
    let asked = Duration::from_millis(10);
    let world = World::builder().delay(asked).build().unwrap();
    let server = world.node(2).pod(1);
    let _udp = serve::udp_echo(server.netns(), "far", PORT).unwrap();
    let check = |asked: Duration| {
        let measured = median_round_trip(world.node(1).pod(1).netns(), server.sockets(PORT)[0]).unwrap();
        eprintln!("asked for {asked:?}, measured {measured:?}");
        let tolerance = asked / 10 + Duration::from_micros(500);
        assert!(measured.abs_diff(asked) <= tolerance, "asked for {asked:?}, measured {measured:?}");
    };
    check(asked);
    for node in world.nodes() {
        node.link().unwrap().set_delay(Duration::from_millis(10));
    }
    check(Duration::from_millis(40));
}

#[test]
fn a_delay_link_carries_ten_thousand_packets_a_second_without_loss() {
    if !require_root("packets over a delay link") {
        return;
    }
    let world = World::builder().delay(Duration::from_millis(4)).build().unwrap();
    let server = world.node(2).pod(1);
    let _udp = serve::udp_echo(server.netns(), "far", PORT).unwrap();
    // Each request passes each of the two links twice: once in each direction.
    let load = Load::udp(server.sockets(PORT)[0]).rate(2500).concurrency(64);
    let report = load.run(world.node(1).pod(1).netns(), Duration::from_secs(2)).unwrap();
    eprintln!("{:.0} round trips/s, p50 {:?}, p99 {:?}", report.per_second(), report.p50(), report.p99());
    assert_eq!(report.errors, std::collections::BTreeMap::new());
    assert!(report.per_second() > 2200.0, "{:.0} round trips/s", report.per_second());
    assert!(world.nodes().iter().all(|node| node.link().unwrap().dropped() == 0));
}

#[test]
fn load_counts_answers_by_server_and_errors_by_reason() {
    if !require_root("load") {
        return;
    }
    let world = World::builder().build().unwrap();
    let server = world.node(2).pod(1);
    let http = serve::http(server.netns(), "web", PORT).unwrap();
    let target = server.sockets(PORT)[0];
    let mut load = Load::http(target).concurrency(4).start(world.client()).unwrap();
    let mut answered = 0;
    wait::until("500 answers", LIMIT, || {
        let report = load.take().unwrap();
        assert!(report.errors.is_empty(), "{:?}", report.errors);
        assert!(report.answers.keys().all(|name| name == "web"));
        answered += report.answered();
        answered >= 500
    })
    .unwrap();
    drop(http);
    wait::until("a refused connection", LIMIT, || load.take().unwrap().errors.contains_key("connection refused"))
        .unwrap();
    load.stop().unwrap();
}

#[test]
fn node_processes_see_bpffs_and_cgroups_and_a_cgroup_takes_its_members_along() {
    if !require_root("node processes") {
        return;
    }
    bpffs::ensure_mounted().unwrap();
    let world = World::builder().pods_per_node(0).build().unwrap();
    let cgroup = Cgroup::create(&format!("{}node1", world.prefix())).unwrap();
    let mut command = world.node(1).netns().command("sh");
    command.args(["-c", "stat -f -c %T /sys/fs/bpf; cat /proc/self/cgroup; exec sleep 1000"]);
    cgroup.attach(&mut command).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut process = weir_testbed::Process::start(command, "sleeper", &directory.path().join("log")).unwrap();
    let name = cgroup.path().file_name().unwrap().to_str().unwrap().to_owned();
    wait::until_some("the report of a node process", LIMIT, || {
        let log = process.log_tail();
        if log.contains("bpf_fs") && log.contains(&name) { Ok(()) } else { Err(log) }
    })
    .unwrap();
    let thread = cgroup.enter(|| std::fs::read_to_string("/proc/thread-self/cgroup").unwrap()).unwrap();
    assert!(thread.contains(&name), "{thread}");
    let path = cgroup.path().to_owned();
    cgroup.delete().unwrap();
    assert!(!path.exists());
    wait::until("the end of the sleeper", LIMIT, || process.exit_status().unwrap().is_some()).unwrap();
}

#[test]
fn a_failing_line_is_named_in_the_error() {
    if !require_root("an ip script") {
        return;
    }
    let world = World::builder().nodes(1).pods_per_node(0).build().unwrap();
    let error = world.node(1).netns().ip("link set lo up\nlink set nothing up").unwrap_err().to_string();
    assert!(error.contains("`ip link set nothing up` failed in") && error.contains("Cannot find device"), "{error}");
}

#[test]
fn a_dropped_world_leaves_no_namespace_not_even_after_a_panic() {
    if !require_root("dropping a world") {
        return;
    }
    let left = |prefix: &str| netns::list().unwrap().into_iter().filter(|name| name.starts_with(prefix)).count();
    let prefix = std::thread::spawn(|| {
        let world = World::builder().delay(Duration::from_millis(1)).build().unwrap();
        std::panic::panic_any(world.prefix().to_owned());
    })
    .join()
    .unwrap_err();
    assert_eq!(left(prefix.downcast_ref::<String>().unwrap()), 0);
}

#[test]
fn sweeping_removes_the_world_of_a_killed_process_and_no_other() {
    if !require_root("sweeping") {
        return;
    }
    let own = World::builder().nodes(1).build().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "a_world_that_is_killed"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let prefix = format!("w{}-", child.id());
    let with = |prefix: &str| netns::list().unwrap().into_iter().filter(|name| name.starts_with(prefix)).count();
    let output = BufReader::new(child.stdout.take().unwrap());
    assert!(output.lines().map_while(std::io::Result::ok).any(|line| line.contains("the world stands")));
    let (alive, mine) = (with(&prefix), with(own.prefix()));
    assert!(alive > 0);
    World::sweep().unwrap();
    assert_eq!(with(&prefix), alive, "a living process keeps its world");
    child.kill().unwrap();
    child.wait().unwrap();
    World::sweep().unwrap();
    assert_eq!((with(&prefix), with(own.prefix())), (0, mine));
}

#[test]
#[ignore = "is started by the test of sweeping, and killed"]
fn a_world_that_is_killed() {
    let _world = World::builder().build().unwrap();
    println!("the world stands");
    // Until the other test kills this process or ends itself.
    std::io::stdin().lines().for_each(drop);
}
