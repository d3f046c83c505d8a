//! One packet: a header, a body, padding, and a tag over all of it.
//!
//! ```text
//!  0 magic "We"      2 version   3 kind
//!  4 sender         12 receiver            the nodes, by NodeId
//! 20 epoch          28 sequence            of the sender: its start in ns since 1970, packets since then
//! 36 time                                  when it was sent, ns since 1970
//! 44 exchange                              drawn by the prober, repeated by the reply
//! 52 body, padding  …  tag (32)            HMAC-SHA-256 of everything before it
//! ```
//! All numbers are in network byte order. The receiver is part of it, so that a captured packet is of no use elsewhere.

use std::fmt;
use std::time::Duration;

use ring::digest;

use crate::body::FIXED;
use crate::counters::Refusal;
use crate::keys::{KeyRing, TAG};
use crate::wire::Reader;

/// The largest UDP payload, in bytes: with its headers it passes every IPv6 link (RFC 8200 §5: 1280).
pub const MAX_PACKET: usize = 1200;
/// The smallest one: no services.
pub const MIN_PACKET: usize = HEADER + FIXED + TAG;
/// What is not room for services.
pub(crate) const ENVELOPE: usize = MIN_PACKET;

const MAGIC: [u8; 2] = *b"We";
const VERSION: u8 = 1;
const HEADER: usize = 52;

/// A node: the first 8 bytes of its name's SHA-256.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct NodeId(pub u64);

impl NodeId {
    /// Of a node's name in Kubernetes.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let digest = digest::digest(&digest::SHA256, name.as_bytes());
        Self(digest.as_ref().first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes)))
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Question or answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Asks for a reply, which is never longer.
    Probe = 1,
    /// Answers one probe.
    Reply = 2,
}

/// What every packet begins with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Header {
    /// Question or answer.
    pub kind: Kind,
    /// Who sent it.
    pub sender: NodeId,
    /// Whom it is for.
    pub receiver: NodeId,
    /// The sender's start, in nanoseconds since 1970: a later one makes all packets of earlier ones worthless.
    pub epoch: u64,
    /// Counts the sender's packets, whoever they are for.
    pub sequence: u64,
    /// The sender's clock when it was made, since 1970. Up to the year 2554.
    pub time: Duration,
    /// Drawn for the probe, the same in its reply.
    pub exchange: u64,
}

/// A packet that one of the keys signed for this node.
#[derive(Clone, Copy, Debug)]
pub struct Opened<'a> {
    /// Its header.
    pub header: Header,
    /// Its body, with the padding behind it.
    pub body: &'a [u8],
    /// Which key signed it.
    pub key: usize,
}

/// Nanoseconds, at most the year 2554.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A signed packet: padded with zeros to `length` bytes, not cut if the body needs more.
#[must_use]
pub fn seal(header: &Header, body: &[u8], length: usize, keys: &KeyRing, key: usize) -> Vec<u8> {
    let Header { kind, sender, receiver, epoch, sequence, time, exchange } = *header;
    let mut packet = Vec::with_capacity(length.max(HEADER + body.len() + TAG));
    packet.extend(MAGIC);
    packet.extend([VERSION, kind as u8]);
    for number in [sender.0, receiver.0, epoch, sequence, nanos(time), exchange] {
        packet.extend(number.to_be_bytes());
    }
    packet.extend(body);
    packet.resize(packet.len().max(length.saturating_sub(TAG)), 0);
    let tag = keys.sign(key, &packet);
    packet.extend(tag.as_ref());
    packet
}

/// Authenticates a datagram. What needs no key is checked first, because it is cheap.
///
/// # Errors
/// The [`Refusal`] that applies: truncated, oversized, foreign, of unknown version or kind, misdirected, forged.
pub fn open<'a>(datagram: &'a [u8], me: NodeId, keys: &KeyRing) -> Result<Opened<'a>, Refusal> {
    if datagram.len() > MAX_PACKET {
        return Err(Refusal::Oversized);
    }
    if datagram.len() < MIN_PACKET {
        return Err(Refusal::Truncated);
    }
    let header = header(&mut Reader(datagram))?;
    if header.receiver != me {
        return Err(Refusal::Misdirected);
    }
    let (message, tag) = datagram.split_last_chunk::<TAG>().ok_or(Refusal::Truncated)?;
    let key = keys.verify(message, tag).ok_or(Refusal::Forged)?;
    Ok(Opened { header, body: &message[HEADER..], key })
}

fn header(reader: &mut Reader<'_>) -> Result<Header, Refusal> {
    let mut begin = || Some((reader.bytes::<2>()?, reader.u8()?, reader.u8()?));
    let (magic, version, kind) = begin().ok_or(Refusal::Truncated)?;
    if magic != MAGIC {
        return Err(Refusal::Foreign);
    }
    if version != VERSION {
        return Err(Refusal::UnknownVersion);
    }
    let kind = match kind {
        1 => Kind::Probe,
        2 => Kind::Reply,
        0 | 3.. => return Err(Refusal::UnknownKind),
    };
    let mut number = || reader.u64().ok_or(Refusal::Truncated);
    Ok(Header {
        kind,
        sender: NodeId(number()?),
        receiver: NodeId(number()?),
        epoch: number()?,
        sequence: number()?,
        time: Duration::from_nanos(number()?),
        exchange: number()?,
    })
}
