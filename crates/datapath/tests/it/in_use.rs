//! How small tables may become: by no restart is anything lost that is in use.

use std::net::Ipv4Addr;

use weir_abi as abi;
use weir_core::ops::{Capacity, FrontendKey, MapOp};
use weir_datapath::{Datapath, MapStore};
use weir_model::{UNUSED_BACKEND, UNUSED_SERVICE};

use crate::pins::{Pins, SMALL};
use crate::store::put_all;

/// Opens with a capacity, and lets go.
fn reopen(pins: &Pins, capacity: &Capacity) -> Capacity {
    *pins.open_with(capacity).unwrap().capacity()
}

fn with(pins: &Pins, ops: &[MapOp]) -> Datapath {
    let mut datapath = pins.open().unwrap();
    datapath.store().apply(&put_all()).unwrap();
    datapath.store().apply(ops).unwrap();
    datapath
}

#[test]
fn a_table_becomes_no_smaller_than_the_slots_that_are_in_use() {
    let Some(pins) = Pins::new("smaller tables with slots in use") else { return };
    let last = SMALL.backends - 1;
    let mut datapath = with(&pins, &[]);
    let known = datapath.store().dump().unwrap().backends[0].1;
    datapath.store().apply(&[MapOp::PutBackend { id: last, backend: known }]).unwrap();
    let before = datapath.store().dump().unwrap();
    drop(datapath);
    let half = Capacity { backends: SMALL.backends / 2, lines: SMALL.lines / 2, ..SMALL };
    let mut datapath = pins.open_with(&half).unwrap();
    assert_eq!(*datapath.capacity(), Capacity { backends: SMALL.backends, ..half });
    assert_eq!(datapath.store().dump().unwrap(), before);
    datapath.store().apply(&[MapOp::PutBackend { id: last, backend: UNUSED_BACKEND }]).unwrap();
    drop(datapath);
    assert_eq!(reopen(&pins, &half), half, "once they are free");
}

#[test]
fn lines_are_in_use_as_long_as_a_service_leads_to_them_whatever_they_say() {
    let Some(pins) = Pins::new("smaller tables of lines") else { return };
    let (last, half) = (SMALL.lines - 1, Capacity { lines: SMALL.lines / 2, ..SMALL });
    let line = abi::Line { cumulative: [u32::MAX; abi::LINE_ENTRIES], r#ref: [1; abi::LINE_ENTRIES] };
    // The first one leads to the last one.
    let first = abi::Line { r#ref: [abi::REF_LINE | last; abi::LINE_ENTRIES], ..line };
    let id = SMALL.services - 1;
    let mut service = abi::Service { flags: abi::SERVICE_USED, ..UNUSED_SERVICE };
    service.tiers[0].remote = abi::REF_LINE | (last - 1);
    let put = [
        MapOp::PutLine { id: last, line: Box::new(line) },
        MapOp::PutLine { id: last - 1, line: Box::new(first) },
        MapOp::PutService { id, service },
    ];
    drop(with(&pins, &put));
    assert_eq!(reopen(&pins, &half).lines, SMALL.lines);
    drop(with(&pins, &[MapOp::PutService { id, service: UNUSED_SERVICE }]));
    assert_eq!(reopen(&pins, &half).lines, half.lines, "what was given up is not written over");
}

#[test]
fn names_addresses_and_ranges_that_have_no_room_in_a_smaller_table_are_kept() {
    let Some(pins) = Pins::new("smaller tables of names") else { return };
    let mut datapath = with(&pins, &[]);
    let held = datapath.store().dump().unwrap();
    let name = held.node_names[0].1;
    let (key, frontend) = held.frontends.iter().find(|(key, _)| key.address.is_ipv4()).copied().unwrap();
    let mut ops: Vec<_> = (100..110).map(|id| MapOp::PutNodeName { id, name: Box::new(name) }).collect();
    let address = |number| FrontendKey { address: Ipv4Addr::new(10, 9, 0, number).into(), ..key };
    ops.extend((0..8).map(|number| MapOp::PutFrontend { key: address(number), frontend }));
    datapath.store().apply(&ops).unwrap();
    let before = datapath.store().dump().unwrap();
    drop(datapath);
    let tiny = Capacity { nodes: 1, frontends: 1, source_ranges: 1, ..SMALL };
    let mut datapath = pins.open_with(&tiny).unwrap();
    assert_eq!(datapath.store().dump().unwrap(), before);
    let Capacity { nodes, frontends, source_ranges, .. } = *datapath.capacity();
    let v4 = before.frontends.iter().filter(|(key, _)| key.address.is_ipv4()).count();
    let most = v4.max(before.frontends.len() - v4);
    assert_eq!([nodes, frontends], [before.node_names.len(), most].map(|count| u32::try_from(count).unwrap()));
    assert_eq!(source_ranges as usize, before.source_ranges.len().max(1));
}
