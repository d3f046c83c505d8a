//! What an agent runs with, as it says at the [admin socket](crate::admin): every value with its source. No secrets: options
//! name files of keys, and credentials in URLs are left out before they get here.

use serde::{Deserialize, Serialize};

/// Path of the document.
pub const PATH: &str = "/configuration";

/// What is in force.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Configuration {
    /// Version of the agent.
    pub version: String,
    /// Where the API server is, as a host or address without a port; empty without one.
    pub api_servers: Vec<String>,
    /// The agent's options in the order of its help, then settings of all Services, of namespaces, of single Services.
    pub values: Vec<Value>,
}

/// A value.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Value {
    /// `agent`, `all services`, `namespace NAME` or `service NAMESPACE/NAME`.
    pub scope: String,
    /// Name of the option or setting.
    pub name: String,
    /// As one would write it; empty if it is not set.
    pub value: String,
    /// Where it is from.
    pub source: Source,
}

/// Where a value is from.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Source {
    /// The command line.
    Flag,
    /// A variable of the environment.
    Env {
        /// Its name.
        name: String,
    },
    /// Nobody set it.
    Default,
    /// Nobody set it, and the agent found it on its node.
    Node,
    /// The configuration file.
    File {
        /// Its path.
        path: String,
    },
    /// An annotation of a Service.
    Annotation {
        /// Its name.
        name: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_reads_as_it_was_written() {
        let sources = [
            (Source::Flag, r#"{"kind":"flag"}"#),
            (Source::Env { name: "NODE_NAME".to_owned() }, r#"{"kind":"env","name":"NODE_NAME"}"#),
            (Source::File { path: "/a".to_owned() }, r#"{"kind":"file","path":"/a"}"#),
            (Source::Node, r#"{"kind":"node"}"#),
        ];
        for (source, text) in sources {
            assert_eq!(serde_json::to_string(&source).unwrap(), text);
            assert_eq!(serde_json::from_str::<Source>(text).unwrap(), source);
        }
    }
}
