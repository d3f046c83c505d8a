//! What the writer and the programs are told of the node, by the options.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::sync::watch;
use weir_abi as abi;
use weir_abi::ticks::TickClock;
use weir_core::interfaces::Patterns;
use weir_core::ops::Capacity;
use weir_core::plan::PlanConfig;
use weir_core::source_ports::HostPorts;
use weir_core::table_sizes;
use weir_datapath::{AttachOptions, Datapath};

use crate::args::{DatapathOptions, ExternalModeArg, Options, PodSocketsArg};
use crate::host;
use crate::stage::CurrentStage;
use crate::writer::Settings;

/// After a connection has ended, how long a silence says that nothing of it comes again: a last FIN that was lost does within
/// 0.2, 0.4, 0.8, … seconds (RFC 6298).
const TCP_LINGER: Duration = Duration::from_secs(4);

/// How long the pieces of a packet may be under way, as hosts have it: `net.ipv4.ipfrag_time`.
const FRAGMENT_IDLE: Duration = Duration::from_secs(30);

/// What the writer does with the node.
///
/// # Errors
/// When the node does not tell what is asked of it.
pub(super) fn of(
    options: &Options,
    node: &str,
    cgroup: Option<PathBuf>,
    capacity: Capacity,
    datapath: &Datapath,
    (host_ports, stage): (watch::Receiver<HostPorts>, CurrentStage),
) -> Result<Settings> {
    let DatapathOptions {
        pin_dir: _,
        nic,
        pod_interface,
        ignore_interface,
        no_xdp,
        xdp_on_veth,
        no_tcx,
        pod_sockets,
        host_bypass,
        cgroup: _,
        snat_ports,
        drop_stale,
        udp_idle,
        tcp_idle,
        tcp_half_closed,
        flood_rate,
    } = options.datapath.clone();
    let ticks = weir_datapath::tick_clock()?;
    let default_flood_rate = table_sizes::flood_rate(capacity.openings, weir_datapath::running_cpus()?);
    let idle = |seconds: u32| ticks.ticks(Duration::from_secs(seconds.into())).max(1);
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    // Whoever serves Services by name leaves the others to another proxy, and their connections, too.
    let beside = stage.is_beside();
    Ok(Settings {
        plan: PlanConfig {
            node: node.into(),
            node_port_addresses: Vec::new(),
            carried_addresses: BTreeSet::new(),
            external_ips: !options.service.no_external_ips,
            spread: options.service.spread.into(),
            clock: ticks,
            handing_over: BTreeSet::new(),
        },
        nodeport_addresses: options.service.nodeport_addresses.clone(),
        patterns: Patterns { nics: nic, pods: pod_interface, ignored: ignore_interface },
        attach: AttachOptions { xdp: !no_xdp, tcx: !no_tcx, headerless: false, redirects: true },
        xdp_on_veth,
        cgroup,
        capacity,
        direct: options.service.external_mode == ExternalModeArg::Dsr,
        snat_ports: snat_ports.0..=snat_ports.1,
        host_ports,
        stage,
        config: abi::Config {
            netns_cookie: host::netns_cookie()?,
            hash_seed: hash_seed(datapath)?,
            held_until: 0,
            node4: abi::Addr::UNSET,
            node6: abi::Addr::UNSET,
            tunnel4: abi::Tunnel::NONE,
            tunnel6: abi::Tunnel::NONE,
            flags: flag(!drop_stale, abi::CONFIG_RESET_STALE)
                | flag(beside, abi::CONFIG_BESIDE)
                | flag(options.service.echo_replies, abi::CONFIG_ECHO)
                | flag(pod_sockets == PodSocketsArg::On, abi::CONFIG_POD_SOCKETS)
                | flag(host_bypass, abi::CONFIG_HOST_BYPASS)
                | abi::CONFIG_SETTLE
                // What came wrapped before the option was changed goes on.
                | flag(options.service.external_mode == ExternalModeArg::Dsr, abi::CONFIG_UNWRAP)
                | (datapath.config()?.flags & abi::CONFIG_UNWRAP)
                | options.service.masquerade.flags(),
            udp_idle: idle(udp_idle),
            tcp_idle: idle(tcp_idle),
            abi_version: abi::ABI_VERSION,
            fragment_idle: ticks.ticks(FRAGMENT_IDLE).max(1),
            service_networks: 0,
            flood: flood(flood_rate.unwrap_or(default_flood_rate), ticks),
            tcp_half_closed: idle(tcp_half_closed.min(tcp_idle)),
            tcp_linger: ticks.ticks(TCP_LINGER).max(1),
            held_pieces: capacity.held_pieces,
            service_network: [abi::Network::UNSET; abi::SERVICE_NETWORKS],
        },
    })
}

/// New flows in a tick that are a flood, from those in a second; 0 stays 0, which is never.
fn flood(rate: u32, ticks: TickClock) -> u32 {
    let tick = ticks.duration(1).as_millis();
    let flows = u128::from(rate) * tick / Duration::from_secs(1).as_millis();
    u32::try_from(flows).unwrap_or(u32::MAX).max(rate.min(1))
}

/// The cgroup whose sockets are translated, if any.
///
/// # Errors
/// When the option names none.
pub(super) fn cgroup_dir(option: Option<PathBuf>) -> Result<Option<PathBuf>> {
    match option {
        Some(dir) if dir.as_os_str() == "none" => Ok(None),
        Some(dir) if !dir.is_dir() => bail!("--cgroup {}: there is no such directory", dir.display()),
        Some(dir) if !host::is_cgroup(&dir) => {
            bail!("--cgroup {}: not a directory of a cgroup v2 hierarchy; see `mount -t cgroup2`", dir.display())
        }
        Some(dir) => Ok(Some(dir)),
        // Where there is none the writer says what that means.
        None => Ok(host::cgroup_root()),
    }
}

/// Drawn once per boot: another seed would send retransmissions to other backends.
fn hash_seed(datapath: &Datapath) -> Result<u64> {
    let known = datapath.config()?;
    if known.abi_version == abi::ABI_VERSION && known.hash_seed != 0 {
        return Ok(known.hash_seed);
    }
    Ok(u64::from_ne_bytes(host::random()?).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_as_many_flows_in_a_tick_as_in_its_part_of_a_second_and_never_with_0() {
        let [hz_250, hz_1000] = [4, 1].map(|jiffy| TickClock::new(Duration::from_millis(jiffy)));
        assert_eq!([flood(125_000, hz_250), flood(125_000, hz_1000)], [128_000, 128_000]);
        assert_eq!([flood(0, hz_1000), flood(1, hz_1000), flood(u32::MAX, hz_250)], [0, 1, u32::MAX]);
    }
}
