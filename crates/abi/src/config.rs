//! What a configuration begins with that is not an agent's.

use crate::{ABI_VERSION, Addr, Config, Network, SERVICE_NETWORKS, Tunnel};

impl Tunnel {
    /// There is none.
    pub const NONE: Self = Self { addr: Addr::UNSET, ifindex: 0, pad: 0 };
}

impl Config {
    /// A node without addresses, networks and flags, on which nothing is ever a flood and no piece is held. Times are those that
    /// agents have by default, of ticks of a second. Tests and benches set what they are about beside it.
    pub const PLAIN: Self = Self {
        netns_cookie: 0,
        hash_seed: 0,
        held_until: 0,
        node4: Addr::UNSET,
        node6: Addr::UNSET,
        tunnel4: Tunnel::NONE,
        tunnel6: Tunnel::NONE,
        flags: 0,
        udp_idle: 300,
        tcp_idle: 7200,
        abi_version: ABI_VERSION,
        fragment_idle: 30,
        service_networks: 0,
        flood: u32::MAX,
        tcp_half_closed: 3600,
        tcp_linger: 3,
        held_pieces: 0,
        service_network: [Network::UNSET; SERVICE_NETWORKS],
    };
}
