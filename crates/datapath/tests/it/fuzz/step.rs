//! What happens in a scenario, decoded from bytes: each step from as many of its own, so that what is left of an entry when steps
//! are dropped is an entry again.

use arbitrary::{Result, Unstructured};
use weir_core::source_ports::PortSet;
use weir_model::Hook;

use super::odd::Odd;
use super::world::{World, flags, ports};

/// Bytes of a world, the last of which says what is odd in it, and of a step.
pub(super) const WORLD_BYTES: usize = 128;
pub(super) const STEP_BYTES: usize = 40;

/// What a segment of TCP does, or a chunk of SCTP; datagrams are all alike.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Segment {
    Syn,
    Data,
    Fin,
    Reset,
    SynAck,
    Nothing,
}

/// What is wrong or unusual about a packet.
#[derive(Clone, Debug, Default)]
pub(super) struct Shape {
    pub(super) ttl: Option<u8>,
    pub(super) vlans: usize,
    /// Words of IPv4 options, or extension headers of IPv6.
    pub(super) extra: usize,
    pub(super) fragment: Option<Piece>,
    pub(super) payload: usize,
    pub(super) no_checksum: bool,
    /// IPv4: routers may cut it.
    pub(super) may_be_cut: bool,
    /// What the IP header says instead of its length.
    pub(super) length: Option<u16>,
    /// Another node has wrapped it: which one, and for which endpoint.
    pub(super) wrapped: Option<(usize, usize)>,
    /// Bytes that are set to a value, by their offset.
    pub(super) set: Vec<(usize, u8)>,
    /// Bytes that are missing at the end.
    pub(super) cut: usize,
    /// How far TCP's sequence and acknowledgement numbers are from the usual ones.
    pub(super) numbers: (u32, u32),
    /// Flags of TCP that are turned over.
    pub(super) flags: u8,
    /// Words of TCP's options.
    pub(super) tcp_options: usize,
    /// IPv6: there is an authentication header in front of the others.
    pub(super) is_authenticated: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) offset: u16,
    pub(super) more: bool,
    pub(super) id: u16,
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    /// A client's packet.
    Client {
        service: usize,
        to: usize,
        client: usize,
        port: u16,
        segment: Segment,
        hook: Option<Hook>,
        shape: Shape,
    },
    /// A packet of a flow that a client used before.
    Again {
        of: usize,
        segment: Segment,
        hook: Option<Hook>,
        shape: Shape,
    },
    /// A client's SYN again, so many times, each after a second without an answer.
    Insist {
        of: usize,
        times: usize,
    },
    /// A backend's answer to what came out.
    Answer {
        of: usize,
        segment: Segment,
        hook: Option<Hook>,
        shape: Shape,
    },
    /// An ICMP error about what went in or came out.
    Error {
        of: usize,
        about_output: bool,
        kind: u8,
        code: u8,
        /// Who tells.
        from: usize,
        cut: usize,
        hook: Hook,
        shape: Shape,
    },
    /// An echo request.
    Echo {
        service: usize,
        to: usize,
        client: usize,
        code: u8,
        hook: Hook,
        shape: Shape,
    },
    /// A frame as it came out, somewhere else.
    Replay {
        of: usize,
        hook: Hook,
    },
    /// Time passes: ticks, and units of delay.
    Pass {
        ticks: u32,
        delay: u32,
    },
    /// An endpoint goes or comes.
    TurnOver {
        service: usize,
        endpoint: usize,
    },
    Steer {
        service: usize,
        weight: u8,
        spill: u16,
    },
    Frontend {
        service: usize,
        number: usize,
        there: bool,
    },
    Flags(u32),
    Ports(PortSet),
    /// A full table loses its entries: 0 to 3 are flows, openings, replies, awaited.
    Evict(usize),
}

/// A scenario.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) world: World,
    pub(super) steps: Vec<Step>,
}

impl Scenario {
    pub(super) fn decode(bytes: &[u8]) -> Self {
        let (world, rest) = bytes.split_at(WORLD_BYTES.min(bytes.len()));
        let mut u = Unstructured::new(&world[..world.len().min(WORLD_BYTES - 1)]);
        // Choices of what has no more bytes are the first ones.
        let world = World::decode(&mut u).expect("no choice is empty");
        let odd = Odd::of(bytes);
        let step = |chunk: &[u8]| {
            let step = Step::decode(&mut Unstructured::new(chunk)).expect("no choice is empty");
            odd.vary(step, chunk)
        };
        Self { world: World { odd, ..world }, steps: rest.chunks(STEP_BYTES).map(step).collect() }
    }
}

fn segment(u: &mut Unstructured<'_>, usual: Segment) -> Result<Segment> {
    let others = [usual, usual, Segment::Syn, Segment::Data, Segment::Data, Segment::Fin, Segment::Reset];
    let odd = [Segment::SynAck, Segment::Nothing];
    if u.ratio(1, 12)? { u.choose(&odd).copied() } else { u.choose(&others).copied() }
}

fn hook(u: &mut Unstructured<'_>) -> Result<Hook> {
    u.choose(&[Hook::NicIn, Hook::Xdp, Hook::NicOut, Hook::PodIn, Hook::PodOut]).copied()
}

fn odd_hook(u: &mut Unstructured<'_>) -> Result<Option<Hook>> {
    Ok(if u.ratio(1, 12)? { Some(hook(u)?) } else { None })
}

impl Shape {
    fn decode(u: &mut Unstructured<'_>) -> Result<Self> {
        let mut shape = Self { payload: u.int_in_range(0..=9)?, ..Self::default() };
        if u.ratio(2, 3)? {
            return Ok(shape);
        }
        shape.make_odd(u)?;
        while !u.ratio(3, 4)? {
            shape.make_odd(u)?;
        }
        Ok(shape)
    }

    /// The shapes of what comes: of every second first piece some others before it, one of which has another tag.
    pub(super) fn with_early(&self) -> Vec<Self> {
        let piece = |offset, more| Some(Piece { offset, more, id: 2 });
        let early = match &self.fragment {
            Some(Piece { offset: 0, more: true, id: 2 }) => vec![
                Self { fragment: piece(185, false), ..self.clone() },
                Self { fragment: piece(2, true), vlans: self.vlans + 1, ..self.clone() },
                Self { fragment: piece(1, true), ..self.clone() },
            ],
            Some(_) | None => Vec::new(),
        };
        [early, vec![self.clone()]].concat()
    }

    /// One thing more is wrong or unusual.
    fn make_odd(&mut self, u: &mut Unstructured<'_>) -> Result<()> {
        match u.int_in_range(0..=11u8)? {
            10 | 11 => self.wrapped = Some((u.int_in_range(0..=3)?, u.int_in_range(0..=3)?)),
            8 => self.may_be_cut = true,
            9 => {
                self.length = Some(*u.choose(&[0, 20, 1501, 60000])?);
                let piece = Piece { offset: 185, more: false, id: 1 };
                self.fragment = if u.arbitrary()? { Some(piece) } else { None };
            }
            0 => self.ttl = Some(u.int_in_range(0..=2)?),
            1 => self.vlans = u.int_in_range(1..=3)?,
            2 => {
                self.extra = u.int_in_range(1..=8)?;
                self.payload = if self.extra == 8 { 1460 } else { self.payload };
            }
            3 | 4 => {
                let (offset, more) = *u.choose(&[(0, true), (1, true), (185, false), (1, false), (8191, true)])?;
                self.fragment = Some(Piece { offset, more, id: u.int_in_range(1..=2)? });
            }
            5 => {
                self.payload = u.int_in_range(1440..=1500)?;
                self.may_be_cut = u.arbitrary()?;
            }
            6 => self.no_checksum = true,
            _ => {
                for _ in 0..u.int_in_range(0..=3)? {
                    self.set.push((u.int_in_range(0..=90)?, u.arbitrary()?));
                }
                self.cut = if u.ratio(1, 2)? { u.int_in_range(0..=60)? } else { 0 };
            }
        }
        Ok(())
    }
}

impl Step {
    fn decode(u: &mut Unstructured<'_>) -> Result<Self> {
        let of = |u: &mut Unstructured<'_>| u.int_in_range(0..=7usize);
        Ok(match u.int_in_range(0..=33u8)? {
            0..=8 => Self::Client {
                service: u.int_in_range(0..=3)?,
                to: if u.ratio(1, 4)? { u.int_in_range(0..=8)? } else { u.int_in_range(0..=3)? },
                client: if u.ratio(1, 8)? { u.int_in_range(0..=7)? } else { u.int_in_range(0..=2)? },
                port: if u.ratio(1, 24)? { 0 } else { u.int_in_range(40000..=40003)? },
                segment: segment(u, Segment::Syn)?,
                hook: odd_hook(u)?,
                shape: Shape::decode(u)?,
            },
            9..=14 => Self::Again {
                of: of(u)?,
                segment: segment(u, Segment::Data)?,
                hook: odd_hook(u)?,
                shape: Shape::decode(u)?,
            },
            15..=20 => Self::Answer {
                of: of(u)?,
                segment: if u.ratio(1, 2)? { Segment::SynAck } else { segment(u, Segment::Data)? },
                hook: odd_hook(u)?,
                shape: Shape::decode(u)?,
            },
            21 | 22 => Self::Error {
                of: of(u)?,
                about_output: u.arbitrary()?,
                kind: *u.choose(&[3, 11, 12, 1, 2, 4, 8])?,
                code: 0,
                from: 0,
                cut: u.int_in_range(0..=50)?,
                hook: hook(u)?,
                shape: Shape::decode(u)?,
            },
            23 => Self::Replay { of: of(u)?, hook: hook(u)? },
            24 | 25 => Self::Pass {
                ticks: *u.choose(&[0, 0, 1, 4, 9, 11, 31, 65, 301, 7201])?,
                // Even, as that leaves no time at zero, which has a meaning of its own.
                delay: *u.choose(&[200_000, 1_000_000, 0])?,
            },
            26 | 27 => Self::TurnOver { service: u.int_in_range(0..=3)?, endpoint: u.int_in_range(0..=7)? },
            28 => Self::Steer {
                service: u.int_in_range(0..=3)?,
                weight: u.arbitrary()?,
                spill: *u.choose(&[0, u16::MAX, 30000])?,
            },
            29 => Self::Frontend {
                service: u.int_in_range(0..=3)?,
                number: u.int_in_range(0..=4)?,
                there: u.arbitrary()?,
            },
            30 => {
                if u.arbitrary()? {
                    Self::Flags(flags(u)?)
                } else {
                    Self::Ports(ports(u)?)
                }
            }
            31 => Self::Echo {
                service: u.int_in_range(0..=3)?,
                to: u.int_in_range(0..=8)?,
                client: u.int_in_range(0..=7)?,
                code: u8::from(u.ratio(1, 8)?),
                hook: hook(u)?,
                shape: Shape::decode(u)?,
            },
            32 => Self::Insist { of: of(u)?, times: u.int_in_range(1..=5)? },
            _ => Self::Evict(u.int_in_range(0..=3)?),
        })
    }
}
