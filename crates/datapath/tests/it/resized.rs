//! Maps of another size than before: what they hold goes along, and nothing is lost where an agent ends before its new ones are in force.

use std::mem::offset_of;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use aya::maps::{Array, HashMap, Map, MapData};
use nix::time::{ClockId, clock_gettime};
use weir_abi as abi;
use weir_core::ops::Capacity;
use weir_datapath::{Datapath, Hook, MapStore, View};
use weir_testbed::address::CLIENT;

use crate::case::{CASES, CLUSTER_IP, PORT};
use crate::node::{Device, Node, web};
use crate::pins::{Pins, SMALL};
use crate::store::{all, flows, open_flow, open_flow_by, put_all};

#[test]
fn maps_of_another_size_are_replaced_and_keep_what_they_hold() {
    let Some(pins) = Pins::new("resized maps") else { return };
    let mut datapath = pins.open().unwrap();
    datapath.configure(&abi::Config { udp_idle: 300, ..datapath.config().unwrap() }).unwrap();
    datapath.store().apply(&put_all()).unwrap();
    (40000..40100).for_each(|port| drop(open_flow(&datapath, port)));
    drop(datapath);
    let before = flows(&pins);
    assert_eq!(before.len(), 100);

    let double = |size| size * 2;
    let Capacity {
        services,
        backends,
        lines,
        frontends,
        nodes,
        flows: flow_entries,
        openings,
        sockets,
        affinities,
        source_ranges,
        held_pieces,
    } = SMALL;
    let larger = Capacity {
        services: double(services),
        backends: double(backends),
        lines: double(lines),
        frontends: double(frontends),
        nodes: double(nodes),
        flows: double(flow_entries),
        openings: double(openings),
        sockets: double(sockets),
        affinities: double(affinities),
        source_ranges: double(source_ranges),
        held_pieces: double(held_pieces),
    };
    for capacity in [larger, SMALL] {
        let mut datapath = pins.open_with(&capacity).unwrap();
        assert_eq!(datapath.store().dump().unwrap(), all());
        assert_eq!(datapath.config().unwrap().udp_idle, 300);
        assert_eq!(flows(&pins), before);
        datapath.begin_switch().unwrap();
        datapath.finish_switch().unwrap();
        assert_eq!(flows(&pins), before);
        let sizes = View::open(pins.dir.clone()).unwrap().counters().maps().unwrap();
        let size = |name| sizes.iter().find(|map| map.name == name).unwrap().max_entries;
        assert_eq!((size("backends"), size("flows4"), size("config")), (capacity.backends, capacity.flows, 1));
    }
}

/// Ports of the clients of all flows.
pub(crate) fn clients(pins: &Pins) -> Vec<u16> {
    flows(pins).into_iter().map(|(port, _, _)| port).collect()
}

pub(crate) fn directories(pins: &Pins) -> Vec<String> {
    let names = pins.dir.entries().unwrap().into_iter().map(|name| name.into_string().unwrap());
    names.filter(|name| name.contains("maps")).collect()
}

#[test]
fn what_serves_is_still_there_where_an_agent_ends_before_its_new_maps_are_in_force() {
    let Some(pins) = Pins::new("maps that no agent has put into force") else { return };
    let mut datapath = pins.open().unwrap();
    datapath.configure(&abi::Config { udp_idle: 300, ..datapath.config().unwrap() }).unwrap();
    datapath.store().apply(&put_all()).unwrap();
    open_flow(&datapath, 40000);
    let serving = datapath.program("weir_pod_in").unwrap().try_clone_to_owned().unwrap();
    drop(datapath);
    let before = directories(&pins);

    let larger =
        Capacity { flows: SMALL.flows * 2, openings: SMALL.openings * 2, backends: SMALL.backends * 2, ..SMALL };
    for (began, capacity) in [(40001, larger), (40002, larger), (40003, SMALL)] {
        drop(pins.open_with(&larger).unwrap());
        // The links have the programs that they had.
        open_flow_by(serving.as_fd(), began);
        let mut datapath = pins.open_with(&capacity).unwrap();
        assert_eq!(clients(&pins), (40000..=began).collect::<Vec<_>>(), "what began meanwhile is known");
        assert_eq!(datapath.store().dump().unwrap(), all());
    }
    let mut datapath = pins.open_with(&larger).unwrap();
    datapath.begin_switch().unwrap();
    datapath.finish_switch().unwrap();
    drop(datapath);
    assert_eq!(directories(&pins), before, "nothing is left of the former ones");
    open_flow_by(serving.as_fd(), 40004);
    drop(pins.open_with(&larger).unwrap());
    assert_eq!(clients(&pins), (40000..=40003).collect::<Vec<_>>(), "the new ones are in force");
}

pub(crate) type Flows = HashMap<MapData, [u8; size_of::<abi::FlowKey4>()], [u8; size_of::<abi::Flow>()]>;

/// Flows of IPv4 that go on.
pub(crate) fn going(pins: &Pins) -> Flows {
    flows_at(&pins.dir.maps().join("flows4"))
}

pub(crate) fn flows_at(pin: &Path) -> Flows {
    Map::from_map_data(MapData::from_pin(pin).unwrap()).unwrap().try_into().unwrap()
}

pub(crate) fn put(flows: &mut Flows, port: u8, flags: u8) {
    let mut flow = [0; size_of::<abi::Flow>()];
    flow[offset_of!(abi::Flow, flags)] = flags;
    flows.insert([port; size_of::<abi::FlowKey4>()], flow, 0).unwrap();
}

pub(crate) fn flags(flows: &Flows, port: u8) -> Option<u8> {
    let flow = flows.get(&[port; size_of::<abi::FlowKey4>()], 0).ok()?;
    Some(flow[offset_of!(abi::Flow, flags)])
}

/// Else it would hold its source port until it is idle: what goes on is found before what begins, where it is by then.
#[test]
fn a_connection_that_ends_between_the_first_copy_and_the_switch_has_ended_in_the_new_maps() {
    const CLOSING: u8 = abi::FLOW_CLOSING.to_le_bytes()[0];
    let Some(pins) = Pins::new("connections that end before a switch") else { return };
    drop(pins.open().unwrap());
    let mut before = going(&pins);
    (1..=3).for_each(|port| put(&mut before, port, 0));
    let mut datapath = pins.open_with(&Capacity { flows: SMALL.flows * 2, ..SMALL }).unwrap();
    before.remove(&[1; size_of::<abi::FlowKey4>()]).unwrap();
    put(&mut before, 2, CLOSING);
    datapath.begin_switch().unwrap();
    let mut now = going(&pins);
    assert_eq!([1, 2, 3].map(|port| flags(&now, port)), [None, Some(CLOSING), Some(0)]);

    // From here on programs write to these.
    put(&mut now, 3, CLOSING);
    before.remove(&[2; size_of::<abi::FlowKey4>()]).unwrap();
    datapath.finish_switch().unwrap();
    assert_eq!([2, 3].map(|port| flags(&now, port)), [Some(CLOSING); 2]);
}

/// Has the only flow of IPv4 that begins end there, and returns its key.
fn end_where_it_began(pins: &Pins) -> [u8; size_of::<abi::FlowKey4>()] {
    let map = Map::from_map_data(MapData::from_pin(pins.dir.map("openings4")).unwrap()).unwrap();
    let mut sets: Array<_, [u8; size_of::<abi::OpeningSet4>()]> = map.try_into().unwrap();
    let tag = |set: &[u8], way| u32::from_ne_bytes(set[4 * way..][..4].try_into().unwrap());
    let taken = |set: &[u8]| (0..abi::OPENING_WAYS).find(|way| tag(set, *way) > abi::OPENING_BUSY);
    let all = (0..sets.len()).map(|number| (number, sets.get(&number, 0).unwrap()));
    let (number, mut set, way) = all.filter_map(|(n, set)| taken(&set).map(|way| (n, set, way))).next().unwrap();
    let at = offset_of!(abi::OpeningSet4, value) + way * size_of::<abi::Flow>() + offset_of!(abi::Flow, flags);
    set[at] |= abi::FLOW_ENDED.to_le_bytes()[0];
    sets.set(number, set, 0).unwrap();
    let key = offset_of!(abi::OpeningSet4, key) + way * size_of::<abi::FlowKey4>();
    set[key..][..size_of::<abi::FlowKey4>()].try_into().unwrap()
}

/// It went back to where it began, and a copy is where it was.
#[test]
fn a_connection_that_ends_in_the_midst_of_a_switch_is_not_found_among_those_that_go_on() {
    let Some(pins) = Pins::new("connections that end in a switch") else { return };
    let mut datapath = pins.open().unwrap();
    datapath.store().apply(&put_all()).unwrap();
    drop(datapath);
    let mut datapath = pins.open_with(&Capacity { flows: SMALL.flows * 2, ..SMALL }).unwrap();
    open_flow(&datapath, 40000);
    let (ended, mut going) = (end_where_it_began(&pins), going(&pins));
    put(&mut going, 9, 0);
    going.insert(ended, [0; size_of::<abi::Flow>()], 0).unwrap();
    datapath.finish_switch().unwrap();
    assert!(going.get(&ended, 0).is_err() && flags(&going, 9) == Some(0));
}

/// The hooks of sockets run the new programs before the links of interfaces do.
#[test]
fn what_sockets_have_noted_in_the_new_maps_before_a_switch_stays() {
    type Peers = HashMap<MapData, [u8; size_of::<abi::SocketKey>()], [u8; size_of::<abi::SocketPeer>()]>;
    let Some(pins) = Pins::new("sockets before a switch") else { return };
    let peers = || -> Peers {
        Map::from_map_data(MapData::from_pin(pins.dir.map("socket_peers")).unwrap()).unwrap().try_into().unwrap()
    };
    let [one, other] = [1, 2].map(|byte| [byte; size_of::<abi::SocketKey>()]);
    let peer = |byte| [byte; size_of::<abi::SocketPeer>()];
    drop(pins.open().unwrap());
    peers().insert(one, peer(1), 0).unwrap();
    let mut datapath = pins.open_with(&Capacity { sockets: SMALL.sockets * 2, ..SMALL }).unwrap();
    let mut now = peers();
    now.insert(one, peer(2), 0).unwrap();
    now.insert(other, peer(2), 0).unwrap();
    datapath.begin_switch().unwrap();
    datapath.finish_switch().unwrap();
    assert_eq!([one, other].map(|key| now.get(&key, 0).ok()), [Some(peer(2)); 2]);
}

/// Until the links are switched their programs note in the old maps, and the hooks of sockets in the new ones.
#[test]
fn of_what_a_client_keeps_in_the_old_and_the_new_maps_before_a_switch_the_later_goes_on() {
    const BACKEND: usize = offset_of!(abi::Affinity, backend);
    const LAST_SEEN: usize = offset_of!(abi::Affinity, last_seen);
    type Clients = HashMap<MapData, [u8; size_of::<abi::AffinityKey>()], [u8; size_of::<abi::Affinity>()]>;
    let Some(pins) = Pins::new("clients before a switch") else { return };
    let clients = || -> Clients {
        Map::from_map_data(MapData::from_pin(pins.dir.map("affinities")).unwrap()).unwrap().try_into().unwrap()
    };
    let who = |client| [client; size_of::<abi::AffinityKey>()];
    let keep = |clients: &mut Clients, client, backend, tick: u8| {
        let mut kept = [0; size_of::<abi::Affinity>()];
        (kept[BACKEND], kept[LAST_SEEN]) = (backend, tick);
        clients.insert(who(client), kept, 0).unwrap();
    };
    drop(pins.open().unwrap());
    let mut old = clients();
    (1..=3).for_each(|client| keep(&mut old, client, 1, 10));
    let mut datapath = pins.open_with(&Capacity { affinities: SMALL.affinities * 2, ..SMALL }).unwrap();
    let mut new = clients();
    keep(&mut new, 2, 2, 11);
    keep(&mut new, 4, 2, 11);
    keep(&mut old, 3, 3, 12);
    keep(&mut old, 5, 3, 12);
    datapath.begin_switch().unwrap();
    let kept = [1, 2, 3, 4, 5].map(|client| new.get(&who(client), 0).map(|kept| kept[BACKEND]).ok());
    assert_eq!(kept, [1, 2, 3, 2, 3].map(Some));
    datapath.finish_switch().unwrap();
}

#[test]
fn an_agent_that_ends_while_it_forgets_the_former_maps_has_none_of_them_come_back() {
    let Some(pins) = Pins::new("maps that were replaced") else { return };
    let mut datapath = pins.open().unwrap();
    datapath.configure(&abi::Config { udp_idle: 300, ..datapath.config().unwrap() }).unwrap();
    datapath.store().apply(&put_all()).unwrap();
    drop(datapath);
    let larger = Capacity { openings: SMALL.openings * 2, ..SMALL };
    let mut datapath = pins.open_with(&larger).unwrap();
    let root = pins.dir.root();
    let replaced = directories(&pins).into_iter().find(|name| name.starts_with("replaced-")).unwrap();
    std::fs::rename(root.join(&replaced), root.join(replaced.replace("replaced", "unused"))).unwrap();
    datapath.finish_switch().unwrap_err();
    open_flow(&datapath, 40000);
    drop(datapath);
    let datapath = pins.open_with(&larger).unwrap();
    assert_eq!(clients(&pins), [40000]);
    drop(datapath);
    assert_eq!(directories(&pins).len(), 1, "{:?}", directories(&pins));
}

#[test]
fn new_flows_are_held_back_until_the_end_of_a_switch_or_of_the_agent_that_began_it() {
    let Some(pins) = Pins::new("a switch in whose midst the agent ends") else { return };
    let mut datapath = pins.open().unwrap();
    datapath.store().apply(&put_all()).unwrap();
    drop(datapath);
    let is_held = |datapath: &Datapath| datapath.config().unwrap().flags & abi::CONFIG_HOLD != 0;
    let larger = Capacity { flows: SMALL.flows * 2, ..SMALL };
    let datapath = pins.open_with(&larger).unwrap();
    datapath.begin_switch().unwrap();
    datapath.configure(&abi::Config::PLAIN).unwrap();
    assert!(is_held(&datapath), "whatever else is written");
    let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap());
    let until = Duration::from_nanos(datapath.config().unwrap().held_until);
    assert!(until > now && until < now + Duration::from_secs(11), "{until:?}, and it is {now:?}");
    drop(datapath);
    let mut datapath = pins.open_with(&larger).unwrap();
    assert!(is_held(&datapath), "it goes on with the switch");
    datapath.begin_switch().unwrap();
    datapath.finish_switch().unwrap();
    assert!(!is_held(&datapath));
    drop(datapath);
    drop(pins.open_with(&SMALL).unwrap());
    assert!(!is_held(&pins.open_with(&SMALL).unwrap()), "of one that ended before its switch nothing is held");
}

/// Until when: nanoseconds of `CLOCK_MONOTONIC`.
fn hold(node: &Node, held_until: u64) {
    let config = node.datapath.config().unwrap();
    node.datapath.configure(&abi::Config { flags: config.flags | abi::CONFIG_HOLD, held_until, ..config }).unwrap();
}

#[test]
fn who_holds_new_flows_back_and_ends_has_them_let_in_after_a_while() {
    let Some(mut node) = Node::new("a hold whose agent has ended") else { return };
    node.serve(web(), &[(1, 1)]);
    for case in CASES {
        for hook in [Hook::Xdp, Hook::NicIn] {
            let packet = case.first(case.at(CLIENT, node.client_port()), case.at(CLUSTER_IP, PORT));
            hold(&node, u64::MAX);
            assert_eq!(node.send(hook, Device::Eth0, &packet).reason, abi::REASON_HELD, "{case:?} at {hook}");
            hold(&node, 1);
            assert_eq!(node.send(hook, Device::Eth0, &packet).reason, abi::REASON_TO_LOCAL, "{case:?} at {hook}");
        }
    }
}
