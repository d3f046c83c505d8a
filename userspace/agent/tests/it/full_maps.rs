//! Maps that are full, maps that people look at, and interfaces that vanish: others are served all the same.

use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_datapath::PinDir;
use weir_testbed::{address, wait};

use crate::harness;
use crate::harness::standalone::{self, Standalone, Web, yaml};

/// Slots rest for up to two grace periods before others get them.
const ROOM: Duration = Duration::from_secs(15);

fn webs(count: u8) -> Vec<Web> {
    (1..=count).map(|number| Web::new(&format!("web{number:02}"), number, &[1])).collect()
}

fn await_served(node: &Standalone, service: &Web) {
    let answers = || service.sockets().iter().all(|target| node.ask(*target).is_ok());
    wait::until(&format!("{} to be served", service.name), ROOM, answers)
        .unwrap_or_else(|e| panic!("{e}\n{}", node.agent.log()));
}

/// A map of `size` entries, which `fit` services fill to the last one: one more is refused, and gets its place when another goes.
fn one_too_many(option: &str, (map, size): (&str, u32), fit: u8) {
    let what = format!("a full map {map}");
    if !standalone::can_run(&what) {
        return;
    }
    let all = webs(fit + 1);
    let (more, fitting) = all.split_last().unwrap();
    let node = Standalone::start(1, &yaml(fitting), &[&format!("{option}={size}")]);
    fitting.iter().for_each(|service| node.assert_served(service));

    node.write(&yaml(&all));
    let complaint = node.agent.await_complaint(&node.world, "maps", "full");
    assert_eq!(complaint, format!("default/{}: map {map} is full ({size} entries): raise {option}", more.name));
    let log = node.agent.log();
    let told = log.lines().find(|line| line.contains("ERROR")).unwrap();
    assert!([map, &size.to_string(), option, &more.name].iter().all(|word| told.contains(word)), "{told}");
    fitting.iter().for_each(|service| node.assert_served(service));
    assert!(node.ask(more.sockets()[0]).is_err());

    node.write(&yaml(&all[1..]));
    await_served(&node, more);
    node.agent.await_ready(&node.world);
    all[1..].iter().for_each(|service| node.assert_served(service));
    assert!(!node.agent.log().contains("panicked"), "{}", node.agent.log());
}

#[test]
fn a_service_for_which_there_is_no_backend_left_waits_for_one_and_the_others_are_served() {
    // Slot 0 is never used, and a service has a backend in each family.
    one_too_many("--max-backends", ("backends", 17), 8);
}

#[test]
fn a_service_for_which_there_is_no_slot_left_waits_for_one_and_the_others_are_served() {
    one_too_many("--max-services", ("services", 17), 8);
}

#[test]
fn a_service_for_which_there_is_no_frontend_left_waits_for_one_and_the_others_are_served() {
    // A cluster IP has one for the ports that are not used, too.
    one_too_many("--max-frontends", ("frontends4", 16), 8);
}

#[test]
fn a_service_that_grows_beyond_a_full_map_keeps_its_old_endpoints() {
    if !standalone::can_run("a service that does not fit any more") {
        return;
    }
    // Not a slot is left: the slices of both families are written one by one, or together.
    let mut services = webs(8);
    let node = Standalone::start(2, &yaml(&services), &["--max-backends=17"]);
    services[7] = Web::new("web08", 8, &[1, 2]);
    node.write(&yaml(&services));
    let complaint = node.agent.await_complaint(&node.world, "maps", "full");
    assert!(complaint.starts_with("default/web08: map backends is full"), "{complaint}");
    for target in services[7].sockets() {
        assert_eq!(node.ask(target).unwrap().name, "node1-pod1");
    }
    services.iter().for_each(|service| node.assert_served(service));

    services.remove(0);
    node.write(&yaml(&services));
    node.agent.await_log("written after all");
    let both = [1, 2].map(|pod| address::pod(1, pod).both()).concat();
    node.agent.await_backends("web08", both);
}

#[test]
fn shares_that_find_no_room_are_told_once_tried_again_now_and_then_and_written_when_there_is_some() {
    if !standalone::can_run("shares that find no room") {
        return;
    }
    // A line for each service in each family, and half of the endpoints would take another one.
    let webs: Vec<Web> = (1..=8).map(|number| Web::new(&format!("web{number:02}"), number, &[1, 2, 3, 4])).collect();
    let steered = |services: &[Web]| {
        let policy = "    annotations: {weir.dev/policy: nearest-half}\n    clusterIPs";
        yaml(services).replacen("    clusterIPs", policy, 1)
    };
    let node = Standalone::start(4, &steered(&webs), &["--max-lines=16"]);
    let unsteered = || node.agent.metric(&node.world, "weir_unsteered_ports");
    wait::until("shares that find no room in both families", ROOM, || unsteered() == 2.0)
        .unwrap_or_else(|e| panic!("{e}\n{}", node.agent.log()));
    let full = "map lines is full (16 entries): raise --max-lines";
    let (status, readiness) = node.agent.get(&node.world, 10256, "/readyz").unwrap();
    assert_eq!(status, 200, "{readiness}");
    let told = format!("2 ports do not follow the load, among them default/web01: {full}");
    assert!(readiness.contains(&told), "{readiness}");

    let decisions = || node.agent.metric(&node.world, "weir_weight_updates_total");
    let (first, began) = (decisions(), Instant::now());
    wait::until("two more tries of both", ROOM, || decisions() >= first + 4.0).unwrap();
    // Slots come free every five seconds, decisions are made four times a second.
    assert!(began.elapsed() > Duration::from_secs(4), "tried again after {:?}", began.elapsed());
    assert_eq!(node.agent.log().matches("new shares not written").count(), 2, "{}", node.agent.log());

    node.write(&steered(&webs[..7]));
    wait::until("room for new shares", 2 * ROOM, || unsteered() == 0.0)
        .unwrap_or_else(|e| panic!("{e}\n{}", node.agent.log()));
    node.agent.await_log("new shares written after all");
    assert_eq!(node.agent.log().matches("new shares not written").count(), 2, "{}", node.agent.log());
}

/// What `bpftool` prints of a map's entries.
fn bpftool(node: &Standalone, map: &str) -> Vec<Value> {
    let path = PinDir::new(&node.agent.pins).map(map);
    let dump = Command::new("bpftool").args(["-j", "map", "dump", "pinned"]).arg(path).output().unwrap();
    assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
    let entries: Vec<Value> = serde_json::from_slice(&dump.stdout).unwrap();
    entries.into_iter().map(|entry| entry["formatted"]["value"].clone()).collect()
}

#[test]
fn bpftool_prints_maps_with_the_names_of_their_fields() {
    if !standalone::can_run("maps in bpftool") {
        return;
    }
    if Command::new("bpftool").arg("version").output().is_err() {
        eprintln!("SKIPPED: maps in bpftool: bpftool is not installed");
        return;
    }
    let node = Standalone::start(1, &yaml(&webs(1)), &["--max-services=16", "--max-backends=16"]);
    let services = bpftool(&node, "services");
    assert_eq!(services.len(), 16);
    let used = |entry: &&Value| entry["flags"].as_u64() == Some(1);
    let service = services.iter().find(used).unwrap();
    assert_eq!(service["endpoints"], 1, "{service}");
    let tiers = service["tiers"].as_array().unwrap();
    assert_eq!(tiers.len(), 3, "{service}");
    for tier in tiers {
        assert_eq!([&tier["spill"], &tier["remote"]], [0, 0], "{tier}");
        let local = usize::try_from(tier["local"].as_u64().unwrap()).unwrap();
        let backend = &bpftool(&node, "backends")[local];
        for name in ["port", "proto", "flags", "generation", "service", "node"] {
            assert!(backend[name].is_u64(), "{name} in {backend}");
        }
        assert_eq!(backend["addr"]["word"].as_array().map(Vec::len), Some(4), "{backend}");
        assert_eq!(backend["proto"], 6, "{backend}");
        assert_ne!(backend["generation"], 0, "{backend}");
    }
}

#[test]
fn a_card_whose_address_and_routes_are_away_for_a_while_keeps_its_programs() {
    if !standalone::can_run("a card without its address") {
        return;
    }
    let node = Standalone::start(1, &yaml(&[Web::new("stays", 1, &[1])]), &[]);
    let links = || PinDir::new(&node.agent.pins).link_names().unwrap();
    let before = links();
    let netns = node.world.node(1).netns();
    netns.ip("addr flush dev eth0").unwrap();
    for family in ["-4", "-6"] {
        assert!(netns.command("ip").args([family, "route", "flush", "dev", "eth0"]).status().unwrap().success());
    }
    // What comes later is attached to when that was seen, and what comes after it when that is done.
    for tunnel in ["tun8", "tun9"] {
        netns.ip(&format!("tuntap add dev {tunnel} mode tun\nlink set {tunnel} up")).unwrap();
        node.agent.await_log(&format!("attached interface=\"{tunnel}\""));
    }
    assert!(before.iter().all(|link| links().contains(link)), "{before:?}, then {:?}", links());
    assert!(!node.agent.log().contains("detached"), "{}", node.agent.log());
}

#[test]
fn a_pods_interface_that_vanishes_is_cleaned_up_after_and_the_others_are_served() {
    if !standalone::can_run("an interface that vanishes") {
        return;
    }
    let services = [Web::new("stays", 1, &[1]), Web::new("vanishes", 2, &[2])];
    let node = Standalone::start(2, &yaml(&services), &[]);
    services.iter().for_each(|service| node.assert_served(service));
    let pod = node.world.node(1).pod(2);
    let interface = pod.host_interface();
    let links = || PinDir::new(&node.agent.pins).link_names().unwrap();
    let before = links();
    pod.delete().unwrap();
    node.agent.await_log(&format!("detached interface=\"{interface}\""));
    wait::until("the links of the interface to go", harness::SOON, || links().len() == before.len() - 2).unwrap();

    // Some of these are gone before the agent gets to them.
    for _ in 0..5 {
        node.world.node(1).add_pod().unwrap().delete().unwrap();
    }
    let last = node.world.add_pod(1).unwrap();
    node.agent.await_log(&format!("attached interface=\"{}\"", last.host_interface()));
    wait::until("the links of the last pod alone", harness::SOON, || links().len() == before.len()).unwrap();
    node.assert_served(&services[0]);
    for target in services[0].sockets() {
        let answer = last.netns().enter(|| weir_testbed::ask::http_ask(target)).unwrap();
        assert_eq!(answer.client.ip(), last.address().like(target.ip()) as IpAddr);
    }
    let log = node.agent.log();
    assert!(!log.contains("panicked") && !log.contains("ERROR"), "{log}");
}
