//! The interfaces of this network namespace and the way to an address, asked of the kernel by netlink.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};
use futures::{Stream, TryStreamExt};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage, LinkXdp, XdpAttached};
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::tc::{TcAttribute, TcFilterBpfOption, TcMessage, TcOption};
use nix::net::if_::if_nametoindex;
use rtnetlink::{Handle, RouteMessageBuilder, TrafficFilterGetRequest, new_connection};
use weir_datapath::Attached;

/// How an XDP program runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum XdpMode {
    /// In the driver, or in the card.
    Native,
    /// Behind the driver, when a packet already has its buffer.
    Generic,
}

/// An interface.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) loopback: bool,
    /// Its frames have no Ethernet header.
    pub(crate) headerless: bool,
    /// The bridge or bond that it is a port of.
    pub(crate) master: Option<u32>,
    /// All zeroes if it has none.
    pub(crate) mac: [u8; 6],
    pub(crate) mtu: u32,
    /// Mode and number of the XDP program that runs here.
    pub(crate) xdp: Option<(XdpMode, u32)>,
}

/// Where an address is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Way {
    /// It is this node's own.
    Here,
    /// Behind the interface with this index.
    Behind(u32),
    /// No route leads there.
    Nowhere,
}

/// Runs a question to its end.
fn ask<T>(question: impl AsyncFnOnce(Handle) -> Result<T>) -> Result<T> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot ask the kernel")?;
    runtime.block_on(async {
        let (connection, handle, _) = new_connection().context("cannot open a netlink socket")?;
        let connection = tokio::spawn(connection);
        let answer = question(handle).await;
        connection.abort();
        answer
    })
}

/// All interfaces of this network namespace, by index.
pub(crate) fn list() -> Result<Vec<Interface>> {
    let mut all = ask(async |handle| {
        let links: Vec<_> = handle.link().get().execute().try_collect().await.context("cannot list the interfaces")?;
        Ok(links.iter().map(interface).collect::<Vec<_>>())
    })?;
    all.sort_by_key(|interface| interface.index);
    Ok(all)
}

/// The way that a packet of this node would take to an address.
pub(crate) fn way_to(address: IpAddr) -> Result<Way> {
    let question = match address {
        IpAddr::V4(ip) => RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(ip, 32).build(),
        IpAddr::V6(ip) => RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(ip, 128).build(),
    };
    ask(async |handle| {
        let answers = handle.route().get(question).execute();
        // Unreachable is said by an error, whose number depends on the family.
        Ok(first(answers).await.map_or(Way::Nowhere, |route| route.as_ref().map_or(Way::Nowhere, way)))
    })
}

/// Removes an interface of this network namespace, with its addresses.
pub(crate) fn delete(name: &str) -> Result<()> {
    let index = if_nametoindex(name).with_context(|| format!("there is no interface {name}"))?;
    let ended = ask(async |handle| Ok(handle.link().del(index).execute().await?));
    ended.with_context(|| format!("cannot remove the interface {name}"))
}

async fn first<T, E>(answers: impl Stream<Item = Result<T, E>>) -> Result<Option<T>, E> {
    futures::pin_mut!(answers);
    answers.try_next().await
}

fn way(route: &RouteMessage) -> Way {
    if route.header.kind == RouteType::Local {
        return Way::Here;
    }
    let leaves = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    });
    leaves.map_or(Way::Nowhere, Way::Behind)
}

/// The BPF programs in clsact filters of interfaces, by index.
pub(crate) fn filters(interfaces: &[Interface]) -> Result<BTreeMap<u32, Attached>> {
    ask(async |handle| {
        let listed = async |request: TrafficFilterGetRequest| {
            // Without a clsact qdisc there are none, and the kernel calls that an error.
            let mut filters: Vec<_> = request.execute().try_collect().await.unwrap_or_default();
            filters.sort_by_key(priority);
            filters.iter().flat_map(program_names).collect()
        };
        let mut all = BTreeMap::new();
        for Interface { index, .. } in interfaces {
            let at = i32::try_from(*index).context("the kernel numbers interfaces with 31 bits")?;
            let ingress = listed(handle.traffic_filter(at).get().ingress()).await;
            let egress = listed(handle.traffic_filter(at).get().egress()).await;
            all.insert(*index, Attached { ingress, egress });
        }
        Ok(all)
    })
}

/// Filters run in this order; those of the same priority as they are listed. It is above the protocol (`TC_H_MAJ` of `tcm_info`).
fn priority(filter: &TcMessage) -> u32 {
    filter.header.info >> 16
}

fn program_names(filter: &TcMessage) -> Vec<String> {
    let options = filter.attributes.iter().filter_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    });
    let name = |option: &TcOption| match option {
        TcOption::Bpf(TcFilterBpfOption::ProgName(name)) => Some(name.trim_end_matches('\0').to_owned()),
        _ => None,
    };
    options.flatten().filter_map(name).collect()
}

fn interface(link: &LinkMessage) -> Interface {
    let loopback = link.header.flags.contains(LinkFlags::Loopback);
    let headerless = !loopback && link.header.link_layer_type != LinkLayerType::Ether;
    let mut interface = Interface { index: link.header.index, loopback, headerless, ..Interface::default() };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name.clone_from(name),
            LinkAttribute::Controller(index) => interface.master = Some(*index),
            LinkAttribute::Mtu(mtu) => interface.mtu = *mtu,
            LinkAttribute::Address(bytes) => interface.mac = bytes.as_slice().try_into().unwrap_or_default(),
            LinkAttribute::Xdp(details) => interface.xdp = xdp(details),
            _ => {}
        }
    }
    interface
}

fn xdp(details: &[LinkXdp]) -> Option<(XdpMode, u32)> {
    let mode = details.iter().find_map(|detail| match detail {
        LinkXdp::Attached(XdpAttached::SocketBuffer) => Some(XdpMode::Generic),
        LinkXdp::Attached(XdpAttached::Driver | XdpAttached::Hardware | XdpAttached::Multiple) => Some(XdpMode::Native),
        _ => None,
    })?;
    let program = details.iter().find_map(|detail| match detail {
        LinkXdp::ProgId(id) => Some(*id),
        _ => None,
    });
    Some((mode, program.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_and_the_way_to_it_are_known_everywhere() {
        let all = list().unwrap();
        let loopback = all.iter().find(|interface| interface.loopback).unwrap();
        assert_eq!((loopback.name.as_str(), loopback.xdp), ("lo", None));
        assert_eq!(way_to("127.0.0.1".parse().unwrap()).unwrap(), Way::Here);
        assert_eq!(filters(&all).unwrap()[&loopback.index], Attached::default());
    }

    #[test]
    fn a_program_in_the_driver_is_native_and_one_behind_it_is_generic() {
        let id = LinkXdp::ProgId(7);
        let attached = |mode| xdp(&[LinkXdp::Attached(mode), id.clone()]);
        assert_eq!(attached(XdpAttached::Driver), Some((XdpMode::Native, 7)));
        assert_eq!(attached(XdpAttached::SocketBuffer), Some((XdpMode::Generic, 7)));
        assert_eq!(attached(XdpAttached::None), None);
    }
}
