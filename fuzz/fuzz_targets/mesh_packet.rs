//! Any bytes: as a datagram from anybody, and as what a peer signed.
#![no_main]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::LazyLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use weir_mesh::{Arrival, Body, Config, Header, KeyRing, Kind, Mesh, NodeId, Now, seal};

static KEYS: LazyLock<KeyRing> = LazyLock::new(|| KeyRing::parse("0123456789abcdef0123456789abcdef").expect("a key"));

fuzz_target!(|bytes: &[u8]| {
    let now = Now { steady: Duration::from_secs(9), wall: Duration::from_secs(1_800_000_000) };
    let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 10777));
    let mut mesh = Mesh::new("near", Config::default(), KEYS.clone(), 1, now);
    mesh.set_peers([("far".into(), from)]);
    let exchange =
        mesh.probe(now).and_then(|probe| probe.bytes.get(44..52)?.try_into().ok()).map_or(0, u64::from_be_bytes);

    let stranger = mesh.receive(Arrival { bytes, from, stamp: None }, now);
    assert!(stranger.is_err(), "nobody signed it");

    if let Ok(body) = Body::decode(bytes) {
        assert_eq!(Body::decode(&body.encode()), Ok(body), "what was understood is told as it was");
    }
    for (sequence, kind) in [Kind::Probe, Kind::Reply].into_iter().enumerate() {
        let (sender, receiver) = (NodeId::of("far"), NodeId::of("near"));
        let header = Header { kind, sender, receiver, epoch: 1, sequence: sequence as u64, time: now.wall, exchange };
        let packet = seal(&header, bytes, 0, &KEYS, 0);
        if let Ok(Some(reply)) = mesh.receive(Arrival { bytes: &packet, from, stamp: None }, now) {
            assert!(reply.bytes.len() <= packet.len(), "a reply is never longer than its probe");
        }
    }
    assert!(mesh.reports(now).iter().all(|report| report.load.checked().is_ok()));
});
