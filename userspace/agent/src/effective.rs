//! What this agent runs with, and where each value is from: for `weir config view` and `weir doctor`, at the admin socket.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::http::Uri;
use axum::routing::get;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};
use tokio::sync::watch;
use weir_core::load::Share;
use weir_core::model::ObjectName;
use weir_core::ops::Capacity;
use weir_core::policies::Kind;
use weir_core::policies::ability::{Factors, Level};
use weir_core::settings::{ANNOTATION_PREFIX, Key, Overrides, ServiceSettings, Settings};
use weir_telemetry::effective::{Configuration, PATH, Source, Value};

use crate::args::Options;

/// Whose options they are.
const AGENT: &str = "agent";
/// Where a pod learns of its API server.
const API_SERVER: &str = "KUBERNETES_SERVICE_HOST";

/// The options of this process and the same as values; ends the process as clap does where they are wrong or ask for help.
pub(crate) fn parse() -> (Options, Vec<Value>) {
    let mut command = Options::command();
    let matches = command.get_matches_mut();
    let options = Options::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit());
    (options, values(&command, &matches))
}

/// Every option in the order of the help.
fn values(command: &Command, matches: &ArgMatches) -> Vec<Value> {
    let arguments =
        command.get_arguments().filter(|argument| matches.try_contains_id(argument.get_id().as_str()).is_ok());
    let value = |argument: &clap::Arg| {
        let id = argument.get_id().as_str();
        let source = match matches.value_source(id) {
            Some(ValueSource::CommandLine) => Source::Flag,
            Some(ValueSource::EnvVariable) => {
                Source::Env { name: argument.get_env().map(OsStr::to_string_lossy).unwrap_or_default().into_owned() }
            }
            Some(_) | None => Source::Default,
        };
        let name = argument.get_long().map_or_else(|| id.to_owned(), |long| format!("--{long}"));
        Value { scope: AGENT.to_owned(), name, value: text(matches, id), source }
    };
    // Help and version are no values.
    let is_value = |argument: &&clap::Arg| !matches!(argument.get_id().as_str(), "help" | "version");
    arguments.filter(is_value).map(value).collect()
}

/// As one would write it, without credentials.
fn text(matches: &ArgMatches, id: &str) -> String {
    let raw = matches.try_get_raw(id).ok().flatten().into_iter().flatten();
    let words: Vec<_> = raw.map(|word| without_credentials(&word.to_string_lossy())).collect();
    words.join(",")
}

/// `https://user:secret@host` becomes `https://host`.
fn without_credentials(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// What the agent finds on its node where nobody says it.
pub(crate) fn on_node(node: &str, cgroup: Option<&Path>, sizes: &Capacity) -> Vec<(&'static str, String)> {
    vec![
        ("--node-name", node.to_owned()),
        ("--cgroup", cgroup.map_or_else(|| "none".to_owned(), |path| path.display().to_string())),
        ("--max-flows", sizes.flows.to_string()),
        ("--max-openings", sizes.openings.to_string()),
        ("--max-sockets", sizes.sockets.to_string()),
        ("--max-affinities", sizes.affinities.to_string()),
    ]
}

/// Fills in what nobody set and the agent found on its node, by option.
pub(crate) fn found(mut values: Vec<Value>, found: &[(&'static str, String)]) -> Vec<Value> {
    for value in values.iter_mut().filter(|value| value.value.is_empty() && value.source == Source::Default) {
        if let Some((_, text)) = found.iter().find(|(name, _)| *name == value.name) {
            (value.value, value.source) = (text.clone(), Source::Node);
        }
    }
    values
}

/// The host of the API server: that of each URL which was given, else the one that a pod is told.
fn api_servers(values: &[Value], from_environment: Option<String>) -> Vec<String> {
    let set = |name: &str| values.iter().find(|value| value.name == name && !value.value.is_empty());
    match (set("--static"), set("--api-server"), set("--kubeconfig")) {
        (Some(_), _, _) => Vec::new(),
        (None, Some(urls), _) => urls.value.split(',').filter_map(host).collect(),
        // The kubeconfig is the client's to read.
        (None, None, Some(_)) => Vec::new(),
        (None, None, None) => from_environment.into_iter().collect(),
    }
}

fn host(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    Some(uri.host()?.trim_matches(['[', ']']).to_owned())
}

/// What Services are served with now, by name.
pub(crate) type InForce = BTreeMap<ObjectName, ServiceSettings>;

/// Serves the document. `services` tells what is in force for those that are steered.
pub(crate) fn router(
    values: Vec<Value>,
    file: Option<&Path>,
    settings: watch::Receiver<Arc<Settings>>,
    services: impl Fn() -> InForce + Clone + Send + Sync + 'static,
) -> Router {
    let file = file.map(|path| path.display().to_string()).unwrap_or_default();
    let services_file = values.iter().find(|value| value.name == "--static").map(|value| value.value.clone());
    let services_file = services_file.filter(|path| !path.is_empty());
    let api_servers = api_servers(&values, std::env::var(API_SERVER).ok());
    let document = move || {
        let mut values = values.clone();
        values.extend(of_settings(&settings.borrow(), &file, services_file.as_deref(), &services()));
        let configuration =
            Configuration { version: env!("CARGO_PKG_VERSION").to_owned(), api_servers: api_servers.clone(), values };
        async move { axum::Json(configuration) }
    };
    Router::new().route(PATH, get(document))
}

/// What the file says, then what is in force for single Services in place of it: by their annotations, or as the file says that
/// they are read from.
fn of_settings(settings: &Settings, file: &str, services_file: Option<&str>, services: &InForce) -> Vec<Value> {
    let from_file = |scope: String, overrides: &Overrides| {
        let source = || Source::File { path: file.to_owned() };
        let value = move |(key, value): (Key, String)| Value {
            scope: scope.clone(),
            name: key.name().to_owned(),
            value,
            source: source(),
        };
        said(overrides).into_iter().map(value).collect::<Vec<_>>()
    };
    let mut values = from_file("all services".to_owned(), &settings.defaults);
    for (namespace, overrides) in &settings.namespaces {
        values.extend(from_file(format!("namespace {namespace}"), overrides));
    }
    for (name, own) in services {
        let below = settings.of(name, None);
        let named = [settings.namespaces.get(&name.namespace), Some(&settings.defaults)];
        let policy = named.into_iter().flatten().find_map(|level| level.policy);
        values.extend(annotated(own, &below, policy).into_iter().map(|(key, value)| Value {
            scope: format!("service {name}"),
            name: key.name().to_owned(),
            value,
            source: match services_file {
                Some(path) => Source::File { path: path.to_owned() },
                None => Source::Annotation { name: format!("{ANNOTATION_PREFIX}{}", key.name()) },
            },
        }));
    }
    values
}

/// What a level says, in words as one would write them.
fn said(overrides: &Overrides) -> Vec<(Key, String)> {
    let Overrides { policy, target, request_class, relies_on, max_spill, max_rtt } = overrides;
    let all = [
        (Key::Policy, policy.map(|policy| policy.name().to_owned())),
        (Key::Target, target.map(number)),
        (Key::RequestClass, request_class.map(class)),
        (Key::ReliesOn, relies_on.as_ref().map(ToString::to_string)),
        (Key::MaxSpill, max_spill.map(number)),
        (Key::MaxRtt, max_rtt.map(|time| format!("{time:?}"))),
    ];
    all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

/// What only annotations can have made otherwise than the levels below them have it. The policy that `--spread` gives to
/// Services whose policy nobody has named is no annotation's.
fn annotated(own: &ServiceSettings, below: &ServiceSettings, named: Option<Kind>) -> Vec<(Key, String)> {
    let (is, was) = (&own.parameters, &below.parameters);
    let mut differs = Overrides {
        target: is.target.filter(|_| is.target != was.target),
        request_class: (is.request_class != was.request_class).then_some(is.request_class),
        relies_on: own.relies_on.clone().filter(|_| own.relies_on != below.relies_on),
        max_spill: (is.max_spill != was.max_spill).then_some(is.max_spill),
        max_rtt: is.max_rtt.filter(|_| is.max_rtt != was.max_rtt),
        policy: None,
    };
    let usual = [Kind::default(), Kind::Random];
    differs.policy = match named {
        Some(named) => Some(own.policy).filter(|policy| *policy != named),
        None => Some(own.policy).filter(|policy| !usual.contains(policy)),
    };
    said(&differs)
}

/// `H-H`: what is needed most of CPU, memory and network.
fn class(class: Factors<Level>) -> String {
    let letter = |level| if level == Level::High { 'H' } else { '-' };
    [class.cpu, class.memory, class.network].map(letter).iter().collect()
}

fn number(share: Share) -> String {
    share.get().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values_of(words: &[&str]) -> Vec<Value> {
        let command = Options::command();
        let matches = command.clone().try_get_matches_from([&["weir-agent"], words].concat()).unwrap();
        values(&command, &matches)
    }

    fn find<'a>(values: &'a [Value], name: &str) -> (&'a str, &'a Source) {
        let value = values.iter().find(|value| value.name == name).unwrap_or_else(|| panic!("no {name} in {values:?}"));
        (&value.value, &value.source)
    }

    #[test]
    fn every_option_tells_its_value_and_its_source() {
        let values = values_of(&["--udp-idle", "7", "--no-xdp", "--nic", "eth0,eth1"]);
        assert_eq!(find(&values, "--udp-idle"), ("7", &Source::Flag));
        assert_eq!(find(&values, "--nic"), ("eth0,eth1", &Source::Flag));
        assert_eq!(find(&values, "--no-xdp"), ("true", &Source::Flag));
        assert_eq!(find(&values, "--no-tcx"), ("false", &Source::Default));
        assert_eq!(find(&values, "--tcp-idle"), ("8100", &Source::Default));
        assert!(values.iter().all(|value| !matches!(value.name.as_str(), "--help" | "--version")), "{values:?}");
        let found = found(values, &[("--node-name", "edge-1".to_owned()), ("--udp-idle", "9".to_owned())]);
        assert_eq!(find(&found, "--node-name"), ("edge-1", &Source::Node));
        assert_eq!(find(&found, "--udp-idle"), ("7", &Source::Flag), "what was set stays");
    }

    #[test]
    fn credentials_are_left_out() {
        let values = values_of(&["--api-server", "https://root:secret@192.0.2.1:6443/x,https://[2001:db8::1]:6443"]);
        let shown = find(&values, "--api-server").0;
        assert_eq!(shown, "https://192.0.2.1:6443/x,https://[2001:db8::1]:6443");
        assert_eq!(api_servers(&values, Some("10.96.0.1".to_owned())), ["192.0.2.1", "2001:db8::1"]);
        assert_eq!(api_servers(&values_of(&[]), Some("10.96.0.1".to_owned())), ["10.96.0.1"]);
        assert!(api_servers(&values_of(&["--static", "/a"]), Some("10.96.0.1".to_owned())).is_empty());
    }

    #[test]
    fn settings_are_told_by_level_and_an_annotation_where_it_makes_a_difference() {
        let level = |key: Key, text: &str| {
            let mut level = Overrides::default();
            level.set(key, text, weir_core::settings::Scope::Cluster).unwrap();
            level
        };
        let settings = Settings {
            defaults: level(Key::Target, "0.7"),
            namespaces: [("shop".into(), level(Key::MaxRtt, "20ms"))].into(),
        };
        let (web, api) = (ObjectName::new("shop", "web"), ObjectName::new("shop", "api"));
        let own = settings.of(&web, Some(&level(Key::MaxSpill, "0.5")));
        let services = [(api.clone(), settings.of(&api, None)), (web, own)].into();
        let told = of_settings(&settings, "/etc/weir/settings.yaml", None, &services);
        let annotation = Source::Annotation { name: "weir.dev/max-spill".to_owned() };
        assert_eq!(told.last().map(|value| &value.source), Some(&annotation));
        let read = of_settings(&settings, "", Some("/etc/weir/weir.yaml"), &services);
        let file = Source::File { path: "/etc/weir/weir.yaml".to_owned() };
        assert_eq!(read.last().map(|value| &value.source), Some(&file), "of Services that a file holds");
        let told: Vec<_> = told.iter().map(|v| (v.scope.as_str(), v.name.as_str(), v.value.as_str())).collect();
        let expected = [
            ("all services", "target", "0.7"),
            ("namespace shop", "max-rtt", "20ms"),
            ("service shop/web", "max-spill", "0.5"),
        ];
        assert_eq!(told, expected);
    }
}
