//! Datagrams: whole ones, those that only just fit a packet, and those in pieces.

use std::net::UdpSocket;
use std::time::Duration;

use weir_testbed::ask::{Answer, PATIENCE};

use super::*;

/// Bytes of datagrams: the second fills a packet of Ethernet's size over IPv4, and has no room for a wrapper.
const SIZES: [usize; 4] = [10, 1472, 4000, 8000];
/// Whoever sends too much hears of it and loses the datagram.
const LOST: Duration = Duration::from_millis(500);

/// Sends as many bytes until they come back, behind the name of who has seen whom. Returns with it how many passed node 1's NIC meanwhile.
fn ask(bed: &Bed, to: SocketAddr, size: usize) -> (Answer, u64) {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = bed.world.client().enter(|| UdpSocket::bind((any, 0))).unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(LOST)).unwrap();
    let sent: Vec<u8> = (0..size).map(|at| b'a' + u8::try_from(at % 23).unwrap()).collect();
    let (mut buffer, mut seen) = (vec![0; 2 * size + 1024], String::new());
    let exchange = || -> Result<(Answer, u64), String> {
        let before = bed.carried(1);
        // One that is too big by what the kernel has heard fails at once, and is cut next time.
        let _ = socket.send(&sent);
        let length = socket.recv(&mut buffer).map_err(|e| e.to_string())?;
        let answer = &buffer[..length];
        if !answer.ends_with(&sent) {
            return Err(format!("{length} bytes that do not end with what was sent"));
        }
        seen = String::from_utf8_lossy(answer).into_owned();
        let answer = seen.parse().map_err(|()| format!("{seen:?} is no answer"))?;
        Ok((answer, bed.carried(1) - before))
    };
    wait::until_some(&format!("{size} bytes back from {to}"), PATIENCE, exchange).unwrap()
}

fn are_direct(options: &[&str]) {
    let bed = Bed::start([options, options]);
    bed.await_direct(true);
    for (to, size) in bed.sockets(UDP_NODE_PORT, UDP_PORT).into_iter().flat_map(|to| SIZES.map(|size| (to, size))) {
        // Whoever has to hear of what fits has heard of it by then.
        ask(&bed, to, size);
        let wrapped = bed.packets(1, abi::REASON_DIRECT);
        let (answer, carried) = ask(&bed, to, size);
        assert_eq!(answer.name, "node2-pod1", "{to}, {size} bytes");
        assert_eq!(answer.client.ip(), CLIENT.like(to.ip()), "whom the endpoint saw, {to}, {size} bytes");
        assert!(bed.packets(1, abi::REASON_DIRECT) > wrapped, "{to}, {size} bytes: none came wrapped");
        // In and out again, with headers for each piece; and nothing of the answer.
        let bound = 3 * u64::try_from(size).unwrap() + 1000;
        assert!(carried < bound, "{to}, {size} bytes: {carried} at the NIC of the node that was asked");
    }
    let backs = [1, 2].map(|node| bed.packets(node, abi::REASON_BACK));
    assert_eq!(backs, [0, 0], "no answer came to a source port of a node");
}

#[test]
fn the_endpoints_node_answers_datagrams_of_every_size_itself() {
    if can_run("direct server return of datagrams") {
        are_direct(&[DSR]);
    }
}

#[test]
fn the_endpoints_node_answers_datagrams_of_every_size_itself_without_xdp() {
    if can_run("direct server return of datagrams by tc") {
        are_direct(&[DSR, "--no-xdp"]);
    }
}
