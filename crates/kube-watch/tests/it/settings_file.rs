//! The configuration file: what a good one means, where a bad one is bad, and how it is followed.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::Notify;
use weir_core::model::ObjectName;
use weir_core::policies::Kind;
use weir_core::settings::Settings;
use weir_kube_watch::settings_file::{OpenError, Reading, SettingsFile, parse};

const GOOD: &str = "\
defaults:
  policy: maglev
  target: 0.7
  request-class: H--
  relies-on: data/store
  max-spill: 1
  max-rtt: 20ms
namespaces:
  shop:
    relies-on: database
    max-spill: 0
  idle: {}
";

const PATIENCE: Duration = Duration::from_secs(10);

fn mistake(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

fn with(old: &str, new: &str) -> String {
    assert!(GOOD.contains(old), "{old}");
    GOOD.replacen(old, new, 1)
}

#[test]
fn defaults_and_namespaces_are_what_the_file_says() {
    let settings = parse(GOOD).unwrap();
    let of = |namespace: &str| settings.of(&ObjectName::new(namespace, "web"), None);
    for namespace in ["idle", "unnamed"] {
        let web = of(namespace);
        assert_eq!((web.policy, web.relies_on), (Kind::Maglev, Some(ObjectName::new("data", "store"))));
        assert_eq!(web.parameters.target.unwrap().get(), 0.7);
        assert_eq!(web.parameters.request_class.group(), 4);
        assert_eq!((web.parameters.max_spill.get(), web.parameters.max_rtt), (1.0, Some(Duration::from_millis(20))));
    }
    let shop = of("shop");
    assert_eq!((shop.policy, shop.relies_on), (Kind::Maglev, Some(ObjectName::new("shop", "database"))));
    assert_eq!(shop.parameters.max_spill.get(), 0.0);
}

#[test]
fn nothing_wanted_leaves_everything_as_it_is_built_in() {
    for text in
        ["{}", "defaults: {}", "defaults: {}\nnamespaces: {}", "defaults:\n  # policy: rap\nnamespaces:\n  # shop:\n"]
    {
        assert_eq!(parse(text), Ok(Settings::default()), "{text}");
    }
}

#[test]
fn an_empty_file_is_a_mistake_not_the_end_of_all_settings() {
    for text in ["", "\n", "---\n", "# all of it\n"] {
        assert_eq!(mistake(text), "line 1, column 1: the file is empty (write `defaults: {}` for none)", "{text:?}");
    }
}

#[test]
fn unknown_keys_are_named() {
    let meant = "did you mean max-spill?";
    for (old, new, expected) in [
        (
            "defaults:",
            "default:",
            "line 1, column 1: unknown field `default`, expected one of defaults, namespaces".to_owned(),
        ),
        (
            "max-spill: 1",
            "max-split: 1",
            format!("line 6, column 14: defaults.max-split: there is no setting of this name; {meant}"),
        ),
        (
            "max-spill: 0",
            "maxSpill: 0",
            format!("line 11, column 15: namespaces.shop.maxSpill: there is no setting of this name; {meant}"),
        ),
    ] {
        assert_eq!(mistake(&with(old, new)), expected);
    }
}

#[test]
fn bad_values_are_refused_with_their_place_and_key() {
    for (old, new, expected) in [
        (
            "target: 0.7",
            "target: 70",
            "line 3, column 11: defaults.target: \"70\" is not a number above 0 and up to 1: write 0.8 for 80 %",
        ),
        (
            "max-rtt: 20ms",
            "max-rtt: 20",
            "line 7, column 12: defaults.max-rtt: \"20\" is not a time above 0: write 20ms, 500us or 1s",
        ),
        (
            "data/store",
            "store",
            "line 5, column 14: defaults.relies-on: \"store\" names a Service of no namespace: write NAMESPACE/NAME",
        ),
        (
            "max-spill: 0",
            "max-spill: 2",
            "line 11, column 16: namespaces.shop.max-spill: \"2\" is not a number from 0 to 1: write 0.5 for 50 %",
        ),
    ] {
        assert_eq!(mistake(&with(old, new)), expected);
    }
    for text in ["defaults: [", "defaults: rap", "defaults: {policy: [rap]}", "defaults: {target: 1, target: 1}"] {
        assert!(mistake(text).starts_with("line 1, column"), "{text}: {}", mistake(text));
    }
}

/// A file that is followed.
struct Following {
    directory: TempDir,
    path: PathBuf,
    file: SettingsFile,
    reload: Notify,
}

impl Following {
    async fn start(content: &str) -> (Self, Settings) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.yaml");
        fs::write(&path, content).unwrap();
        let (file, settings) = SettingsFile::open(&path).await.unwrap();
        (Self { directory, path, file, reload: Notify::new() }, settings)
    }

    fn replace(&self, content: &str) {
        let new = self.directory.path().join("config.yaml.new");
        fs::write(&new, content).unwrap();
        fs::rename(new, &self.path).unwrap();
    }

    async fn next(&mut self) -> Reading<Settings> {
        tokio::time::timeout(PATIENCE, self.file.next(&self.reload)).await.expect("the file was not read again")
    }

    /// The policy of the settings that come next.
    async fn policy(&mut self) -> Kind {
        match self.next().await {
            Reading::New(settings) => policy(&settings),
            other => panic!("not new: {other:?}"),
        }
    }
}

fn policy(settings: &Settings) -> Kind {
    settings.defaults.policy.unwrap()
}

#[tokio::test]
async fn the_file_is_read_at_the_start_and_after_each_change() {
    let (mut config, settings) = Following::start("defaults: {policy: rap}").await;
    assert_eq!(policy(&settings), Kind::Rap);
    fs::write(&config.path, "defaults: {policy: random}").unwrap();
    assert_eq!(config.policy().await, Kind::Random);
    config.replace("defaults: {policy: maglev}");
    assert_eq!(config.policy().await, Kind::Maglev);
}

#[tokio::test]
async fn a_reload_reads_the_file_whether_it_changed_or_not() {
    let (mut config, _) = Following::start("defaults: {policy: rap}").await;
    config.reload.notify_one();
    assert!(matches!(config.next().await, Reading::Known));
}

#[tokio::test]
async fn a_broken_file_says_where_and_may_be_mended_to_what_it_was() {
    let (mut config, _) = Following::start("defaults: {policy: rap}").await;
    config.replace("defaults: {policy: ripe}");
    let Reading::Refused(error) = config.next().await else { panic!("not refused") };
    assert!(
        error.contains("config.yaml: line 1, column 20: defaults.policy: policy \"ripe\" does not exist"),
        "{error}"
    );
    config.replace("defaults: {policy: rap}");
    assert!(matches!(config.next().await, Reading::Known));
    fs::remove_file(&config.path).unwrap();
    let Reading::Refused(error) = config.next().await else { panic!("not refused") };
    assert!(error.contains("No such file"), "{error}");
    config.replace("defaults: {policy: maglev}");
    assert_eq!(config.policy().await, Kind::Maglev);
}

#[tokio::test]
async fn at_a_start_the_file_must_be_good() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config.yaml");
    let refused = async || match SettingsFile::open(&path).await {
        Err(OpenError::Refused(error)) => error,
        Err(OpenError::Follow(error)) => panic!("{error}"),
        Ok(_) => panic!("taken"),
    };
    assert!(refused().await.contains("config.yaml: No such file"));
    fs::write(&path, "defaults: {target: 2}").unwrap();
    assert!(refused().await.contains("config.yaml: line 1, column 20: defaults.target: \"2\""));
    assert!(matches!(SettingsFile::open(&path.join("none/config.yaml")).await, Err(OpenError::Follow(_))));
}
