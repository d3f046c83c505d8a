//! Maps of another size, by an agent that ends after some links have got the programs of the new ones.

use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};

use aya::maps::{Array, Map, MapData};
use weir_abi as abi;
use weir_core::ops::Capacity;
use weir_datapath::{Datapath, MapStore};

use crate::pins::{Pins, SMALL};
use crate::resized::{Flows, clients, directories, flags, flows_at, going, put};
use crate::store::{open_flow, open_flow_by, put_all};

const LARGER: Capacity = Capacity { flows: SMALL.flows * 2, openings: SMALL.openings * 2, ..SMALL };

/// The same of those maps that are replaced.
fn former_going(pins: &Pins) -> Flows {
    let replaced = directories(pins).into_iter().find(|name| name.starts_with("switched-")).unwrap();
    flows_at(&pins.dir.root().join(replaced).join("flows4"))
}

/// So long after that what it has held back is let in.
fn end_hold(pins: &Pins) {
    let map = Map::from_map_data(MapData::from_pin(pins.dir.maps().join("config")).unwrap()).unwrap();
    let mut config: Array<MapData, [u8; size_of::<abi::Config>()]> = map.try_into().unwrap();
    let mut now = config.get(&0, 0).unwrap();
    now[offset_of!(abi::Config, held_until)..][..size_of::<u64>()].copy_from_slice(&1u64.to_ne_bytes());
    config.set(0, now, 0).unwrap();
}

/// What is left of an agent that has ended in the midst of a switch to larger maps: the programs of a link that has not got the new ones, and of one that
/// has. Two connections have begun before, one since by each of these links.
fn ended(what: &str) -> Option<(Pins, [OwnedFd; 2], Vec<String>)> {
    let pins = Pins::new(what)?;
    let mut datapath = pins.open().unwrap();
    datapath.store().apply(&put_all()).unwrap();
    let program = |datapath: &Datapath| datapath.program("weir_pod_in").unwrap().try_clone_to_owned().unwrap();
    let former = program(&datapath);
    open_flow(&datapath, 40000);
    drop(datapath);
    let before = directories(&pins);
    let datapath = pins.open_with(&LARGER).unwrap();
    open_flow_by(former.as_fd(), 40001);
    datapath.begin_switch().unwrap();
    let new = program(&datapath);
    drop(datapath);
    end_hold(&pins);
    open_flow_by(former.as_fd(), 40002);
    open_flow_by(new.as_fd(), 40003);
    Some((pins, [former, new], before))
}

#[test]
fn the_next_agent_goes_on_with_the_switch_and_knows_what_has_begun_by_either_link() {
    goes_on_with(|_| ());
}

/// As by another version of the agent, whose programs are others.
#[test]
fn so_does_one_that_has_to_load_its_programs() {
    goes_on_with(|pins| {
        let kept = pins.dir.entries().unwrap().into_iter().find(|name| name.to_string_lossy().starts_with("programs-"));
        std::fs::remove_dir_all(pins.dir.root().join(kept.unwrap())).unwrap();
    });
}

fn goes_on_with(meanwhile: impl Fn(&Pins)) {
    let Some((pins, [former, _], before)) = ended("a switch that another agent ends") else { return };
    // What the links that were switched know is newer than what the former maps say.
    let mut flow = going(&pins);
    put(&mut flow, 1, 1);
    put(&mut former_going(&pins), 1, 2);
    meanwhile(&pins);
    let mut datapath = pins.open_with(&LARGER).unwrap();
    assert!(clients(&pins).contains(&40003), "{:?}: what the links that were switched know stays", clients(&pins));
    assert_eq!(flags(&flow, 1), Some(1));
    datapath.begin_switch().unwrap();
    end_hold(&pins);
    open_flow_by(former.as_fd(), 40004);
    datapath.finish_switch().unwrap();
    let all: Vec<_> = clients(&pins).into_iter().filter(|client| *client >= 40000).collect();
    assert_eq!(all, (40000..=40004).collect::<Vec<_>>());
    drop(datapath);
    assert_eq!(directories(&pins), before, "nothing is left of the former ones");
}

#[test]
fn the_next_agent_may_end_in_its_midst_as_well() {
    let Some((pins, ..)) = ended("a switch that a third agent ends") else { return };
    pins.open_with(&LARGER).unwrap().begin_switch().unwrap();
    drop(pins.open_with(&LARGER).unwrap());
    let mut datapath = pins.open_with(&LARGER).unwrap();
    datapath.begin_switch().unwrap();
    datapath.finish_switch().unwrap();
    assert_eq!(clients(&pins), (40000..=40003).collect::<Vec<_>>());
}

#[test]
fn where_the_next_agent_has_other_sizes_all_that_is_known_goes_there() {
    for capacity in [SMALL, Capacity { flows: LARGER.flows * 2, ..LARGER }] {
        let Some((pins, _, before)) = ended("a switch to maps that are replaced again") else { return };
        let mut datapath = pins.open_with(&capacity).unwrap();
        datapath.begin_switch().unwrap();
        datapath.finish_switch().unwrap();
        assert_eq!(clients(&pins), (40000..=40003).collect::<Vec<_>>());
        drop(datapath);
        assert_eq!(directories(&pins), before);
    }
}
