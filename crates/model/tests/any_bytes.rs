//! The model alone: whatever the frame is, it has an answer. That the answer is right, the fuzzer of `crates/datapath` asks.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::IpAddr;

use weir_abi as abi;
use weir_model::{Hook, Model, Network, Now, Place, Route, Sizes, Verdict};

struct Nowhere;

impl Network for Nowhere {
    fn route(&self, _: IpAddr) -> Option<Route> {
        None
    }

    fn mac(&self, _: u32) -> [u8; 6] {
        MAC
    }
}

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

const HOOKS: [Hook; 5] = [Hook::Xdp, Hook::NicIn, Hook::NicOut, Hook::PodIn, Hook::PodOut];

fn node() -> Model {
    Model::new(abi::Config::PLAIN, Now::default(), Sizes { opening_sets: 1, room_beside_tcp: 1, errors_told: 1 })
}

#[test]
fn a_node_without_services_leaves_every_frame_as_it_came() {
    let mut rng = fastrand::Rng::with_seed(11);
    let mut model = node();
    for _ in 0..20_000 {
        let mut frame: Vec<u8> = (0..rng.usize(..200)).map(|_| rng.u8(..)).collect();
        if let Some(to) = frame.first_chunk_mut() {
            *to = MAC;
        }
        if let Some(ethertype) = frame.get_mut(12..16) {
            // Else hardly one would be of IP.
            let (kind, version) = *rng.choice(&[([8, 0], 0x45), ([0x86, 0xdd], 0x60)]).unwrap();
            ethertype[..2].copy_from_slice(&kind);
            ethertype[2] = version;
        }
        for hook in HOOKS {
            let place = Place { hook, device: 1, came_by: 1, network: &Nowhere, drawn: &[] };
            let outcome = model.run(&frame, &place);
            assert!(outcome.reason < abi::REASON_TO_LOCAL, "{hook:?}: {outcome:?}");
            assert_eq!((outcome.verdict, outcome.frame.as_slice()), (Verdict::Pass, frame.as_slice()));
        }
    }
}
