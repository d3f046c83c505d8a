//! What is wrong is said: which object, why, and what to do; and what worked before goes on.

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use weir_testbed::{Process, ask, wait};

use crate::harness::standalone::{self, Standalone, Web, yaml};
use crate::harness::{self, Agent};

/// A node whose agent is not started yet; `None` has been explained.
fn node(what: &str) -> Option<Standalone> {
    standalone::can_run(what).then(|| Standalone::prepared(0, &yaml(&[]), &[]))
}

/// Starts the agent, which must end with 2 and these words in its last lines.
fn assert_refused(node: &mut Standalone, words: &[&str]) {
    node.agent.start_again(&node.world);
    assert_ends_with(node, words);
}

fn assert_ends_with(node: &mut Standalone, words: &[&str]) {
    let status = node.agent.await_end();
    let log = node.agent.last_log();
    assert_eq!(status.code(), Some(2), "{log}");
    for word in words {
        assert!(log.contains(word), "{word:?} in\n{log}");
    }
    assert!(!log.contains("panicked"), "{log}");
}

/// An agent of node 1 with the API server as its source.
fn with_kubeconfig(node: &mut Standalone, path: &Path) {
    node.agent.remove_option("--static");
    node.agent.set_option(&format!("--kubeconfig={}", path.display()));
}

fn kubeconfig(node: &Standalone, server: &str) -> std::path::PathBuf {
    let path = node.file.with_extension("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\nclusters: [{{name: c, cluster: {{server: \"{server}\"}}}}]\n\
         users: [{{name: u, user: {{token: t}}}}]\ncontexts: [{{name: test, context: {{cluster: c, user: u}}}}]\n\
         current-context: test\n"
    );
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_kubeconfig_that_cannot_be_read_is_named_with_the_cause() {
    let Some(mut node) = node("an unreadable kubeconfig") else { return };
    node.agent.find_nothing();
    with_kubeconfig(&mut node, Path::new("/nonexistent/kubeconfig"));
    assert_refused(&mut node, &["cannot read kubeconfig /nonexistent/kubeconfig: No such file or directory"]);
    with_kubeconfig(&mut node, Path::new("/proc"));
    assert_refused(&mut node, &["cannot read kubeconfig /proc: Is a directory"]);
    let broken = kubeconfig(&node, "x");
    fs::write(&broken, "clusters: {").unwrap();
    with_kubeconfig(&mut node, &broken);
    assert_refused(&mut node, &[&format!("kubeconfig {} cannot be used: ", broken.display())]);
    let good = kubeconfig(&node, "https://192.0.2.1:6443");
    node.agent.set_option("--context=other");
    assert_refused(&mut node, &[&format!("kubeconfig {} has no context \"other\" (it has: test)", good.display())]);
    assert!(!node.agent.pins.exists(), "wrong options are refused before anything is touched");
    fs::remove_file(good).unwrap();
}

#[test]
fn sockets_of_pods_that_a_static_file_does_not_name_are_refused() {
    let Some(mut node) = node("sockets of pods with a static file") else { return };
    node.agent.find_nothing();
    node.agent.set_option("--pod-sockets=on");
    assert_refused(&mut node, &["--pod-sockets on: a static file names no pods; leave one of the two out"]);
    assert!(!node.agent.pins.exists(), "wrong options are refused before anything is touched");
}

/// Processor time that a process has used, in clock ticks of 10 ms.
fn processor_ticks(agent: &mut Agent) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", agent.process().id())).unwrap();
    // The fields after the name in parentheses; utime and stime are the 14th and 15th of all.
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn an_api_server_that_is_unreachable_is_tried_again_with_growing_pauses_and_without_a_busy_loop() {
    let Some(mut node) = node("an unreachable API server") else { return };
    let listener = node.world.router().enter(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = weir_testbed::address::ROUTER_INSIDE.v4;
    let server = format!("https://{address}:{}", listener.local_addr().unwrap().port());
    let path = kubeconfig(&node, &server);
    with_kubeconfig(&mut node, &path);
    node.agent.start_again(&node.world);
    node.agent.await_complaint(&node.world, "api-server", "waiting for the first list");

    let (start, before) = (Instant::now(), processor_ticks(&mut node.agent));
    let mut attempts = 0;
    while start.elapsed() < Duration::from_secs(3) {
        match listener.accept() {
            // Whoever connects is cut off.
            Ok(_) => attempts += 1,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => panic!("{error}"),
        }
    }
    let used = processor_ticks(&mut node.agent) - before;
    println!("{attempts} attempts and {used} ticks in 3 s");
    // Three watches, each at once and then after pauses of about 0.8, 1.6, 3.2 s.
    assert!((6..=15).contains(&attempts), "{attempts} attempts");
    assert!(used <= 30, "{used} ticks of 10 ms");
    let reason = node.agent.await_complaint(&node.world, "api-server", "API server unreachable: ");
    println!("{reason}");

    drop(listener);
    node.agent.await_complaint(&node.world, "api-server", "API server unreachable: Connection refused");
    let log = node.agent.log();
    assert!(!log.contains("kube_client"), "a library's own words:\n{log}");
    assert_eq!(node.agent.stop().code(), Some(0));
    fs::remove_file(path).unwrap();
}

#[test]
fn what_is_wrong_in_a_static_file_is_told_with_line_and_column_and_the_old_state_stays_in_force() {
    if !standalone::can_run("a wrong static file") {
        return;
    }
    let [old, new] = [Web::new("old", 1, &[1]), Web::new("new", 2, &[1])];
    let unknown = yaml(std::slice::from_ref(&new)).replace("clusterIPs", "clusterIps");
    let mut node = Standalone::prepared(1, &unknown, &[]);
    node.agent.start_again(&node.world);
    let place = format!("{}: line 5, column 5: ", node.file.display());
    let complaint = node.agent.await_complaint(&node.world, "static-file", "clusterIps");
    assert!(complaint.starts_with(&place), "{complaint}");
    assert!(node.agent.log().contains(&complaint), "{}", node.agent.log());

    node.write(&yaml(std::slice::from_ref(&old)));
    node.agent.await_ready(&node.world);
    node.assert_served(&old);

    let both = yaml(&[old.clone(), new.clone()]);
    let wrong_port = both.replacen("port: 80,", "port: 80000,", 1);
    let cut_off = format!("{both}  - {{name: \"x");
    for (text, line, word) in [(&unknown, 5, "clusterIps"), (&wrong_port, 6, "80000"), (&cut_off, 16, "")] {
        node.write(text);
        let place = format!(": line {line}, column ");
        let complaint = node.agent.await_complaint(&node.world, "static-file", &place);
        assert!(complaint.contains(word), "{complaint}");
        assert!(node.agent.log().contains(&complaint), "{complaint}\n{}", node.agent.log());
        node.assert_served(&old);
        assert!(node.ask(new.sockets()[0]).is_err(), "half of a wrong file was taken over");
    }
    node.write(&both);
    node.agent.await_ready(&node.world);
    node.agent.await_log("the file of services is good again");
    // It is read; what it says is written a moment later.
    new.sockets().iter().for_each(|socket| node.agent.await_frontend(socket.ip(), socket.port(), true));
    [&old, &new].iter().for_each(|service| node.assert_served(service));

    fs::remove_file(&node.file).unwrap();
    node.agent.await_complaint(&node.world, "static-file", "No such file or directory");
    [&old, &new].iter().for_each(|service| node.assert_served(service));
    assert!(!node.agent.log().contains("panicked"), "{}", node.agent.log());
}

#[test]
fn a_hangup_reads_the_static_file_again() {
    if !standalone::can_run("SIGHUP") {
        return;
    }
    let mut node = Standalone::start(0, &yaml(&[]), &[]);
    fs::write(&node.file, "services: 1\n").unwrap();
    let refused = |node: &Standalone| node.agent.log().matches("is refused").count();
    wait::until("the complaint", harness::SOON, || refused(&node) == 1).unwrap();
    node.agent.process().signal(nix::sys::signal::Signal::SIGHUP).unwrap();
    wait::until("the complaint again", harness::SOON, || refused(&node) == 2).unwrap();
}

#[test]
fn a_static_file_has_every_kind_of_frontend_in_both_families() {
    if !standalone::can_run("a static file") {
        return;
    }
    let (node1, pod) = (weir_testbed::address::node(1), weir_testbed::address::pod(1, 1));
    let endpoints = format!("[{{address: {}, node: node1}}, {{address: \"{}\", node: node1}}]", pod.v4, pod.v6);
    let text = format!(
        "nodes: [{{name: node1, addresses: [{}, \"{}\"]}}]\nservices:\n\
         - name: web\n  clusterIPs: [10.96.0.1, \"fd00:96::1\"]\n  externalIPs: [203.0.113.1, \"2001:db8:203::1\"]\n  \
         loadBalancerIPs: [203.0.113.2, \"2001:db8:203::2\"]\n  \
         ports:\n  - {{name: http, port: 80, targetPort: 8080, nodePort: 30080}}\n  \
         - {{name: udp, port: 53, protocol: UDP, targetPort: 7001, nodePort: 30053}}\n  endpoints: {endpoints}\n",
        node1.v4, node1.v6
    );
    let node = Standalone::start(1, &text, &[]);
    let virtual_ips = ["10.96.0.1", "fd00:96::1", "203.0.113.1", "2001:db8:203::1", "203.0.113.2", "2001:db8:203::2"];
    let mut targets: Vec<_> = virtual_ips.iter().map(|ip| (ip.parse().unwrap(), 80, 53)).collect();
    targets.extend(node1.both().map(|ip| (ip, 30080, 30053)));
    for (ip, http, udp) in targets {
        let answers = node.world.client().enter(|| [ask::http_ask((ip, http).into()), ask::udp_ask((ip, udp).into())]);
        for answer in answers {
            assert_eq!(answer.unwrap_or_else(|e| panic!("{e}\n{}", node.agent.log())).name, "node1-pod1");
        }
    }
}

#[test]
fn a_missing_capability_is_named() {
    let Some(mut node) = node("missing capabilities") else { return };
    node.agent.find_nothing();
    for (given, missing) in [
        ("+net_admin,+perfmon", "CAP_BPF"),
        ("+bpf,+perfmon", "CAP_NET_ADMIN"),
        ("+bpf,+net_admin", "CAP_PERFMON"),
        ("+net_admin", "CAP_PERFMON and CAP_BPF"),
    ] {
        let bounds = format!("--bounding-set=-all,{given}");
        node.agent.start_through(&node.world, &["setpriv", &bounds, "--inh-caps=-all"]);
        let needs = "operation not permitted; weir needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, or root";
        assert_ends_with(&mut node, &[&format!("without {missing}: {needs}")]);
        assert!(node.agent.last_log().lines().count() < 4, "{}", node.agent.last_log());
    }
    let enough = "--bounding-set=-all,+bpf,+net_admin,+perfmon";
    node.agent.start_through(&node.world, &["setpriv", enough, "--inh-caps=-all"]);
    node.agent.await_ready(&node.world);
}

#[test]
fn a_pin_directory_that_is_not_on_bpffs_is_refused_with_the_way_to_mount_one() {
    let Some(mut node) = node("no bpffs") else { return };
    let elsewhere = node.file.with_extension("pins");
    node.agent.set_option(&format!("--pin-dir={}", elsewhere.display()));
    let message =
        format!("{} is not on a BPF file system; mount one with `mount -t bpf bpf /sys/fs/bpf`", elsewhere.display());
    assert_refused(&mut node, &[&message, "--pin-dir"]);
    assert!(!elsewhere.exists());
}

#[test]
fn a_second_agent_on_the_same_pins_is_refused_and_the_first_goes_on() {
    if !standalone::can_run("two agents") {
        return;
    }
    let web = Web::new("web", 1, &[1]);
    let node = Standalone::start(1, &yaml(std::slice::from_ref(&web)), &[]);
    let log = node.file.with_extension("log");
    let mut command = node.world.node(1).netns().command(env!("CARGO_BIN_EXE_weir-agent"));
    command.arg("--static").arg(&node.file).arg("--pin-dir").arg(&node.agent.pins);
    command.args(["--health-address=127.0.0.1:20256", "--metrics-address=127.0.0.1:20249", "--cgroup=none"]);
    let mut second = Process::start(command, "the second agent", &log).unwrap();
    let end = || second.exit_status().unwrap().ok_or_else(String::new);
    let end = wait::until_some("the end of the second agent", harness::SOON, end).unwrap();
    let said = fs::read_to_string(&log).unwrap();
    assert_eq!(end.code(), Some(2), "{said}");
    let pins = node.agent.pins.display();
    let message = format!("{pins} is in use by another weir-agent; stop it, or give this one another --pin-dir");
    assert!(said.contains(&message), "{said}");
    fs::remove_file(log).unwrap();
    node.assert_served(&web);
    node.agent.await_ready(&node.world);
}

#[test]
fn options_that_do_not_exist_or_have_wrong_values_are_refused_by_name() {
    let Some(mut node) = node("wrong options") else { return };
    for (option, words) in [
        ("--no-such-option", vec!["--no-such-option", "--help"]),
        ("--snat-ports=3000-2000", vec!["--snat-ports", "3000-2000", "not above the last"]),
        ("--max-flows=1", vec!["--max-flows", "16.."]),
        ("--nodeport-addresses=here", vec!["\"here\" is neither `primary`, `all`, `localhost` nor a CIDR"]),
        ("--log=weir=loud", vec!["weir=loud"]),
    ] {
        node.agent.set_option(option);
        assert_refused(&mut node, &words);
        node.agent.remove_option(option.split('=').next().unwrap());
    }
}

#[test]
fn a_port_that_is_taken_is_named_with_its_purpose() {
    let Some(mut node) = node("ports that are taken") else { return };
    for (address, purpose) in [("0.0.0.0:10256", "health checks"), ("127.0.0.1:10249", "metrics")] {
        let _taken = node.world.node(1).netns().enter(|| TcpListener::bind(address)).unwrap();
        assert_refused(&mut node, &[&format!("cannot listen on {address} for {purpose}: Address already in use")]);
    }
}

#[test]
fn a_cgroup_that_is_none_is_refused() {
    let Some(mut node) = node("no cgroup") else { return };
    node.agent.set_option("--cgroup=/nonexistent");
    assert_refused(&mut node, &["--cgroup /nonexistent: there is no such directory"]);
    node.agent.set_option("--cgroup=/proc");
    assert_refused(&mut node, &["--cgroup /proc: not a directory of a cgroup v2 hierarchy"]);
}
