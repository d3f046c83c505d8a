//! `weir config view`: what the running agent works with, and where each value is from.

use std::path::Path;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use weir_telemetry::effective::{Configuration, Source, Value};

use crate::agent;
use crate::exit::Answer;
use crate::output::{Kind, Output, Row, Tone};

/// Options of `config view`.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ViewArgs {
    /// Values that nobody has set, too
    #[arg(short, long)]
    all: bool,
}

/// A value as people see it.
#[derive(Serialize)]
#[serde(transparent)]
struct ValueRow<'a>(&'a Value);

impl Row for ValueRow<'_> {
    const KIND: Kind = Kind::Configuration;

    fn headers(_wide: bool) -> Vec<&'static str> {
        vec!["SCOPE", "NAME", "VALUE", "SOURCE"]
    }

    fn cells(&self, _wide: bool) -> Vec<String> {
        let Value { scope, name, value, source } = self.0;
        vec![scope.clone(), name.clone(), value.clone(), words(source)]
    }

    fn name(&self) -> String {
        format!("value/{}", self.0.name)
    }

    fn tone(&self) -> Tone {
        match self.0.source {
            Source::Default => Tone::Faded,
            Source::Flag | Source::Env { .. } | Source::Node | Source::File { .. } | Source::Annotation { .. } => {
                Tone::Plain
            }
        }
    }
}

fn words(source: &Source) -> String {
    match source {
        Source::Flag => "flag".to_owned(),
        Source::Env { name } => format!("env {name}"),
        Source::Default => "default".to_owned(),
        Source::Node => "found on the node".to_owned(),
        Source::File { path } => format!("file {path}"),
        Source::Annotation { name } => format!("annotation {name}"),
    }
}

/// Runs the command.
pub(crate) fn run(args: ViewArgs, socket: &Path, output: &Output) -> Result<Answer> {
    let configuration = view(agent::configuration(socket)?, args);
    output.print(&shown(&configuration, output)?)?;
    Ok(Answer::Yes)
}

/// What was asked for of it.
fn view(mut configuration: Configuration, args: ViewArgs) -> Configuration {
    configuration.values.retain(|value| args.all || value.source != Source::Default);
    configuration
}

fn shown(configuration: &Configuration, output: &Output) -> Result<String> {
    let rows: Vec<_> = configuration.values.iter().map(ValueRow).collect();
    output.rows(&rows, ValueRow::KIND, configuration)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;
    use crate::output::tests::plain;

    fn configuration() -> Configuration {
        let value = |scope: &str, name: &str, value: &str, source| Value {
            scope: scope.to_owned(),
            name: name.to_owned(),
            value: value.to_owned(),
            source,
        };
        let env = Source::Env { name: "WEIR_CONFIG".to_owned() };
        let file = Source::File { path: "/etc/weir/settings.yaml".to_owned() };
        let annotation = Source::Annotation { name: "weir.dev/policy".to_owned() };
        Configuration {
            version: "0.1.0".to_owned(),
            api_servers: vec!["192.0.2.1".to_owned()],
            values: vec![
                value("agent", "--node-name", "edge-1", Source::Node),
                value("agent", "--config", "/etc/weir/settings.yaml", env),
                value("agent", "--nic", "", Source::Default),
                value("agent", "--udp-idle", "60", Source::Flag),
                value("namespace shop", "max-rtt", "20ms", file),
                value("service shop/web", "policy", "maglev", annotation),
            ],
        }
    }

    #[test]
    fn every_value_has_its_source_and_defaults_are_for_who_asks() {
        let shown = |all| shown(&view(configuration(), ViewArgs { all }), &plain(Format::Table)).unwrap();
        insta::assert_snapshot!(anstream::adapter::strip_str(&shown(false)), @r"
        SCOPE              NAME          VALUE                     SOURCE
        agent              --node-name   edge-1                    found on the node
        agent              --config      /etc/weir/settings.yaml   env WEIR_CONFIG
        agent              --udp-idle    60                        flag
        namespace shop     max-rtt       20ms                      file /etc/weir/settings.yaml
        service shop/web   policy        maglev                    annotation weir.dev/policy
        ");
        assert!(anstream::adapter::strip_str(&shown(true)).to_string().contains("--nic         <none>"));
    }

    #[test]
    fn the_document_says_the_same_to_programs() {
        let text = shown(&view(configuration(), ViewArgs { all: false }), &plain(Format::Json)).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&document["kind"], &document["version"]), (&"Configuration".into(), &"0.1.0".into()));
        assert_eq!(document["values"][0]["source"]["kind"], "node");
        assert_eq!(document["values"][1]["source"]["name"], "WEIR_CONFIG");
    }
}
