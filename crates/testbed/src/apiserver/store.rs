//! What the API server keeps, read and written past it.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::{Client, Config};
use serde::Deserialize;
use serde_json::{Value, json};

use super::ApiServer;
use crate::objects::{Object, Objects, api_error};
use crate::{Error, Result};

/// Where the server keeps its objects.
const ROOT: &str = "/registry/";
/// The first key behind these.
const BEHIND: &str = "/registry0";
/// As many keys etcd removes at once (`--max-txn-ops`).
const AT_ONCE: usize = 128;

/// Keys below [`ROOT`], each with the number of the change that it has last seen.
pub(super) type Contents = BTreeMap<String, String>;

/// A part of etcd's answer; numbers of 64 bits are strings in its JSON.
#[derive(Deserialize)]
struct Range {
    kvs: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    key: String,
    mod_revision: String,
}

impl ApiServer {
    /// Puts an object where the server keeps it, below `/registry/`, as an earlier version may have left it: what the
    /// server finds there it checks no more.
    ///
    /// # Errors
    /// When etcd refuses, or cannot be reached.
    pub fn store<K: Object>(&self, key: &str, object: &K) -> Result<()> {
        let object = serde_json::to_vec(object).map_err(|error| Error::Invalid(format!("{key}: {error}")))?;
        let put = json!({"key": STANDARD.encode(format!("{ROOT}{key}")), "value": STANDARD.encode(object)});
        self.ask_etcd(&self.objects()?, "put", &put).map(drop)
    }

    /// All keys, asked for on the runtime of a client.
    pub(super) fn contents(&self, client: &Objects) -> Result<Contents> {
        let all = json!({"key": STANDARD.encode(ROOT), "range_end": STANDARD.encode(BEHIND), "keys_only": true});
        let answer = self.ask_etcd(client, "range", &all)?;
        let invalid = |error: &dyn std::fmt::Display| Error::Invalid(format!("etcd's answer: {error}"));
        let range: Range = serde_json::from_str(&answer).map_err(|error| invalid(&error))?;
        let decode = |entry: Entry| {
            let key = STANDARD.decode(entry.key).map_err(|error| invalid(&error))?;
            let key = String::from_utf8(key).map_err(|error| invalid(&error))?;
            Ok((key.strip_prefix(ROOT).unwrap_or(&key).to_owned(), entry.mod_revision))
        };
        range.kvs.into_iter().map(decode).collect()
    }

    /// Removes keys, whatever finalizers their objects have. Who watches these is told.
    pub(super) fn forget(&self, client: &Objects, keys: &[String]) -> Result<()> {
        for some in keys.chunks(AT_ONCE) {
            let remove =
                |key: &String| json!({"request_delete_range": {"key": STANDARD.encode(format!("{ROOT}{key}"))}});
            self.ask_etcd(client, "txn", &json!({"success": some.iter().map(remove).collect::<Vec<_>>()}))?;
        }
        Ok(())
    }

    fn ask_etcd(&self, client: &Objects, what: &str, question: &Value) -> Result<String> {
        let action = format!("ask etcd: {what}");
        let invalid = |error: &dyn std::fmt::Display| Error::Invalid(format!("{action}: {error}"));
        let config = self.ports.etcd_url().parse().map_err(|error: http::uri::InvalidUri| invalid(&error))?;
        let request = http::Request::post(format!("/v3/kv/{what}")).body(question.to_string().into_bytes());
        let request = request.map_err(|error| invalid(&error))?;
        // The client's runtime is in the server's namespace.
        let answer = client.run(async move { Client::try_from(Config::new(config))?.request_text(request).await });
        answer.map_err(api_error(&action))
    }
}
