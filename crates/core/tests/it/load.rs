//! Numbers that nodes tell each other: what is refused, and what stays the same on every node.

use std::time::Duration;

use proptest::prelude::*;
use weir_core::load::{Lie, NodeLoad, Sample, ServiceId, ServiceLoad, Share};
use weir_core::model::{ObjectName, Protocol};

#[test]
fn a_share_is_between_none_and_all() {
    assert_eq!(Share::new(0.25).map(Share::get), Ok(0.25));
    assert_eq!(Share::new(1.0005), Ok(Share::ALL), "two counters are not read in the same instant");
    assert!(Share::new(-0.0).is_ok_and(|share| share.get().is_sign_positive()));
    for lie in [-0.01, 1.01, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(Share::new(lie), Err(Lie::Share(lie)));
    }
    assert!(Share::new(f64::NAN).is_err());
}

#[test]
fn a_lie_names_what_was_claimed() {
    let lie = Share::new(-3.5).unwrap_err();
    assert!(lie.to_string().contains("a share of -3.5 is claimed"), "{lie}");
    let lie = NodeLoad { capacity: f64::INFINITY, ..NodeLoad::default() }.checked().unwrap_err();
    assert!(lie.to_string().contains("a capacity in cores of inf"), "{lie}");
    let lie = NodeLoad { bandwidth: -1.0, ..NodeLoad::default() }.checked().unwrap_err();
    assert!(lie.to_string().contains("a bandwidth in bits per second of -1"), "{lie}");
}

#[test]
fn amounts_are_finite_and_not_negative() {
    let load = ServiceLoad { flows_per_second: 10.0, open_flows: 3, spare: 5.0 };
    assert_eq!(load.checked(), Ok(load));
    assert!(ServiceLoad { flows_per_second: -1.0, ..load }.checked().is_err());
    assert!(ServiceLoad { spare: f64::NAN, ..load }.checked().is_err());
}

#[test]
fn a_sample_grows_older_and_no_other() {
    let sample = Sample { value: 7, age: Duration::from_secs(2) }.aged(Duration::from_secs(3));
    assert_eq!(sample, Sample { value: 7, age: Duration::from_secs(5) });
    assert_eq!(sample.aged(Duration::MAX).age, Duration::MAX);
}

#[test]
fn a_service_has_the_same_number_in_every_release() {
    let name = ObjectName::new("shop", "web");
    // FNV-1a of "shop/web/80/6".
    assert_eq!(ServiceId::of(&name, 80, Protocol::Tcp), ServiceId(0x930c_eb5a_0356_4cb4));
    assert_ne!(ServiceId::of(&name, 80, Protocol::Udp), ServiceId::of(&name, 80, Protocol::Tcp));
    assert_ne!(ServiceId::of(&name, 81, Protocol::Tcp), ServiceId::of(&name, 80, Protocol::Tcp));
}

proptest! {
    #[test]
    fn a_share_is_never_out_of_range(bits: u64) {
        let number = f64::from_bits(bits);
        if let Ok(share) = Share::new(number) {
            prop_assert!((0.0..=1.0).contains(&share.get()));
        }
        prop_assert!((0.0..=1.0).contains(&Share::clamped(number).get()));
        prop_assert!((0.0..=1.0).contains(&Share::clamped(number).rest().get()));
    }
}
