//! Packets and bodies as bytes.

use std::time::Duration;

use proptest::prelude::*;
use weir_core::load::{NodeLoad, Sample, ServiceId, ServiceLoad, Share};
use weir_mesh::{Body, Header, Kind, MAX_PACKET, MIN_PACKET, NodeId, Refusal, Report, open, seal};

use crate::world::{NEW, OLD, keys, service};

pub(crate) fn header(receiver: NodeId) -> Header {
    let time = Duration::from_nanos(1_800_000_000_123_456_789);
    Header { kind: Kind::Probe, sender: NodeId::of("far"), receiver, epoch: 5, sequence: 6, time, exchange: 7 }
}

fn share() -> impl Strategy<Value = Option<Sample<Share>>> {
    let share = (0..65535_u32, any::<u16>()).prop_map(|(part, age)| Sample {
        value: Share::clamped(f64::from(part) / 65534.0),
        age: Duration::from_millis(age.into()),
    });
    prop::option::of(share)
}

fn amount() -> impl Strategy<Value = f64> {
    (0.0..f32::MAX).prop_map(f64::from)
}

fn rate() -> impl Strategy<Value = f64> {
    (0.0..1e9_f32).prop_map(f64::from)
}

fn report() -> impl Strategy<Value = Report> {
    let load = (share(), share(), share(), share(), amount(), amount());
    let load = load.prop_map(|(cpu, memory, network, pressure, capacity, bandwidth)| NodeLoad {
        cpu,
        memory,
        network,
        pressure,
        capacity,
        bandwidth,
    });
    let service = (any::<u64>(), rate(), any::<u32>(), rate());
    let service = service.prop_map(|(id, flows_per_second, open_flows, spare)| {
        (ServiceId(id), ServiceLoad { flows_per_second, open_flows, spare })
    });
    let services = prop::collection::vec(service, 0..50);
    (0..65535_u16, load, services, 0..1000_u16).prop_map(|(age, load, services, more)| Report {
        age: Duration::from_millis(age.into()),
        load,
        services_in_all: more + u16::try_from(services.len()).expect("few"),
        services,
    })
}

pub(crate) fn body() -> impl Strategy<Value = Body> {
    let spilled = prop::collection::vec((any::<u64>().prop_map(ServiceId), rate()), 0..20);
    let fields = (any::<u32>(), spilled, 0..1000_u16, any::<bool>(), prop::option::of(report()));
    fields.prop_map(|(held, spilled, more, unwraps, report)| Body {
        held: Duration::from_micros(held.into()),
        spilled_in_all: more + u16::try_from(spilled.len()).expect("few"),
        spilled,
        unwraps,
        report,
    })
}

proptest! {
    #[test]
    fn what_a_body_tells_arrives(body in body(), padding in 0..64_usize) {
        let mut bytes = body.encode();
        bytes.resize(bytes.len() + padding, 0);
        prop_assert_eq!(Body::decode(&bytes), Ok(body));
    }

    #[test]
    fn a_body_that_ends_early_is_malformed(body in body()) {
        let bytes = Body { unwraps: false, ..body }.encode();
        for length in 0..bytes.len() {
            prop_assert_eq!(Body::decode(&bytes[..length]), Err(Refusal::Malformed));
        }
    }
}

#[test]
fn who_knows_of_no_wrapped_packets_tells_and_hears_the_same_as_before() {
    let plain = Body { spilled: vec![(ServiceId(1), 4.0)], spilled_in_all: 1, ..Body::default() };
    let told = Body { unwraps: true, ..plain.clone() };
    // All that older versions read comes first; what they do not know is padding to them.
    assert_eq!(told.encode(), [plain.encode(), vec![1]].concat());
    assert_eq!(Body::decode(&plain.encode()), Ok(plain));
    assert_eq!(Body::decode(&told.encode()), Ok(told));
}

#[test]
fn a_packet_has_the_length_asked_for_and_its_header_arrives() {
    let (ring, me) = (keys(&[NEW, OLD]), NodeId::of("near"));
    for length in [MIN_PACKET, 500, MAX_PACKET] {
        for key in [0, 1] {
            let packet = seal(&header(me), &Body::default().encode(), length, &ring, key);
            assert_eq!(packet.len(), length);
            let opened = open(&packet, me, &ring).expect("a good packet");
            assert_eq!((opened.header, opened.key), (header(me), key));
            assert_eq!(Body::decode(opened.body), Ok(Body::default()));
        }
    }
}

#[test]
fn a_packet_without_services_has_the_smallest_length() {
    let packet = seal(&header(NodeId::of("near")), &Body::default().encode(), 0, &keys(&[NEW]), 0);
    assert_eq!(packet.len(), MIN_PACKET);
}

#[test]
fn numbers_that_cannot_be_true_are_lies() {
    let load = NodeLoad { capacity: 2.0, ..NodeLoad::default() };
    let report = Report { age: Duration::ZERO, load, services: vec![service(1)], services_in_all: 1 };
    let bytes = Body { report: Some(report), ..Body::default() }.encode();
    let (capacity, bandwidth, flows, spare) = (22, 26, 44, 52);
    for place in [capacity, bandwidth, flows, spare] {
        // Links are that fast, flows are not.
        let too_many = if place == bandwidth || place == capacity { f32::NAN } else { 1.1e9 };
        for lie in [f32::NAN, f32::INFINITY, -1.0, too_many] {
            let mut bytes = bytes.clone();
            bytes[place..place + 4].copy_from_slice(&lie.to_be_bytes());
            assert_eq!(Body::decode(&bytes), Err(Refusal::Lie), "{lie} at {place}");
        }
    }
    let spilled = Body { spilled: vec![(ServiceId(1), 4.0)], spilled_in_all: 1, ..Body::default() };
    let mut bytes = spilled.encode();
    for lie in [-4.0_f32, 1.1e9] {
        bytes[44..48].copy_from_slice(&lie.to_be_bytes());
        assert_eq!(Body::decode(&bytes), Err(Refusal::Lie), "a rate of {lie}");
    }
}

#[test]
fn more_services_here_than_in_all_is_malformed() {
    let report = Report { services: vec![service(1)], services_in_all: 0, ..Report::default() };
    let bytes = Body { report: Some(report), ..Body::default() }.encode();
    assert_eq!(Body::decode(&bytes), Err(Refusal::Malformed));
}

#[test]
fn a_report_that_is_too_old_to_be_told_exactly_is_told_as_old() {
    let report = Report { age: Duration::from_secs(3600), ..Report::default() };
    let bytes = Body { report: Some(report), ..Body::default() }.encode();
    let age = Body::decode(&bytes).expect("a body").report.expect("a report").age;
    assert_eq!(age, Duration::from_millis(65534));
}

/// Other releases on other nodes compute the same.
#[test]
fn a_nodes_number_is_the_beginning_of_its_names_sha_256() {
    // printf abc | sha256sum (FIPS 180-2, appendix B.1)
    assert_eq!(NodeId::of("abc"), NodeId(0xba78_16bf_8f01_cfea));
}
