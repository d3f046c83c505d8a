//! The frame that is sent, and what must have become of it.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Result, ensure};
use weir_core::model::Family;

use crate::{backend, bed};

const SYN: u8 = 2;
const ACK: u8 = 16;

/// A TCP segment without payload, padded to whole words. The wrapper fills in addresses and the source port; checksums
/// are updated and never looked at, so any will do.
pub(crate) fn tcp(family: Family, syn: bool) -> Vec<u8> {
    let mut frame = vec![0u8; 12];
    match family {
        Family::V4 => {
            frame.extend([0x08, 0x00]);
            frame.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
            frame.extend(Ipv4Addr::new(192, 0, 0, 0).octets());
            frame.extend(Ipv4Addr::from(bed::first_service(family)).octets());
        }
        Family::V6 => {
            frame.extend([0x86, 0xdd]);
            frame.extend([0x60, 0, 0, 0, 0, 20, 6, 64]);
            frame.extend(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0).octets());
            frame.extend(bed::service_address6(0).octets());
        }
    }
    let flags = if syn { SYN } else { ACK };
    frame.extend([0, 0, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0xff, 0xff, 0x12, 0x34, 0, 0]);
    frame.resize(frame.len().next_multiple_of(16), 0);
    frame
}

/// Whether the packet was sent to one of the backends, or left alone.
pub(crate) fn check(family: Family, frame: &[u8], translated: bool) -> Result<()> {
    let destination = match family {
        Family::V4 => &frame[30..34],
        Family::V6 => &frame[38..54],
    };
    let prefix: Vec<u8> = match backend(family, 0) {
        std::net::IpAddr::V4(ip) => ip.octets()[..2].to_vec(),
        std::net::IpAddr::V6(ip) => ip.octets()[..8].to_vec(),
    };
    let at_backend = destination.starts_with(&prefix);
    ensure!(at_backend == translated, "the packet went to {destination:?}, translated should be {translated}");
    Ok(())
}
