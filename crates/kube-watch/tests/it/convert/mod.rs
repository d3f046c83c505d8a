//! Kubernetes objects in, objects of the model out: one test for each rule of kube-proxy's.

mod endpoint_slice;
mod node;
mod service;
mod service_cidr;

use std::net::IpAddr;

use serde_json::{Value, json};

/// The object with parts of it replaced: a merge patch, in which null removes.
fn patched(mut object: Value, patch: &Value) -> Value {
    merge(&mut object, patch);
    object
}

fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let target = target.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
