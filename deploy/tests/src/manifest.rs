//! Manifests as objects.

use serde_json::Value;
use weir_testbed::{Error, Result};

/// The objects of a manifest, in its order.
///
/// # Errors
/// When it is no YAML.
pub fn objects(manifest: &str) -> Result<Vec<Value>> {
    serde_saphyr::from_multiple(manifest).map_err(|error| Error::Invalid(format!("not a manifest: {error}")))
}

/// The object of a kind, of which there must be one.
///
/// # Errors
/// When there is none, or more than one.
pub fn only<'a>(objects: &'a [Value], kind: &str) -> Result<&'a Value> {
    let mut found = objects.iter().filter(|object| object["kind"] == kind);
    match (found.next(), found.next()) {
        (Some(object), None) => Ok(object),
        (None, _) => Err(Error::Invalid(format!("no {kind} among {:?}", names(objects)))),
        (Some(_), Some(_)) => Err(Error::Invalid(format!("several {kind} among {:?}", names(objects)))),
    }
}

/// Kind and name of each object.
#[must_use]
pub fn names(objects: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    objects.iter().map(|object| format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"]))).collect()
}

/// A manifest of Helm's without the traces of Helm: for those who apply it without.
#[must_use]
pub fn without_helm(manifest: &str) -> String {
    const TRACES: [&str; 3] = ["# Source: ", "helm.sh/chart: ", "app.kubernetes.io/managed-by: "];
    let is_trace = |line: &&str| TRACES.iter().any(|trace| line.trim_start().starts_with(trace));
    manifest.lines().filter(|line| !is_trace(line)).map(|line| format!("{line}\n")).collect()
}
