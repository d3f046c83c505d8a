//! The binary against real maps.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use weir_abi as abi;
use weir_datapath::{AttachOptions, Attachment};
use weir_testbed::wait;

use crate::node::serving::{Serving, map_id, programs_with};
use crate::node::{Pins, fill, text};

#[test]
fn services_endpoints_and_maps_are_read_while_no_agent_runs() {
    let Some(pins) = Pins::new("read") else { return };
    drop(fill(&pins));

    let services = pins.json(&["services", "-A"]);
    assert_eq!((&services["apiVersion"], &services["kind"]), (&"weir.dev/v1alpha1".into(), &"ServiceList".into()));
    let items = services["items"].as_array().unwrap();
    assert_eq!(items.len(), 2);
    assert_eq!(items[0]["types"], serde_json::json!(["ClusterIP", "NodePort", "LoadBalancer"]));
    assert_eq!(items[0]["addresses"], serde_json::json!(["10.96.0.20", "203.0.113.7"]));
    assert_eq!(items[0]["nodePort"], 30_080);
    assert_eq!(items[0]["endpoints"], serde_json::json!({"local": 1, "all": 2}));
    assert_eq!(items[0]["spill"], 0.5);
    assert_eq!(items[0]["sourceRanges"], serde_json::json!(["198.51.100.0/24"]));
    assert!(items[0]["affinitySeconds"].is_u64(), "{}", items[0]);
    assert_eq!(items[1]["addresses"], serde_json::json!(["fd00:96::20"]));
    assert_eq!(items[1]["spill"], 1.0);

    let endpoints = pins.json(&["endpoints", "shop/web"]);
    let row = |item: &Value| {
        let text = |field| item[field].as_str().unwrap().to_owned();
        (text("address"), text("state"), item["share"]["internal"].as_f64().unwrap())
    };
    let expected = [
        ("10.244.1.5", "active", 0.5),
        ("10.244.2.6", "active", 0.5),
        ("10.244.2.7", "draining", 0.0),
        ("fd00:244::6", "active", 1.0),
    ];
    let expected = expected.map(|(address, state, share)| (address.to_owned(), state.to_owned(), share));
    assert_eq!(endpoints["items"].as_array().unwrap().iter().map(row).collect::<Vec<_>>(), expected);

    let backends = pins.json(&["map", "dump", "backends"]);
    assert_eq!(backends["items"][0]["value"]["address"], "10.244.1.5:8080");
    assert_eq!(backends["items"][0]["value"]["flags"], "used|local|internal|external|short_circuit");
    let ranges = pins.json(&["map", "dump", "source_ranges"]);
    assert_eq!(ranges["items"][0]["key"]["clients"], "198.51.100.0/24");
    let unused = pins.json(&["map", "dump", "frontends4"]);
    let is_unused = |item: &&Value| item["value"]["kind"] == "UnusedPort";
    let unused: Vec<_> = unused["items"].as_array().unwrap().iter().filter(is_unused).collect();
    assert_eq!(unused.len(), 1, "in the map, though not among the addresses of the service");
    assert_eq!(unused[0]["key"]["address"], "10.96.0.20:0");
    for map in ["affinities", "fragments"] {
        assert_eq!(pins.json(&["map", "dump", map])["items"], serde_json::json!([]), "{map}");
    }
    let config = pins.json(&["map", "dump", "config"]);
    assert_eq!(config["items"][0]["value"]["flags"], "reset_stale");
    let going = pins.json(&["map", "dump", "going_filter"]);
    let nothing_is_known = serde_json::json!({ "asked": 0, "taken": 1 << abi::GOING_BITS });
    assert_eq!(going["items"][0]["value"], nothing_is_known);
    let ports = pins.json(&["map", "dump", "snat_ports"]);
    let ports: Vec<_> =
        ports["items"].as_array().unwrap().iter().map(|item| item["value"]["answers"].clone()).collect();
    assert_eq!(ports, ["40000-40063", "40064-40099"]);
    let next = pins.json(&["map", "dump", "snat_next"]);
    assert_eq!(next["items"][0]["value"]["next"], serde_json::json!([40_000, 40_000, 40_000, 40_000]));
}

/// Puts an entry into a map as the programs in the kernel would.
fn put(pins: &Pins, map: &str, key: &[u8], value: &[u8]) {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>();
    let mut bpftool = Command::new("bpftool");
    bpftool.args(["map", "update", "pinned"]).arg(pins.dir().map(map));
    bpftool.args(["key", "hex"]).args(hex(key)).args(["value", "hex"]).args(hex(value));
    let output = bpftool.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn flows_in_the_kernel_are_joined_with_their_replies() {
    let Some(pins) = Pins::new("flows") else { return };
    if Command::new("bpftool").arg("version").output().is_err() {
        eprintln!("SKIPPED: flows: there is no bpftool; apt-get install bpftool");
        return;
    }
    drop(fill(&pins));
    let backends = pins.json(&["map", "dump", "backends"]);
    let first = &backends["items"][0];
    let number = |value: &Value| u32::try_from(value.as_u64().unwrap()).unwrap().to_ne_bytes();
    let (id, generation) = (number(&first["key"]), number(&first["value"]["generation"]));
    let service = number(&first["value"]["service"]);
    let (client, vip, backend) = ([10, 244, 1, 40], [10, 96, 0, 20], [10, 244, 1, 5]);
    let (client_port, vip_port, target_port) = (5000u16.to_be_bytes(), 80u16.to_be_bytes(), 8080u16.to_be_bytes());
    let (tcp, now) = ([6, 0, 0, 0], 1u32.to_ne_bytes());
    let mapped = |ip: [u8; 4]| [[0; 4], [0; 4], [0, 0, 0xff, 0xff], ip].concat();
    let key = [&client[..], &vip, &client_port, &vip_port, &tcp].concat();
    put(&pins, "flows4", &key, &[&id[..], &generation, &service, &[0; 4], &now, &now, &[0; 8]].concat());
    let flow = || pins.json(&["flows", "--service", "shop/web"])["items"][0].clone();
    assert_eq!((&flow()["state"], &flow()["backend"]), (&"new".into(), &"10.244.1.5:8080".into()));

    let key = [&backend[..], &client, &target_port, &client_port, &tcp].concat();
    let ends = [&mapped(vip)[..], &mapped(client), &vip_port, &client_port].concat();
    let replied = abi::FLOW_REPLIED.to_ne_bytes();
    put(&pins, "replies4", &key, &[&ends[..], &replied, &[0; 2], &id, &generation, &now, &[0; 12]].concat());
    let flow = flow();
    assert_eq!(flow["client"], "10.244.1.40:5000");
    assert_eq!(flow["frontend"], "10.96.0.20:80");
    assert_eq!((&flow["state"], &flow["node"]), (&"replied".into(), &"edge-1".into()));
    let status = pins.json(&["status"]);
    let flows = status["subsystems"].as_array().unwrap().iter().find(|part| part["name"] == "flows").unwrap();
    assert_eq!(flows["detail"], "1 of 4096: 1 replied", "of four tables of flows");
    let maps = pins.json(&["map", "list"]);
    let used = |name: &str| {
        let map = maps["items"].as_array().unwrap().iter().find(|map| map["name"] == name).unwrap();
        map["used"].as_u64().unwrap()
    };
    assert_eq!(["flows4", "replies4", "openings4", "awaited4", "flows6"].map(used), [1, 1, 0, 0, 0]);
}

#[test]
fn every_map_can_be_listed_and_dumped_decoded_and_raw() {
    let Some(pins) = Pins::new("dump") else { return };
    drop(fill(&pins));
    let maps = pins.json(&["map", "list"]);
    for map in maps["items"].as_array().unwrap() {
        let name = map["name"].as_str().unwrap();
        let decoded = pins.json(&["map", "dump", name]);
        assert_eq!(decoded["items"].as_array().unwrap().len() as u64, map["used"].as_u64().unwrap(), "{name}");
        let raw = pins.json(&["map", "dump", name, "--raw"]);
        for entry in raw["items"].as_array().unwrap() {
            let key = entry["key"].as_str().unwrap();
            assert_eq!(key.len() as u64, map["keyBytes"].as_u64().unwrap() * 2, "{name}");
        }
    }
    let raw = pins.json(&["map", "dump", "frontends4", "--raw"]);
    let keys: Vec<_> = raw["items"].as_array().unwrap().iter().map(|entry| entry["key"].as_str().unwrap()).collect();
    assert_eq!(keys[..2], ["0a60001400000000", "0a60001400500600"], "unused ports, then port 80 of TCP");
    let unknown = pins.weir(&["map", "dump", "nothing"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("frontends4"), "{unknown:?}");
}

#[test]
fn status_is_degraded_without_an_agent_and_says_so() {
    let Some(pins) = Pins::new("status") else { return };
    drop(fill(&pins));
    let brief = pins.weir(&["status", "--brief"]);
    assert_eq!((brief.status.code(), text(&brief.stdout)), (Some(1), "degraded: links, agent\n".to_owned()));
    let status = pins.json(&["status"]);
    assert_eq!((&status["kind"], &status["state"]), (&"Status".into(), &"degraded".into()));
    assert_eq!(status["subsystems"][0]["state"], "ok");
}

#[test]
fn absent_pins_are_exit_code_4_and_a_missing_service_is_1() {
    let Some(pins) = Pins::new("absent") else { return };
    for command in [&["status"][..], &["services"], &["endpoints"], &["flows"], &["drops"], &["map", "list"]] {
        let output = pins.weir(command);
        assert_eq!(output.status.code(), Some(4), "{command:?}: {output:?}");
        assert!(text(&output.stderr).contains("no pinned maps in"), "{output:?}");
    }
    drop(fill(&pins));
    let output = pins.weir(&["services", "nope"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no service default/nope"), "{output:?}");
    let narrowed = pins.weir(&["services"]);
    assert_eq!((narrowed.status.code(), narrowed.stdout.len()), (Some(0), 0));
    assert!(text(&narrowed.stderr).contains("-A looks into all of them"), "{narrowed:?}");
}

#[test]
fn cleanup_tells_first_asks_for_consent_respects_an_agent_and_then_removes_everything() {
    let Some(pins) = Pins::new("cleanup") else { return };
    let agent = fill(&pins);
    let stage = pins.state_dir().join("stage");
    fs::create_dir(pins.state_dir()).unwrap();
    fs::write(&stage, "drain\n").unwrap();
    let dry = pins.weir(&["cleanup", "--dry-run"]);
    assert_eq!(dry.status.code(), Some(0));
    assert!(text(&dry.stdout).contains("would remove"), "{dry:?}");
    assert!(text(&dry.stdout).contains(stage.to_str().unwrap()) && stage.exists(), "{dry:?}");
    assert!(pins.dir().map("services").exists());

    let locked = pins.weir_alone(&["cleanup", "--yes"]);
    assert_eq!(locked.status.code(), Some(2));
    assert!(text(&locked.stderr).contains("--force"), "{locked:?}");
    drop(agent);

    let unasked = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["cleanup", "--pin-dir"])
        .arg(&pins.0)
        .arg("--state-dir")
        .arg(pins.state_dir())
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert_eq!(unasked.status.code(), Some(2));
    assert!(text(&unasked.stderr).contains("--yes"), "{unasked:?}");
    assert!(pins.dir().map("services").exists());

    let done = pins.weir_alone(&["cleanup", "--yes"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(!pins.0.exists() && !stage.exists());
    fs::remove_dir(pins.state_dir()).unwrap();
    assert_eq!(pins.weir_alone(&["cleanup", "--yes"]).status.code(), Some(0));
    assert_eq!(pins.weir(&["status"]).status.code(), Some(4));
}

#[test]
fn what_a_dead_agent_left_behind_serves_until_a_cleanup_and_then_nothing_of_it_is_left() {
    for (test, tcx) in [("serving-tcx", true), ("serving-clsact", false)] {
        let Some(pins) = Pins::new(test) else { return };
        if Command::new("bpftool").arg("version").output().is_err() {
            eprintln!("SKIPPED: {test}: there is no bpftool; apt-get install bpftool");
            return;
        }
        let node = Serving::leave_behind(&pins, tcx);
        let pod = Some("node1-pod1".to_owned());
        assert_eq!(node.answers(), [pod.clone(), pod.clone()], "{test}: no agent is needed to serve");
        let config = map_id(&pins, "config");
        let running = programs_with(config);
        let some = ["weir_xdp", "weir_nic_in", "weir_nic_out", "weir_pod_in", "weir_pod_out", "weir_connect4"];
        assert!(some.iter().all(|program| running.contains(*program)), "{test}: {running:?}");

        assert_eq!(node.weir(&pins, &["cleanup", "--dry-run"]).status.code(), Some(0));
        assert_eq!(node.answers(), [pod.clone(), pod], "{test}: to look is not to remove");
        let done = node.weir(&pins, &["cleanup", "--yes"]);
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        // The kernel takes its time to let go of a program, and to detach it.
        let left = || {
            let left = programs_with(config);
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        };
        wait::until_some("the programs to be gone", Duration::from_secs(10), left).unwrap();
        assert_eq!(node.answers(), [None, None], "{test}");
        assert!(!pins.0.exists(), "{test}");
    }
}

#[test]
fn cleanup_leaves_a_directory_alone_that_holds_something_else() {
    let Some(pins) = Pins::new("foreign") else { return };
    drop(fill(&pins));
    let stranger = pins.0.join("somebody");
    fs::create_dir(&stranger).unwrap();
    let refused = pins.weir_alone(&["cleanup", "--yes"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("it holds somebody"), "{refused:?}");
    assert!(pins.dir().map("services").exists());
}

#[test]
fn a_reader_that_goes_away_ends_a_watch_without_complaint() {
    let Some(pins) = Pins::new("pipe") else { return };
    drop(fill(&pins));
    let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["drops", "-w", "-o", "json", "--pin-dir"])
        .arg(&pins.0)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn version_and_completion_need_no_pins() {
    let weir = |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_weir")).args(args).output().unwrap();
    let version: Value = serde_json::from_slice(&weir(&["version", "-o", "json"]).stdout).unwrap();
    assert_eq!((&version["kind"], &version["abiVersion"]), (&"Version".into(), &abi::ABI_VERSION.into()));
    for (shell, known) in [("bash", "complete -F _weir"), ("zsh", "#compdef weir"), ("fish", "complete -c weir")] {
        let script = text(&weir(&["completion", shell]).stdout);
        assert!(script.contains(known) && script.contains("explain") && !script.contains("all-nodes"), "{script}");
    }
    assert_eq!(weir(&["no-such-command"]).status.code(), Some(2));
}

#[test]
fn a_kubectl_plug_in_calls_itself_kubectl_weir() {
    let dir = tempfile::tempdir().unwrap();
    let plug_in = dir.path().join("kubectl-weir");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_weir"), &plug_in).unwrap();
    let help = text(&Command::new(&plug_in).arg("services").arg("--help").output().unwrap().stdout);
    assert!(help.contains("Usage: kubectl weir services"), "{help}");
}

#[test]
fn links_are_shown_by_interface_and_cleanup_detaches_them() {
    let Some(pins) = Pins::new("links") else { return };
    // A network namespace for this thread, and for what it starts: its loopback is nobody else's.
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
    let mut datapath = fill(&pins);
    let options = AttachOptions { xdp: false, tcx: true, headerless: false, redirects: true };
    datapath.attach_interface(1, "lo", Attachment::Pod, options).unwrap();
    let veth = Command::new("ip").args(["link", "add", "nic", "type", "veth", "peer", "name", "far"]).status().unwrap();
    assert!(veth.success());
    let nic = nix::net::if_::if_nametoindex("nic").unwrap();
    datapath.attach_interface(nic, "nic", Attachment::Nic, AttachOptions { xdp: true, ..options }).unwrap();
    let links = || {
        let status = pins.json(&["status"]);
        let part = |part: &&Value| part["name"] == "links";
        status["subsystems"].as_array().unwrap().iter().find(part).unwrap().clone()
    };
    let is_tcx = pins.dir().links().join("pod_in-1").exists();
    if !is_tcx {
        eprintln!("SKIPPED: links: no TCX in this kernel (6.6 has it), so there is no link to show");
        return;
    }
    let all = "nic_in: nic; nic_out: nic; pod_in: lo; pod_out: lo; xdp: nic";
    assert_eq!((&links()["state"], &links()["detail"]), (&"ok".into(), &all.into()));
    let devices = pins.json(&["map", "dump", "devices"]);
    assert_eq!(devices["items"][0]["value"], serde_json::json!({"ifindex": nic, "program": 0}));
    drop(datapath);
    let removed = pins.json(&["cleanup", "--yes"]);
    let items = removed["items"].as_array().unwrap();
    let first = items.iter().find(|item| item["name"] == "pod_in").unwrap();
    assert_eq!(
        (&first["name"], &first["interface"], &first["action"]),
        (&"pod_in".into(), &"lo".into(), &"detached".into())
    );
    let left = text(&Command::new("bpftool").args(["net", "show", "dev", "lo"]).output().unwrap().stdout);
    assert!(!left.contains("weir_pod"), "{left}");
}
