//! Where a test's programs listen on loopback. A port that was free a moment ago may be any connection's a moment later, for all of them come
//! from 127.0.0.1, and from higher ports: so each process has an address of its own there, and gives out each port once.

use std::net::Ipv4Addr;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Error, Result};

/// The first address of processes: a process's number has at most 22 bits (`PID_MAX_LIMIT`), and 127.0.0.1 is not among theirs.
const FIRST_ADDRESS: u32 = Ipv4Addr::new(127, 64, 0, 0).to_bits();

/// The first port that is given out, and the first one that is not: above are node ports, and the ports of connections.
const PORTS: [u16; 2] = [20_000, 30_000];

/// The address that is this process's alone.
#[must_use]
pub fn address() -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST_ADDRESS + process::id())
}

/// Ports, for TCP and UDP, that this process gives out to nobody else. At [`address`] nobody else's are. At other addresses they are no connection's,
/// but may be those of another process of tests: so that these seldom meet, each begins with another port.
///
/// # Errors
/// When this process has had all.
pub fn ports<const N: usize>() -> Result<[u16; N]> {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let room = u32::from(PORTS[1] - PORTS[0]);
    let mut ports = [0; N];
    for port in &mut ports {
        let taken = TAKEN.fetch_add(1, Ordering::Relaxed);
        if taken >= room {
            return Err(Error::Invalid(format!("all ports of {PORTS:?} are given out: run fewer tests in a process")));
        }
        // Below room, it fits.
        *port = PORTS[0] + u16::try_from(process::id().wrapping_add(taken) % room).unwrap_or_default();
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_port_is_given_out_once_and_can_be_listened_at_and_reached() {
        let [one, two] = ports().unwrap();
        let [three] = ports().unwrap();
        assert!(one != two && one != three && two != three, "{one} {two} {three}");
        let listener = TcpListener::bind((address(), one)).unwrap();
        let client = TcpStream::connect((address(), one)).unwrap();
        assert_eq!(listener.accept().unwrap().1, client.local_addr().unwrap());
    }

    #[test]
    fn connections_come_from_an_address_that_is_no_process_s() {
        let [port] = ports().unwrap();
        let _listener = TcpListener::bind((address(), port)).unwrap();
        let client = TcpStream::connect((address(), port)).unwrap();
        assert_eq!(client.local_addr().unwrap().ip(), Ipv4Addr::LOCALHOST);
    }
}
