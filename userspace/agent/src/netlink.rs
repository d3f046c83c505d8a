//! Interfaces, their addresses and default routes, followed by netlink. Nobody else knows the crates of rtnetlink.

mod addresses;

use std::collections::BTreeMap;
use std::future::ready;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{FutureExt, StreamExt};
use netlink_packet_core::{DoneMessage, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage};
use netlink_packet_route::route::{RouteAttribute, RouteHeader, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::{Handle, MulticastGroup, RouteMessageBuilder, new_connection, new_multicast_connection};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use weir_core::interfaces::{Interface, LinkHeader};

use self::addresses::carried;
use crate::channel::publish;

const GROUPS: [MulticastGroup; 5] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
];

/// Least time between two listings, each of which is of everything: where many pods start, changes come in swarms.
const PAUSE: Duration = Duration::from_millis(100);

/// How often a listing is asked for that was interrupted by a change. The next message makes up for the last one.
const TRIES: usize = 5;

/// Publishes the interfaces now and at every change, until nobody listens any more.
pub(crate) async fn follow(sink: watch::Sender<Vec<Interface>>) -> Result<()> {
    let (notices, _, messages) = new_multicast_connection(&GROUPS).context("cannot open a netlink socket")?;
    tokio::spawn(notices);
    let handle = lister()?;
    let mut changes = messages.filter(|(message, _)| ready(matters(message)));
    loop {
        let interfaces = list(&handle).await.context("cannot list the interfaces")?;
        let listed = Instant::now();
        let Some(interfaces) = interfaces else {
            sleep_until(listed + PAUSE).await;
            continue;
        };
        publish(&sink, interfaces);
        tokio::select! {
            change = changes.next() => {
                change.context("the netlink socket was closed")?;
            }
            () = sink.closed() => return Ok(()),
        }
        sleep_until(listed + PAUSE).await;
        // Whatever else has come meanwhile is seen by the same listing.
        while let Some(Some(_)) = changes.next().now_or_never() {}
    }
}

/// What asks for listings: a socket of its own, as a notice has the number of the request that somebody else made for the change, and would be taken
/// for an answer to ours of the same number, and for its last one.
fn lister() -> Result<Handle> {
    let (mut connection, handle, _) = new_connection().context("cannot open a netlink socket")?;
    connection.set_forward_done(true);
    tokio::spawn(connection);
    Ok(handle)
}

/// Whether a listing may find something new after this message: not where it is about a route to less than everything, as with a full table by BGP, in
/// which routes change all the time. After an overrun, which is also a message, it may.
fn matters(message: &NetlinkMessage<RouteNetlinkMessage>) -> bool {
    match &message.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route)) => {
            route.header.destination_prefix_length == 0
        }
        _ => true,
    }
}

/// Reads all interfaces of our network namespace. None: some may be missing, and from these programs would be detached.
async fn list(handle: &Handle) -> Result<Option<Vec<Interface>>> {
    let mut interfaces = BTreeMap::new();
    let links = dump(handle, RouteNetlinkMessage::GetLink(LinkMessage::default()), |message| match message {
        RouteNetlinkMessage::NewLink(link) => vec![interface(&link)],
        _ => Vec::new(),
    });
    let (links, is_whole) = links.await?;
    if !is_whole {
        return Ok(None);
    }
    for interface in links {
        interfaces.insert(interface.index, interface);
    }
    let addresses = dump(handle, RouteNetlinkMessage::GetAddress(AddressMessage::default()), |message| match message {
        RouteNetlinkMessage::NewAddress(message) => carried(&message).into_iter().collect(),
        _ => Vec::new(),
    });
    let (mut addresses, is_whole) = addresses.await?;
    if !is_whole {
        return Ok(None);
    }
    // The kernel tells the newest ones first, of IPv6: what lasts comes before what does not.
    addresses.sort_by_key(|(.., lasts)| !lasts);
    for (index, ip, _) in addresses {
        if let Some(interface) = interfaces.get_mut(&index) {
            interface.addresses.push(ip);
        }
    }
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
    for family in [v4, v6] {
        let routes = dump(handle, RouteNetlinkMessage::GetRoute(family), |message| match message {
            RouteNetlinkMessage::NewRoute(route) => {
                let main = is_main(&route);
                default_routes(&route).into_iter().map(|(index, gateway)| (index, gateway, main)).collect()
            }
            _ => Vec::new(),
        });
        for (index, gateway, main) in routes.await?.0 {
            // Without a gateway only as by PPP. Elsewhere such a route is of somebody's own rules.
            if let Some(interface) = interfaces.get_mut(&index)
                && (gateway || (interface.header == LinkHeader::None && main))
            {
                interface.default_route = true;
            }
        }
    }
    Ok(Some(interfaces.into_values().collect()))
}

/// Asks for all objects of a kind, of which there may be a million, and keeps what is made of them. A list that a change has interrupted may
/// lack some, as `NLM_F_DUMP_INTR` says, and so does one without an end. Returns what was found, and whether it is all.
async fn dump<T>(
    handle: &Handle,
    request: RouteNetlinkMessage,
    keep: impl Fn(RouteNetlinkMessage) -> Vec<T>,
) -> Result<(Vec<T>, bool)> {
    let mut found = Vec::new();
    for _ in 0..TRIES {
        found.clear();
        let mut message = NetlinkMessage::from(request.clone());
        message.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
        let mut answers = handle.clone().request(message).context("the netlink socket takes no request")?;
        let (mut ended, mut interrupted) = (false, false);
        while let Some(answer) = answers.next().await {
            interrupted |= answer.header.flags & NLM_F_DUMP_INTR != 0;
            match answer.payload {
                NetlinkPayload::InnerMessage(message) => found.extend(keep(message)),
                NetlinkPayload::Done(DoneMessage { code, .. }) => ended = code == 0,
                NetlinkPayload::Error(error) => return Err(error.to_io()).context("the kernel refuses a list"),
                _ => {}
            }
        }
        if ended && !interrupted {
            return Ok((found, true));
        }
    }
    Ok((found, false))
}

fn interface(link: &LinkMessage) -> Interface {
    let mut interface = Interface {
        index: link.header.index,
        up: link.header.flags.contains(LinkFlags::Up),
        loopback: link.header.flags.contains(LinkFlags::Loopback),
        header: link_header(link.header.link_layer_type),
        ..Interface::default()
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name.clone_from(name),
            LinkAttribute::Controller(index) => interface.master = Some(*index),
            LinkAttribute::LinkNetNsId(_) => interface.peer_elsewhere = true,
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    if let LinkInfo::Kind(kind) = info {
                        interface.kind = kind.to_string();
                    }
                }
            }
            _ => {}
        }
    }
    if BY_IPSEC.contains(&interface.kind.as_str()) {
        interface.header = LinkHeader::Other;
    }
    interface
}

/// Kinds of tunnels by IPsec: their packets come with the Ethernet header of what was around them, and leave without one.
const BY_IPSEC: [&str; 3] = ["xfrm", "vti", "vti6"];

/// The kernel's kinds of devices (`ARPHRD_*`) by what their frames begin with; WireGuard and tun are `None` to it.
fn link_header(kind: LinkLayerType) -> LinkHeader {
    match kind {
        LinkLayerType::Ether => LinkHeader::Ethernet,
        LinkLayerType::None
        | LinkLayerType::Ppp
        | LinkLayerType::Tunnel
        | LinkLayerType::Tunnel6
        | LinkLayerType::Sit
        | LinkLayerType::Rawip => LinkHeader::None,
        _ => LinkHeader::Other,
    }
}

/// Interfaces that a default route leaves through, and whether it does so by a gateway. The kernel keeps an unreachable one of its own
/// on the loopback device.
fn default_routes(route: &RouteMessage) -> Vec<(u32, bool)> {
    let unicast = matches!(route.header.address_family, AddressFamily::Inet | AddressFamily::Inet6);
    let has_gateway =
        |attribute: &RouteAttribute| matches!(attribute, RouteAttribute::Gateway(_) | RouteAttribute::Via(_));
    if !unicast || route.header.kind != RouteType::Unicast || route.header.destination_prefix_length != 0 {
        return Vec::new();
    }
    let gateway = route.attributes.iter().any(has_gateway);
    let mut indexes = Vec::new();
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => indexes.push((*index, gateway)),
            RouteAttribute::MultiPath(hops) => indexes.extend(hops.iter().map(|hop| (hop.interface_index, true))),
            _ => {}
        }
    }
    indexes
}

/// Whether a route is in the main table, which all packets are looked up in unless somebody's rules say else.
fn is_main(route: &RouteMessage) -> bool {
    route.header.table == RouteHeader::RT_TABLE_MAIN
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use netlink_packet_core::{NLM_F_CREATE, NetlinkHeader};
    use netlink_packet_route::link::InfoKind;
    use netlink_sys::protocols::NETLINK_ROUTE;
    use weir_testbed::{Netns, require_root};

    use super::*;

    fn route(table: u8, attributes: &[RouteAttribute]) -> RouteMessage {
        let mut route = RouteMessage::default();
        let address_family = AddressFamily::Inet;
        route.header = RouteHeader { address_family, table, kind: RouteType::Unicast, ..RouteHeader::default() };
        route.attributes = attributes.to_vec();
        route
    }

    #[test]
    fn a_default_route_says_by_which_interface_it_leaves_and_whether_by_a_gateway() {
        let gateway = RouteAttribute::Gateway(Ipv4Addr::new(192, 0, 2, 1).into());
        let main = RouteHeader::RT_TABLE_MAIN;
        assert_eq!(default_routes(&route(main, &[RouteAttribute::Oif(2), gateway])), [(2, true)]);
        assert_eq!(default_routes(&route(main, &[RouteAttribute::Oif(7)])), [(7, false)]);
        let mut narrow = route(main, &[RouteAttribute::Oif(7)]);
        narrow.header.destination_prefix_length = 24;
        assert_eq!(default_routes(&narrow), []);
        let mut unreachable = route(main, &[RouteAttribute::Oif(1)]);
        unreachable.header.kind = RouteType::Unreachable;
        assert_eq!(default_routes(&unreachable), []);
    }

    #[test]
    fn of_routes_only_a_default_one_is_worth_a_listing() {
        let told = |message| matters(&NetlinkMessage::from(message));
        let default = route(RouteHeader::RT_TABLE_MAIN, &[RouteAttribute::Oif(2)]);
        let mut narrow = default.clone();
        narrow.header.destination_prefix_length = 24;
        assert!(told(RouteNetlinkMessage::NewRoute(default.clone())) && told(RouteNetlinkMessage::DelRoute(default)));
        assert!(!told(RouteNetlinkMessage::NewRoute(narrow.clone())) && !told(RouteNetlinkMessage::DelRoute(narrow)));
        assert!(told(RouteNetlinkMessage::NewLink(LinkMessage::default())));
        assert!(matters(&NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::Overrun(Vec::new()))));
    }

    #[test]
    fn a_full_tunnels_route_in_a_table_of_its_own_is_not_in_the_main_one() {
        assert!(is_main(&route(RouteHeader::RT_TABLE_MAIN, &[])));
        assert!(!is_main(&route(100, &[])));
    }

    #[test]
    fn frames_begin_with_what_the_kernel_says_of_their_device() {
        assert_eq!(link_header(LinkLayerType::Ether), LinkHeader::Ethernet);
        for kind in [LinkLayerType::None, LinkLayerType::Ppp, LinkLayerType::Tunnel, LinkLayerType::Sit] {
            assert_eq!(link_header(kind), LinkHeader::None, "{kind:?}");
        }
        assert_eq!(link_header(LinkLayerType::Ipgre), LinkHeader::Other);
    }

    #[test]
    fn what_ipsec_carries_comes_with_a_header_and_leaves_without() {
        let mut link = LinkMessage::default();
        link.header.link_layer_type = LinkLayerType::None;
        link.attributes = vec![LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Xfrm)])];
        assert_eq!(interface(&link).header, LinkHeader::Other);
    }

    /// Adds and takes away a route of the namespace that the thread is in, in requests that are numbered from 1 on, over and over.
    fn change_routes(stop: &AtomicBool) {
        let socket = netlink_sys::Socket::new(NETLINK_ROUTE).unwrap();
        let route = RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(Ipv4Addr::new(192, 0, 2, 0), 24)
            .output_interface(1)
            .build();
        let (add, remove) = (RouteNetlinkMessage::NewRoute(route.clone()), RouteNetlinkMessage::DelRoute(route));
        while !stop.load(Ordering::Relaxed) {
            for (number, change) in (1..=8).flat_map(|number| [(number, &add), (number, &remove)]) {
                let mut message = NetlinkMessage::from(change.clone());
                message.header.flags = NLM_F_REQUEST | NLM_F_CREATE;
                message.header.sequence_number = number;
                message.finalize();
                let mut bytes = vec![0; message.buffer_len()];
                message.serialize(&mut bytes);
                socket.send_to(&bytes, &netlink_sys::SocketAddr::new(0, 0), 0).unwrap();
            }
        }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    /// The interfaces of the namespace that the thread is in.
    async fn first_listing() -> Vec<Interface> {
        let (sink, mut seen) = watch::channel(Vec::new());
        tokio::select! {
            followed = follow(sink) => panic!("{followed:?}"),
            changed = seen.changed() => changed.unwrap(),
        }
        seen.borrow().clone()
    }

    /// The kernel tells the one first that was added last.
    #[test]
    fn of_an_interfaces_addresses_those_that_last_come_first() {
        if !require_root("addresses that pass") {
            return;
        }
        let netns = Netns::create(&format!("w{}-passing", std::process::id())).unwrap();
        let add = "addr add 2001:db8::1/64 dev eth0 nodad\naddr add 2001:db8::2/64 dev eth0 nodad preferred_lft 0\n";
        netns.ip(&format!("link add eth0 type veth peer name eth1\nlink set eth0 up\n{add}")).unwrap();
        let listed = netns.enter(|| block_on(first_listing()));
        let addresses = listed.into_iter().find(|interface| interface.name == "eth0").map(|eth0| eth0.addresses);
        assert_eq!(addresses, Some(["2001:db8::1", "2001:db8::2"].map(|ip| ip.parse().unwrap()).to_vec()));
    }

    /// Ends what goes on, after a failure too.
    struct Stop(Arc<AtomicBool>);

    impl Drop for Stop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Plugins of a container network number their requests from 1 on, as we do, and a notice has the number of the request that it is of.
    #[test]
    fn what_others_change_ends_no_listing() {
        const PAIRS: usize = 100;
        if !require_root("listings beside changes") {
            return;
        }
        let netns = Netns::create(&format!("w{}-listed", std::process::id())).unwrap();
        let pairs: String = (0..PAIRS).map(|n| format!("link add a{n} type veth peer name b{n}\n")).collect();
        netns.ip(&pairs).unwrap();
        let stop = Stop(Arc::new(AtomicBool::new(false)));
        let changes = netns
            .spawn("changes", {
                let stop = Arc::clone(&stop.0);
                move || change_routes(&stop)
            })
            .unwrap();
        let listed = netns.enter(|| {
            block_on(async {
                let mut listed = Vec::new();
                for _ in 0..100 {
                    listed.push(first_listing().await.len());
                }
                listed
            })
        });
        drop(stop);
        changes.join().unwrap();
        assert_eq!(listed, vec![2 * PAIRS + 1; listed.len()], "interfaces, lo included");
    }
}
