//! Routes that CPUs remember, from bytes: questions to the kernel and its answers, as `struct bpf_fib_lookup` of linux/bpf.h has them.

use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_abi as abi;

use super::{Value, end, number, word};
use crate::index::protocol_name;

/// Offsets of fields that both have: bytes of numbers are the machine's, those of addresses and ports the network's.
const FAMILY: usize = 0;
const PROTOCOL: usize = 1;
const PORTS: [usize; 2] = [2, 4];
const MTU: usize = 6;
const INTERFACE: usize = 8;
const ADDRESSES: [usize; 2] = [16, 32];
const ADDRESS_BYTES: usize = size_of::<Ipv6Addr>();

/// Key and value of what a CPU has in one place; None where that is nothing.
pub(crate) fn route((cpu, bytes): (usize, &[u8])) -> Option<(Value, Value)> {
    if *bytes.first_chunk()? == [0; size_of::<u64>()] {
        return None;
    }
    let (asked, answer) = (bytes.get(offset_of!(abi::Route, asked)..)?, bytes.get(offset_of!(abi::Route, answer)..)?);
    let ends = [0, 1].map(|which| Some(end(address(asked, which)?, u16::from_be_bytes(field(asked, PORTS[which])?))));
    let [Some(source), Some(destination)] = ends else { return None };
    let key = vec![
        ("cpu", number(cpu as u64)),
        ("source", source),
        ("destination", destination),
        ("protocol", word(protocol_name(asked[PROTOCOL]))),
    ];
    let value = vec![
        ("nextHop", word(address(answer, 1)?.to_string())),
        ("ifindex", number(u32::from_ne_bytes(field(answer, INTERFACE)?))),
        ("mtu", number(u16::from_ne_bytes(field(answer, MTU)?))),
    ];
    Some((Value::Fields(key), Value::Fields(value)))
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// The source or the destination.
fn address(bytes: &[u8], which: usize) -> Option<IpAddr> {
    let address: [u8; ADDRESS_BYTES] = field(bytes, ADDRESSES[which])?;
    Some(if i32::from(bytes[FAMILY]) == libc::AF_INET6 {
        Ipv6Addr::from(address).into()
    } else {
        Ipv4Addr::from(*address.first_chunk()?).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_shows_between_whom_and_by_which_next_hop_and_an_empty_place_nothing() {
        let mut bytes = vec![0; size_of::<abi::Route>()];
        assert_eq!(route((0, &bytes)), None);
        bytes[0] = 7;
        for (at, to) in [(offset_of!(abi::Route, asked), 12), (offset_of!(abi::Route, answer), 1)] {
            bytes[at..][..6].copy_from_slice(&[2, 6, 0, 80, 1, 187]);
            bytes[at + MTU..][..2].copy_from_slice(&1500_u16.to_ne_bytes());
            bytes[at + INTERFACE..][..4].copy_from_slice(&3_u32.to_ne_bytes());
            bytes[at + ADDRESSES[0]..][..4].copy_from_slice(&[172, 30, 0, 11]);
            bytes[at + ADDRESSES[1]..][..4].copy_from_slice(&[172, 30, 0, to]);
        }
        let (key, value) = route((1, &bytes)).unwrap();
        assert_eq!(key.to_string(), "cpu=1 source=172.30.0.11:80 destination=172.30.0.12:443 protocol=TCP");
        assert_eq!(value.to_string(), "nextHop=172.30.0.1 ifindex=3 mtu=1500");
    }
}
