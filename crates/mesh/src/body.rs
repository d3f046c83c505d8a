//! What a packet tells: how long its probe was held, what the sender spills to the receiver, and how busy it is.
//!
//! ```text
//!  0 held, µs         4 age of the report, ms (65535: no report)
//!  6 cpu, memory, network, pressure        each: share in 1/65534 (65535: unknown), age in ms
//! 22 capacity (f32)  26 bandwidth (f32)    30 services in all    32 spilled in all
//! 34 spilled here    35 services here      counts
//! 36 spilled: id, flows/s (f32)        …  services: id, flows/s (f32), open flows, spare flows/s (f32)
//!  … 1 if the sender unwraps           left out if it does not: padding and older versions say the same
//! ```

use std::time::Duration;

use weir_core::load::{NodeLoad, ServiceId, ServiceLoad};

use crate::counters::Refusal;
use crate::wire::{self, Reader};

/// Bytes before the lists.
pub(crate) const FIXED: usize = 36;
/// Bytes of a service that is spilled.
pub(crate) const SPILLED: usize = 12;
/// Bytes behind the lists of a sender that unwraps.
pub(crate) const UNWRAPS: usize = 1;
/// Bytes of a service that is reported.
pub(crate) const SERVICE: usize = 20;

const NO_REPORT: u16 = u16::MAX;

/// What a packet tells. Both kinds tell the same: what pads a probe for its reply is not wasted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// From the probe's arrival until this reply was made; zero in a probe. Up to 71 minutes, in microseconds.
    pub held: Duration,
    /// Services whose flows the sender spills to the receiver, with new flows per second, as many as fit. At most 255.
    pub spilled: Vec<(ServiceId, f64)>,
    /// How many of those there are. At most 65535.
    pub spilled_in_all: u16,
    /// Whether the sender takes clients' packets that are wrapped, and answers the clients itself.
    pub unwraps: bool,
    /// How busy the sender is. None if it does not know, or has not found out lately.
    pub report: Option<Report>,
}

/// How busy a node says it is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Since it was made. Up to 65 s, in milliseconds.
    pub age: Duration,
    /// The node itself.
    pub load: NodeLoad,
    /// Its services, as many as fit. At most 255.
    pub services: Vec<(ServiceId, ServiceLoad)>,
    /// How many it has. At most 65535.
    pub services_in_all: u16,
}

impl Body {
    /// Are these all the services that the sender spills to the receiver?
    pub(crate) fn spilled_is_complete(&self) -> bool {
        self.spilled.len() == usize::from(self.spilled_in_all)
    }

    /// As bytes, without padding. Numbers have the precision of the format.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Self { held, spilled, spilled_in_all, unwraps, report } = self;
        let known = report.as_ref();
        let no_services = Vec::new();
        let services = known.map_or(&no_services, |report| &report.services);
        let load = known.map(|report| report.load).unwrap_or_default();
        let count = |length: usize| u8::try_from(length).unwrap_or(u8::MAX);
        let (claims, entries) = (count(spilled.len()), count(services.len()));

        let mut bytes = Vec::with_capacity(FIXED + spilled.len() * SPILLED + services.len() * SERVICE);
        bytes.extend(u32::try_from(held.as_micros()).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend(known.map_or(NO_REPORT, |report| wire::millis(report.age, NO_REPORT - 1)).to_be_bytes());
        for share in [load.cpu, load.memory, load.network, load.pressure] {
            bytes.extend(wire::share(share));
        }
        bytes.extend(wire::amount(load.capacity));
        bytes.extend(wire::amount(load.bandwidth));
        bytes.extend(known.map_or(0, |report| report.services_in_all).to_be_bytes());
        bytes.extend(spilled_in_all.to_be_bytes());
        bytes.extend([claims, entries]);
        for (id, flows_per_second) in spilled.iter().take(claims.into()) {
            bytes.extend(id.0.to_be_bytes());
            bytes.extend(wire::amount(*flows_per_second));
        }
        for (id, load) in services.iter().take(entries.into()) {
            bytes.extend(id.0.to_be_bytes());
            bytes.extend(wire::amount(load.flows_per_second));
            bytes.extend(load.open_flows.to_be_bytes());
            bytes.extend(wire::amount(load.spare));
        }
        bytes.extend(unwraps.then_some(1));
        bytes
    }

    /// From bytes; what follows is padding.
    ///
    /// # Errors
    /// [`Refusal::Malformed`] if it ends too early, [`Refusal::Lie`] if a number cannot be true.
    pub fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        let mut reader = Reader(bytes);
        let fixed = Fixed::read(&mut reader).ok_or(Refusal::Malformed)?;
        let Fixed { held, age, load, services_in_all, spilled_in_all, spilled, services } = fixed;
        if spilled > spilled_in_all || services > services_in_all {
            return Err(Refusal::Malformed);
        }
        let spilled = (0..spilled).map(|_| claim(&mut reader)).collect::<Result<_, _>>()?;
        let services = (0..services).map(|_| service(&mut reader)).collect::<Result<_, _>>()?;
        let unwraps = reader.u8() == Some(1);
        let load = load.checked().map_err(|_lie| Refusal::Lie)?;
        let report = (age != NO_REPORT).then(|| Report {
            age: Duration::from_millis(age.into()),
            load,
            services,
            services_in_all,
        });
        Ok(Self { held, spilled, spilled_in_all, unwraps, report })
    }
}

/// Everything before the lists.
struct Fixed {
    held: Duration,
    age: u16,
    load: NodeLoad,
    services_in_all: u16,
    spilled_in_all: u16,
    spilled: u16,
    services: u16,
}

impl Fixed {
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            held: Duration::from_micros(reader.u32()?.into()),
            age: reader.u16()?,
            load: NodeLoad {
                cpu: reader.share()?,
                memory: reader.share()?,
                network: reader.share()?,
                pressure: reader.share()?,
                capacity: reader.amount()?,
                bandwidth: reader.amount()?,
            },
            services_in_all: reader.u16()?,
            spilled_in_all: reader.u16()?,
            spilled: reader.u8()?.into(),
            services: reader.u8()?.into(),
        })
    }
}

fn claim(reader: &mut Reader<'_>) -> Result<(ServiceId, f64), Refusal> {
    let mut read = || Some((ServiceId(reader.u64()?), reader.amount()?));
    let (id, flows_per_second) = read().ok_or(Refusal::Malformed)?;
    let load = ServiceLoad { flows_per_second, ..ServiceLoad::default() };
    Ok((id, load.checked().map_err(|_lie| Refusal::Lie)?.flows_per_second))
}

fn service(reader: &mut Reader<'_>) -> Result<(ServiceId, ServiceLoad), Refusal> {
    let mut read = || {
        let id = ServiceId(reader.u64()?);
        let load =
            ServiceLoad { flows_per_second: reader.amount()?, open_flows: reader.u32()?, spare: reader.amount()? };
        Some((id, load))
    };
    let (id, load) = read().ok_or(Refusal::Malformed)?;
    Ok((id, load.checked().map_err(|_lie| Refusal::Lie)?))
}
