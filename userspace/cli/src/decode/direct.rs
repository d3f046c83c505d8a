//! The maps of direct server return, and ways to other nodes.

use weir_abi as abi;

use super::{Value, address, number, word};

/// Key and value of `local_endpoints`.
pub(crate) fn local_endpoint(key: &abi::LocalKey, endpoint: &abi::LocalEndpoint) -> (Value, Value) {
    let (abi::LocalKey { addr, service, pad: _ }, abi::LocalEndpoint { backend }) = (key, endpoint);
    let key = vec![("service", number(*service)), ("address", word(addr.ip().to_string()))];
    (Value::Fields(key), Value::Fields(vec![("backend", number(*backend))]))
}

/// Key and value of `other_nodes`.
pub(crate) fn other_node(address: abi::Addr, node: &abi::OtherNode) -> (Value, Value) {
    let abi::OtherNode { known } = node;
    let key = Value::Fields(vec![("address", word(address.ip().to_string()))]);
    (key, Value::Fields(vec![("known", number(*known))]))
}

/// Key and value of `nics`.
pub(crate) fn nic(index: u32) -> (Value, Value) {
    (number(index), Value::Fields(vec![("ifindex", number(index))]))
}

/// Of `tunnel4` and `tunnel6` in `config`.
pub(crate) fn tunnel(tunnel: abi::Tunnel) -> Value {
    let abi::Tunnel { addr, ifindex, pad: _ } = tunnel;
    Value::Fields(vec![("address", address(addr)), ("ifindex", number(ifindex))])
}
