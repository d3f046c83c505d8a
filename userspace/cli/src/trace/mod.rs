//! `weir trace`: a synthetic packet through a second copy of the programs, on private copies of what they write. Nothing of
//! it is sent or kept: docs/adr/0034-rehearsals.md.

mod packet;
mod place;
mod story;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result};
use clap::Args;
use weir_abi as abi;
use weir_abi::names::{reason_name, verdict_name};
use weir_core::ops::FrontendKey;
use weir_datapath::{Action, Client, Hook, PinDir, Rehearsal, View};
use weir_telemetry::weights::Service;

use crate::agent;
use crate::exit::Answer;
use crate::index::Index;
use crate::interfaces;
use crate::output::{Kind, Output};
use packet::{Target, frame, summary};
use place::{HookArg, Known, Place, choose};
use story::{
    Seen, ServicePart, Step, Trace, action_name, backend_part, because, class_of, refused, service_part, words,
};

/// Below it a packet is as it came.
const FIRST_TRANSLATED: u32 = 16;

/// Options of `trace`.
#[derive(Args, Debug)]
pub(crate) struct TraceArgs {
    /// The client's address
    #[arg(value_name = "SRC")]
    source: IpAddr,
    /// What it connects to; TCP if no protocol is said
    #[arg(value_name = "DST:PORT[/PROTOCOL]")]
    destination: Target,
    /// The client's port: which endpoint a new flow gets depends on it
    #[arg(long, value_name = "PORT", default_value_t = 40_000, value_parser = clap::value_parser!(u16).range(1..))]
    sport: u16,
    /// The one hook to try [default: those that the client's packets pass]
    #[arg(long, value_enum, value_name = "HOOK")]
    hook: Option<HookArg>,
    /// The interface that the packet comes by [default: the one that leads to the client]
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// A packet from the middle of a connection in place of its first one
    #[arg(long)]
    later: bool,
}

/// Runs the command.
pub(crate) fn run(pins: &PinDir, args: &TraceArgs, socket: &Path, output: &Output) -> Result<Answer> {
    let view = View::open(pins.clone())?;
    let place = find_place(pins, args)?;
    let from = SocketAddr::new(args.source, args.sport);
    let frame = frame(from, args.destination, !args.later, place.interface.mac)?;
    let dump = view.dump()?;
    let index = Index::new(&dump);
    let to = args.destination.address;
    let protocol = args.destination.protocol.number();
    let frontend = FrontendKey { address: to.ip(), port: to.port(), protocol };
    let frontend = dump.frontends.iter().find(|(key, _)| *key == frontend).map(|(_, frontend)| *frontend);
    let client = Client { from, to, protocol };
    let (steps, seen, reason) = rehearse(pins, client, &place, &frame, frontend)?;

    let hook = place.hooks.last().copied().unwrap_or(Hook::NicIn);
    let slot = frontend.map(|frontend| frontend.service).or(seen.flow.map(|flow| flow.service));
    let kind = frontend.map_or(abi::KIND_CLUSTER_IP, |frontend| frontend.kind);
    let class = class_of(kind, hook);
    let service = slot.and_then(|slot| service_part(&index, slot, kind, hook));
    let told = service.as_ref().map(|service| told(socket, service, to.is_ipv6())).unwrap_or_default();
    let mut because = because(&index, &seen, class, &told);
    because.extend(slot.and_then(|slot| refused(&index, slot, reason)));
    let trace = Trace {
        interface: place.interface.name,
        packet: summary(&frame),
        steps,
        backend: seen.flow.as_ref().and_then(|flow| backend_part(&index, flow, class.0)),
        because,
        service,
    };
    let text = if output.is_document() { output.document(Kind::Trace, &trace)? } else { words(&trace) };
    output.print(&text)?;
    Ok(if verdict_name(reason as usize) == "translated" { Answer::Yes } else { Answer::No })
}

fn find_place(pins: &PinDir, args: &TraceArgs) -> Result<Place> {
    let (interfaces, links) = (interfaces::list()?, pins.link_names()?);
    let way = interfaces::way_to(args.source)?;
    let client = args.source.to_string();
    let known = Known { client: &client, way, interfaces: &interfaces, links: &links };
    Ok(choose(&known, args.interface.as_deref(), args.hook.map(Hook::from))?)
}

/// The hooks in turn, until one is not left as it was entered. Returns what was seen with them, and the last reason.
fn rehearse(
    pins: &PinDir,
    client: Client,
    place: &Place,
    frame: &[u8],
    frontend: Option<abi::Frontend>,
) -> Result<(Vec<Step>, Seen, u32)> {
    let (mut steps, mut seen, mut last) = (Vec::new(), Seen::default(), abi::REASON_NONE);
    for hook in &place.hooks {
        let rehearsal = Rehearsal::open(pins, *hook, client)?;
        seen.known = rehearsal.flow()?;
        seen.kept = frontend.map(|frontend| rehearsal.affinity(frontend.service)).transpose()?.flatten();
        let done = rehearsal
            .run(place.interface.index, frame)
            .with_context(|| format!("cannot try {hook} at {}", place.interface.name))?;
        let reason = done.reason as usize;
        steps.push(Step {
            hook: hook.to_string(),
            verdict: verdict_name(reason),
            reason: reason_name(reason),
            action: action_name(*hook, done.action),
            // The kernel tries programs on Ethernet frames alone, not the one of the same code that reads others.
            as_attached: if place.interface.headerless {
                None
            } else {
                rehearsal.is_attached(pins, place.interface.index)?
            },
            packet: summary(&done.frame),
        });
        last = done.reason;
        // What a program only reads or refuses is nobody's flow.
        seen.flow = if last >= FIRST_TRANSLATED { rehearsal.flow()? } else { None };
        if last >= FIRST_TRANSLATED || done.action != Action::Pass {
            break;
        }
    }
    Ok((steps, seen, last))
}

/// What the agent says of the shares of the service's class; nothing where it does not run, or does not steer it.
fn told(socket: &Path, service: &ServicePart, v6: bool) -> Vec<String> {
    let name = format!("{}/{}", service.namespace, service.name);
    let Ok(weights) = agent::weights(socket, Some(&name)) else { return Vec::new() };
    let is_it = |one: &&Service| format!("{}/{}", one.port, one.protocol) == service.port && (one.family == 6) == v6;
    let sets = weights.services.iter().filter(is_it).flat_map(|one| &one.sets);
    let ours = sets.filter(|set| set.classes.iter().any(|class| class == service.class));
    ours.flat_map(|set| set.reasons.iter().cloned()).collect()
}
