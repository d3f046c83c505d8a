//! ICMP errors: each quotes a packet as the one who sends the error saw it, and is told to the one who sent that packet as that
//! one knows it (ADR 28).

use weir_abi as abi;
use weir_abi::Addr;
use weir_core::model::Family;

use crate::control::backend_end;
use crate::edit::{Check, Edit, check_of_icmp, check_of_ipv4};
use crate::packet::{End, Key, Packet, TCP, addr4, addr6, is_transport};
use crate::{Model, Place, Reason, Reply, Route};

/// Extension headers that a quoted packet may have.
const EXTENSIONS: usize = 4;
/// Bytes of the ICMP header.
const HEADER: usize = 8;

/// The packet that an error is about.
#[derive(Clone, Copy, Debug)]
struct Quoted {
    key: Key,
    l3: usize,
    l4: usize,
    /// The error says that nobody is where it was sent.
    nobody: bool,
}

/// What an error becomes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    from: Addr,
    to: Addr,
    quoted: Quoted,
    /// What it quotes then.
    quotes: (End, End),
    /// Its client does better without.
    untold: bool,
    /// The stack would take it for a martian.
    pub(crate) route: Option<Route>,
}

const fn is_error(family: Family, kind: u8) -> bool {
    match family {
        Family::V4 => matches!(kind, 3 | 11 | 12),
        Family::V6 => matches!(kind, 1..=4),
    }
}

/// Net or host, no route or address: nobody is there. Other codes are somebody's word.
const fn is_nobody_there(family: Family, kind: u8, code: u8) -> bool {
    match family {
        Family::V4 => kind == 3 && code <= 1,
        Family::V6 => kind == 1 && matches!(code, 0 | 3),
    }
}

fn bytes<const N: usize>(frame: &[u8], at: usize) -> Result<[u8; N], Reason> {
    frame.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).ok_or(abi::REASON_MALFORMED)
}

/// Protocol, addresses, and the offset of the transport header.
type Ends = (u8, Addr, Addr, usize);

fn quoted_v4(frame: &[u8], l3: usize) -> Result<Ends, Reason> {
    let ip: [u8; 20] = bytes(frame, l3)?;
    if ip[0] >> 4 != 4 || ip[0] & 15 < 5 {
        return Err(abi::REASON_MALFORMED);
    }
    if u16::from_be_bytes([ip[6], ip[7]]) & 0x1fff != 0 {
        return Err(abi::REASON_FRAGMENT);
    }
    let [src, dst] = [12, 16].map(|at| addr4([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]));
    Ok((ip[9], src, dst, l3 + usize::from(ip[0] & 15) * 4))
}

fn quoted_v6(frame: &[u8], l3: usize) -> Result<Ends, Reason> {
    let ip: [u8; 40] = bytes(frame, l3)?;
    if ip[0] >> 4 != 6 {
        return Err(abi::REASON_MALFORMED);
    }
    let (mut protocol, mut at) = (ip[6], l3 + ip.len());
    for _ in 0..EXTENSIONS {
        if is_transport(protocol) {
            break;
        }
        let [next, length, high, low, ..] = bytes::<8>(frame, at)?;
        at += match protocol {
            44 if u16::from_be_bytes([high, low]) & 0xfff8 != 0 => return Err(abi::REASON_FRAGMENT),
            44 => 8,
            0 | 43 | 60 => (usize::from(length) + 1) * 8,
            _ => return Err(abi::REASON_NOT_TRANSPORT),
        };
        protocol = next;
    }
    let (src, dst) = (bytes(frame, l3 + 8)?, bytes(frame, l3 + 24)?);
    Ok((protocol, addr6(src), addr6(dst), at))
}

fn quoted(frame: &[u8], p: &Packet) -> Result<Quoted, Reason> {
    let [kind, code, ..] = bytes::<HEADER>(frame, p.l4)?;
    if !is_error(p.family, kind) {
        return Err(abi::REASON_NOT_TRANSPORT);
    }
    let l3 = p.l4 + HEADER;
    let (protocol, src, dst, l4) = match p.family {
        Family::V4 => quoted_v4(frame, l3)?,
        Family::V6 => quoted_v6(frame, l3)?,
    };
    // It is for who has sent that.
    if !is_transport(protocol) || p.dst != src {
        return Err(abi::REASON_NOT_TRANSPORT);
    }
    let [a, b, c, d] = bytes(frame, l4)?;
    let from = End { addr: src, port: u16::from_be_bytes([a, b]) };
    let to = End { addr: dst, port: u16::from_be_bytes([c, d]) };
    let nobody = is_nobody_there(p.family, kind, code);
    Ok(Quoted { key: Key { family: p.family, protocol, from, to }, l3, l4, nobody })
}

impl Model {
    /// What becomes of an ICMP packet on its way into the node (`inward`) or out of it.
    pub(crate) fn icmp(&self, frame: &[u8], p: &mut Packet, inward: bool, place: &Place<'_>) -> Result<Told, Reason> {
        let quoted = quoted(frame, p)?;
        let told = if inward {
            // Most errors are about an answer; the node's own ports are looked at last.
            self.told_to_backend(p, quoted).or_else(|| self.told_to_client(quoted, true))
        } else {
            self.told_to_client(quoted, false)
        };
        let (forward, mut told) = told.ok_or(abi::REASON_NOT_TRANSPORT)?;
        if told.untold {
            return Err(abi::REASON_STALE);
        }
        told.route = if forward { Some(place.route(p, told.to)?) } else { None };
        Ok(told)
    }

    /// About an answer: to the backend, and whether past the stack.
    fn told_to_backend(&self, p: &Packet, quoted: Quoted) -> Option<(bool, Told)> {
        let Key { from, to, protocol, .. } = quoted.key;
        if !self.control.may_be_frontend(from, protocol) {
            return None;
        }
        let (_, flow) = self.tables.flows.find(&quoted.key.turned())?;
        if !self.is_alive(&flow) {
            return None;
        }
        let backend = backend_end(&self.control.backend(flow.backend));
        let node = self.source(p.family, flow.tunnel);
        let leaves = flow.snat.is_some() || flow.direct;
        let teller = if leaves { node } else { p.src };
        let peer = match (flow.snat, flow.other_port) {
            (Some(port), _) => End { addr: node, port },
            (None, Some(port)) => End { addr: to.addr, port },
            (None, None) => to,
        };
        let told = Told { from: teller, to: backend.addr, quoted, quotes: (backend, peer), untold: false, route: None };
        Some((leaves, told))
    }

    /// About a client's packet: to the client, in the service's name.
    fn told_to_client(&self, quoted: Quoted, snat: bool) -> Option<(bool, Told)> {
        let (_, reply) = self.tables.replies.find(&quoted.key.turned()).filter(|(_, reply)| reply.snat == snat)?;
        if self.is_lent(&reply) {
            return None;
        }
        let quotes = (reply.client, reply.frontend);
        let untold = quoted.nobody && self.goes_elsewhere(&reply, quoted.key.protocol);
        Some((snat, Told { from: reply.frontend.addr, to: reply.client.addr, quoted, quotes, untold, route: None }))
    }

    /// Whether a SYN that did not reach its backend goes to another one when it comes again (ADR 21): a client that is told
    /// of the first gives up at once.
    fn goes_elsewhere(&self, reply: &Reply, protocol: u8) -> bool {
        let backend = self.control.backend(reply.backend);
        // One that is gone is not among them.
        let itself = u32::from(backend.generation == reply.generation);
        let may = protocol == TCP && reply.asked.is_some() && !reply.alone;
        may && self.control.service(backend.service).endpoints > itself
    }
}

impl Told {
    /// Writes it.
    pub(crate) fn write(&self, edit: &mut Edit, p: &Packet) {
        let Quoted { key, l3, l4, nobody: _ } = self.quoted;
        for (source, end) in [(true, self.quotes.0), (false, self.quotes.1)] {
            let check: Check = match key.family {
                // The quoted header's own checksum changes by as much as the address, so that ICMP's stays.
                Family::V4 => check_of_ipv4(l3),
                Family::V6 => check_of_icmp(p.l4),
            };
            edit.replace_addr(key.family, l3, source, end.addr, [check]);
            // Nobody can verify the transport's in a packet that was cut.
            edit.replace(l4 + if source { 0 } else { 2 }, &end.port.to_be_bytes(), [check_of_icmp(p.l4)]);
        }
        edit.replace_outer(p, true, self.from);
        edit.replace_outer(p, false, self.to);
        if self.route.is_some() {
            edit.decrement_ttl(p);
        }
    }
}
