//! What the API server keeps, written past it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::{Client, Config};
use serde_json::json;

use super::ApiServer;
use crate::objects::{Object, api_error};
use crate::{Error, Result};

impl ApiServer {
    /// Puts an object where the server keeps it, below `/registry/`, as an earlier version may have left it: what the
    /// server finds there it checks no more.
    ///
    /// # Errors
    /// When etcd refuses, or cannot be reached.
    pub fn store<K: Object>(&self, key: &str, object: &K) -> Result<()> {
        let etcd = self.ports.etcd_url();
        let invalid = |error: &dyn std::fmt::Display| Error::Invalid(format!("{key}: {error}"));
        let object = serde_json::to_vec(object).map_err(|error| invalid(&error))?;
        let put = json!({"key": STANDARD.encode(format!("/registry/{key}")), "value": STANDARD.encode(object)});
        let request = http::Request::post("/v3/kv/put").body(put.to_string().into_bytes());
        let request = request.map_err(|error| invalid(&error))?;
        let config = Config::new(etcd.parse().map_err(|error: http::uri::InvalidUri| invalid(&error))?);
        // On its runtime, which is in the server's namespace.
        let written = self.objects()?.run(async move { Client::try_from(config)?.request_text(request).await });
        written.map(drop).map_err(api_error(&format!("store {key}")))
    }
}
