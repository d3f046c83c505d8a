//! What holds of every decision, whatever peers claim.

use std::time::Duration;

use proptest::prelude::*;
use weir_core::load::{NodeLoad, PeerReport, Sample, ServiceLoad, Share};
use weir_core::policies::waterfill::Waterfill;
use weir_core::policies::waterfill::constants::TARGET;
use weir_core::policies::{Kind, PodsLoad};

use crate::policies_build::{SERVICE, Scene, peer, share};
use crate::policies_waterfill::{at_ease, scene};

fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![0.0..2000.0_f64, any::<f64>(), Just(0.0), Just(f64::NAN), Just(f64::MAX), Just(f64::INFINITY)]
}

prop_compose! {
    fn any_peer()(
        cpu in prop::option::of(0.0..=1.0_f64), memory in prop::option::of(0.0..=1.0_f64), capacity in any_number(),
        spare in prop::option::of(any_number()), rtt in prop::option::of(0_u64..100), age in 0_u64..20_000,
    ) -> PeerReport {
        let mut report = peer(1, 0.0, 0.0, 0);
        let load = |share: Option<f64>| share.map(|number| Sample::fresh(Share::new(number).unwrap()));
        let (cpu, memory, network) = (load(cpu), load(memory), load(memory));
        report.load = NodeLoad { cpu, memory, network, capacity, ..NodeLoad::default() };
        report.services =
            spare.map(|spare| (SERVICE, ServiceLoad { spare, ..ServiceLoad::default() })).into_iter().collect();
        report.rtt = rtt.map(Duration::from_millis);
        report.age = Duration::from_millis(age);
        report
    }
}

prop_compose! {
    fn any_scene()(
        peers in prop::collection::vec(prop::option::of(any_peer()), 0..5), cpu in prop::option::of(0.0..=1.0_f64),
        offered in any_number(), local in any_number(), open_flows: u32, cores in any_number(),
        capacity in any_number(),
        max_spill in 0.0..=1.0_f64, elapsed in 0_u64..2000, has_local: bool, background in any_number(),
    ) -> Scene {
        let reports = peers.iter().enumerate().map(|(index, report)| {
            report.clone().unwrap_or_else(|| peer(index + 1, 0.0, 0.0, 0))
        }).collect();
        let mut scene = Scene::new(0.0, reports).offers(offered, local);
        scene.peers.iter_mut().zip(&peers).filter(|(_, told)| told.is_none()).for_each(|(report, _)| *report = None);
        let cpu = cpu.and_then(share);
        scene.own.load = NodeLoad { cpu, network: cpu, capacity, ..scene.own.load };
        scene.own.pods = Some(Sample::fresh(PodsLoad { cores, limit: Some(background) }));
        scene.offered.open_flows = open_flows;
        scene.parameters.max_spill = Share::new(max_spill).unwrap();
        scene.elapsed = Duration::from_millis(elapsed);
        if has_local { scene } else { scene.without_local_endpoints() }
    }
}

proptest! {
    /// Shares stay in range and sum up to one, whatever is claimed, and the maps get only endpoints that were given.
    #[test]
    fn whatever_is_claimed_shares_are_shares(scenes in prop::collection::vec(any_scene(), 1..12)) {
        let mut policies: Vec<_> = Kind::ALL.into_iter().map(Kind::start).collect();
        for scene in scenes {
            for policy in &mut policies {
                let (decision, tiers) = scene.ask(|inputs| {
                    let decision = policy.decide(inputs);
                    let tiers = decision.tiers(inputs);
                    (decision, tiers)
                });
                prop_assert_eq!(decision.shares.len(), scene.endpoints.len());
                prop_assert!(decision.shares.iter().all(|share| (0.0..=1.0 + 1e-9).contains(share)), "{:?}", decision);
                let sum: f64 = decision.shares.iter().sum();
                prop_assert!(scene.endpoints.is_empty() || (sum - 1.0).abs() < 1e-9, "{:?}", decision);
                for (backend, weight) in tiers.local.iter().chain(&tiers.remote) {
                    prop_assert!(*weight > 0 && scene.endpoints.iter().any(|endpoint| endpoint.backend == *backend));
                }
                prop_assert!(policy.spare(3).is_none_or(|spare| spare >= 0.0 && !spare.is_nan()));
            }
        }
    }

    /// The older a report, the less its node gets; and one that lies gets nothing.
    #[test]
    fn stale_and_lying_reports_never_raise_a_share(
        reports in prop::collection::vec((0.0..=0.8_f64, 0.0..200.0_f64, 1_u64..40), 1..5),
        offered in 90.0..400.0_f64, warm in 0_u32..5, which in 0_usize..5, age in 0_u64..20_000, lie in any::<f64>(),
    ) {
        let which = which % reports.len();
        let peers: Vec<_> =
            reports.iter().enumerate().map(|(index, (cpu, spare, rtt))| peer(index + 1, *cpu, *spare, *rtt)).collect();
        let mut policy = at_ease(peers.clone());
        let hot = scene(offered, 80.0, 0.0, peers);
        (0..warm).for_each(|_| drop(hot.decide(&mut policy)));
        let fresh = hot.decide(&mut policy.clone()).shares[which + 1];

        let mut stale = hot.clone();
        stale.peers[which].as_mut().unwrap().age = Duration::from_millis(age);
        let share = stale.decide(&mut policy.clone()).shares[which + 1];
        prop_assert!(share <= fresh + 1e-9, "{share} of a stale report, {fresh} of a fresh one");

        if !(0.0..=1e9).contains(&lie) {
            let mut lying = hot;
            lying.peers[which].as_mut().unwrap().services[0].1.spare = lie;
            prop_assert_eq!(lying.decide(&mut policy.clone()).shares[which + 1], 0.0);
        }
    }

    /// RAP's rule, for any load: where nobody has headroom, nothing leaves.
    #[test]
    fn without_headroom_nothing_leaves(
        offered in 0.0..1000.0_f64, cpu in TARGET..=1.0_f64, others in prop::collection::vec(TARGET..=1.0_f64, 0..5),
    ) {
        let peers = others.iter().enumerate().map(|(index, cpu)| peer(index + 1, *cpu, 0.0, 1)).collect();
        let scene = Scene::new(cpu, peers).offers(offered, offered);
        let mut policy = Waterfill::default();
        for _ in 0..40 {
            prop_assert_eq!(scene.decide(&mut policy).shares[0], 1.0);
        }
    }
}
