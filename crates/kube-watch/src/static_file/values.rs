//! Values of the file, one by one.

use std::net::IpAddr;

use serde_saphyr::Spanned;
use weir_core::model::{LONGEST_NAME, Protocol, TrafficPolicy};

use super::build::Result;
use crate::file::FileError;

pub(super) fn name<'a>(field: &str, value: &'a Spanned<String>) -> Result<&'a str> {
    if value.value.is_empty() {
        return Err(FileError::at(value.referenced, format!("{field}: a name must not be empty")));
    }
    Ok(&value.value)
}

/// A name by which the maps know an object: they hold so much of it, as Kubernetes does, and one that was cut is another's at the next start.
pub(super) fn short_name<'a>(field: &str, value: &'a Spanned<String>) -> Result<&'a str> {
    let name = name(field, value)?;
    if name.len() > LONGEST_NAME {
        let message = format!("{field}: \"{name}\" has {} bytes; {LONGEST_NAME} are the most", name.len());
        return Err(FileError::at(value.referenced, message));
    }
    if name.contains(['/', '\0']) {
        return Err(FileError::at(
            value.referenced,
            format!("{field}: \"{}\" has a slash or NUL", name.escape_debug()),
        ));
    }
    Ok(name)
}

pub(super) fn routed_addresses(field: &str, values: &[Spanned<String>]) -> Result<Vec<IpAddr>> {
    values.iter().map(|value| routed_address(field, value)).collect()
}

/// An address that packets are routed to, as Kubernetes wants those of endpoints and of balancers to be (`ValidateEndpointIP`).
pub(super) fn routed_address(field: &str, value: &Spanned<String>) -> Result<IpAddr> {
    let ip = address(field, value)?;
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    if link_local {
        let message = format!("{field}: {ip} is of one link alone, and packets are not routed there");
        return Err(FileError::at(value.referenced, message));
    }
    Ok(ip)
}

pub(super) fn addresses(field: &str, values: &[Spanned<String>]) -> Result<Vec<IpAddr>> {
    values.iter().map(|value| address(field, value)).collect()
}

pub(super) fn address(field: &str, value: &Spanned<String>) -> Result<IpAddr> {
    let wrong = |what: &str| FileError::at(value.referenced, format!("{field}: \"{}\" is {what}", value.value));
    let ip = value.value.parse::<IpAddr>().map_err(|_unread| wrong("not an IP address"))?.to_canonical();
    if ip.is_unspecified() || ip.is_multicast() {
        return Err(wrong("no address of a host"));
    }
    if ip.is_loopback() {
        return Err(wrong("a loopback address, which every host has to itself"));
    }
    Ok(ip)
}

pub(super) fn port(field: &str, value: &Spanned<i64>) -> Result<u16> {
    match u16::try_from(value.value) {
        Ok(port @ 1..) => Ok(port),
        _ => Err(FileError::at(value.referenced, format!("{field}: {} is not in 1..65535", value.value))),
    }
}

pub(super) fn protocol(value: Option<&Spanned<String>>) -> Result<Protocol> {
    let Some(value) = value else { return Ok(Protocol::Tcp) };
    match value.value.as_str() {
        "TCP" => Ok(Protocol::Tcp),
        "UDP" => Ok(Protocol::Udp),
        "SCTP" => Ok(Protocol::Sctp),
        other => Err(FileError::at(value.referenced, format!("protocol: \"{other}\" is none of TCP, UDP and SCTP"))),
    }
}

pub(super) const fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    }
}

pub(super) fn traffic_policy(field: &str, value: Option<&Spanned<String>>) -> Result<TrafficPolicy> {
    let Some(value) = value else { return Ok(TrafficPolicy::default()) };
    match value.value.as_str() {
        "Cluster" => Ok(TrafficPolicy::Cluster),
        "Local" => Ok(TrafficPolicy::Local),
        other => Err(FileError::at(value.referenced, format!("{field}: \"{other}\" is neither Cluster nor Local"))),
    }
}
