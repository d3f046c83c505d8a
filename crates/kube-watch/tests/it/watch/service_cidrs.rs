//! ServiceCIDRs, which not every server has or shows.

use std::time::Duration;

use serde_json::{Value, json};
use weir_core::cluster::Event;

use super::api::{Api, failure, list};

fn service_cidr(name: &str, cidrs: &[&str]) -> Value {
    json!({"metadata": {"name": name, "resourceVersion": "7"}, "spec": {"cidrs": cidrs}})
}

/// The networks of a list of ServiceCIDRs.
fn networks(event: &Event) -> Vec<String> {
    match event {
        Event::ServiceCidrs(cidrs) => cidrs.iter().flat_map(|cidr| &cidr.networks).map(ToString::to_string).collect(),
        other => panic!("not a list of ServiceCIDRs: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn service_cidrs_are_listed_as_the_others_and_a_wrong_one_does_not_harm_the_rest() {
    let api = Api::default();
    let cidrs = [service_cidr("kubernetes", &["10.96.0.0/16", "fd00:96::/112"]), service_cidr("odd", &["10.97/16"])];
    api.will_say_of_service_cidrs(200, list(&cidrs, None));
    let mut watching = api.start();
    assert_eq!(networks(&watching.next_service_cidrs().await), ["10.96.0.0/16", "fd00:96::/112"]);
    let status = watching.status(|status| status.service_cidrs.synced).await;
    assert!(status.service_cidrs.connected);
}

#[tokio::test(start_paused = true)]
async fn a_server_without_service_cidrs_or_one_that_forbids_them_has_none_and_is_asked_seldom() {
    for code in [404, 403] {
        let api = Api::default();
        for _ in 0..3 {
            api.will_say_of_service_cidrs(code, failure(code, "no"));
        }
        api.will_say_of_service_cidrs(200, list(&[service_cidr("kubernetes", &["10.96.0.0/16"])], None));
        let mut watching = api.start();
        assert_eq!(networks(&watching.next_service_cidrs().await), [""; 0], "{code}");
        let status = watching.status(|status| status.synced() && status.service_cidrs.error.is_some()).await;
        assert_eq!((status.connected(), status.problem()), (true, None), "{code}: nothing waits for them");
        while networks(&watching.next_service_cidrs().await).is_empty() {}
        let asked = api.asked_service_cidrs();
        let pauses: Vec<_> = asked[..4].windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(pauses.iter().all(|pause| (300..=601).contains(&pause.as_secs())), "{code}: {pauses:?}");
        let status = watching.status(|status| status.service_cidrs.connected).await;
        assert_eq!(status.service_cidrs.error, None, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn service_cidrs_that_are_forbidden_later_are_none_and_are_listed_again_when_they_are_shown() {
    let api = Api::default();
    let cidrs = list(&[service_cidr("kubernetes", &["10.96.0.0/16"])], None);
    api.will_say_of_service_cidrs(200, cidrs.clone()).will_say_of_service_cidrs(403, failure(403, "no"));
    api.will_say_of_service_cidrs(200, cidrs);
    let mut watching = api.start();
    for expected in [&["10.96.0.0/16"][..], &[], &["10.96.0.0/16"]] {
        assert_eq!(networks(&watching.next_service_cidrs().await), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_at_service_cidrs_leaves_what_is_known_of_them_and_is_asked_soon() {
    let api = Api::default();
    let cidrs = list(&[service_cidr("kubernetes", &["10.96.0.0/16"])], None);
    api.will_say_of_service_cidrs(500, failure(500, "no")).will_say_of_service_cidrs(200, cidrs);
    let mut watching = api.start();
    assert_eq!(networks(&watching.next_service_cidrs().await), ["10.96.0.0/16"]);
    let asked = api.asked_service_cidrs();
    assert!(asked[1] - asked[0] < Duration::from_secs(2), "{asked:?}");
}
