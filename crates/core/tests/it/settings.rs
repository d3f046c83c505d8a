//! Which setting is in force, and what is refused.

use std::time::Duration;

use weir_core::cluster::{Cluster, Event};
use weir_core::load::Share;
use weir_core::model::ObjectName;
use weir_core::policies::ability::{Factors, Level};
use weir_core::policies::{Kind, Parameters};
use weir_core::settings::{ANNOTATION_PREFIX, Annotations, Key, Overrides, Scope, ServiceSettings, Settings};

use crate::build::service;

fn web() -> ObjectName {
    ObjectName::new("shop", "web")
}

/// What a Service shop/web with these annotations wants, and what is wrong with them.
fn annotated(annotations: &[(&str, &str)]) -> (Option<Overrides>, Vec<String>) {
    let Annotations { overrides, own_series: _, wrong } = Annotations::of(&web(), annotations.iter().copied());
    (overrides.map(|own| *own), wrong.iter().map(ToString::to_string).collect())
}

fn wanted(settings: &[(Key, &str)], scope: Scope<'_>) -> Overrides {
    let mut overrides = Overrides::default();
    settings.iter().for_each(|(key, text)| overrides.set(*key, text, scope).unwrap());
    overrides
}

/// Every setting with a value of its own.
fn all_set() -> Overrides {
    Overrides {
        policy: Some(Kind::Rap),
        target: Some(Share::clamped(0.7)),
        request_class: Some(Factors { cpu: Level::High, memory: Level::Low, network: Level::Low }),
        relies_on: Some(ObjectName::new("data", "store")),
        max_spill: Some(Share::NONE),
        max_rtt: Some(Duration::from_millis(20)),
    }
}

#[test]
fn all_annotations_are_read() {
    let annotations = [
        ("weir.dev/policy", "rap"),
        ("weir.dev/target", "0.7"),
        ("weir.dev/request-class", "H--"),
        ("weir.dev/relies-on", "data/store"),
        ("weir.dev/max-spill", "0"),
        ("weir.dev/max-rtt", "20ms"),
    ];
    assert_eq!(annotated(&annotations), (Some(all_set()), vec![]));
    assert_eq!(annotations.len(), Key::ALL.len());
}

#[test]
fn series_of_its_own_are_asked_for_by_an_annotation_that_steers_nothing() {
    let read = |text: &str| Annotations::of(&web(), [("weir.dev/metrics", text)]);
    assert_eq!(read(" own"), Annotations { own_series: true, ..Annotations::default() });
    let Annotations { overrides, own_series, wrong } = read("Own");
    assert_eq!((overrides, own_series), (None, false));
    let said =
        "annotation weir.dev/metrics: \"Own\" is not \"own\"; the Service has series of its own as its name has it";
    assert_eq!(wrong.iter().map(ToString::to_string).collect::<Vec<_>>(), [said]);
}

#[test]
fn a_changed_annotation_is_a_change_of_the_service() {
    let mut cluster = Cluster::default();
    let mut web = service("web", &["10.96.0.1"]);
    let touches = |overrides: Option<Overrides>| {
        web.overrides = overrides.map(Box::new);
        cluster.apply(Event::Service(web.clone())).services.len()
    };
    let [rap, random] = ["rap", "random"].map(|policy| Some(wanted(&[(Key::Policy, policy)], Scope::Cluster)));
    let changes = [None, rap.clone(), rap, random, None, None];
    assert_eq!(changes.map(touches), [1, 1, 0, 1, 1, 0]);
}

#[test]
fn nothing_wanted_is_what_is_built_in() {
    let built_in = ServiceSettings { policy: Kind::Waterfill, relies_on: None, parameters: Parameters::default() };
    assert_eq!(Settings::default().of(&web(), None), built_in);
}

#[test]
fn the_annotation_beats_the_namespace_beats_the_default() {
    let scope = Scope::Cluster;
    let mut settings =
        Settings { defaults: wanted(&[(Key::Policy, "maglev"), (Key::MaxSpill, "0.3")], scope), ..Settings::default() };
    let in_force = |settings: &Settings, own: Option<&Overrides>| {
        let ServiceSettings { policy, parameters, .. } = settings.of(&web(), own);
        (policy, parameters.max_spill.get(), parameters.target.map(Share::get))
    };
    assert_eq!(in_force(&settings, None), (Kind::Maglev, 0.3, None));

    settings.namespaces.insert("shop".into(), wanted(&[(Key::Policy, "rap"), (Key::Target, "0.6")], scope));
    settings.namespaces.insert("other".into(), wanted(&[(Key::MaxSpill, "0.9")], scope));
    assert_eq!(in_force(&settings, None), (Kind::Rap, 0.3, Some(0.6)));

    let own = wanted(&[(Key::Policy, "random")], scope);
    assert_eq!(in_force(&settings, Some(&own)), (Kind::Random, 0.3, Some(0.6)));
}

#[test]
fn every_setting_is_taken_from_each_level() {
    let parameters = Parameters {
        target: Some(Share::clamped(0.7)),
        max_spill: Share::NONE,
        max_rtt: Some(Duration::from_millis(20)),
        request_class: "H--".parse().unwrap(),
        ..Parameters::default()
    };
    let expected = ServiceSettings { policy: Kind::Rap, relies_on: Some(ObjectName::new("data", "store")), parameters };
    let defaults = Settings { defaults: all_set(), ..Settings::default() };
    let mut namespace = Settings::default();
    namespace.namespaces.insert("shop".into(), all_set());
    assert_eq!(defaults.of(&web(), None), expected);
    assert_eq!(namespace.of(&web(), None), expected);
    assert_eq!(Settings::default().of(&web(), Some(&all_set())), expected);
}

#[test]
fn a_wrong_value_leaves_the_rest_and_the_level_below_in_force() {
    let (own, wrong) = annotated(&[("weir.dev/target", "80"), ("weir.dev/policy", "rap")]);
    let stays = "the namespace's setting or the default stays in force";
    let why = "annotation weir.dev/target: \"80\" is not a number above 0 and up to 1: write 0.8 for 80 %";
    assert_eq!(wrong, [format!("{why}; {stays}")]);
    let defaults = wanted(&[(Key::Target, "0.5")], Scope::Cluster);
    let in_force = Settings { defaults, ..Settings::default() }.of(&web(), own.as_ref());
    assert_eq!((in_force.policy, in_force.parameters.target), (Kind::Rap, Some(Share::clamped(0.5))));
}

#[test]
fn wrong_values_are_refused_with_what_to_write() {
    let (long, longer) = ("a".repeat(64), "a".repeat(128));
    let cases: &[(Key, &[&str], &str)] = &[
        (Key::Policy, &["", "Waterfill", "water-fill", "none"], "use waterfill, rap"),
        (Key::Target, &["", "0", "-0", "-0.1", "1.0001", "80%", "NaN", "inf", "0,8", "a"], "write 0.8 for 80 %"),
        (Key::RequestClass, &["", "H", "HHHH", "h--", "H-L"], "write H or - for cpu, memory and network"),
        (Key::ReliesOn, &["", "/", "a/", "/a", "a/b/c", "a b", "A", "a.b", &long], "write NAMESPACE/NAME"),
        (Key::ReliesOn, &["web", "shop/web"], "cannot rely on itself"),
        (Key::MaxSpill, &["", "-0.1", "1.0001", "50%", "NaN", "inf", "a"], "write 0.5 for 50 %"),
        (Key::MaxRtt, &["", "0", "0ms", "20", "-20ms", "20ms ago", "1 fortnight", "a"], "write 20ms, 500us or 1s"),
    ];
    for (key, texts, advice) in cases {
        for text in *texts {
            let (own, wrong) = annotated(&[(&format!("{ANNOTATION_PREFIX}{}", key.name()), text)]);
            assert_eq!((own, wrong.len()), (None, 1), "{key:?} {text:?}");
            assert!(wrong[0].contains(advice), "{key:?} {text:?}: {}", wrong[0]);
        }
    }
    for key in Key::ALL {
        let error = Overrides::default().set(key, &longer, Scope::Cluster).unwrap_err().to_string();
        assert!(error.starts_with("a value of 128 bytes is too long"), "{key:?}: {error}");
    }
}

#[test]
fn right_values_are_taken_in_each_of_their_forms() {
    let policies = Kind::ALL.map(|kind| (Key::Policy, kind.name()));
    let others = [
        (Key::Target, "1"),
        (Key::Target, "1e-3"),
        (Key::Target, " 0.8\n"),
        (Key::RequestClass, "---"),
        (Key::ReliesOn, "store"),
        (Key::ReliesOn, "other/web"),
        (Key::MaxSpill, "0"),
        (Key::MaxSpill, "1.0"),
        (Key::MaxRtt, "500us"),
        (Key::MaxRtt, "1.5ms"),
        (Key::MaxRtt, "1s"),
    ];
    for setting in policies.into_iter().chain(others) {
        wanted(&[setting], Scope::Service(&web()));
    }
    let rtt = |text| wanted(&[(Key::MaxRtt, text)], Scope::Cluster).max_rtt;
    assert_eq!(rtt("1.5ms"), Some(Duration::from_micros(1500)));
    assert_eq!(rtt("500us"), Some(Duration::from_micros(500)));
}

#[test]
fn a_name_without_a_namespace_is_of_the_one_that_it_is_written_for() {
    let store = |namespace: &str| Some(ObjectName::new(namespace, "store"));
    assert_eq!(wanted(&[(Key::ReliesOn, "store")], Scope::Service(&web())).relies_on, store("shop"));
    assert_eq!(wanted(&[(Key::ReliesOn, "store")], Scope::Namespace("data")).relies_on, store("data"));
    let error = Overrides::default().set(Key::ReliesOn, "store", Scope::Cluster).unwrap_err().to_string();
    assert_eq!(error, "\"store\" names a Service of no namespace: write NAMESPACE/NAME");
}

#[test]
fn what_all_services_of_a_namespace_rely_on_relies_on_nobody() {
    let mut settings = Settings::default();
    settings.namespaces.insert("shop".into(), wanted(&[(Key::ReliesOn, "store")], Scope::Namespace("shop")));
    let store = ObjectName::new("shop", "store");
    assert_eq!(settings.of(&web(), None).relies_on.as_ref(), Some(&store));
    assert_eq!(settings.of(&store, None).relies_on, None);
}

#[test]
fn misspelt_annotations_name_what_was_meant_and_others_are_not_ours() {
    let (own, wrong) = annotated(&[
        ("weir.dev/max-split", "0.5"),
        ("weir.dev/polciy", "rap"),
        ("weir.dev/colour", "red"),
        ("weir.dev/", ""),
        ("example.com/policy", "none"),
        ("weir.development/policy", "none"),
        ("policy", "none"),
    ]);
    let nothing = "there is no setting of this name";
    let all = "known are policy, target, request-class, relies-on, max-spill, max-rtt";
    let expected = [
        format!("annotation weir.dev/max-split: {nothing}; did you mean max-spill?; it does nothing"),
        format!("annotation weir.dev/polciy: {nothing}; did you mean policy?; it does nothing"),
        format!("annotation weir.dev/colour: {nothing}; {all}; it does nothing"),
        format!("annotation weir.dev/: {nothing}; {all}; it does nothing"),
    ];
    assert_eq!((own, wrong), (None, expected.to_vec()));
}
