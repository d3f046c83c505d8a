//! `--external-mode dsr`: clients outside are answered by the endpoint's own node, with the address that they asked. Where it
//! does not take part, by the node that they asked.

mod datagrams;

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weir_abi as abi;
use weir_testbed::address::CLIENT;
use weir_testbed::delay::DelayLink;
use weir_testbed::serve::{self, Server};
use weir_testbed::{Cgroup, Pod, World, bpffs, wait};

use crate::harness::standalone::can_run;
use crate::harness::{Agent, SOON};

/// Of the pods' server here, and of the service.
const PORT: u16 = 9555;
const NODE_PORT: u16 = 30_955;
/// The same of datagrams.
const UDP_PORT: u16 = 9556;
const UDP_NODE_PORT: u16 = 30_956;
/// Ports of the service, in both families.
const BACKENDS: usize = 4;
/// An external address in each family, which the router sends to node 1.
const EXTERNAL: [&str; 2] = ["203.0.113.55", "2001:db8:203::55"];
/// Many full segments.
const LARGE: u64 = 1 << 20;
/// A connection that never hears of what fits stalls for longer.
const PATIENCE: Duration = Duration::from_secs(10);
const DSR: &str = "--external-mode=dsr";

/// Two nodes with a pod each. The only endpoint is that of node 2, and clients come to node 1.
struct Bed {
    // Agents go before the namespaces that they live in.
    agents: Vec<Agent>,
    files: Vec<PathBuf>,
    _server: Server,
    world: World,
    _turn: MutexGuard<'static, ()>,
}

/// One bed at a time: starting two agents is work for all cores.
static TURN: Mutex<()> = Mutex::new(());

impl Bed {
    /// Agents with options of their own.
    fn start(options: [&[&str]; 2]) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        World::sweep().unwrap();
        Cgroup::sweep().unwrap();
        bpffs::ensure_mounted().unwrap();
        let world = World::builder().nodes(2).pods_per_node(1).build().unwrap();
        let pod = world.node(2).pod(1);
        serve(&pod);
        let _server = serve::udp_echo(pod.netns(), &pod.name(), UDP_PORT).unwrap();
        let file = |suffix: &str, text: &str| {
            let file = std::env::temp_dir().join(format!("{}{suffix}", world.prefix()));
            fs::write(&file, text).unwrap();
            file
        };
        let (source, key) = (file("services.yaml", &yaml(&world)), file("mesh.key", &format!("{:064x}\n", 0x5eed)));
        let mut agents = Vec::new();
        for (number, options) in (1..).zip(options) {
            let source = ["--static".to_owned(), source.display().to_string()];
            let mut agent = Agent::prepared(&world, number, source, options);
            agent.set_option(&format!("--mesh-key-file={}", key.display()));
            agent.start_again(&world);
            agents.push(agent);
        }
        agents.iter().for_each(|agent| agent.await_ready(&world));
        Self { agents, files: vec![source, key], _server, world, _turn: turn }
    }

    /// Waits until node 1 sends to node 2's endpoint as it is, or as usual.
    fn await_direct(&self, direct: bool) {
        let view = self.agents[0].view();
        let look = || {
            let flags: Vec<u8> = view.dump().unwrap().backends.iter().map(|(_, backend)| backend.flags).collect();
            let as_wanted = |flags: &u8| (flags & abi::BACKEND_DIRECT != 0) == direct;
            if flags.len() == BACKENDS && flags.iter().all(as_wanted) { Ok(()) } else { Err(format!("{flags:?}")) }
        };
        let logs = || [0, 1].map(|node: usize| self.agents[node].log()).join("\n----\n");
        wait::until_some("the way to node 2", 2 * SOON, look).unwrap_or_else(|e| panic!("{e}\n{}", logs()));
    }

    /// What clients connect to.
    fn targets(&self) -> [SocketAddr; 4] {
        self.sockets(NODE_PORT, PORT)
    }

    fn sockets(&self, node_port: u16, port: u16) -> [SocketAddr; 4] {
        let [v4, v6] = self.world.node(1).address().both().map(|ip| SocketAddr::new(ip, node_port));
        let [external4, external6] = EXTERNAL.map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
        [v4, v6, external4, external6]
    }

    fn connect(&self, to: SocketAddr) -> io::Result<Talk> {
        self.world.client().enter(|| {
            let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(Talk(stream))
        })
    }

    /// Packets that one node's hooks for clients outside let go for a reason.
    fn packets(&self, node: usize, reason: u32) -> u64 {
        [abi::HOOK_XDP, abi::HOOK_NIC_INGRESS].map(|hook| self.agents[node - 1].packets(hook, reason)).iter().sum()
    }

    /// Bytes that passed a node's NIC so far, in both directions.
    fn carried(&self, node: u8) -> u64 {
        let mut ip = self.world.node(node).netns().command("ip");
        let output = ip.args(["-s", "-j", "link", "show", "eth0"]).output().unwrap();
        let links: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        ["rx", "tx"].iter().map(|way| links[0]["stats64"][way]["bytes"].as_u64().unwrap()).sum()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
    }
}

fn yaml(world: &World) -> String {
    let mut text = String::from("nodes:\n");
    for node in world.nodes() {
        let [v4, v6] = node.address().both();
        text += &format!("  - {{name: {}, addresses: [{v4}, \"{v6}\"]}}\n", node.name());
    }
    let [v4, v6] = EXTERNAL;
    text += &format!("services:\n  - name: web\n    loadBalancerIPs: [{v4}, \"{v6}\"]\n");
    text += &format!("    ports:\n      - {{name: tcp, port: {PORT}, targetPort: {PORT}, nodePort: {NODE_PORT}}}\n");
    text += "      - {name: udp, protocol: UDP, ";
    text += &format!("port: {UDP_PORT}, targetPort: {UDP_PORT}, nodePort: {UDP_NODE_PORT}}}\n    endpoints:\n");
    for ip in world.node(2).pod(1).address().both() {
        text += &format!("      - {{address: \"{ip}\", node: node2}}\n");
    }
    text
}

/// Serves connections in a pod: each question says how many bytes it has and how many the answer shall have, which begins with
/// the client's address.
fn serve(pod: &Pod) {
    let listener = pod.netns().enter(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT))).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || answer(&stream?));
        }
    });
}

fn answer(mut stream: &TcpStream) -> io::Result<()> {
    let IpAddr::V6(peer) = stream.peer_addr()?.ip() else { return Err(io::Error::other("a socket of IPv6")) };
    loop {
        let mut sizes = [0; 16];
        stream.read_exact(&mut sizes)?;
        let (asked, wanted) = sizes.split_at(8);
        let size = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes).map_err(io::Error::other);
        io::copy(&mut stream.take(size(asked)?), &mut io::sink())?;
        stream.write_all(&peer.octets())?;
        io::copy(&mut io::repeat(0x5a).take(size(wanted)?), &mut stream)?;
    }
}

/// A connection of the client's.
struct Talk(TcpStream);

impl Talk {
    /// Sends and receives so many bytes. Answers with whom the server saw.
    fn exchange(&mut self, up: u64, down: u64) -> io::Result<IpAddr> {
        let Self(stream) = self;
        stream.write_all(&[up.to_be_bytes(), down.to_be_bytes()].concat())?;
        io::copy(&mut io::repeat(0xa5).take(up), stream)?;
        let mut peer = [0; 16];
        stream.read_exact(&mut peer)?;
        let got = io::copy(&mut stream.take(down), &mut io::sink())?;
        assert_eq!(got, down);
        Ok(Ipv6Addr::from(peer).to_canonical())
    }
}

/// Large uploads and downloads go round node 1 on their way back, and nobody sees another address than it should. `size`: bytes of
/// the packets that are wrapped, about.
fn is_direct(bed: &Bed, size: u64) {
    for to in bed.targets() {
        let client = CLIENT.like(to.ip());
        let (told, wrapped) = (bed.packets(1, abi::REASON_TOO_BIG_TOLD), bed.packets(1, abi::REASON_DIRECT));
        let upload = bed.connect(to).and_then(|mut talk| talk.exchange(LARGE, 0));
        assert_eq!(upload.unwrap_or_else(|e| panic!("upload to {to}: {e}")), client, "whom the endpoint saw");
        assert!(bed.packets(1, abi::REASON_TOO_BIG_TOLD) > told, "{to}: a full packet does not fit with its wrapper");
        assert!(bed.packets(1, abi::REASON_DIRECT) - wrapped > LARGE / size, "{to}: all of it came wrapped");
        let before = bed.carried(1);
        let download = bed.connect(to).and_then(|mut talk| talk.exchange(0, LARGE));
        assert_eq!(download.unwrap_or_else(|e| panic!("download from {to}: {e}")), client);
        // What the client acknowledges comes in and goes out again.
        let carried = bed.carried(1) - before;
        assert!(carried < LARGE / 3, "{to}: {carried} bytes at the NIC of the node that was asked");
    }
    let backs = [1, 2].map(|node| bed.packets(node, abi::REASON_BACK));
    assert_eq!(backs, [0, 0], "no answer came to a source port of a node");
}

#[test]
fn the_endpoints_node_answers_clients_itself() {
    if !can_run("direct server return") {
        return;
    }
    let bed = Bed::start([&[DSR], &[DSR]]);
    bed.await_direct(true);
    is_direct(&bed, 1500);
}

#[test]
fn the_endpoints_node_answers_clients_itself_without_xdp() {
    if !can_run("direct server return by tc") {
        return;
    }
    let bed = Bed::start([&[DSR, "--no-xdp"], &[DSR, "--no-xdp"]]);
    bed.await_direct(true);
    is_direct(&bed, 1500);
}

#[test]
fn a_node_that_is_drained_gets_nothing_as_it_came_and_its_endpoints_are_reached_as_usual() {
    if !can_run("direct server return beside a node that is drained") {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let bed = Bed::start([&[DSR], &[DSR, &format!("--state-dir={}", state.path().display())]]);
    bed.await_direct(true);
    fs::write(state.path().join(weir_core::stage::FILE), "drain\n").unwrap();
    bed.await_direct(false);
    for to in bed.targets() {
        let seen = bed.connect(to).and_then(|mut talk| talk.exchange(1, 1));
        assert_eq!(seen.unwrap_or_else(|e| panic!("{to}: {e}")), bed.world.node(1).address().like(to.ip()));
    }
}

#[test]
fn clients_behind_a_link_without_headers_are_answered_by_the_endpoints_node_as_well() {
    const DEVICE: &str = "wg0";
    if !can_run("direct server return to clients behind a link without headers") {
        return;
    }
    let bed = Bed::start([&[DSR], &[DSR]]);
    let (node, client) = (bed.world.node(1).netns(), bed.world.client());
    let _link = DelayLink::headerless([(node, DEVICE), (client, DEVICE)]).unwrap();
    let up = format!("link set {DEVICE} up\n");
    node.ip(&(up.clone() + &format!("addr add 10.8.0.1/32 dev {DEVICE}\naddr add fd08::1/128 dev {DEVICE} nodad")))
        .unwrap();
    let ways = bed.targets().map(|to| format!("route replace {} dev {DEVICE} src {}\n", to.ip(), CLIENT.like(to.ip())));
    client.ip(&(up + &ways.concat())).unwrap();
    let attached = || {
        let links = bed.agents[0].view().pins().link_names().unwrap();
        links.iter().filter(|name| name.starts_with("nic_in-")).count() == 2
    };
    wait::until("programs on the link", SOON, attached).unwrap();
    bed.await_direct(true);
    is_direct(&bed, 1500);
}

#[test]
fn segments_that_cards_put_together_are_wrapped_and_unwrapped_as_they_are() {
    if !can_run("direct server return of segments") {
        return;
    }
    let bed = Bed::start([&[DSR, "--no-xdp"], &[DSR, "--no-xdp"]]);
    // The worlds have none, as wires.
    for node in [1, 2] {
        let (switch, port) = (format!("{}switch", bed.world.prefix()), format!("port{node}"));
        let words = ["netns", "exec", &switch, "ethtool", "-K", &port, "tx", "on", "tso", "on", "gso", "on"];
        assert!(Command::new("ip").args(words).output().unwrap().status.success());
    }
    bed.await_direct(true);
    is_direct(&bed, 60_000);
}

#[test]
fn an_endpoint_that_answers_by_itself_hears_of_a_narrow_link_to_the_client_by_the_node_that_was_asked() {
    if !can_run("a narrow link beside direct server return") {
        return;
    }
    let bed = Bed::start([&[DSR], &[DSR]]);
    bed.await_direct(true);
    let [v4, v6] = CLIENT.both();
    let routes = format!("route replace {v4}/32 dev eth1 mtu lock 1280\nroute replace {v6}/128 dev eth1 mtu lock 1280");
    bed.world.router().ip(&routes).unwrap();
    // The endpoint remembers it of a client, whatever that asks.
    for to in &bed.targets()[..2] {
        let told = bed.packets(1, abi::REASON_ERROR_TOLD);
        let seen = bed.connect(*to).and_then(|mut talk| talk.exchange(0, LARGE));
        assert_eq!(seen.unwrap_or_else(|e| panic!("{to}: {e}")), CLIENT.like(to.ip()));
        assert!(bed.packets(1, abi::REASON_ERROR_TOLD) > told, "{to}: nothing was too big");
    }
}

#[test]
fn a_node_that_takes_no_part_gets_flows_in_the_name_of_the_node_that_was_asked_and_one_that_leaves_keeps_what_it_has() {
    if !can_run("direct server return to some") {
        return;
    }
    let mut bed = Bed::start([&[DSR], &[]]);
    let by_node_1 = |bed: &Bed| {
        for to in bed.targets() {
            let seen = bed.connect(to).and_then(|mut talk| talk.exchange(LARGE, LARGE));
            let seen = seen.unwrap_or_else(|e| panic!("{to}: {e}"));
            assert_eq!(seen, bed.world.node(1).address().like(to.ip()));
        }
    };
    by_node_1(&bed);
    assert_eq!(bed.packets(1, abi::REASON_DIRECT), 0);

    bed.agents[1].stop();
    bed.agents[1].set_option(DSR);
    bed.agents[1].start_again(&bed.world);
    bed.await_direct(true);
    let mut open = bed.targets().map(|to| (to, bed.connect(to).unwrap()));
    for (to, talk) in &mut open {
        assert_eq!(talk.exchange(1, 1).unwrap(), CLIENT.like(to.ip()));
    }

    bed.agents[1].stop();
    bed.agents[1].remove_option("--external-mode");
    bed.agents[1].start_again(&bed.world);
    bed.agents[1].await_ready(&bed.world);
    bed.await_direct(false);
    for (to, talk) in &mut open {
        let seen = talk.exchange(LARGE, LARGE);
        assert_eq!(seen.unwrap_or_else(|e| panic!("{to}: {e}")), CLIENT.like(to.ip()), "the connection goes on");
    }
    by_node_1(&bed);
}

#[test]
fn what_does_not_go_together_is_refused_with_the_reason() {
    if !can_run("wrong options of direct server return") {
        return;
    }
    let mut bed = Bed::start([&[], &[]]);
    let agent = &mut bed.agents[0];
    agent.stop();
    agent.set_option(DSR);
    for (option, reason) in
        [("--service-proxy-name=weir", "beside another proxy"), ("--masquerade=external", "--masquerade hides them")]
    {
        agent.set_option(option);
        agent.start_again(&bed.world);
        assert!(!agent.await_end().success());
        assert!(agent.last_log().contains(reason), "{}", agent.log());
        agent.remove_option(option.split_once('=').unwrap().0);
    }
    agent.remove_option("--mesh-key-file");
    agent.start_again(&bed.world);
    assert!(!agent.await_end().success());
    assert!(agent.last_log().contains("set --mesh-key-file"), "{}", agent.log());
}
