//! What a service wants of the steering.

use weir_core::load::Share;
use weir_core::model::ObjectName;
use weir_core::policies::Kind;

use super::{good, mistake, with};

#[test]
fn annotations_of_ours_are_settings_and_those_of_others_are_ignored() {
    let annotations = "{weir.dev/policy: rap, weir.dev/target: 0.7, example.com/owner: someone}";
    let text = with("    namespace: shop", &format!("    namespace: shop\n    annotations: {annotations}"));
    let services = good(&text).services;
    let overrides = services[0].overrides.as_deref().unwrap();
    assert_eq!((overrides.policy, overrides.target.map(Share::get)), (Some(Kind::Rap), Some(0.7)));
}

#[test]
fn bad_annotations_are_refused_with_their_place_and_name() {
    for (annotation, expected) in [
        ("target: 70", "line 9, column 36: annotations: annotation weir.dev/target: \"70\" is not a number above 0"),
        (
            "targt: 1",
            "line 9, column 35: annotations: annotation weir.dev/targt: there is no setting of this name; did",
        ),
        ("metrics: all", "line 9, column 37: annotations: annotation weir.dev/metrics: \"all\" is not \"own\""),
    ] {
        let text =
            with("    namespace: shop", &format!("    namespace: shop\n    annotations: {{weir.dev/{annotation}}}"));
        let mistake = mistake(&text);
        assert!(mistake.starts_with(expected), "{mistake}");
    }
}

#[test]
fn settings_of_the_steering_are_said_without_the_prefix_of_annotations_or_with_it() {
    let steering = "    namespace: shop\n    steering: {policy: rap, target: 0.7, relies-on: cart}";
    let annotations = "    namespace: shop\n    annotations: {weir.dev/policy: rap, weir.dev/target: 0.7}\n    \
                       steering: {relies-on: cart}";
    let overrides = |lines: &str| good(&with("    namespace: shop", lines)).services[0].overrides.clone().unwrap();
    let said = overrides(steering);
    assert_eq!((said.policy, said.target.map(Share::get)), (Some(Kind::Rap), Some(0.7)));
    assert_eq!(said.relies_on, Some(ObjectName::new("shop", "cart")));
    assert_eq!(said, overrides(annotations));
}

#[test]
fn an_annotation_asks_for_series_of_its_own() {
    let own =
        |lines: &str| good(&with("    namespace: shop", &format!("    namespace: shop{lines}"))).services[0].own_series;
    assert_eq!([own(""), own("\n    annotations: {weir.dev/metrics: own}")], [false, true]);
}

#[test]
fn bad_settings_of_the_steering_are_refused_with_their_place_and_name() {
    for (lines, expected) in [
        ("steering: {target: 70}", "line 9, column 24: steering.target: \"70\" is not a number above 0"),
        ("steering: {targt: 1}", "line 9, column 23: steering.targt: there is no setting of this name; did you mean"),
        (
            "annotations: {weir.dev/policy: rap}\n    steering: {policy: rap}",
            "line 10, column 24: steering.policy: an annotation of this service says it, too",
        ),
    ] {
        let mistake = mistake(&with("    namespace: shop", &format!("    namespace: shop\n    {lines}")));
        assert!(mistake.starts_with(expected), "{mistake}");
    }
}
