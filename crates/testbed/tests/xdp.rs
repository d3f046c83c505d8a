//! A node's NIC is what a native XDP program expects of a real one: it sees full checksums, and what it sends back arrives.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use aya::programs::{Xdp, XdpMode};
use aya::{Ebpf, EbpfError, EbpfLoader};
use weir_testbed::{Netns, World, require_root};

/// The echo port, which the program answers.
const PORT: u16 = 7;

/// Compiles the reflecting program; `None`, loudly, without a compiler.
fn compile(object: &Path) -> Option<()> {
    let include = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reflect.bpf.c");
    let mut clang = Command::new("clang-19");
    clang.args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-idirafter", &include, "-c", source, "-o"]);
    match clang.arg(object).status() {
        Ok(status) => {
            assert!(status.success(), "{source} does not compile");
            Some(())
        }
        Err(error) => {
            eprintln!("SKIPPED: XDP on a node's NIC: clang-19: {error}; run `make bootstrap`");
            None
        }
    }
}

/// Puts the program on a node's NIC, until it is dropped.
fn reflect(netns: &Netns, object: &Path) -> Result<Ebpf, EbpfError> {
    let mut loaded = EbpfLoader::new().btf(None).load_file(object)?;
    if let Some(program) = loaded.program_mut("reflect_udp") {
        let program: &mut Xdp = program.try_into()?;
        program.load()?;
        netns.enter(|| program.attach("eth0", XdpMode::Driver))?;
    }
    Ok(loaded)
}

/// Sends a datagram and returns what comes back, which the kernel lets pass only with a right checksum.
fn echo(from: &Netns, server: SocketAddr, payload: &[u8]) -> std::io::Result<Vec<u8>> {
    from.enter(|| {
        let local: SocketAddr = if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
        let socket = UdpSocket::bind(local)?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.connect(server)?;
        socket.send(payload)?;
        let mut answer = vec![0; payload.len()];
        let length = socket.recv(&mut answer)?;
        answer.truncate(length);
        Ok(answer)
    })
}

#[test]
fn what_native_xdp_sends_back_reaches_clients_and_pods_with_a_right_checksum() {
    let directory = tempfile::tempdir().unwrap();
    let object = directory.path().join("reflect.bpf.o");
    if !require_root("XDP on a node's NIC") || compile(&object).is_none() {
        return;
    }
    for round_trip in [Duration::ZERO, Duration::from_millis(2)] {
        let world = World::builder().delay(round_trip).build().unwrap();
        let node = world.node(1);
        let _program = reflect(node.netns(), &object).unwrap();
        let pod = world.node(2).pod(1);
        for from in [world.client(), pod.netns()] {
            for ip in node.address().both() {
                for size in [1, 1400] {
                    let payload = vec![b'x'; size];
                    let answer = echo(from, SocketAddr::new(ip, PORT), &payload);
                    let case = format!("{size} bytes to {ip} from {}, delay {round_trip:?}", from.name());
                    assert_eq!(answer.unwrap_or_else(|error| panic!("{case}: {error}")), payload, "{case}");
                }
            }
        }
    }
}
