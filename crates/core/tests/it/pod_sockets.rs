//! Whose TCP connections are translated at their sockets.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use weir_abi as abi;
use weir_core::model::PodUid;
use weir_core::pod_sockets::{HookedPods, Pod, Wish, hooked};

fn uid(number: u8) -> PodUid {
    format!("9b7b5d0a-3f6e-4f0c-8d57-0a1b2c3d4e{number:02x}").parse().unwrap()
}

/// A pod in the namespace `shop`, with an address of each family.
fn pod(number: u8) -> Pod {
    let addresses = [format!("10.0.0.{number}"), format!("fd00::{number}")];
    Pod {
        uid: uid(number),
        namespace: "shop".into(),
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        host_network: false,
        ended: false,
        wish: None,
    }
}

fn chosen(pods: &[Pod], namespace: Option<Wish>) -> HookedPods {
    let namespaces: BTreeMap<Arc<str>, _> = [("shop".into(), namespace), ("other".into(), None)].into();
    hooked(pods, &namespaces)
}

fn is_chosen(pod: Pod, namespace: Option<Wish>) -> bool {
    chosen(&[pod], namespace).len() == 1
}

#[test]
fn pods_are_hooked_with_their_own_addresses_unless_something_speaks_against_it() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap().into();
    let expected = [1, 2].map(|number| {
        let (v4, v6) = (format!("10.0.0.{number}"), format!("fd00::{number}"));
        (uid(number), abi::HookedPod { addr4: ip(&v4), addr6: ip(&v6) })
    });
    assert_eq!(chosen(&[pod(1), pod(2)], None), HookedPods::from(expected));
}

#[test]
fn a_pods_own_annotation_comes_before_its_namespaces() {
    let on = Some(Wish::On);
    let off = Some(Wish::Off);
    for (of_namespace, of_pod, expected) in [
        (None, None, true),
        (off, None, false),
        (on, None, true),
        (None, off, false),
        (on, off, false),
        (off, on, true),
        (None, on, true),
    ] {
        let seen = is_chosen(Pod { wish: of_pod, ..pod(1) }, of_namespace);
        assert_eq!(seen, expected, "namespace {of_namespace:?}, pod {of_pod:?}");
    }
}

#[test]
fn nobody_is_hooked_whose_namespace_has_not_been_heard_of() {
    assert!(!is_chosen(Pod { namespace: "new".into(), wish: Some(Wish::On), ..pod(1) }, None));
}

#[test]
fn processes_in_the_nodes_network_are_the_hosts_and_not_a_pods() {
    assert!(!is_chosen(Pod { host_network: true, wish: Some(Wish::On), ..pod(1) }, None));
}

#[test]
fn a_pod_without_an_address_waits_and_one_that_has_ended_leaves_it_to_another() {
    assert!(!is_chosen(Pod { addresses: Vec::new(), ..pod(1) }, None));
    assert!(!is_chosen(Pod { ended: true, ..pod(1) }, None));
}

#[test]
fn a_family_in_which_the_pod_has_no_address_is_left_to_the_packets() {
    let v6 = "fd00::1".parse::<IpAddr>().unwrap();
    let entry = abi::HookedPod { addr4: abi::Addr::UNSET, addr6: v6.into() };
    assert_eq!(chosen(&[Pod { addresses: vec![v6], ..pod(1) }], None), HookedPods::from([(uid(1), entry)]));
}

#[test]
fn an_annotation_says_on_or_off_and_nothing_else() {
    assert_eq!(("on".parse(), "off".parse()), (Ok(Wish::On), Ok(Wish::Off)));
    for wrong in ["", "ON", "true", "false", " off"] {
        let error = wrong.parse::<Wish>().unwrap_err().to_string();
        assert_eq!(error, format!("\"{wrong}\" is neither \"on\" nor \"off\""));
    }
}
