use super::*;
use crate::args::Format;
use crate::output::tests::plain;
use crate::sample::{self, ip};

fn flow(client: &str, frontend: &str, service: u32, backend: u32, generation: u32, flags: u16) -> FlowEntry {
    let (client, frontend): (SocketAddr, SocketAddr) = (client.parse().unwrap(), frontend.parse().unwrap());
    let snat_port = abi::Be16::new(if flags & abi::FLOW_SNAT != 0 { 40_001 } else { 0 });
    FlowEntry {
        client: client.ip().into(),
        client_port: client.port(),
        frontend: frontend.ip().into(),
        frontend_port: frontend.port(),
        protocol: 6,
        flow: abi::Flow {
            backend,
            generation,
            service,
            flags,
            snat_port,
            created: sample::tick(500),
            last_seen: sample::tick(60),
            bytes: 0,
            held: 0,
        },
    }
}

fn reply(entry: &FlowEntry, from: &str, to: &str, flags: u16) -> (ReplyKey, abi::Reply) {
    let key = ReplyKey { from: from.parse().unwrap(), to: to.parse().unwrap(), protocol: 6 };
    let reply = abi::Reply {
        frontend: entry.frontend,
        client: entry.client,
        frontend_port: abi::Be16::new(entry.frontend_port),
        client_port: abi::Be16::new(entry.client_port),
        flags,
        heard: 0,
        backend: entry.flow.backend,
        generation: entry.flow.generation,
        last_seen: sample::tick(2),
        asked: 0,
        bytes: 0,
        held: 0,
    };
    (key, reply)
}

fn shown(format: Format, filter: Option<&Filter>) -> String {
    let dump = sample::dump();
    let answered = flow("10.244.1.40:5000", "10.96.0.20:80", 1, 1, 3, 0);
    let snat = flow("198.51.100.9:4242", "192.168.0.11:30080", 1, 2, 3, abi::FLOW_SNAT);
    let v6 = flow("[fd00:244::77]:5001", "[fd00:96::20]:80", 2, 5, 3, abi::FLOW_CLOSING);
    let both = abi::FLOW_CLOSING | abi::FLOW_ENDED;
    let ended = flow("[fd00:244::77]:5005", "[fd00:96::20]:80", 2, 5, 3, both);
    let gone = flow("10.244.1.41:5002", "10.96.0.20:80", 1, 6, 3, 0);
    let retaken = flow("10.244.1.42:5003", "10.96.0.20:80", 1, 3, 1, 0);
    // The backend knows this client through another frontend by now.
    let other = flow("198.51.100.9:4242", "203.0.113.7:80", 1, 2, 3, 0);
    let unanswered = flow("10.244.1.43:5004", "10.96.0.20:80", 1, 3, 3, 0);
    let replies = Replies(HashMap::from([
        reply(&answered, "10.244.1.5:8080", "10.244.1.40:5000", abi::FLOW_REPLIED),
        reply(&other, "10.244.2.6:8080", "192.168.0.11:40001", abi::FLOW_SNAT | abi::FLOW_REPLIED),
    ]));
    let config = abi::Config { node4: ip("192.168.0.11").into(), ..abi::Config::PLAIN };
    let flows = [answered, snat, v6, ended, gone, retaken, unanswered];
    let rows = rows(&Index::new(&dump), filter, &flows, &replies, &config, sample::now());
    anstream::adapter::strip_str(&plain(format).list(&rows).unwrap()).to_string()
}

#[test]
fn a_flow_whose_answers_do_not_come_by_goes_on_when_its_client_does() {
    let flags = [abi::FLOW_DIRECT, abi::FLOW_DIRECT | abi::FLOW_OPENING, abi::FLOW_SNAT];
    assert_eq!(flags.map(is_going_direct), [true, false, false]);
}

#[test]
fn a_flow_with_another_port_shows_it_with_its_clients_address() {
    let mut entry = flow("198.51.100.9:4242", "203.0.113.7:80", 1, 2, 3, 0);
    let source = |entry: &FlowEntry| other_source(entry, ip("192.168.0.11").into()).map(|source| source.to_string());
    assert_eq!(source(&entry), None);
    entry.flow.snat_port = abi::Be16::new(61_002);
    assert_eq!(source(&entry).as_deref(), Some("198.51.100.9:61002"));
    entry.flow.flags = abi::FLOW_SNAT;
    assert_eq!(source(&entry).as_deref(), Some("192.168.0.11:61002"));
}

#[test]
fn what_leaves_by_a_tunnel_has_its_address_and_everything_else_the_nodes() {
    let tunnel = |addr: &str| abi::Tunnel { addr: ip(addr).into(), ifindex: 0, pad: 0 };
    let (node4, node6) = (ip("192.168.0.11").into(), ip("fd00::11").into());
    let (tunnel4, tunnel6) = (tunnel("10.42.0.0"), tunnel("fd42::"));
    let config = abi::Config { node4, node6, tunnel4, tunnel6, ..abi::Config::PLAIN };
    let seen = |client, flags| source_of(&config, ip(client), flags).ip().to_string();
    let clients = ["198.51.100.9", "2001:db8::9"];
    assert_eq!(clients.map(|client| seen(client, abi::FLOW_SNAT)), ["192.168.0.11", "fd00::11"]);
    let by_tunnel = abi::FLOW_SNAT | abi::FLOW_TUNNEL;
    assert_eq!(clients.map(|client| seen(client, by_tunnel)), ["10.42.0.0", "fd42::"]);
}

#[test]
fn flows_show_their_state_from_both_tables() {
    insta::assert_snapshot!(shown(Format::Wide, None), @r"
    PROTO   CLIENT                FRONTEND             BACKEND              STATE     NODE     SNAT                 AGE     IDLE   SERVICE
    TCP     10.244.1.40:5000      10.96.0.20:80        10.244.1.5:8080      replied   edge-1   <none>               8m20s   2s     shop/web:80/TCP
    TCP     198.51.100.9:4242     192.168.0.11:30080   10.244.2.6:8080      new       edge-2   192.168.0.11:40001   8m20s   60s    shop/web:80/TCP
    TCP     [fd00:244::77]:5001   [fd00:96::20]:80     [fd00:244::5]:8080   closing   edge-2   <none>               8m20s   60s    shop/web:80/TCP
    TCP     [fd00:244::77]:5005   [fd00:96::20]:80     [fd00:244::5]:8080   closed    edge-2   <none>               8m20s   60s    shop/web:80/TCP
    TCP     10.244.1.41:5002      10.96.0.20:80        10.244.3.1:8080      stale     edge-2   <none>               8m20s   60s    shop/web:80/TCP
    TCP     10.244.1.42:5003      10.96.0.20:80        <none>               stale     <none>   <none>               8m20s   60s    shop/web:80/TCP
    TCP     10.244.1.43:5004      10.96.0.20:80        10.244.2.7:8080      new       edge-2   <none>               8m20s   60s    shop/web:80/TCP
    ");
}

#[test]
fn a_service_narrows_the_list_to_its_flows_in_both_families() {
    let flows = shown(Format::Name, Some(&sample::filter(Some("shop"), Some("web"))));
    assert_eq!(flows.lines().count(), 7);
    assert_eq!(shown(Format::Name, Some(&sample::filter(Some("default"), Some("dns")))), "");
}

#[test]
fn json_leaves_no_doubt_about_an_unknown_backend() {
    let document: serde_json::Value = serde_json::from_str(&shown(Format::Json, None)).unwrap();
    assert_eq!(document["items"][5]["backend"], serde_json::Value::Null);
    assert_eq!(document["items"][1]["snat"], "192.168.0.11:40001");
}
